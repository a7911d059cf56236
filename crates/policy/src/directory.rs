//! A version of a policy, found on disk and opened once.
//!
//! Two layouts are read. A *policy directory* holds a complete Hugging Face directory per version (`step-000012/`) and
//! `current`, a relative link to the newest. If its versions are adapters (PEFT directories), `base` links to the Hugging Face
//! directory of their base, whose digest each version records. A plain Hugging Face directory is version 0 of itself.
//! Left out: writing ([`crate::publish`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use record::failure::{Failure, Result};

use crate::adapter::{self, Adapter};
use crate::config::Config;
use crate::digest;
use crate::files::{io_failure, read_text, show};
use crate::hub;
pub use crate::layout::Version;
use crate::layout::{
    BASE, CURRENT, Contents, DirectoryKind, LONGEST_TARGET, current, step_name, step_of, steps,
};
use crate::weights::Weights;

/// The frozen base of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenBase {
    /// Its canonical Hugging Face directory.
    pub files: PathBuf,
    /// The digest of its weights, recorded or computed.
    pub(crate) digest: String,
}

impl FrozenBase {
    /// The model in a canonical directory.
    pub(crate) fn open(files: PathBuf) -> Result<FrozenBase> {
        let digest = match Contents::of(&files)?.recorded("digest")? {
            Some(digest) => digest,
            None => digest::cached(&Weights::open(&files)?)?,
        };
        Ok(FrozenBase { files, digest })
    }
}

/// One version of a policy. Opening it reads its configuration; its weights are mapped when they are first asked for, and
/// clones share the mapping.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The directory the user named (for a version inside a policy directory: that policy directory).
    pub root: PathBuf,
    /// A complete Hugging Face directory: the version itself, not `current`, so that publishing does not change it under a
    /// reader.
    pub files: PathBuf,
    /// The base, if `files` holds an adapter.
    pub base: Option<FrozenBase>,
    /// The version in `files`.
    pub version: Version,
    /// The configuration of the whole model.
    pub config: Config,
    /// The digest of this version, recorded or computed.
    pub(crate) digest: String,
    adapter: Option<Adapter>,
    model_weights: Mapped,
    adapter_weights: Mapped,
}

/// Weights that are mapped at their first use.
type Mapped = Arc<OnceLock<Arc<Weights>>>;

fn mapped(cell: &Mapped, open: impl FnOnce() -> Result<Weights>) -> Result<Arc<Weights>> {
    if let Some(weights) = cell.get() {
        return Ok(weights.clone());
    }
    let weights = Arc::new(open()?);
    // Another thread may have been faster.
    Ok(cell.get_or_init(|| weights).clone())
}

impl PartialEq for Policy {
    fn eq(&self, other: &Policy) -> bool {
        (&self.root, &self.files, &self.base, &self.version)
            == (&other.root, &other.files, &other.base, &other.version)
    }
}

impl Policy {
    /// The newest version of a policy directory, or a plain Hugging Face directory as version 0.
    ///
    /// # Errors
    /// Nothing of either kind there; a broken `current`; a configuration or weights that cannot be read.
    pub fn open(path: &Path) -> Result<Policy> {
        let contents = Contents::of(path)?;
        match &contents.kind {
            DirectoryKind::Versions(newest) => {
                let step = newest.to_str().and_then(step_of).ok_or_else(|| {
                    Failure::data(format!("{}: points to {}", show(&path.join(CURRENT)), show(newest)))
                        .hint("it is a relative link to a version, such as step-000012")
                })?;
                return Policy::open_step(path, step);
            }
            DirectoryKind::Other => return Err(no_policy(path)),
            DirectoryKind::Adapter | DirectoryKind::Model => {}
        }
        // A version that was named itself, such as run/tool/step-000012.
        let canonical = path.canonicalize().map_err(|error| io_failure(path, &error))?;
        let step = canonical.file_name().and_then(|name| name.to_str()).and_then(step_of);
        if let (Some(step), Some(root)) = (step, canonical.parent())
            && current(root)?.is_some()
        {
            return Policy::open_step(root, step);
        }
        if contents.kind == DirectoryKind::Model {
            return Policy::read(path, path.to_owned(), None, 0, contents.recorded("digest")?);
        }
        let adapter = Adapter::load(path)?;
        let base = FrozenBase::open(named_base(path, &adapter.base)?)?;
        Policy::read(path, path.to_owned(), Some((base, adapter)), 0, None)
    }

