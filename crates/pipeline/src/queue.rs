//! Trains several runs in turn, for `seeds` and `[sweep]`. Finished runs are skipped, unfinished ones resume,
//! and failures are listed at the end.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

use crate::checks;
use crate::evaluation::say;
use crate::file::RunRequest;
use crate::flags::Given;
use crate::held;
use crate::prepare::{PreparedRun, absolute};
use crate::processes;
use crate::programs::Programs;
use crate::runs::{self, Progress};
use crate::settings::Settings;
use crate::sweep;
use crate::words::quoted;

/// The last value given for a flag.
fn given<'a>(asked: &'a RunRequest, name: &str) -> Option<&'a str> {
    asked.flags.iter().rfind(|given| given.name == name).map(|given| given.value.as_str())
}

/// Trains all runs.
///
/// # Errors
/// A run has an invalid value (exit 2, before any run begins); some runs failed (exit code of the first).
pub fn run(asked: &RunRequest) -> Result<()> {
    if given(asked, "evaluate").is_some() {
        return Err(Failure::usage("--evaluate plays policies once, and not for several seeds or values")
            .hint("leave out seeds and [sweep]"));
    }
    processes::heed_signals()?;
    let folder = folder(asked)?;
    let all = sweep::combinations(&asked.axes)?;
    let mut runs = Vec::new();
    for (name, values) in &all {
        let run = folder.join(name);
        let mut flags = [&asked.flags[..], values].concat();
        flags.push(Given { name: "run", value: run.display().to_string() });
        let of_this = |mut failure: Failure| {
            if !failure.message.is_empty() {
                failure.message = format!("{name}: {}", failure.message);
            }
            failure
        };
        let settings = Settings::new(&flags).map_err(of_this)?;
        let launcher = checks::check(&settings).map_err(of_this)?;
        let mut programs = Programs::find()?;
        programs.set_up(&settings, launcher)?;
        if settings.is_on("setup") {
            return Ok(());
        }
        runs.push((name.as_str(), PreparedRun::new(programs, settings, launcher).map_err(of_this)?));
    }
    let mut failed = Vec::new();
    for (place, (name, prepared)) in (1..).zip(&runs) {
        let path = prepared.path().display();
        let outcome = if is_done(prepared) {
            say(&format!("run {place} of {}: {path} is done", runs.len()))?;
            bound(prepared)
        } else {
            say(&format!("run {place} of {}: {path}", runs.len()))?;
            crate::train(prepared, None)
        };
        if let Err(failure) = outcome {
            processes::wait_if_stopping();
            if !failure.message.is_empty() {
                record::stage::report("pipeline.sh", &failure);
            }
            failed.push((*name, failure.code));
        }
    }
    compare(&folder, &runs)?;
    let Some((_, code)) = failed.first() else { return Ok(()) };
    let names: Vec<String> = failed.iter().map(|(name, code)| format!("{name} (exit code {code})")).collect();
    let mut failure =
        Failure::work(format!("{} of {} runs failed: {}", failed.len(), runs.len(), names.join(", "))).hint(
            "see above what each said; the same command goes on with them, and skips those that are done",
        );
    failure.code = *code;
    Err(failure)
}

/// The folder that holds the runs.
fn folder(asked: &RunRequest) -> Result<PathBuf> {
    let folder = match (given(asked, "run"), &asked.name) {
        (Some(run), _) => run.to_owned(),
        (None, Some(name)) => format!("runs/{name}"),
        (None, None) => format!("runs/{}-seeds", given(asked, "env").unwrap_or("plan-path")),
    };
    let folder = absolute(Path::new(&folder))?;
    if folder.join("run.json").exists() {
        let shown = folder.display().to_string();
        return Err(Failure::usage(format!("{shown} is a run, and not a folder for several"))
            .hint(format!("choose another: --run {}", quoted(&format!("{shown}-runs")))));
    }
    let page = folder.join("report.html");
    if page.is_symlink() || page.exists() && runs::found(&folder, 1).is_empty() {
        return Err(Failure::usage(format!("{} is not the page of runs", page.display()))
            .hint("it would be overwritten: choose another --run"));
    }
    Ok(folder)
}

fn is_done(prepared: &PreparedRun) -> bool {
    let settings = prepared.plan().settings;
    let tokens = settings.is_given("tokens").then(|| settings.number("tokens"));
    Progress::of(prepared.path()).is_done(settings.number("steps"), tokens, settings.number("eval_every") > 0)
}

/// Checks that a finished run was made with the same values.
fn bound(prepared: &PreparedRun) -> Result<()> {
    let values = prepared.values(false)?;
    match held::compare(prepared.path(), &values)? {
        Some(found) => found.refuse(prepared.path(), &values, false),
        None => Ok(()),
    }
}

/// Draws one report page of all runs that have a step.
fn compare(folder: &Path, runs: &[(&str, PreparedRun)]) -> Result<()> {
    let begun: Vec<String> = runs
        .iter()
        .map(|(_, prepared)| prepared.path())
        .filter(|path| Progress::of(path).last.is_some_and(|step| step > 0))
        .map(|path| path.display().to_string())
        .collect();
    let Some((_, first)) = runs.first().filter(|_| begun.len() > 1) else { return Ok(()) };
    let page = folder.join("report.html").display().to_string();
    let words: Vec<&str> = begun.iter().map(String::as_str).chain(["--html", &page, "--quiet"]).collect();
    match first.plan().programs.run("report", &words) {
        Ok(()) => {
            say(&format!("{} runs are in {}, one report of all in {page}", begun.len(), folder.display()))
        }
        Err(_) => say(&format!("{} runs are in {}", begun.len(), folder.display())),
    }
}
