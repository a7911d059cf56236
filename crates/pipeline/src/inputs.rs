//! The files that a run begins with: policies, a workflow, a file of problems. The run keeps copies, so that it goes on wherever
//! it is copied, and `run.json` has their digests, so that it does not go on with others.

use std::fs;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::disk;
use crate::settings::Settings;
use crate::values::{Pair, PolicyChoice, is_server};

/// A file that a flag names.
#[derive(Debug)]
struct NamedFile {
    /// Its name in `run.json`.
    name: &'static str,
    given: PathBuf,
    /// The run's copy.
    kept: PathBuf,
}

/// The prefix of their names in `run.json`.
pub const FILE: &str = "file ";

fn files(settings: &Settings, run: &Path) -> Vec<NamedFile> {
    let workflow = workflow_file(settings).map(|file| NamedFile {
        name: "file workflow",
        given: file.to_path_buf(),
        kept: run.join("workflow.toml"),
    });
    let data = data_file(settings).map(|file| NamedFile {
        name: "file data",
        given: file.to_path_buf(),
        kept: run.join("data").join(file.file_name().unwrap_or_default()),
    });
    workflow.into_iter().chain(data).collect()
}

/// The file that `--workflow` names, if it names one.
pub fn workflow_file(settings: &Settings) -> Option<&Path> {
    let name = settings.workflow.as_deref().filter(|_| settings.env_command.is_none());
    name.filter(|name| name.ends_with(".toml")).map(Path::new)
}

/// The file that `--set data=FILE` names, if it names one.
fn data_file(settings: &Settings) -> Option<&Path> {
    let data = &settings.set.iter().rev().find(|setting| setting.name == "data")?.value;
    (data != "shipped" && settings.env_command.is_none()).then_some(Path::new(data))
}

/// The path of the workflow file: the run's copy, or the given one until there is a copy.
pub fn workflow(settings: &Settings, run: &Path) -> Option<String> {
    let file = files(settings, run).into_iter().find(|file| file.name == "file workflow")?;
    Some(file.path().display().to_string())
}

/// `NAME=VALUE` of a setting, with the run's copy of a file.
pub fn setting(settings: &Settings, run: &Path, setting: &Pair) -> String {
    let file = files(settings, run).into_iter().find(|file| file.name == "file data");
    match file.filter(|_| setting.name == "data") {
        Some(file) => format!("data={}", file.path().display()),
        None => setting.to_string(),
    }
}

impl NamedFile {
    fn path(&self) -> &Path {
        if self.kept.is_file() { &self.kept } else { &self.given }
    }

    /// The file to begin or go on with: the given one, which may not differ from the copy, or the copy if that is all there is.
    fn source(&self) -> Result<&Path> {
        match (self.given.metadata(), self.kept.is_file()) {
            (Ok(found), _) if found.is_file() => Ok(&self.given),
            (Err(_), true) => Ok(&self.kept),
            (Err(error), false) => Err(disk::failed("read", &self.given, &error)),
            (Ok(_), _) => Err(Failure::usage(format!("{}: not a file", self.given.display()))
                .hint("a run keeps a copy of it: name a file")),
        }
    }
}

/// The digests of all inputs, by their names in `run.json`. `is_held(name)` is true for policies that are not looked at again,
/// because the run has its own.
///
/// # Errors
/// An input cannot be read (exit 74), or is no file (exit 2).
pub fn digests(settings: &Settings, run: &Path, is_resumed: bool) -> Result<Vec<(String, String)>> {
    let recorded = recorded(run);
    let mut digests = Vec::new();
    if let PolicyChoice::Named(pairs) = &settings.policies {
        for pair in pairs {
            let (name, what) = (format!("input {pair}"), &pair.value);
            let before =
                recorded.get(&name).and_then(Value::as_str).filter(|_| run.join("policies/done").is_file());
            let now =
                if is_server(what) { Some("served".to_owned()) } else { digest_of_weights(Path::new(what))? };
            // The run has its own copy, and the source may be trained on, or gone.
            let held = before.filter(|_| is_resumed || now.is_none()).map(str::to_owned);
            digests.push((name, held.or(now).unwrap_or_default()));
        }
    }
    for file in files(settings, run) {
        digests.push((file.name.to_owned(), digest(&[file.source()?.to_path_buf()])?));
    }
    Ok(digests)
}

