//! Publishes a new version of a policy, completely or not at all.
//!
//! A version is built in a hidden directory, synced and renamed into place; only then does `current` point to
//! it. A reader that opened the old version keeps its files. The next publisher removes leftovers of a crash.
//! A version without training state, from which no run resumes yet, is synced later ([`synchronize`]), so
//! that nobody waits for the disk to play it.
//!
//! Weights keep their type, file and place: the new file's header is the source's, byte for byte. bf16
//! weights are rounded to nearest even, and the rounding error can be saved with the optimizer state. Other
//! files of the policy are linked ([`crate::side_files`]). Left out: training state
//! ([`crate::training_state`]), and removing old versions ([`crate::retention`]).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use crate::checkpoint;
pub use crate::checkpoint::{Data, NewTensor, PIECE, Read};
use crate::decoder::Tensor;
use crate::digest;
use crate::directory::{FrozenBase, Policy, digest_of_new};
use crate::durable;
use crate::files::{exists, io_failure, show};
use crate::initial;
use crate::json::read_json;
use crate::layout::{BASE, CURRENT, VERSION_FILE, Version, current, run_of, step_name, step_of};
use crate::lock::{BUILDING, LINKING, lock};
use crate::retention::{Retention, adapters_rest_on, discard, link_to, rest_on, retire_locked};
use crate::side_files;
use crate::training_state::{link_optimizer, write_state};
use crate::weights::{HEAD, Weights};

#[derive(Clone, Copy)]
pub struct NewVersion<'a> {
    /// Identifies all that determines the new weights besides the version they start from, such as a hash of samples and
    /// settings. Publishing the same input again does nothing.
    pub input: &'a str,
    /// Every tensor of [`crate::config::Config::tensors`], or for an adapter of [`crate::adapter::Adapter::tensors`], each once, in any order.
    pub tensors: &'a [NewTensor<'a>],
    /// Optimizer state; no file if empty.
    pub optimizer: &'a [NewTensor<'a>],
    /// Trainer state; `version`, `digest` and `optimizer_digest` are added. Without, no state is saved: see
    /// [`crate::training_state::save_state`]; and until [`synchronize`] a power cut may damage the version, `current` included.
    pub trainer_state: Option<&'a Map<String, Value>>,
}

impl NewVersion<'_> {
    /// Returns true if a run may resume from it once it is published, so that it must be on disk by then.
    fn is_resumable(&self) -> bool {
        self.trainer_state.is_some()
    }
}

/// The version after `from`, if it was already published with the same `input`. Finishes that publish if it was interrupted
/// before the version was linked or older ones were removed.
///
/// # Errors
/// `from` is no version of a policy directory (exit 2); the directory cannot be read or written.
pub fn published(from: &Policy, input: &str, retention: &Retention) -> Result<Option<Version>> {
    let _lock = lock(from)?;
    existing(from, input, retention)
}

/// Publishes the version after `from` and makes it the newest. A version of that number made from another
/// input is replaced, with all later ones; one made from the same input stays. Older ones stay until
/// [`crate::retention::retire`].
///
/// # Errors
/// `from` is no version of a policy directory (exit 2); tensors do not match the model; I/O errors (74).
pub fn publish(from: &Policy, next: &NewVersion, retention: &Retention) -> Result<Version> {
    publish_content(from, next, Content::New, retention)
}

/// Publishes a version with unchanged weights: the files of `from` are linked, not written again. The
/// optimizer's state is linked too unless `next` has a new one. `from` must be [verified](Policy) and `next`
/// names no tensors.
pub fn publish_same(from: &Policy, next: &NewVersion, retention: &Retention) -> Result<Version> {
    publish_content(from, next, Content::Same, retention)
}

/// Where a version's weights come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    New,
    Same,
}

fn publish_content(
    from: &Policy,
    next: &NewVersion,
    content: Content,
    retention: &Retention,
) -> Result<Version> {
    let lock = lock(from)?;
    if let Some(version) = existing(from, next.input, retention)? {
        return Ok(version);
    }
    let root = &from.root;
    let step = from.version.step + 1;
    let target = root.join(step_name(step));
    refuse_pinned(&target, from, step, retention)?;
    let building = root.join(format!("{BUILDING}{}", step_name(step)));
    durable::create_directory(&building)?;
    let version = build(from, next, content, step, &building).inspect_err(|_| {
        // Free the disk of what did not fit; the first failure is the one to report.
        let _ = durable::remove(&building);
    })?;

    if target.exists() {
        // Until the replacement is in place, the newest complete version is the one it is made from.
        durable::relink(&root.join(CURRENT), &step_name(from.version.step), &root.join(LINKING))?;
        discard(root, &step_name(step))?;
    }
    // One sync covers both renames: after a power cut a prefix of a directory's changes survives.
    durable::move_within(&building, &target)?;
    durable::relink(&root.join(CURRENT), &step_name(step), &root.join(LINKING))?;
    if next.is_resumable() {
        durable::sync(root)?;
    }
    drop(lock);
    Ok(version)
}

