//! `--runs`: lists the runs in a folder with their state, steps, best evaluation and size.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::stage::printable;

use crate::claim;
use crate::disk;
use crate::evaluation::{self, Best};
use crate::file;
use crate::programs::Programs;
use crate::settings::Settings;

/// How deep to search for runs: a sweep's runs are one folder deeper.
const DEPTH: usize = 3;

/// The progress of a run, judged by its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    run: PathBuf,
    /// The last committed step; 0 before training.
    pub last: Option<u64>,
}

impl Progress {
    /// Reads a run's progress; `last` is `None` if the folder is not a run.
    pub fn of(run: &Path) -> Progress {
        let steps = fs::read_dir(run.join("steps")).into_iter().flatten().flatten();
        let committed = steps.filter_map(|entry| {
            let step: u64 = entry.file_name().to_str()?.parse().ok()?;
            entry.path().join("done").is_file().then_some(step)
        });
        Progress { run: run.to_path_buf(), last: committed.max() }
    }

    /// Returns true if the run reached its number of steps or tokens and has its last evaluation.
    pub fn is_done(&self, steps: u64, tokens: Option<u64>, evaluates: bool) -> bool {
        let Some(last) = self.last else { return false };
        let metrics = |step: u64| self.run.join(format!("steps/{step:06}/metrics.jsonl"));
        let used = || -> u64 { (1..=last).filter_map(|step| evaluation::tokens(&metrics(step)).ok()).sum() };
        let has_ended = last >= steps || tokens.is_some_and(|tokens| used() >= tokens);
        has_ended && (!evaluates || self.run.join(format!("eval/step-{last:06}.jsonl")).is_file())
    }
}

/// Returns true if a process holds the run's lock.
fn is_running(run: &Path) -> bool {
    File::open(run.join("lock"))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// Records why the last command on a run failed, or with `None` that it has not.
pub fn has_failed(run: &Path, failure: Option<&Failure>) -> Result<()> {
    let file = run.join("failed");
    match failure {
        Some(failure) => disk::write(&file, &format!("{}\n", failure.message)),
        None => disk::remove(&file),
    }
}

/// The recorded settings of a run.
fn settings(run: &Path) -> Option<Settings> {
    Settings::new(&file::of_run(run).ok()?).ok()
}

/// Disk usage of a folder in bytes. A file of several names counts once in all the runs of a list.
fn size(folder: &Path, seen: &mut BTreeSet<(u64, u64)>) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let Ok(facts) = entry.metadata() else { return 0 };
            if facts.nlink() > 1 && facts.is_file() && !seen.insert((facts.dev(), facts.ino())) {
                return 0;
            }
            let below = if facts.is_dir() { size(&entry.path(), seen) } else { 0 };
            below + facts.blocks() * 512
        })
        .sum()
}

fn shown_size(bytes: u64) -> String {
    let mut size = bytes as f64 / 1e3;
    for unit in ["kB", "MB", "GB"] {
        if size < 999.5 {
            return if size < 9.95 { format!("{size:.1} {unit}") } else { format!("{size:.0} {unit}") };
        }
        size /= 1e3;
    }
    format!("{size:.1} TB")
}

/// The runs in a folder and below it, in order.
pub fn found(folder: &Path, depth: usize) -> Vec<PathBuf> {
    if folder.join("run.json").is_file() {
        return vec![folder.to_path_buf()];
    }
    if depth == 0 {
        return Vec::new();
    }
    let mut folders: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.iter().flat_map(|folder| found(folder, depth - 1)).collect()
}

