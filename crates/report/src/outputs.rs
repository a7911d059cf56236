//! `report RUN…`: reads the runs once, then writes each output, a file at once or not at all.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::{file, stage, write};

use crate::arguments::Runs;
use crate::csv;
use crate::figure;
use crate::metrics::{self, Metric};
use crate::page;
use crate::run_directory::RunDirectory;
use crate::tensorboard;

/// Steps whose sampled episodes a page shows.
const SHOWN_STEPS: usize = 8;

/// Reads the runs and writes the requested output.
///
/// # Errors
/// No run directory, no such chart (2, 65), a broken stream (65), I/O (74).
pub fn run(arguments: &Runs) -> Result<()> {
    let mut runs = read_runs(&arguments.runs, SHOWN_STEPS, &arguments.show)?;
    let metrics: Vec<(String, Vec<Metric>)> =
        runs.iter().map(|run| (run.name.clone(), metrics::run_metrics(run))).collect();
    if let Some(path) = &arguments.csv {
        put(path, &csv::table(&metrics)?, arguments.quiet)?;
    }
    if let Some(folder) = &arguments.tensorboard {
        for run in &runs {
            let folder = folder.join(&run.name);
            fs::create_dir_all(&folder)
                .map_err(|error| Failure::io(format!("{}: {error}", folder.display())))?;
            append_rest(&folder.join(tensorboard::FILE_NAME), &tensorboard::events(run), arguments.quiet)?;
        }
    }
    if !arguments.figure.is_empty() {
        let put = |path: &Path, bytes: &[u8]| put(path, bytes, arguments.quiet);
        figure::write(&runs, &metrics, &arguments.figure, put)?;
    }
    if let Some(path) = page_path(arguments) {
        put(&path, page::render(&mut runs, &metrics)?.as_bytes(), arguments.quiet)?;
    }
    Ok(())
}

/// Reads runs that are named once each, with sampled episodes of `shown_steps` steps and the episodes
/// `wanted`.
///
/// # Errors
/// No run directory, a run that is named twice (2, 65), a broken stream (65), I/O (74).
pub fn read_runs(
    directories: &[PathBuf],
    shown_steps: usize,
    wanted: &[String],
) -> Result<Vec<RunDirectory>> {
    let directories = &without_outputs(directories)[..];
    if let Some(duplicate) = find_duplicate(directories) {
        return Err(Failure::usage(format!("{}: this run is there twice", duplicate.display())));
    }
    let mut runs = Vec::new();
    for (directory, name) in directories.iter().zip(run_names(directories)) {
        runs.push(RunDirectory::read(directory, name, shown_steps, wanted).map_err(|failure| {
            match failure.code {
                record::failure::USAGE => failure,
                _ if directories.len() > 1 && !failure.message.contains(&*directory.to_string_lossy()) => {
                    failure.at(directory.display())
                }
                _ => failure,
            }
        })?);
    }
    Ok(runs)
}

/// The runs without the pages and tables of other reports, which a pattern as `runs/study/*` also names.
fn without_outputs(named: &[PathBuf]) -> Vec<PathBuf> {
    let is_output = |path: &&PathBuf| {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        ["html", "csv", "pdf", "svg"].contains(&kind) && path.is_file()
    };
    match named.iter().all(|path| is_output(&path)) {
        true => named.to_vec(),
        false => named.iter().filter(|path| !is_output(path)).cloned().collect(),
    }
}

/// Where the page goes, if one is wanted.
fn page_path(arguments: &Runs) -> Option<PathBuf> {
    match (&arguments.html, arguments.runs.as_slice()) {
        (Some(path), _) => Some(path.clone()),
        (None, _) if arguments.writes_more() => None,
        (None, [run]) if run.is_file() => Some(run.with_extension("html")),
        (None, [run]) => Some(run.join("report.html")),
        (None, _) => Some(PathBuf::from("report.html")),
    }
}

/// A run that is named twice, perhaps by different paths.
fn find_duplicate(runs: &[PathBuf]) -> Option<&PathBuf> {
    let whole: Vec<PathBuf> = runs.iter().map(|run| canonical(run)).collect();
    (1..runs.len()).find(|&place| whole[..place].contains(&whole[place])).map(|place| &runs[place])
}

fn canonical(run: &Path) -> PathBuf {
    fs::canonicalize(run).unwrap_or_else(|_| run.to_path_buf())
}

/// Names of the runs: the shortest ends of their paths that tell them apart.
fn run_names(runs: &[PathBuf]) -> Vec<String> {
    let whole: Vec<PathBuf> = runs.iter().map(|run| canonical(run)).collect();
    let last = |path: &Path, parts: usize| -> String {
        let all: Vec<_> = path.iter().map(|part| part.to_string_lossy()).filter(|part| part != "/").collect();
        all[all.len().saturating_sub(parts)..].join("/")
    };
    (1..16)
        .map(|parts| whole.iter().map(|path| last(path, parts)).collect::<Vec<String>>())
        .find(|names| (1..names.len()).all(|place| !names[..place].contains(&names[place])))
        .unwrap_or_else(|| whole.iter().map(|path| path.display().to_string()).collect())
}

/// Appends what a file lacks of `bytes`, for readers that have it open; a file that begins otherwise is
/// replaced.
fn append_rest(path: &Path, bytes: &[u8], quiet: bool) -> Result<()> {
    let failure = |error: io::Error| Failure::io(format!("{}: {error}", path.display()));
    let before = match file::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return put(path, bytes, quiet),
        read => read.map_err(failure)?,
    };
    let Some(rest) = bytes.strip_prefix(&*before) else {
        return put(path, bytes, quiet);
    };
    fs::File::options().append(true).open(path).and_then(|mut file| file.write_all(rest)).map_err(failure)
}

/// Writes a file, as [`file::put`] does; `-` is stdout.
fn put(path: &Path, bytes: &[u8], quiet: bool) -> Result<()> {
    if path == Path::new("-") {
        return write::stdout(bytes);
    }
    file::put(path, bytes)?;
    if !quiet {
        stage::note("report", format!("wrote {} ({} kB)", path.display(), bytes.len().div_ceil(1000)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_names_are_the_shortest_distinct_paths() {
        let of = |paths: &[&str]| run_names(&paths.iter().map(PathBuf::from).collect::<Vec<PathBuf>>());
        assert_eq!(of(&["/no/where/a"]), ["a"]);
        assert_eq!(of(&["/no/x/a", "/no/y/a"]), ["x/a", "y/a"]);
        assert_eq!(of(&["/no/x/a", "/no/x/b"]), ["a", "b"]);
        let same = [PathBuf::from("/no/a"), PathBuf::from("/no/b"), PathBuf::from("/no/a")];
        assert_eq!(find_duplicate(&same), Some(&same[2]));
    }
}
