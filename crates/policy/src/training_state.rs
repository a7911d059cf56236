//! The optimizer's and the trainer's state of a version: saved with the weights or later, and loaded again.
//!
//! The newest version and its predecessor keep their state, so that publishing again from the predecessor
//! with other samples starts from the same state.

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use crate::checkpoint::{self, Data, NewTensor};
use crate::digest;
use crate::directory::Policy;
use crate::durable;
use crate::files::show;
use crate::json::read_json_if_present;
use crate::layout::Version;
use crate::lock::{BUILDING, lock};
use crate::weights::{ElementType, Weights};

/// Optimizer state, a file in the version's folder.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// Trainer state, a file in the version's folder.
pub(crate) const TRAINER_STATE: &str = "trainer_state.json";
/// Key of the trainer state: the digest of the optimizer state.
const OPTIMIZER_DIGEST: &str = "optimizer_digest";

/// Optimizer state, if the version was published with one, and [`crate::publish::NewVersion::trainer_state`].
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
            return Err(Failure::data(format!("{}: missing for {}", show(&path), show(&optimizer)))
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
        .hint("remove it and the optimizer state to start with a fresh optimizer"));
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

/// Writes optimizer state, if there is any, and trainer state into a folder. `linked` is the digest of optimizer state that
/// is there already.
pub(crate) fn write_state(
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
            Data::LowerHalves(_) | Data::Bits(_) => ElementType::U16,
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
    write_state(&building, (&policy.version, &policy.digest), optimizer, None, trainer_state)
        .and_then(|()| durable::synchronize(&building))
        .inspect_err(|_| {
            // See `publish`.
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

/// Links a version's optimizer state, if it has one; returns the digest recorded with it.
pub(crate) fn link_optimizer(from: &Policy, building: &Path) -> Result<Option<Value>> {
    let path = from.files.join(OPTIMIZER);
    let notes = read_json_if_present(&from.files.join(TRAINER_STATE))?;
    let Some(digest) = notes.as_ref().and_then(|notes| notes.get(OPTIMIZER_DIGEST)) else { return Ok(None) };
    durable::link(&path, &building.join(OPTIMIZER))?;
    Ok(Some(digest.clone()))
}