/// The values in `run.json`, or nothing without inputs.
fn recorded(run: &Path) -> Map<String, Value> {
    let bytes = record::file::read(&run.join("run.json")).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Copies the files into the run.
///
/// # Errors
/// I/O (exit 74).
pub fn keep(settings: &Settings, run: &Path) -> Result<()> {
    for file in files(settings, run) {
        let source = file.source()?;
        let is_kept = file.kept.is_file()
            && digest(std::slice::from_ref(&file.kept))? == digest(&[source.to_path_buf()])?;
        if !is_kept {
            disk::make(file.kept.parent().unwrap_or(run))?;
            disk::copy(source, &file.kept)?;
        }
    }
    Ok(())
}

/// The digest of a policy's weight files; `None` if there are none.
fn digest_of_weights(directory: &Path) -> Result<Option<String>> {
    let mut files = Vec::new();
    for folder in [directory.join("current"), directory.to_path_buf()] {
        let names = if folder.is_dir() { disk::names(&folder)? } else { Vec::new() };
        let weights =
            names.into_iter().filter(|name| name.ends_with(".safetensors") && !name.starts_with('.'));
        files.extend(weights.map(|name| folder.join(name)));
    }
    if files.is_empty() { Ok(None) } else { digest(&files).map(Some) }
}

/// The first digits of the BLAKE3 hash of files.
fn digest(files: &[PathBuf]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let opened = fs::File::open(file).and_then(|opened| hasher.update_reader(opened).map(drop));
        opened.map_err(|error| disk::failed("read", file, &error))?;
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &str) -> Settings {
        Settings::new(&words.split(' ').collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_file_is_kept_and_another_of_its_name_has_another_digest() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let settings =
            settings(&format!("--set data={0}/t.jsonl --workflow {0}/w.toml", folder.path().display()));
        fs::create_dir(at("run")).unwrap();
        for name in ["t.jsonl", "w.toml"] {
            fs::write(at(name), name).unwrap();
        }
        let digests = || digests(&settings, &at("run"), false).unwrap();
        let before = digests();
        assert_eq!(before.len(), 2);
        keep(&settings, &at("run")).unwrap();
        assert_eq!(fs::read_to_string(at("run/data/t.jsonl")).unwrap(), "t.jsonl");
        fs::remove_file(at("w.toml")).unwrap();
        assert_eq!(digests(), before, "the copy stands for the file");
        keep(&settings, &at("run")).unwrap();
        let copy = at("run/workflow.toml").display().to_string();
        assert_eq!(workflow(&settings, &at("run")), Some(copy));
        let kept = at("run/data/t.jsonl").display().to_string();
        assert_eq!(setting(&settings, &at("run"), &"data=t.jsonl".parse().unwrap()), format!("data={kept}"));
        assert_eq!(setting(&settings, &at("run"), &"level=2".parse().unwrap()), "level=2");
        fs::write(at("t.jsonl"), "others").unwrap();
        assert_ne!(digests()[1], before[1]);
        for name in ["t.jsonl", "run/data/t.jsonl"] {
            fs::remove_file(at(name)).unwrap();
        }
        assert_eq!(super::digests(&settings, &at("run"), true).unwrap_err().code, 74);
        assert!(files(&self::settings("--set data=shipped --workflow single"), &at("run")).is_empty());
    }

    #[test]
    fn a_source_that_is_gone_or_trained_on_is_asked_for_only_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let settings = settings(&format!("--policies tool={}/a", folder.path().display()));
        for name in ["a", "run/policies"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let weights = at("a/model.safetensors");
        fs::write(&weights, "weights").unwrap();
        let digests = |is_resumed| digests(&settings, &at("run"), is_resumed).unwrap();
        let before = digests(false);
        fs::write(at("run/run.json"), Value::from_iter(before.clone()).to_string()).unwrap();
        fs::write(at("run/policies/done"), "").unwrap();
        fs::write(&weights, "trained on").unwrap();
        assert_eq!((digests(true) == before, digests(false) == before), (true, false));
        fs::remove_file(&weights).unwrap();
        assert_eq!((digests(true) == before, digests(false) == before), (true, true));
    }
}
