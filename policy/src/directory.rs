//! Finds a policy on disk and the version it is.
//!
//! Two layouts are read. A *policy directory* holds a complete Hugging Face directory per version (`step-000012/`) and
//! `current`, a relative link to the newest. If its versions are adapters (PEFT directories), `base` links to the Hugging Face
//! directory of their base, whose digest each version records. A plain Hugging Face directory is version 0 of itself.
//! Left out: writing ([`crate::publish`]).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::adapter::{self, Adapter};
use crate::config::Config;
use crate::digest;
use crate::hub;
use crate::json::{io_failure, read_json_if_present, show};
use crate::weights::Weights;

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

/// One version of a policy, found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The directory the user named (for a version inside a policy directory: that policy directory).
    pub root: PathBuf,
    /// A complete Hugging Face directory: the version itself, not `current`, so that publishing does not change it under a
    /// reader.
    pub files: PathBuf,
    /// The canonical Hugging Face directory of the frozen base, if `files` holds an adapter.
    pub base: Option<PathBuf>,
    /// The version in `files`.
    pub version: Version,
}

impl Policy {
    /// The newest version of a policy directory, or a plain Hugging Face directory as version 0.
    ///
    /// # Errors
    /// Nothing of either kind there; a broken `current`; weights that cannot be read.
    pub fn open(path: &Path) -> Result<Policy> {
        if is_policy_directory(path)? {
            let link = path.join(CURRENT);
            let target = fs::read_link(&link).map_err(|error| io_failure(&link, &error))?;
            let step = target.to_str().and_then(step_of).ok_or_else(|| {
                Failure::data(format!("{}: points to {}", show(&link), show(&target)))
                    .hint("it is a relative link to a version, such as step-000012")
            })?;
            return Policy::open_step(path, step);
        }
        let is_adapter = is_there(&path.join(adapter::CONFIG))?;
        if !is_adapter && !is_there(&path.join("config.json"))? {
            return Err(no_policy(path));
        }
        // A version that was named itself, such as run/tool/step-000012.
        let canonical = path.canonicalize().map_err(|error| io_failure(path, &error))?;
        let step = canonical.file_name().and_then(|name| name.to_str()).and_then(step_of);
        if let (Some(step), Some(root)) = (step, canonical.parent())
            && is_policy_directory(root)?
        {
            return Policy::open_step(root, step);
        }
        let base = if is_adapter { Some(named_base(path, &Adapter::load(path)?.base)?) } else { None };
        let digest = digest_of(path, base.as_deref())?;
        Ok(Policy { root: path.to_owned(), files: path.to_owned(), base, version: Version::new(0, &digest) })
    }

    /// The Hugging Face directory of the whole model (configuration, tokenizer, weights): the base of an adapter, else the
    /// version itself.
    pub fn model(&self) -> &Path {
        self.base.as_deref().unwrap_or(&self.files)
    }

    /// This version's adapter and its weights; `None` for a whole model.
    ///
    /// # Errors
    /// An adapter that is not implemented, or that does not fit the base's configuration.
    pub fn adapter(&self, config: &Config) -> Result<Option<(Adapter, Weights)>> {
        if self.base.is_none() {
            return Ok(None);
        }
        let adapter = Adapter::load(&self.files)?;
        let weights = Weights::open_file(&self.files.join(adapter::WEIGHTS))?;
        adapter.check(&weights, config)?;
        Ok(Some((adapter, weights)))
    }

    /// The version that `version` names, whatever `current` points to.
    ///
    /// # Errors
    /// It is not there, or its number is there with other weights.
    pub fn open_version(path: &Path, version: &str) -> Result<Policy> {
        let wanted = Version::from_str(version)?;
        let policy = if is_policy_directory(path)? {
            if !path.join(step_name(wanted.step)).is_dir() {
                return Err(Failure::data(format!("{}: version {wanted} is not there", show(path)))
                    .hint(format!("versions there: {}", list(path))));
            }
            Policy::open_step(path, wanted.step)?
        } else {
            Policy::open(path)?
        };
        if policy.version == wanted {
            Ok(policy)
        } else {
            Err(Failure::data(format!(
                "{}: version {wanted} is not there, {} is",
                show(path),
                policy.version
            ))
            .hint("the samples were made with other weights: generate them again with this policy"))
        }
    }

