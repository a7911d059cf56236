//! `--figure NAME.pdf|svg`: a chart as vectors in a plain style, for a paper, and its data as a CSV file.
//!
//! - [`axis`]: round ticks and their labels; [`draw`]: a chart as lines, areas and texts on paper.
//! - [`svg`], [`pdf`]: two ways to write those down; [`text`]: how wide a text is.
//!
//! The page draws the same charts for a screen (`page/*.js`).

mod axis;
mod draw;
mod pdf;
mod svg;
mod text;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

use crate::chart::learning::Drawn;
use crate::chart::series::RunMetrics;
use crate::chart::{Chart, detail};
use crate::methods;
use crate::metrics::Metric;
use crate::run::RunDirectory;

/// The requested files: each figure, and its data.
///
/// # Errors
/// 2: no such chart, or neither PDF nor SVG.
pub fn files(
    runs: &[RunDirectory],
    metrics: &[(String, Vec<Metric>)],
    paths: &[PathBuf],
) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let methods = methods::of(runs);
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
    let mut files = Vec::new();
    let mut tables = BTreeSet::new();
    for path in paths {
        let chart = named(&charts, path, runs.len())?;
        let drawing = draw::chart(chart);
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => svg::bytes(&drawing),
            Some("pdf") => pdf::bytes(&drawing),
            _ => {
                return Err(Failure::usage(format!("--figure {}: neither .pdf nor .svg", path.display()))
                    .hint("the end of the name says what it is: success.pdf, success.svg"));
            }
        };
        files.push((path.clone(), bytes));
        let data = path.with_extension("csv");
        if tables.insert(data.clone()) {
            files.push((data, chart.csv()?));
        }
    }
    Ok(files)
}

/// The chart that a file is named after.
fn named<'a>(charts: &'a [Chart], path: &Path, runs: usize) -> Result<&'a Chart> {
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
