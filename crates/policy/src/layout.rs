//! The layout of a policy directory: the names of versions and links, a directory's kind, and a version's record of itself.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::adapter;
use crate::files::{exists, io_failure, read_text, show};
use crate::json::read_json_if_present;

/// The link to the newest version.
pub(crate) const CURRENT: &str = "current";
/// The link from a policy directory of adapters to their frozen base.
pub(crate) const BASE: &str = "base";
/// A published version's account of itself.
pub(crate) const VERSION_FILE: &str = "version.json";
/// The longest target of a link, in bytes.
pub(crate) const LONGEST_TARGET: u64 = 4096;
/// Hexadecimal digits of the digest in a version's name.
const SHOWN: usize = 8;

/// A version: its training step and its weights. Displayed as `11:9f2c41d0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Training step.
    pub step: u64,
    /// The first eight hexadecimal digits of the BLAKE3 hash of the weights.
    pub digest: String,
}

impl Version {
    pub(crate) fn new(step: u64, full_digest: &str) -> Version {
        Version { step, digest: full_digest.chars().take(SHOWN).collect() }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.step, self.digest)
    }
}

impl FromStr for Version {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Version> {
        let parsed = text.split_once(':').and_then(|(step, digest)| {
            let hexadecimal = digest.len() == SHOWN && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            hexadecimal.then_some(())?;
            Some(Version { step: step.parse().ok()?, digest: digest.to_ascii_lowercase() })
        });
        parsed.ok_or_else(|| {
            Failure::data(format!("{text:?} is not a policy version")).hint("versions look like 11:9f2c41d0")
        })
    }
}

/// The kind of a directory, by the names in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryKind {
    /// A policy directory; its link to the newest version leads here.
    Versions(PathBuf),
    /// A PEFT directory.
    Adapter,
    /// A Hugging Face directory.
    Model,
    Other,
}

/// A directory's kind and its version's record of itself, read once. The names are looked up rather than listed, because a
/// listing may lack a link that a publisher replaces meanwhile.
#[derive(Debug)]
pub(crate) struct Contents {
    pub kind: DirectoryKind,
    record_file: PathBuf,
    record: Option<Value>,
}

impl Contents {
    pub fn of(directory: &Path) -> Result<Contents> {
        let kind = match current(directory)? {
            Some(newest) => DirectoryKind::Versions(newest),
            None if exists(&directory.join(adapter::CONFIG))? => DirectoryKind::Adapter,
            None if exists(&directory.join("config.json"))? => DirectoryKind::Model,
            None => DirectoryKind::Other,
        };
        let record_file = directory.join(VERSION_FILE);
        let record = read_json_if_present(&record_file)?;
        Ok(Contents { kind, record_file, record })
    }

    /// A digest that the version recorded: `digest` for itself, or `base` for its base.
    pub fn recorded(&self, key: &str) -> Result<Option<String>> {
        let Some(record) = &self.record else { return Ok(None) };
        match record.get(key).and_then(Value::as_str) {
            Some(digest) if digest.len() == 64 => Ok(Some(digest.to_owned())),
            _ => {
                let place = show(&self.record_file);
                Err(Failure::data(format!("{place}: no {key} of 64 hexadecimal digits")))
            }
        }
    }
}

/// The target of a policy directory's link to its newest version; `None` for any other directory.
pub(crate) fn current(directory: &Path) -> Result<Option<PathBuf>> {
    let link = directory.join(CURRENT);
    match fs::read_link(&link) {
        Ok(target) => Ok(Some(target)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => copied(directory, &link),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(io_failure(&link, &error)),
    }
}

/// The version that a copy of the link names: a folder, if links were followed, or a file with the link's target.
fn copied(directory: &Path, link: &Path) -> Result<Option<PathBuf>> {
    let step = match link.is_dir() {
        true => read_json_if_present(&link.join(VERSION_FILE))?.and_then(|version| version["step"].as_u64()),
        false => read_text(link, LONGEST_TARGET).ok().and_then(|target| step_of(target.trim())),
    };
    Ok(step.map(|step| PathBuf::from(step_name(step))).filter(|name| directory.join(name).is_dir()))
}

/// The run that a policy directory lies in: `RUN` of `RUN/policies/NAME` and of `RUN/best-000040/NAME`.
pub(crate) fn run_of(root: &Path) -> Option<PathBuf> {
    let run = parent_of(root)?.parent()?.to_owned();
    run.join("run.json").is_file().then_some(run)
}

/// The canonical folder in which a directory lies that need not be there yet.
pub(crate) fn parent_of(root: &Path) -> Option<PathBuf> {
    let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parent.canonicalize().ok()
}

/// `step-000012`.
pub(crate) fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// 12, of `step-000012`.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The steps of a policy directory, ascending.
pub(crate) fn steps(root: &Path) -> Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(root).map_err(|error| io_failure(root, &error))? {
        let entry = entry.map_err(|error| io_failure(root, &error))?;
        steps.extend(entry.file_name().to_str().and_then(step_of));
    }
    steps.sort_unstable();
    Ok(steps)
}