    pub(crate) fn open_step(root: &Path, step: u64) -> Result<Policy> {
        let files = root.join(step_name(step));
        let is_adapter = is_there(&files.join(adapter::CONFIG))?;
        if !is_adapter && !is_there(&files.join("config.json"))? {
            let failure = Failure::data(format!("{}: not a complete version", show(&files)));
            return Err(failure.hint(versions_there(root)));
        }
        let base = if is_adapter { Some(linked_base(root)?) } else { None };
        let digest = match recorded(&files, "digest")? {
            Some(digest) => digest,
            None => digest_of(&files, base.as_deref())?,
        };
        if let Some(base) = &base
            && let Some(wanted) = recorded(&files, "base")?
            && wanted != digest_of(base, None)?
        {
            return Err(Failure::data(format!(
                "{}: the base {} has other weights than this adapter was made for",
                show(&files),
                show(base)
            ))
            .hint("an adapter only fits the base it was trained on: restore that, or make a new adapter"));
        }
        Ok(Policy { root: root.to_owned(), files, base, version: Version::new(step, &digest) })
    }

    /// [`verify`] for one policy.
    ///
    /// # Errors
    /// See [`verify`].
    pub fn verify(&self) -> Result<()> {
        verify(std::slice::from_ref(self))
    }

    /// Returns true if new versions can be published in the same folder.
    ///
    /// # Errors
    /// The folder cannot be read: 74.
    pub fn is_writable_layout(&self) -> Result<bool> {
        is_policy_directory(&self.root)
    }
}

/// Reads all weights, a base that several policies share once, and compares them with the recorded digests. Whoever computes
/// with them under a version's name does this first.
///
/// # Errors
/// They differ: the weights were changed after they were published, or the disk is damaged.
pub fn verify(policies: &[Policy]) -> Result<()> {
    let fault = |cause: String| {
        let hint = "the files are damaged or were edited: copy them again, go back to an earlier version, or make a new policy \
                    of them with policy init --from";
        Err(Failure::data(cause).hint(hint))
    };
    for policy in policies {
        // Names the damage more closely, where it can.
        let config = Config::load(policy.model())?;
        Weights::open(policy.model())?.check(&config)?;
        policy.adapter(&config)?;
    }
    let bases: BTreeSet<&Path> = policies.iter().filter_map(|policy| policy.base.as_deref()).collect();
    for base in bases {
        if digest::of(&Weights::open(base)?) != digest_of(base, None)? {
            return fault(format!("{}: the weights are not those of its digest", show(base)));
        }
    }
    for Policy { files, base, version, .. } in policies {
        let actual = Version::new(version.step, &compute_digest(files, base.as_deref())?);
        if actual != *version {
            return fault(format!("{}: the weights are those of {actual}, not of {version}", show(files)));
        }
    }
    Ok(())
}

/// Returns true if the name exists, even as a dangling link; opening it then gives the precise error.
///
/// # Errors
/// 74 if the disk cannot tell. An unreadable name is never treated as missing.
pub(crate) fn is_there(path: &Path) -> Result<bool> {
    Ok(metadata_of(path)?.is_some())
}

/// Returns true if the directory holds versions rather than a model.
///
/// # Errors
/// As [`is_there`].
pub(crate) fn is_policy_directory(path: &Path) -> Result<bool> {
    Ok(metadata_of(&path.join(CURRENT))?.is_some_and(|metadata| metadata.is_symlink()))
}

