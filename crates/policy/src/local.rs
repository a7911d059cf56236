//! Copies of versions on a disk of one machine, for processes there that would otherwise all read the weights from a file system
//! of the whole cluster.
//!
//! The first process that needs a version copies it while the others wait. A copy is verified, synced and renamed: it is whole
//! or not there. Whoever uses one holds a lock on it; a policy's other copies are removed once nobody does. Left out: the
//! optimizer's state, and publishing, which is done where the policy is.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use record::failure::Result;

use crate::adapter;
use crate::directory::{FrozenBase, Policy};
use crate::durable;
use crate::files::{exists, io_failure};
use crate::layout::VERSION_FILE;
use crate::lock::lock_folder;
use crate::side_files;

/// In a copy: locked by those who use it.
const IN_USE: &str = ".in-use";
/// Prefix of unfinished copies and removals. Anything found with this prefix under the folder's lock was left
/// by a crash.
const UNFINISHED: &str = ".local-";

/// A version whose files are in a folder of this machine, where they stay for as long as this lives.
pub struct LocalCopy {
    /// The version, with the copy's files; its root is still the original policy's.
    pub policy: Policy,
    /// True if this call has made a copy.
    pub copied: bool,
    _in_use: Vec<File>,
}

/// The copy of a version in `folder`, and of the base if it is an adapter. Processes of several runs may
/// share the folder.
///
/// # Errors
/// An I/O error (74); weights that do not match the version's digest (65); a signal while another process
/// copies (130, 143).
pub fn copy(policy: &Policy, folder: &Path) -> Result<LocalCopy> {
    fs::create_dir_all(folder).map_err(|error| durable::failure(folder, &error))?;
    let folder = folder.canonicalize().map_err(|error| io_failure(folder, &error))?;
    let _lock = lock_folder(&folder, &[UNFINISHED])?;
    let mut copies = Copies { folder: &folder, copied: false, in_use: Vec::new() };
    let base = match &policy.base {
        Some(base) => {
            let whole = Policy::read(&base.files, base.files.clone(), None, 0, Some(base.digest.clone()))?;
            Some(FrozenBase { files: copies.of(&whole, None)?.files, digest: base.digest.clone() })
        }
        None => None,
    };
    let local = copies.of(policy, base)?;
    Ok(LocalCopy { policy: local, copied: copies.copied, _in_use: copies.in_use })
}

/// The copies in a folder, with its lock held.
struct Copies<'a> {
    folder: &'a Path,
    copied: bool,
    in_use: Vec<File>,
}

impl Copies<'_> {
    /// The copy of a version, over the copy of its base if it is an adapter, locked against removal.
    fn of(&mut self, policy: &Policy, base: Option<FrozenBase>) -> Result<Policy> {
        let from = &policy.files;
        let files = files_of(policy)?;
        let (root, version) = name(policy, &files)?;
        let target = self.folder.join(format!("{root}-{version}"));
        let local = |files: &Path| {
            let digest = Some(policy.digest.clone());
            Policy::read(&policy.root, files.to_owned(), base.clone(), policy.version.step, digest)
        };
        self.prune(&root, &target)?;
        if !exists(&target)? {
            durable::build(&self.folder.join(format!("{UNFINISHED}{root}")), &target, |building| {
                for file in &files {
                    let to = building.join(file);
                    let folder = to.parent().unwrap_or(building);
                    fs::create_dir_all(folder).map_err(|error| durable::failure(folder, &error))?;
                    durable::copy(&from.join(file), &to)?;
                }
                durable::write(&building.join(IN_USE), &[])?;
                local(building)?.verify()?;
                durable::synchronize(building)
            })?;
            self.copied = true;
        }
        let path = target.join(IN_USE);
        let in_use = File::open(&path).and_then(|file| file.lock_shared().map(|()| file));
        self.in_use.push(in_use.map_err(|error| io_failure(&path, &error))?);
        local(&target)
    }

    /// Removes the other copies of a policy that nobody uses.
    fn prune(&self, policy: &str, keep: &Path) -> Result<()> {
        for entry in fs::read_dir(self.folder).map_err(|error| io_failure(self.folder, &error))? {
            let path = entry.map_err(|error| io_failure(self.folder, &error))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let other = name.strip_prefix(policy).is_some_and(|rest| rest.starts_with('-')) && path != keep;
            if other && File::open(path.join(IN_USE)).is_ok_and(|file| file.try_lock().is_ok()) {
                let removing = self.folder.join(format!("{UNFINISHED}{name}"));
                durable::rename(&path, &removing)?;
                durable::remove(&removing)?;
            }
        }
        Ok(())
    }
}

/// The files to copy from a version's directory: weights, side files, and its record of itself.
fn files_of(policy: &Policy) -> Result<BTreeSet<PathBuf>> {
    let from = &policy.files;
    let mut files: BTreeSet<PathBuf> = side_files::names(from)?.into_iter().map(PathBuf::from).collect();
    match policy.base {
        Some(_) => drop(files.insert(adapter::WEIGHTS.into())),
        None => files
            .extend(policy.weights()?.files().filter_map(|(path, _)| path.file_name()).map(PathBuf::from)),
    }
    if exists(&from.join(VERSION_FILE))? {
        files.insert(VERSION_FILE.into());
    }
    Ok(files)
}

/// The names of a policy, by where it is, and of its version, by all that is copied.
fn name(policy: &Policy, files: &BTreeSet<PathBuf>) -> Result<(String, String)> {
    let from = policy.files.canonicalize().map_err(|error| io_failure(&policy.files, &error))?;
    let step = from.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("step-"));
    let root = if step.is_some() { from.parent().unwrap_or(&from) } else { &from };
    let label: String = root.file_name().unwrap_or_default().to_string_lossy().chars().take(64).collect();
    let short = |hash: blake3::Hash| hash.to_hex().as_str()[..16].to_owned();
    let name = format!("{label}-{}", short(blake3::hash(root.as_os_str().as_encoded_bytes())));
    let mut hasher = blake3::Hasher::new();
    // The weights are represented by their digest; the other files are small.
    hasher.update(policy.digest.as_bytes());
    for file in files.iter().filter(|file| file.extension().is_none_or(|kind| kind != "safetensors")) {
        let path = from.join(file);
        hasher.update(file.as_os_str().as_encoded_bytes());
        hasher.update(blake3::hash(&fs::read(&path).map_err(|error| io_failure(&path, &error))?).as_bytes());
    }
    Ok((name, format!("{}-{}", step.unwrap_or("model"), short(hasher.finalize()))))
}