fn row(programs: &Programs, folder: &Path, run: &Path, seen: &mut BTreeSet<(u64, u64)>) -> [String; 5] {
    let name = run.strip_prefix(folder).ok().filter(|name| *name != Path::new("")).unwrap_or(run);
    let (name, size) = (printable(&name.display().to_string()), shown_size(size(run, seen)));
    if claim::strange(run).is_err() {
        return [name, "damaged".to_owned(), "-".to_owned(), "-".to_owned(), size]; // its pipes would be waited for
    }
    let progress = Progress::of(run);
    let settings = settings(run);
    let is_done = settings.as_ref().is_some_and(|settings| {
        let tokens = settings.is_given("tokens").then(|| settings.number("tokens"));
        progress.is_done(settings.number("steps"), tokens, settings.number("eval_every") > 0)
    });
    let state = match (is_running(run), is_done) {
        (true, _) => "running",
        (false, true) => "done",
        (false, false) if run.join("failed").exists() => "failed",
        (false, false) => "stopped",
    };
    let of = settings.map_or(String::new(), |settings| format!("/{}", settings.number("steps")));
    let best = Best::of(evaluation::evaluations(programs, &evaluation::files_before(run, u64::MAX)));
    let best = best.map_or("-".to_owned(), |best| format!("{:.3} at {}", best.success, best.step));
    [name, state.to_owned(), format!("{}{of}", progress.last.unwrap_or_default()), best, size]
}

/// Prints a row for each run.
pub fn print(programs: &Programs, folder: &Path) -> Result<()> {
    let runs = found(folder, DEPTH);
    if runs.is_empty() {
        return Err(Failure::usage(format!("--runs {}: no run is there", folder.display()))
            .hint("name the folder that your runs are in; ./pipeline.sh makes them in runs"));
    }
    let mut table = vec![["run", "state", "steps", "best", "size"].map(str::to_owned)];
    let mut seen = BTreeSet::new();
    table.extend(runs.iter().map(|run| row(programs, folder, run, &mut seen)));
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for [run, state, steps, best, size] in &table {
        let [a, b, c, d, e] = [widths[0], widths[1], widths[2], widths[3], widths[4]];
        text.push_str(&format!("{run:<a$}  {state:<b$}  {steps:>c$}  {best:<d$}  {size:>e$}\n"));
    }
    record::write::stdout(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: &[u64], evaluated: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for step in steps {
            let step = folder.path().join(format!("steps/{step:06}"));
            fs::create_dir_all(&step).unwrap();
            fs::write(step.join("done"), "").unwrap();
            let metrics = "{\"type\":\"end\",\"stage\":\"update\",\"after\":[{\"stage\":\"rollout\",\"counts\":{\"completion_tokens\":50}}]}";
            fs::write(step.join("metrics.jsonl"), metrics).unwrap();
        }
        fs::create_dir_all(folder.path().join("steps/000099")).unwrap(); // not committed
        fs::create_dir_all(folder.path().join("steps/000002 copy")).unwrap();
        fs::create_dir_all(folder.path().join("eval")).unwrap();
        fs::write(folder.path().join(format!("eval/step-{evaluated:06}.jsonl")), "").unwrap();
        folder
    }

    #[test]
    fn a_run_has_ended_by_steps_or_tokens_and_with_its_evaluation() {
        let folder = run(&[0, 1, 2], 2);
        let progress = Progress::of(folder.path());
        assert_eq!(progress.last, Some(2));
        assert!(progress.is_done(2, None, true) && progress.is_done(2, None, false));
        assert!(!progress.is_done(3, None, true));
        assert!(progress.is_done(3, Some(100), true) && !progress.is_done(3, Some(101), true));
        let unevaluated = run(&[0, 1, 2], 1);
        assert!(!Progress::of(unevaluated.path()).is_done(2, None, true));
        assert!(!Progress::of(Path::new("/nowhere")).is_done(0, None, false));
    }

    #[test]
    fn a_file_of_two_runs_counts_once() {
        let [first, second] = [run(&[0], 0), run(&[0], 0)];
        let (large, link) = (first.path().join("base"), second.path().join("base"));
        fs::write(&large, vec![1; 1 << 20]).unwrap();
        fs::hard_link(&large, &link).unwrap();
        let mut seen = BTreeSet::new();
        assert!(size(first.path(), &mut seen) >= 1 << 20);
        assert!(size(second.path(), &mut seen) < 1 << 20);
    }

    #[test]
    fn sizes_are_read_at_a_glance() {
        for (bytes, shown) in [(0, "0.0 kB"), (4096, "4.1 kB"), (31_400_000, "31 MB"), (999_600, "1.0 MB")] {
            assert_eq!(shown_size(bytes), shown);
        }
        assert_eq!(shown_size(1_260_000_000), "1.3 GB");
    }
}
