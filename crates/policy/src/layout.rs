//! The layout of a policy directory: the names of versions and links, and a version's record of itself.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::files::{io_failure, metadata_of, show};
use crate::json::read_json_if_present;

/// The link to the newest version.
pub(crate) const CURRENT: &str = "current";
/// The link from a policy directory of adapters to their frozen base.
pub(crate) const BASE: &str = "base";
/// A published version's account of itself.
pub(crate) const VERSION_FILE: &str = "version.json";
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

/// Returns true if the directory holds versions rather than a model.
pub(crate) fn is_policy_directory(path: &Path) -> Result<bool> {
    Ok(metadata_of(&path.join(CURRENT))?.is_some_and(|metadata| metadata.is_symlink()))
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

/// A digest that a version recorded: `digest` for itself, or `base` for its base.
pub(crate) fn recorded(files: &Path, key: &str) -> Result<Option<String>> {
    let path = files.join(VERSION_FILE);
    let Some(value) = read_json_if_present(&path)? else { return Ok(None) };
    match value.get(key).and_then(Value::as_str) {
        Some(digest) if digest.len() == 64 => Ok(Some(digest.to_owned())),
        _ => Err(Failure::data(format!("{}: no {key} of 64 hexadecimal digits", show(&path)))),
    }
}