/// Waits until a version that was published without training state is on disk, and `current`.
pub fn synchronize(root: &Path, version: &Version) -> Result<()> {
    durable::synchronize(&root.join(step_name(version.step)))?;
    durable::sync(root)
}

/// Makes a policy directory at `root` with the files that `fill` writes into its version 0: a whole model, or an adapter
/// over `base`.
///
/// # Errors
/// Something is at `root` already (exit 2); what `fill` returns; the disk's.
pub(crate) fn create(
    root: &Path,
    base: Option<&FrozenBase>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<Policy> {
    let building = durable::place_of_new(root)?;
    let base = base.map(|base| near_base(root, base)).transpose()?;
    let _lock = base.as_ref().map(|base| rest_on(&base.files, root)).transpose()?;
    durable::build(&building, root, |building| first_version(root, building, base.as_ref(), fill))?;
    Policy::open(root)
}

/// The base for an adapter at `root`: in a run a copy among the run's policies, so that the run needs no other folder.
fn near_base(root: &Path, base: &FrozenBase) -> Result<FrozenBase> {
    let Some(run) = run_of(root).filter(|run| !base.files.starts_with(run)) else { return Ok(base.clone()) };
    let copy = run.join("policies").join(format!("base-{}", Version::new(0, &base.digest).digest));
    if !exists(&copy)? {
        initial::from_directory(&copy, &base.files, None)?;
    }
    let files = copy.join(step_name(0));
    FrozenBase::open(files.canonicalize().map_err(|error| io_failure(&files, &error))?)
}

/// Version 0 in the directory `building`, which will be `root`, and the links to it and to the base.
fn first_version(
    root: &Path,
    building: &Path,
    base: Option<&FrozenBase>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let first = building.join(step_name(0));
    durable::create_directory(&first)?;
    fill(&first)?;
    let digest = digest_of_new(&first, base)?;
    if let Some(base) = base {
        let target = link_to(&base.files, root);
        let target =
            target.to_str().ok_or_else(|| Failure::usage(format!("{}: not UTF-8", show(&target))))?;
        durable::relink(&building.join(BASE), target, &building.join(LINKING))?;
    }
    seal(&first, 0, &digest, base, None)?;
    durable::synchronize(&first)?;
    durable::relink(&building.join(CURRENT), &step_name(0), &building.join(LINKING))?;
    durable::sync(building)
}

fn build(from: &Policy, next: &NewVersion, content: Content, step: u64, building: &Path) -> Result<Version> {
    side_files::link(&from.files, building)?;
    let digest = match content {
        Content::Same => link_weights(from, building)?,
        Content::New => write_weights(from, next.tensors, building)?,
    };
    if let Some(state) = next.trainer_state {
        let same = content == Content::Same && next.optimizer.is_empty();
        let linked = if same { link_optimizer(from, building)? } else { None };
        let version = Version::new(step, &digest);
        write_state(building, (&version, &digest), next.optimizer, linked, state)?;
    }
    let version = seal(building, step, &digest, from.base.as_ref(), Some((from, next.input)))?;
    if next.is_resumable() {
        durable::synchronize(building)?;
    }
    Ok(version)
}

/// Writes a version's account of itself.
fn seal(
    files: &Path,
    step: u64,
    digest: &str,
    base: Option<&FrozenBase>,
    made_from: Option<(&Policy, &str)>,
) -> Result<Version> {
    let version = Version::new(step, digest);
    let mut description = json!({ "version": version.to_string(), "step": step, "digest": digest });
    if let Some((from, input)) = made_from {
        description["from"] = from.version.to_string().into();
        description["input"] = input.into();
    }
    if let Some(base) = base {
        description["base"] = base.digest.as_str().into();
    }
    durable::write_json(&files.join(VERSION_FILE), &description)?;
    Ok(version)
}

/// Links a version's weight files; returns its digest.
fn link_weights(from: &Policy, building: &Path) -> Result<String> {
    let source = own_weights(from)?;
    for (path, _) in source.files() {
        durable::link(path, &building.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(from.digest.clone())
}

/// The weights that the version's files hold: an adapter's, or the whole model's.
fn own_weights(from: &Policy) -> Result<Arc<Weights>> {
    from.adapter()?.map_or_else(|| from.weights(), |(_, weights)| Ok(weights))
}

/// Writes the source's weight files with new values; returns the version's digest.
fn write_weights(from: &Policy, tensors: &[NewTensor], building: &Path) -> Result<String> {
    let (config, adapter, source) = (&from.config, from.adapter()?, own_weights(from)?);
    let wanted = adapter.as_ref().map_or_else(|| config.tensors(), |(adapter, _)| adapter.tensors(config));
    let new: HashMap<&str, &NewTensor> = tensors.iter().map(|tensor| (tensor.name, tensor)).collect();
    if new.len() != tensors.len() || new.len() != wanted.len() {
        return Err(Failure::work(format!(
            "{} tensors to publish but the model has {}",
            tensors.len(),
            wanted.len()
        )));
    }
    for Tensor { name, shape, .. } in &wanted {
        let tensor = new.get(name.as_str()).filter(|tensor| tensor.shape == shape);
        let tensor = tensor
            .ok_or_else(|| Failure::work(format!("no tensor {name:?} of shape {shape:?} to publish")))?;
        checkpoint::check_size(tensor, building)?;
    }
    // A fused tensor is its parts, one after the other.
    let decoder = config.decoder();
    let stored = decoder.stored().into_iter().filter(|stored| stored.parts.len() > 1);
    let fused: HashMap<String, Vec<&Tensor>> = stored.map(|stored| (stored.name, stored.parts)).collect();
    let written = checkpoint::rewrite(&source, building, |writer, name, entry| {
        if let Some(parts) = fused.get(name).filter(|_| from.base.is_none()) {
            parts.iter().try_for_each(|part| writer.tensor(new[part.name.as_str()], entry.dtype))?;
            return Ok(true);
        }
        let new_name = if name == HEAD { config.head_name() } else { name };
        match new.get(new_name) {
            Some(tensor) if tensor.shape == entry.shape && entry.dtype.is_weight() => {
                writer.tensor(tensor, entry.dtype).map(|()| true)
            }
            _ => Ok(false),
        }
    })?;
    Ok(match (adapter, &from.base) {
        (Some((adapter, _)), Some(base)) => digest::of_adapter(&written, adapter.scale(), &base.digest),
        _ => written,
    })
}

fn existing(from: &Policy, input: &str, retention: &Retention) -> Result<Option<Version>> {
    let root = &from.root;
    let step = from.version.step + 1;
    let path = root.join(step_name(step)).join(VERSION_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let description = read_json(&path)?;
    let says = |key: &str| description.get(key).and_then(Value::as_str);
    if says("from") != Some(&from.version.to_string()) || says("input") != Some(input) {
        return Ok(None);
    }
    // A later version, which descends from this one, stays current.
    let newest = current(root).ok().flatten();
    let newest = newest.as_deref().and_then(Path::to_str).and_then(step_of);
    if newest.is_none_or(|newest| newest < step) {
        durable::relink(&root.join(CURRENT), &step_name(step), &root.join(LINKING))?;
    }
    let version = Policy::open_step(root, step)?.version;
    // Its publisher may have been killed before it did so.
    synchronize(root, &version)?;
    if newest.is_none_or(|newest| newest <= step) {
        retire_locked(root, from.version.step, &version, retention)?;
    }
    Ok(Some(version))
}

/// Refuses to replace a version that a run would resume from, or that adapters rest on.
fn refuse_pinned(target: &Path, from: &Policy, step: u64, retention: &Retention) -> Result<()> {
    if !target.exists() {
        return Ok(());
    }
    let there = Policy::open_step(&from.root, step)?.version;
    let who = if adapters_rest_on(target) { "an adapter" } else { "a finished step" };
    if retention.pinned.contains(&there) || adapters_rest_on(target) {
        return Err(Failure::data(format!(
            "{}: {who} depends on version {there}, which these samples would replace",
            show(&from.root)
        ))
        .hint(format!("the samples were made by version {}: use the newest version's", from.version)));
    }
    Ok(())
}
