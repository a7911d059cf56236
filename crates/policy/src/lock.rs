//! Exclusive access to a policy directory while it changes, and what a crash left there.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

use record::failure::{Failure, Result};
use record::stage::interrupted;

use crate::directory::Policy;
use crate::durable;
use crate::files::{io_failure, show};

/// Held while a policy directory changes.
const LOCK: &str = ".lock";
/// How long until a lock that somebody else holds is tried again.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// Prefixes of unfinished versions, removals and links. Anything found while nobody holds the lock was left
/// by a crash.
pub(crate) const BUILDING: &str = ".publish-";
pub(crate) const REMOVING: &str = ".removed-";
pub(crate) const LINKING: &str = ".current";

/// Waits for exclusive access to the policy directory, or for a signal; removes what a crash left there.
pub(crate) fn lock(policy: &Policy) -> Result<File> {
    let root = &policy.root;
    if !policy.is_writable_layout() {
        return Err(Failure::usage(format!(
            "{}: a plain Hugging Face directory is never written to",
            show(root)
        ))
        .hint(format!("make a policy directory of it: policy init DIR --from {}", show(root))));
    }
    lock_root(root)
}

/// Locks a policy directory by its path.
pub(crate) fn lock_root(root: &Path) -> Result<File> {
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
