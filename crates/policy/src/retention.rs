//! Decides which versions of a policy stay. Versions that adapters rest on always stay.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

use crate::durable;
use crate::files::io_failure;
use crate::layout::{BASE, Version, current, parent_of, run_of, step_name, steps};
use crate::lock::{REMOVING, lock_root};
use crate::training_state::{OPTIMIZER, TRAINER_STATE};

/// In a version on which adapters rest: a line for each. It is kept while there is one.
const ADAPTERS: &str = ".adapters";

/// The versions to keep.
#[derive(Clone, Copy, Debug)]
pub struct Retention<'a> {
    /// How many of the newest; at least 1.
    pub keep: usize,
    /// Versions that are kept however old they are: those that a resumed run would start from.
    pub pinned: &'a [Version],
}

/// Removes versions beyond the retention, and optimizer state that nothing starts from; `newest`, the version after `input`, is
/// published.
pub fn retire(root: &Path, input: u64, newest: &Version, retention: &Retention) -> Result<()> {
    let _lock = lock_root(root)?;
    retire_locked(root, input, newest, retention)
}

/// The target of the link to the base: relative if both lie in one folder or one run, so that it can be moved.
pub(crate) fn link_to(base: &Path, root: &Path) -> PathBuf {
    way(root, base).unwrap_or_else(|| base.to_owned())
}

/// The relative path from one directory to another of the same folder or run; they need not be there yet.
fn way(from: &Path, to: &Path) -> Option<PathBuf> {
    let place = |path: &Path| Some(parent_of(path)?.join(path.file_name()?));
    let (from_place, to_place) = (place(from)?, place(to)?);
    let shared = [parent_of(from), parent_of(to), run_of(from), run_of(to)].into_iter().flatten();
    let shared =
        shared.into_iter().find(|shared| from_place.starts_with(shared) && to_place.starts_with(shared))?;
    let up = from_place.strip_prefix(&shared).ok()?.components().map(|_| "..");
    Some(up.collect::<PathBuf>().join(to_place.strip_prefix(&shared).ok()?))
}

/// [`retire`] by whoever holds the lock.
pub(crate) fn retire_locked(root: &Path, input: u64, newest: &Version, retention: &Retention) -> Result<()> {
    let failure = |failure: Failure| {
        let hint = "the next update removes them; nothing of the new version is missing";
        failure.at(format!("version {newest} is published, but older ones were not removed")).hint(hint)
    };
    prune(root, input, newest.step, retention).map_err(failure)
}

fn prune(root: &Path, input: u64, newest: u64, retention: &Retention) -> Result<()> {
    let pinned: BTreeSet<u64> = retention.pinned.iter().map(|version| version.step).collect();
    let steps = steps(root)?;
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
pub(crate) fn discard(root: &Path, name: &str) -> Result<()> {
    let hidden = root.join(format!("{REMOVING}{name}"));
    durable::rename(&root.join(name), &hidden)?;
    durable::remove(&hidden)
}

/// Records in a version of a policy directory that the adapter at `root` rests on it. Nothing is removed
/// there until the returned lock is released. A directory that is not writable, such as another user's, gets
/// no record.
pub(crate) fn rest_on(base: &Path, root: &Path) -> Result<Option<File>> {
    let Some(policy) = base.parent() else { return Ok(None) };
    if current(policy)?.is_none() {
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
    // Relative if the link to the base is relative, so that both can move together.
    let adapter = match way(base, root) {
        Some(way) => way,
        None => std::path::absolute(root).map_err(failure)?,
    };
    writeln!(record, "{}", adapter.display()).and_then(|()| record.sync_all()).map_err(failure)?;
    if path.exists() { Ok(Some(lock)) } else { Err(io_failure(base, &ErrorKind::NotFound.into())) }
}

/// Returns true if an adapter of another policy directory rests on a version. One in the same folder counts until it is removed;
/// others may have been moved and always count.
pub(crate) fn adapters_rest_on(files: &Path) -> bool {
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
