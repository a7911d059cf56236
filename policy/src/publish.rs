//! Publishes a new version of a policy: all of it or nothing, whatever happens meanwhile.
//!
//! A version is built in a hidden directory, synced and renamed into place; only then does `current` point to it. A reader
//! that opened the old version keeps its files. The next publisher removes what a crash left behind.
//!
//! Weights keep their type, file and place: the new file's header is the source's, byte for byte. bf16 weights are rounded
//! to nearest even, and what rounding loses can be saved beside the optimizer state. Other files of the policy are copied
//! ([`crate::side_files`]).
//!
//! The optimizer state lies beside the newest version and the one it was made from, so that publishing again from the same
//! version with other samples starts from the same state.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use record::failure::{Failure, Result};
use record::stage::interrupted;
use serde_json::{Map, Value, json};

use crate::adapter::Adapter;
use crate::checkpoint;
pub use crate::checkpoint::{Data, NewTensor, PIECE, Read};
use crate::config::Config;
use crate::decoder::Tensor;
use crate::digest;
use crate::directory::{self, BASE, CURRENT, Policy, VERSION_FILE, Version, step_name};
use crate::durable;
use crate::json::{io_failure, read_json, read_json_if_present, show};
use crate::side_files;
use crate::weights::{ElementType, HEAD, Weights};

/// Optimizer state, beside the weights.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// Trainer state, beside the weights.
pub(crate) const TRAINER_STATE: &str = "trainer_state.json";
/// Key of the trainer state: the digest of the optimizer state.
const OPTIMIZER_DIGEST: &str = "optimizer_digest";
/// In a version on which adapters rest: a line for each. It is kept while there is one.
const ADAPTERS: &str = ".adapters";
/// Held while a policy directory changes.
const LOCK: &str = ".lock";
/// How long until a lock that somebody else holds is tried again.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// Prefixes of what is being built, removed or linked; found without the lock held, it was left by a crash.
const BUILDING: &str = ".publish-";
const REMOVING: &str = ".removed-";
const LINKING: &str = ".current";

/// A version to publish.
#[derive(Clone, Copy)]
pub struct NewVersion<'a> {
    /// Identifies all that determines the new weights besides the version they start from, such as a hash of samples and
    /// settings. Publishing the same input again does nothing.
    pub input: &'a str,
    /// Every tensor of [`Config::tensors`], or for an adapter of [`Adapter::tensors`], each once, in any order.
    pub tensors: &'a [NewTensor<'a>],
    /// Optimizer state; no file if empty.
    pub optimizer: &'a [NewTensor<'a>],
    /// Trainer state; `version`, `digest` and `optimizer_digest` are added. Without, no state is saved: see [`save_state`].
    pub trainer_state: Option<&'a Map<String, Value>>,
}

/// Which versions are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention<'a> {
    /// How many of the newest; at least 1.
    pub keep: usize,
    /// Versions that are kept however old they are: those that a resumed run would start from.
    pub pinned: &'a [Version],
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

/// Publishes the version after `from` and makes it the newest. A version of that number made from another input is replaced,
/// with all later ones; one made from the same input stays. Older ones stay until [`retire`].
///
/// # Errors
/// `from` is no version of a policy directory (exit 2); tensors that are not those of the model; the disk's (74).
pub fn publish(from: &Policy, next: &NewVersion, retention: &Retention) -> Result<Version> {
    publish_content(from, next, Content::New, retention)
}

/// The same with the weights of `from` and, unless `next` has an optimizer's state, that of `from`, both [verified](Policy)
/// before: their files are linked, not written again. `next` names no tensors.
///
/// # Errors
/// As [`publish`].
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
    durable::rename(&building, &target)?;
    durable::relink(&root.join(CURRENT), &step_name(step), &root.join(LINKING))?;
    drop(lock);
    Ok(version)
}

/// Removes versions beyond the retention, and optimizer state that nothing starts from; `newest`, the version after `input`, is
/// published.
///
/// # Errors
/// The disk's (74).
pub fn retire(root: &Path, input: u64, newest: &Version, retention: &Retention) -> Result<()> {
    let _lock = lock_root(root)?;
    retire_locked(root, input, newest, retention)
}

/// Optimizer state, if the version was published with one, and [`NewVersion::trainer_state`].
pub type TrainingState = (Option<Weights>, Map<String, Value>);

