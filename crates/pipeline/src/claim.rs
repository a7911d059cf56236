//! Whose a folder is. A run writes and removes only in a folder that is new, empty or its own, and never through a link.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::stage::printable;
use serde_json::Value;

use crate::disk;
use crate::quote::quoted;
use crate::runs::Progress;
use crate::settings::Settings;
use crate::values::{Pair, PolicyChoice};

/// What a run that was killed before its `run.json` leaves.
const BEGUN: [&str; 2] = ["lock", "run.json.tmp"];
/// The folders of a run.
const FOLDERS: [&str; 9] =
    ["stages", "steps", "policies", "warmup", "eval", "reference", "baselines", "data", "report.cache"];
/// The files of a run; each may have a `.tmp` beside it.
const FILES: [&str; 8] = [
    "run.json",
    "defaults.json",
    "config.toml",
    "workflow.toml",
    "lock",
    "failed",
    "tasks.drawn",
    "report.html",
];

/// Refuses a folder that is not a run's, unless it is new or empty, and a run with links or devices in place of its files.
///
/// # Errors
/// Usage, before anything is written or removed; I/O (exit 74).
pub fn check(run: &Path) -> Result<()> {
    let shown = printable(&run.display().to_string());
    let entries = match fs::read_dir(run) {
        Err(error) if error.kind() == ErrorKind::NotFound && !run.is_symlink() => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Failure::usage(format!("--run {shown}: not a folder")).hint("choose another --run"));
        }
        read => read.map_err(|error| disk::failed("read", run, &error))?,
    };
    strange(run)?;
    let is_begun = |name: &std::ffi::OsStr| BEGUN.iter().any(|begun| name == *begun);
    if entries.flatten().all(|entry| is_begun(&entry.file_name())) || is_run(run) {
        return Ok(());
    }
    let is_elsewhere = "a run has a folder of its own: choose another --run";
    Err(match Progress::of(run).last {
        Some(last) => Failure::usage(format!("{shown} has steps up to {last} and no run.json of a run"))
            .hint(format!("run.json says how they were made: restore it; {is_elsewhere}")),
        None => Failure::usage(format!("{shown} is not empty, and not a run: nothing is changed there"))
            .hint(format!("{is_elsewhere}, such as {}", quoted(&format!("{shown}/run")))),
    })
}

/// Returns true if a run keeps its values in this folder. A damaged file of a run that has policies is reported later.
fn is_run(run: &Path) -> bool {
    let Ok(bytes) = record::file::read(&run.join("run.json")) else { return false };
    let values: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    values["build"].is_string() || run.join("policies/done").is_file()
}

/// Refuses links and devices where a run has its folders and files: they would be written through, or waited for.
pub fn strange(run: &Path) -> Result<()> {
    let own = |name: &str| {
        let whole = name.strip_suffix(".tmp").unwrap_or(name);
        FILES.contains(&whole) || FOLDERS.contains(&name) || is_copy_of_best(name)
    };
    let names = if run.is_dir() { disk::names(run)? } else { Vec::new() };
    let mut paths: Vec<PathBuf> = names.iter().filter(|name| own(name)).map(|name| run.join(name)).collect();
    while let Some(path) = paths.pop() {
        let kind = path.symlink_metadata().map_err(|error| disk::failed("read", &path, &error))?.file_type();
        let name = path.file_name().unwrap_or_default();
        // A policy's links (a kill between link and rename leaves `.current`, which the next publish removes), the named pipe of
        // resident stages, and devices that lose nothing, such as /dev/null.
        let is_made = kind.is_symlink() && ["current", "base", ".current"].iter().any(|link| name == *link)
            || kind.is_fifo() && name == "updates"
            || path.metadata().is_ok_and(|found| found.file_type().is_char_device());
        if kind.is_dir() {
            paths.extend(disk::names(&path)?.iter().map(|name| path.join(name)));
        } else if !kind.is_file() && !is_made {
            let what = if kind.is_symlink() { "a link" } else { "a device or a named pipe" };
            return Err(Failure::usage(format!(
                "{}: {what}, in place of a file or folder of a run",
                path.display()
            ))
            .hint("remove it, or put there what it leads to: a run does not write through links"));
        }
    }
    Ok(())
}

/// Refuses a policy from inside the run, whose folder of policies is made anew.
pub fn is_outside(settings: &Settings, run: &Path) -> Result<()> {
    let Ok(run) = run.canonicalize() else { return Ok(()) };
    let given = match &settings.policies {
        PolicyChoice::Named(pairs) => pairs.clone(),
        _ => vec![Pair { name: "--model".to_owned(), value: settings.model.clone() }],
    };
    let is_inside = |what: &str| Path::new(what).canonicalize().is_ok_and(|path| path.starts_with(&run));
    match given.iter().find(|pair| is_inside(&pair.value)) {
        Some(pair) => Err(Failure::usage(format!("{pair}: a run cannot begin from its own folder"))
            .hint("choose another --run: its policies are copied there")),
        None => Ok(()),
    }
}

/// Returns true for `best-NNNNNN`, a copy of the best policies.
pub fn is_copy_of_best(name: &str) -> bool {
    name.strip_prefix("best-").is_some_and(|step| step.len() >= 6 && step.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    const RUN: (&str, &str) = ("run.json", r#"{"env": "plan-path", "build": "rollout 0"}"#);

    #[test]
    fn only_a_new_an_empty_and_a_runs_own_folder_are_taken() {
        check(Path::new("/nowhere/run")).unwrap();
        for files in [&[][..], &[("lock", ""), ("run.json.tmp", "{")], &[RUN, ("mine", "")]] {
            check(folder(files).path()).unwrap();
        }
        for (files, said) in [
            (&[("stages/a.py", "")][..], "is not empty, and not a run"),
            (&[("run.json", "mine"), ("config.toml", "mine")], "is not empty, and not a run"),
            (&[("run.json", "{}")], "is not empty, and not a run"),
            (
                &[("lock", ""), ("steps/000000/done", ""), ("steps/000002/done", "")],
                "has steps up to 2 and no",
            ),
        ] {
            let folder = folder(files);
            let failure = check(folder.path()).unwrap_err();
            assert!(
                failure.code == 2 && failure.hint.is_some() && failure.message.contains(said),
                "{failure:?}"
            );
        }
        let file = folder(&[("run", "")]);
        assert!(check(&file.path().join("run")).unwrap_err().message.ends_with("not a folder"));
    }

    #[test]
    fn a_runs_own_names_are_no_links_and_no_pipes() {
        let names = [
            "stages",
            "policies/tool",
            "steps/000001/samples.jsonl",
            "report.html",
            "run.json.tmp",
            "best-000004",
        ];
        for name in names {
            let folder = folder(&[
                RUN,
                ("elsewhere/x", "mine"),
                ("policies/a/step-000000/x", ""),
                ("steps/000001/x", ""),
            ]);
            check(folder.path()).unwrap();
            symlink("step-000000", folder.path().join("policies/a/current")).unwrap();
            symlink("step-000001", folder.path().join("policies/a/.current")).unwrap();
            symlink("best-000003", folder.path().join("best")).unwrap();
            symlink("elsewhere", folder.path().join("mine")).unwrap();
            check(folder.path()).unwrap();
            symlink(folder.path().join("elsewhere"), folder.path().join(name)).unwrap();
            let failure = check(folder.path()).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(&format!("{name}: a link")), "{failure:?}");
            fs::remove_file(folder.path().join(name)).unwrap();
            let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
            assert!(made.success());
            assert!(check(folder.path()).unwrap_err().message.contains("named pipe"));
        }
    }
}
