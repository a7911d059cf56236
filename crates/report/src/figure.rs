//! `--figure NAME.pdf`: a chart for a paper, drawn by matplotlib (`figure.py`), and its data as a CSV file.
//!
//! Why matplotlib: it embeds fonts as publishers ask for, and another style needs only the script and the
//! numbers. The page draws the same charts for a screen (`page/*.js`).

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use record::child;
use record::failure::{Failure, Result};
use record::splice::json;

use crate::chart::learning::Drawn;
use crate::chart::series::RunMetrics;
use crate::chart::{Chart, detail};
use crate::methods;
use crate::metrics::Metric;
use crate::run_directory::RunDirectory;

const SCRIPT: &str = include_str!("figure.py");
const FORMATS: [&str; 3] = ["pdf", "svg", "png"];

/// Writes the data of each figure, then the figure.
///
/// # Errors
/// 2: no such chart, or no such format; 69: no Python with matplotlib, after the data is written; 1: it
/// failed; 74: I/O.
pub fn write(
    runs: &[RunDirectory],
    metrics: &[(String, Vec<Metric>)],
    paths: &[PathBuf],
    put: impl Fn(&Path, &[u8]) -> Result<()>,
) -> Result<()> {
    let methods = methods::group_runs(runs);
    let tables: Vec<RunMetrics> = runs
        .iter()
        .zip(metrics)
        .map(|(run, (_, metrics))| RunMetrics::new(run, metrics, usize::MAX))
        .collect();
    let drawn = Drawn::new(&tables, &methods);
    let mut charts = drawn.success();
    charts.extend(drawn.measured());
    if let [table] = tables.as_slice() {
        charts.extend([detail::groups(table), detail::rewards(table), detail::cost(table)].concat());
    }
    let figures =
        paths.iter().map(|path| Ok((path, find_chart(&charts, path, runs.len())?, format_of(path)?)));
    for (path, chart, format) in figures.collect::<Result<Vec<_>>>()? {
        put(&path.with_extension("csv"), &chart.csv()?)?;
        put(path, &draw(chart, format)?)?;
    }
    Ok(())
}

fn format_of(path: &Path) -> Result<&'static str> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    FORMATS.into_iter().find(|format| *format == extension).ok_or_else(|| {
        Failure::usage(format!("--figure {}: not .pdf, .svg or .png", path.display()))
            .hint("the end of the name says what it is: success.pdf")
    })
}

/// The chart that a file is named after.
fn find_chart<'a>(charts: &'a [Chart], path: &Path, runs: usize) -> Result<&'a Chart> {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    charts.iter().find(|chart| chart.name == stem).ok_or_else(|| {
        let names: Vec<&str> = charts.iter().map(|chart| chart.name.as_str()).collect();
        let more = if runs > 1 { "; of a single run there are more" } else { "" };
        Failure::usage(format!("--figure {}: there is no chart called {stem}", path.display())).hint(format!(
            "a figure is called by its chart: {}{more}",
            if names.is_empty() { "nothing is measured yet".to_owned() } else { names.join(", ") }
        ))
    })
}

fn draw(chart: &Chart, format: &str) -> Result<Vec<u8>> {
    let failure = |error: std::io::Error| Failure::work(format!("python3: {error}"));
    let missing = |cause: &str| {
        Failure::unavailable(format!("--figure: {cause}")).hint(
            "figures are drawn by matplotlib: pip install matplotlib; without it take the SVG or the data below the chart on the page",
        )
    };
    let child = Command::new("python3")
        .args(["-c", SCRIPT, format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing("there is no python3"),
        _ => failure(error),
    })?;
    let data = json(chart)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A script that ended before it read everything says why on stderr.
        let _ = stdin.write_all(data.as_bytes());
    }
    let output = child::wait_with_output(child).map_err(failure)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    match stderr.trim_end().lines().next_back().unwrap_or_default() {
        line if line.starts_with("ModuleNotFoundError") => Err(missing(line)),
        line => Err(Failure::work(format!("figure {}: {line}", chart.name))),
    }
}