/// A version's training state, if it was saved.
///
/// # Errors
/// Optimizer state without trainer state; state of other weights.
pub fn training_state(policy: &Policy) -> Result<Option<TrainingState>> {
    let path = policy.files.join(TRAINER_STATE);
    let optimizer = policy.files.join(OPTIMIZER);
    let Some(Value::Object(mut notes)) = read_json_if_present(&path)? else {
        if optimizer.exists() {
            return Err(Failure::data(format!("{}: not beside {}", show(&path), show(&optimizer)))
                .hint("remove the optimizer's state to start with a fresh one"));
        }
        return Ok(None);
    };
    let version = notes.remove("version");
    notes.remove("digest");
    if version.as_ref().and_then(Value::as_str) != Some(&policy.version.to_string()) {
        return Err(Failure::data(format!(
            "{}: written for another version than {}",
            show(&path),
            policy.version
        ))
        .hint("remove it and the optimizer state beside it to start with a fresh optimizer"));
    }
    let recorded = notes.remove(OPTIMIZER_DIGEST);
    let state = if optimizer.exists() { Some(Weights::open_file(&optimizer)?) } else { None };
    if let (Some(state), Some(recorded)) = (&state, recorded)
        && recorded != digest::of(state)
    {
        return Err(Failure::data(format!("{}: the state is not the one that was saved", show(&optimizer)))
            .hint(format!(
                "the file is damaged: remove it and {TRAINER_STATE} to start with a fresh optimizer"
            )));
    }
    Ok(Some((state, notes)))
}

