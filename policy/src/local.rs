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
use crate::directory::{Policy, VERSION_FILE, Version, digest_of, is_there};
use crate::durable;
use crate::json::io_failure;
use crate::lock::lock_folder;
use crate::side_files;
use crate::weights::Weights;

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
            let (files, version) = (base.clone(), Version::new(0, &digest_of(base, None)?));
            Some(copies.of(&Policy { root: files.clone(), files, base: None, version }, None)?.files)
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
    fn of(&mut self, policy: &Policy, base: Option<PathBuf>) -> Result<Policy> {
        let from = &policy.files;
        let files = files_of(from, policy.base.as_deref())?;
        let (root, version) = name(from, policy.base.as_deref(), &files)?;
        let target = self.folder.join(format!("{root}-{version}"));
        let local = |files: &Path| Policy { files: files.to_owned(), base: base.clone(), ..policy.clone() };
        self.prune(&root, &target)?;
        if !is_there(&target)? {
            durable::build(&self.folder.join(format!("{UNFINISHED}{root}")), &target, |building| {
                for file in &files {
                    let to = building.join(file);
                    let folder = to.parent().unwrap_or(building);
                    fs::create_dir_all(folder).map_err(|error| durable::failure(folder, &error))?;
                    durable::copy(&from.join(file), &to)?;
                }
                durable::write(&building.join(IN_USE), &[])?;
                local(building).verify()?;
                durable::synchronize(building)
            })?;
            self.copied = true;
        }
        let path = target.join(IN_USE);
        let in_use = File::open(&path).and_then(|file| file.lock_shared().map(|()| file));
        self.in_use.push(in_use.map_err(|error| io_failure(&path, &error))?);
        Ok(local(&target))
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
fn files_of(from: &Path, base: Option<&Path>) -> Result<BTreeSet<PathBuf>> {
    let mut files: BTreeSet<PathBuf> = side_files::names(from)?.into_iter().map(PathBuf::from).collect();
    match base {
        Some(_) => drop(files.insert(adapter::WEIGHTS.into())),
        None => files
            .extend(Weights::open(from)?.files().filter_map(|(path, _)| path.file_name()).map(PathBuf::from)),
    }
    if is_there(&from.join(VERSION_FILE))? {
        files.insert(VERSION_FILE.into());
    }
    Ok(files)
}

/// The names of a policy, by where it is, and of its version, by all that is copied.
fn name(from: &Path, base: Option<&Path>, files: &BTreeSet<PathBuf>) -> Result<(String, String)> {
    let from = from.canonicalize().map_err(|error| io_failure(from, &error))?;
    let step = from.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("step-"));
    let root = if step.is_some() { from.parent().unwrap_or(&from) } else { &from };
    let label: String = root.file_name().unwrap_or_default().to_string_lossy().chars().take(64).collect();
    let short = |hash: blake3::Hash| hash.to_hex().as_str()[..16].to_owned();
    let policy = format!("{label}-{}", short(blake3::hash(root.as_os_str().as_encoded_bytes())));
    let mut hasher = blake3::Hasher::new();
    // The weights are represented by their digest; the other files are small.
    hasher.update(digest_of(&from, base)?.as_bytes());
    for file in files.iter().filter(|file| file.extension().is_none_or(|kind| kind != "safetensors")) {
        let path = from.join(file);
        hasher.update(file.as_os_str().as_encoded_bytes());
        hasher.update(blake3::hash(&fs::read(&path).map_err(|error| io_failure(&path, &error))?).as_bytes());
    }
    Ok((policy, format!("{}-{}", step.unwrap_or("model"), short(hasher.finalize()))))
}