    /// The version that `version` names, whatever `current` points to.
    pub fn open_version(path: &Path, version: &str) -> Result<Policy> {
        let wanted = Version::from_str(version)?;
        let policy = if current(path)?.is_some() {
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

    /// The last `count` published versions up to this one, newest first; version 0 has no earlier ones.
    ///
    /// # Errors
    /// It is no version of a policy directory (exit 2), or earlier versions were removed (exit 65).
    pub fn history(&self, count: u64) -> Result<Vec<Policy>> {
        if !self.is_writable_layout() {
            let message =
                format!("{}: not a policy directory, so it has no published versions", show(&self.root));
            let hint =
                format!("policy init DIR --from {} makes one, which begins at version 0", show(&self.root));
            return Err(Failure::usage(message).hint(hint));
        }
        let newest = self.version.step;
        let mut versions = vec![self.clone()];
        for step in (0..newest).rev().take(count.saturating_sub(1) as usize) {
            if !self.root.join(step_name(step)).is_dir() {
                return Err(Failure::data(format!(
                    "{}: version {step} is not there, and the last {count} versions are asked for",
                    show(&self.root)
                ))
                .hint(format!(
                    "past:{} can be played now, and update --keep {} keeps enough from now on",
                    versions.len(),
                    count + 1
                )));
            }
            versions.push(Policy::open_step(&self.root, step)?);
        }
        Ok(versions)
    }

    pub(crate) fn open_step(root: &Path, step: u64) -> Result<Policy> {
        let files = root.join(step_name(step));
        let contents = Contents::of(&files)?;
        let adapter = match contents.kind {
            DirectoryKind::Model => None,
            DirectoryKind::Adapter => Some((FrozenBase::open(linked_base(root)?)?, Adapter::load(&files)?)),
            DirectoryKind::Versions(_) | DirectoryKind::Other => {
                let failure = Failure::data(format!("{}: not a complete version", show(&files)));
                return Err(failure.hint(versions_there(root)));
            }
        };
        if let Some((base, _)) = &adapter
            && let Some(wanted) = contents.recorded("base")?
            && wanted != base.digest
        {
            return Err(Failure::data(format!(
                "{}: the base {} has other weights than this adapter was made for",
                show(&files),
                show(&base.files)
            ))
            .hint("an adapter only fits the base it was trained on: restore that, or make a new adapter"));
        }
        Policy::read(root, files, adapter, step, contents.recorded("digest")?)
    }

    /// Opens the version in `files`; computes its digest if it is not given.
    fn read(
        root: &Path,
        files: PathBuf,
        adapter: Option<(FrozenBase, Adapter)>,
        step: u64,
        digest: Option<String>,
    ) -> Result<Policy> {
        let (base, adapter) = adapter.unzip();
        let config = Config::load(base.as_ref().map_or(&files, |base| &base.files))?;
        let mut policy = Policy {
            root: root.to_owned(),
            files,
            base,
            version: Version::new(step, ""),
            config,
            digest: String::new(),
            adapter,
            model_weights: Mapped::default(),
            adapter_weights: Mapped::default(),
        };
        policy.digest = match digest {
            Some(digest) => digest,
            None if policy.base.is_none() => digest::cached(&*policy.weights()?)?,
            None => policy.compute_digest()?,
        };
        policy.version = Version::new(step, &policy.digest);
        Ok(policy)
    }

    /// The Hugging Face directory of the whole model (configuration, tokenizer, weights): the base of an adapter, else the
    /// version itself.
    pub fn model(&self) -> &Path {
        self.base.as_ref().map_or(&self.files, |base| &base.files)
    }

    /// The weights of the whole model ([`Weights::of_model`]); an adapter gives its base's.
    pub fn weights(&self) -> Result<Arc<Weights>> {
        mapped(&self.model_weights, || Weights::of_model(self.model(), &self.config))
    }

    /// This version's adapter and its weights; `None` for a whole model.
    ///
    /// # Errors
    /// Weights that are missing or damaged, or that do not fit the adapter and its base.
    pub fn adapter(&self) -> Result<Option<(&Adapter, Arc<Weights>)>> {
        let Some(adapter) = &self.adapter else { return Ok(None) };
        let weights = mapped(&self.adapter_weights, || {
            let weights = Weights::open_file(&self.files.join(adapter::WEIGHTS))?;
            adapter.check(&weights, &self.config)?;
            Ok(weights)
        })?;
        Ok(Some((adapter, weights)))
    }

    /// The digest of the weights as they are.
    fn compute_digest(&self) -> Result<String> {
        match (self.adapter()?, &self.base) {
            (Some((adapter, weights)), Some(base)) => {
                Ok(digest::of_adapter(&digest::of(&weights), adapter.scale(), &base.digest))
            }
            _ => Ok(digest::of(&*self.weights()?)),
        }
    }

    /// [`verify`] for one policy.
    pub fn verify(&self) -> Result<()> {
        verify(std::slice::from_ref(self))
    }

    /// Returns true if new versions can be published in the same folder: it is a version of a policy directory.
    pub fn is_writable_layout(&self) -> bool {
        self.root != self.files
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
    let mut bases: Vec<&FrozenBase> = Vec::new();
    for policy in policies {
        // Names the damage more closely, where it can.
        let weights = policy.weights()?;
        policy.adapter()?;
        let Some(base) = policy.base.as_ref().filter(|base| !bases.contains(base)) else { continue };
        if digest::of(&weights) != base.digest {
            return fault(format!("{}: the weights are not those of its digest", show(&base.files)));
        }
        bases.push(base);
    }
    for policy in policies {
        let Policy { files, version, .. } = policy;
        let actual = Version::new(version.step, &policy.compute_digest()?);
        if actual != *version {
            return fault(format!("{}: the weights are those of {actual}, not of {version}", show(files)));
        }
    }
    Ok(())
}

/// The digest of the weights that a new version holds.
pub(crate) fn digest_of_new(files: &Path, base: Option<&FrozenBase>) -> Result<String> {
    let Some(base) = base else { return Ok(digest::of(&Weights::open(files)?)) };
    let weights = Weights::open_file(&files.join(adapter::WEIGHTS))?;
    Ok(digest::of_adapter(&digest::of(&weights), Adapter::load(files)?.scale(), &base.digest))
}

/// The base that a policy directory links to.
fn linked_base(root: &Path) -> Result<PathBuf> {
    let mut link = root.join(BASE);
    if link.is_file() {
        link = root.join(read_text(&link, LONGEST_TARGET)?.trim()); // a copy that wrote links as text
    }
    link.canonicalize().map_err(|error| {
        io_failure(&link, &error).hint("this policy is an adapter, and the link names its frozen base")
    })
}

/// The base that an adapter's configuration names, relative to the working directory, or else to the folder that the adapter
/// lies in, as in the folder of a team.
pub(crate) fn named_base(files: &Path, name: &str) -> Result<PathBuf> {
    let beside = files.parent().map(|folder| folder.join(name));
    let mut found = [Some(PathBuf::from(name)), beside].into_iter().flatten();
    let Some(base) = found.find(|base| !name.is_empty() && base.join("config.json").exists()) else {
        return Err(Failure::data(format!("{}: its base {name:?} is not a model's directory", show(files)))
            .hint("set base_model_name_or_path in adapter_config.json to the directory of the base"));
    };
    base.canonicalize().map_err(|error| io_failure(&base, &error))
}

/// The versions of a policy directory that can be opened, for a hint.
fn list(root: &Path) -> String {
    let steps = steps(root).unwrap_or_default().into_iter();
    let versions = steps.filter_map(|step| Some(Policy::open_step(root, step).ok()?.version.to_string()));
    versions.collect::<Vec<String>>().join(" ")
}

/// The hint for a policy directory whose `current` leads nowhere.
fn versions_there(root: &Path) -> String {
    let there: Vec<String> = steps(root).unwrap_or_default().into_iter().map(step_name).collect();
    match there.is_empty() {
        true => "no version is there: copy the policy directory again, all of it".to_owned(),
        false => format!("let {CURRENT} point to one of: {}", there.join(" ")),
    }
}

/// The policies in a folder, for a hint.
fn policies_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_policy = |path: &PathBuf| path.join(CURRENT).exists() || path.join("config.json").is_file();
    let mut names: Vec<String> = entries.filter(is_policy).map(|path| show(&path)).collect();
    names.sort();
    names.truncate(8);
    names
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
    let is_run = path.join("run.json").is_file() && path.join("policies").is_dir();
    let names = policies_in(&if is_run { path.join("policies") } else { path.to_path_buf() });
    if !is_run && !names.is_empty() {
        let failure = failure(format!("{shown}: a folder of policies, and not a policy directory"));
        return failure.hint(format!("its policies are {}", names.join(", ")));
    }
    if is_run {
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