/// Makes a policy directory at `root` with the files that `fill` writes into its version 0: a whole model, or an adapter
/// over the model in `base`, which is canonical.
///
/// # Errors
/// Something is at `root` already (exit 2); what `fill` returns; the disk's.
pub(crate) fn create(
    root: &Path,
    base: Option<&Path>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<Policy> {
    let building = durable::place_of_new(root)?;
    let _lock = base.map(|base| rest_on(base, root)).transpose()?;
    durable::build(&building, root, |building| first_version(root, building, base, fill))?;
    Policy::open(root)
}

/// Version 0 in the directory `building`, which will be `root`, and the links to it and to the base.
fn first_version(
    root: &Path,
    building: &Path,
    base: Option<&Path>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let first = building.join(step_name(0));
    durable::create_directory(&first)?;
    fill(&first)?;
    let digest = directory::compute_digest(&first, base)?;
    if let Some(base) = base {
        let target = link_to(base, root);
        let target =
            target.to_str().ok_or_else(|| Failure::usage(format!("{}: not UTF-8", show(&target))))?;
        durable::relink(&building.join(BASE), target, &building.join(LINKING))?;
    }
    seal(&first, 0, &digest, base, None)?;
    durable::relink(&building.join(CURRENT), &step_name(0), &building.join(LINKING))
}

/// The target of the link to the base: relative if both lie in one folder, so that the folder can be moved.
fn link_to(base: &Path, root: &Path) -> PathBuf {
    let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match parent.canonicalize().ok().and_then(|parent| base.strip_prefix(parent).ok().map(Path::to_owned)) {
        Some(within) => Path::new("..").join(within),
        None => base.to_owned(),
    }
}

fn build(from: &Policy, next: &NewVersion, content: Content, step: u64, building: &Path) -> Result<Version> {
    side_files::copy(&from.files, building)?;
    let digest = match (content, &from.base) {
        (Content::Same, _) => link_weights(from, building)?,
        (Content::New, None) => write_weights(from, next.tensors, building)?,
        (Content::New, Some(base)) => {
            let written = write_weights(from, next.tensors, building)?;
            digest::of_adapter(&written, Adapter::load(building)?.scale(), &directory::digest_of(base, None)?)
        }
    };
    if let Some(state) = next.trainer_state {
        let same = content == Content::Same && next.optimizer.is_empty();
        let linked = if same { link_optimizer(from, building)? } else { None };
        let version = Version::new(step, &digest);
        write_state(building, (&version, &digest), next.optimizer, linked, state)?;
    }
    seal(building, step, &digest, from.base.as_deref(), Some((from, next.input)))
}

/// Writes optimizer state, if there is any, and trainer state into a folder. `linked` is the digest of optimizer state that
/// is there already.
fn write_state(
    folder: &Path,
    (version, digest): (&Version, &str),
    optimizer: &[NewTensor],
    linked: Option<Value>,
    trainer_state: &Map<String, Value>,
) -> Result<()> {
    let mut notes = json!({ "version": version.to_string(), "digest": digest });
    if !optimizer.is_empty() {
        let written = checkpoint::write(&folder.join(OPTIMIZER), optimizer, |tensor| match tensor.data {
            Data::F32(_) | Data::Pieces(_) => ElementType::F32,
            Data::LowerHalves(_) => ElementType::U16,
        });
        notes[OPTIMIZER_DIGEST] = written?.into();
    } else if let Some(digest) = linked {
        notes[OPTIMIZER_DIGEST] = digest;
    }
    for (key, value) in trainer_state {
        if notes.get(key).is_none() {
            notes[key] = value.clone();
        }
    }
    durable::write_json(&folder.join(TRAINER_STATE), &notes)
}

/// Saves the training state of a version that was published without. If it is cut off in between, optimizer state is left
/// without trainer state, which [`training_state`] refuses.
///
/// # Errors
/// No version of a policy directory (exit 2); the disk's (74).
pub fn save_state(
    policy: &Policy,
    optimizer: &[NewTensor],
    trainer_state: &Map<String, Value>,
) -> Result<()> {
    let lock = lock(policy)?;
    let building = policy.root.join(format!("{BUILDING}state"));
    durable::create_directory(&building)?;
    let digest = directory::recorded(&policy.files, "digest")?.unwrap_or_default();
    write_state(&building, (&policy.version, &digest), optimizer, None, trainer_state)
        .and_then(|()| durable::synchronize(&building))
        .inspect_err(|_| {
            // As in `publish`.
            let _ = durable::remove(&building);
        })?;
    for name in [OPTIMIZER, TRAINER_STATE] {
        if building.join(name).exists() {
            durable::rename(&building.join(name), &policy.files.join(name))?;
        }
    }
    durable::remove(&building)?;
    drop(lock);
    Ok(())
}

/// Writes a version's account of itself and waits until all of it is on disk.
fn seal(
    files: &Path,
    step: u64,
    digest: &str,
    base: Option<&Path>,
    made_from: Option<(&Policy, &str)>,
) -> Result<Version> {
    let version = Version::new(step, digest);
    let mut description = json!({ "version": version.to_string(), "step": step, "digest": digest });
    if let Some((from, input)) = made_from {
        description["from"] = from.version.to_string().into();
        description["input"] = input.into();
    }
    if let Some(base) = base {
        description["base"] = directory::digest_of(base, None)?.into();
    }
    durable::write_json(&files.join(VERSION_FILE), &description)?;
    durable::synchronize(files)?;
    Ok(version)
}

/// Links a version's weight files; returns its digest.
fn link_weights(from: &Policy, building: &Path) -> Result<String> {
    let source = match from.adapter(&Config::load(from.model())?)? {
        Some((_, weights)) => weights,
        None => Weights::open(&from.files)?,
    };
    for (path, _) in source.files() {
        durable::link(path, &building.join(path.file_name().unwrap_or_default()))?;
    }
    directory::digest_of(&from.files, from.base.as_deref())
}

/// Links a version's optimizer state, if it has one; returns the digest recorded with it.
fn link_optimizer(from: &Policy, building: &Path) -> Result<Option<Value>> {
    let path = from.files.join(OPTIMIZER);
    let notes = read_json_if_present(&from.files.join(TRAINER_STATE))?;
    let Some(digest) = notes.as_ref().and_then(|notes| notes.get(OPTIMIZER_DIGEST)) else { return Ok(None) };
    durable::link(&path, &building.join(OPTIMIZER))?;
    Ok(Some(digest.clone()))
}

/// Writes the source's weight files with new values; returns the digest of their bytes.
fn write_weights(from: &Policy, tensors: &[NewTensor], building: &Path) -> Result<String> {
    let config = Config::load(from.model())?;
    let (source, wanted) = match from.adapter(&config)? {
        Some((adapter, weights)) => (weights, adapter.tensors(&config)),
        None => (Weights::of_model(&from.files, &config)?, config.tensors()),
    };
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
    checkpoint::rewrite(&source, building, |writer, name, entry| {
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
    let current = fs::read_link(root.join(CURRENT)).ok();
    let newest = current.as_deref().and_then(Path::to_str).and_then(directory::step_of);
    if newest.is_none_or(|newest| newest < step) {
        durable::relink(&root.join(CURRENT), &step_name(step), &root.join(LINKING))?;
    }
    let version = Policy::open_step(root, step)?.version;
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

fn retire_locked(root: &Path, input: u64, newest: &Version, retention: &Retention) -> Result<()> {
    let failure = |failure: Failure| {
        let hint = "the next update removes them; nothing of the new version is missing";
        failure.at(format!("version {newest} is published, but older ones were not removed")).hint(hint)
    };
    prune(root, input, newest.step, retention).map_err(failure)
}

fn prune(root: &Path, input: u64, newest: u64, retention: &Retention) -> Result<()> {
    let pinned: BTreeSet<u64> = retention.pinned.iter().map(|version| version.step).collect();
    let steps = directory::steps(root)?;
    let mut kept = 0;
    for &step in steps.iter().rev() {
        let recent = step <= newest && kept < retention.keep.max(1);
        kept += usize::from(step <= newest);
        let files = root.join(step_name(step));
        if !recent && !pinned.contains(&step) && !adapters_rest_on(&files) {
            discard(root, &step_name(step))?;
        } else if step != newest && step != input && !pinned.contains(&step) {
            // In this order: optimizer state without trainer state is refused, never used.
            durable::remove(&files.join(TRAINER_STATE))?;
            durable::remove(&files.join(OPTIMIZER))?;
        }
    }
    Ok(())
}

/// Hides a version in one step, then removes it.
fn discard(root: &Path, name: &str) -> Result<()> {
    let hidden = root.join(format!("{REMOVING}{name}"));
    durable::rename(&root.join(name), &hidden)?;
    durable::remove(&hidden)
}

/// Records in a version of a policy directory that the adapter at `root` rests on it. Nothing is removed there until the
/// returned lock is released. Where nothing can be written, as in another user's directory, there is no record.
fn rest_on(base: &Path, root: &Path) -> Result<Option<File>> {
    let Some(policy) = base.parent() else { return Ok(None) };
    if !directory::is_policy_directory(policy)? {
        return Ok(None);
    }
    let path = base.join(ADAPTERS);
    let failure = |error: std::io::Error| durable::failure(&path, &error);
    let mut record = match File::options().create(true).append(true).open(&path) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            return Ok(None);
        }
        opened => opened.map_err(failure)?,
    };
    let lock = lock_root(policy)?;
    // As relative as the link to the base, so that both can move together.
    let link = link_to(base, root);
    let adapter = match link.is_relative() {
        true => PathBuf::from_iter(link.components().skip(1).map(|_| ".."))
            .join(root.file_name().unwrap_or_default()),
        false => std::path::absolute(root).map_err(failure)?,
    };
    writeln!(record, "{}", adapter.display()).and_then(|()| record.sync_all()).map_err(failure)?;
    if path.exists() { Ok(Some(lock)) } else { Err(io_failure(base, &ErrorKind::NotFound.into())) }
}

/// Whether an adapter of another policy directory rests on a version. One in the same folder counts until it is removed;
/// others may have been moved and always count.
fn adapters_rest_on(files: &Path) -> bool {
    let place = files.canonicalize().ok();
    let rests = |line: &str| {
        let base = files.join(line).join(BASE);
        Path::new(line).is_absolute() || base.canonicalize().ok() == place
    };
    match fs::read_to_string(files.join(ADAPTERS)) {
        Ok(adapters) => adapters.lines().any(rests),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Waits for exclusive access to the policy directory, or for a signal; removes what a crash left there.
fn lock(policy: &Policy) -> Result<File> {
    let root = &policy.root;
    if !policy.is_writable_layout()? {
        return Err(Failure::usage(format!(
            "{}: a plain Hugging Face directory is never written to",
            show(root)
        ))
        .hint(format!("make a policy directory of it: policy init DIR --from {}", show(root))));
    }
    lock_root(root)
}

fn lock_root(root: &Path) -> Result<File> {
    lock_folder(root, &[BUILDING, REMOVING, LINKING])
}

/// Waits for exclusive access to a folder, or for a signal; removes what a crash left there, by its prefixes.
pub(crate) fn lock_folder(root: &Path, leftovers: &[&str]) -> Result<File> {
    let path = root.join(LOCK);
    let failure = |error: std::io::Error| Failure::io(format!("{}: {error}", show(&path)));
    // To open a FIFO would wait for its other end.
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(Failure::io(format!("{}: not a regular file", show(&path))).hint("remove it"));
    }
    let file = File::options().create(true).append(true).open(&path).map_err(failure)?;
    while let Err(error) = file.try_lock() {
        match error {
            TryLockError::Error(error) => return Err(failure(error)),
            TryLockError::WouldBlock if interrupted() => return Err(Failure::interrupted()),
            TryLockError::WouldBlock => std::thread::sleep(LOCK_WAIT),
        }
    }
    for entry in fs::read_dir(root).map_err(|error| io_failure(root, &error))? {
        let entry = entry.map_err(|error| io_failure(root, &error))?;
        let name = entry.file_name();
        let leftover = |name: &str| leftovers.iter().any(|prefix| name.starts_with(prefix));
        if name.to_str().is_some_and(leftover) {
            durable::remove(&entry.path())?;
        }
    }
    Ok(file)
}