fn metadata_of(path: &Path) -> Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(io_failure(path, &error)),
    }
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

/// The digest of a version, recorded or computed.
pub(crate) fn digest_of(files: &Path, base: Option<&Path>) -> Result<String> {
    if base.is_some() {
        return compute_digest(files, base);
    }
    match recorded(files, "digest")? {
        Some(digest) => Ok(digest),
        None => digest::cached(&Weights::open(files)?),
    }
}

/// The digest of a version's weights as they are.
pub(crate) fn compute_digest(files: &Path, base: Option<&Path>) -> Result<String> {
    match base {
        None => Ok(digest::of(&Weights::open(files)?)),
        Some(base) => {
            let weights = Weights::open_file(&files.join(adapter::WEIGHTS))?;
            let own = digest::of(&weights);
            Ok(digest::of_adapter(&own, Adapter::load(files)?.scale(), &digest_of(base, None)?))
        }
    }
}

/// The base that a policy directory links to.
fn linked_base(root: &Path) -> Result<PathBuf> {
    let link = root.join(BASE);
    link.canonicalize().map_err(|error| {
        io_failure(&link, &error).hint("this policy is an adapter, and the link names its frozen base")
    })
}

/// The base that an adapter's configuration names, relative to the working directory.
pub(crate) fn named_base(files: &Path, name: &str) -> Result<PathBuf> {
    let base = Path::new(name);
    if name.is_empty() || !base.join("config.json").exists() {
        return Err(Failure::data(format!("{}: its base {name:?} is not a model's directory", show(files)))
            .hint("set base_model_name_or_path in adapter_config.json to the directory of the base"));
    }
    base.canonicalize().map_err(|error| io_failure(base, &error))
}

/// The versions of a policy directory that can be opened, for a hint.
fn list(root: &Path) -> String {
    let steps = steps(root).unwrap_or_default().into_iter();
    let versions = steps.filter_map(|step| Some(Policy::open_step(root, step).ok()?.version.to_string()));
    versions.collect::<Vec<String>>().join(" ")
}

/// What to do in a policy directory whose `current` leads nowhere.
fn versions_there(root: &Path) -> String {
    let there: Vec<String> = steps(root).unwrap_or_default().into_iter().map(step_name).collect();
    match there.is_empty() {
        true => "no version is there: copy the policy directory again, all of it".to_owned(),
        false => format!("let {CURRENT} point to one of: {}", there.join(" ")),
    }
}

fn no_policy(path: &Path) -> Failure {
    if steps(path).is_ok_and(|steps| !steps.is_empty()) {
        let message = format!("{}: a policy directory without {CURRENT}", show(path));
        return Failure::data(message).hint(versions_there(path));
    }
    // Nothing there is a slip of the command line, as in every program.
    let (failure, what): (fn(String) -> Failure, _) = match path.exists() {
        true => (Failure::data, "neither a policy directory nor a Hugging Face directory"),
        false => (Failure::usage, "no such directory"),
    };
    let shown = show(path);
    if path.join("run.json").is_file() && path.join("policies").is_dir() {
        let names = fs::read_dir(path.join("policies")).into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .filter(|entry| entry.path().join(CURRENT).exists())
            .map(|entry| show(&entry.path()))
            .collect();
        names.sort();
        let failure = failure(format!("{shown}: a run, and not a policy directory"));
        return failure.hint(match names.is_empty() {
            true => "it has no policies yet".to_owned(),
            false => format!("its policies are {}", names.join(", ")),
        });
    }
    let hint = match shown.strip_prefix("hf:").filter(|name| hub::is_name(name)) {
        Some(_) => format!("make a policy of it first: policy init DIR --from {shown}"),
        None => "make one first: policy init DIR --from a Hugging Face directory, hf:ORG/NAME or a GGUF file; --preset tiny makes \
                 one with random weights"
            .to_owned(),
    };
    failure(format!("{shown}: {what}")).hint(hint)
}
