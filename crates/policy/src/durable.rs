//! Files that survive a power cut whole, or not at all.
//!
//! A rename is atomic but guarantees nothing about the bytes renamed, so everything in a directory is synced before the
//! rename that makes it visible: once, when all of it is written, and several files at a time, since a disk's journal commits
//! many for the price of one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::Builder;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::files::show;

/// Files that are synced at the same time.
const AT_ONCE: usize = 8;

/// An I/O error on a path that was to be written.
pub(crate) fn failure(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("{}: {error}", show(path)));
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            failure.hint("free some space and run the same command again: it repeats unpublished work")
        }
        _ => failure,
    }
}

/// Writes a new file, indented, for [`synchronize`].
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    write(path, format!("{value:#}\n").as_bytes())
}

/// Creates a file that must not exist yet.
pub(crate) fn create(path: &Path) -> Result<File> {
    let file = File::create_new(path).map_err(|error| failure(path, &error))?;
    trace("create", path, path);
    Ok(file)
}

/// Writes a new file, for [`synchronize`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create(path)?;
    file.write_all(bytes).map_err(|error| failure(path, &error))
}

/// Waits until a directory and everything in it is on disk.
pub(crate) fn synchronize(directory: &Path) -> Result<()> {
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    list(directory, &mut files, &mut directories)?;
    let share = files.len().div_ceil(AT_ONCE).max(1);
    let sync_all = |part: &[PathBuf]| part.iter().try_for_each(|path| sync(path));
    std::thread::scope(|scope| {
        let start = |part| (part, Builder::new().spawn_scoped(scope, move || sync_all(part)));
        let parts: Vec<_> = files.chunks(share).map(start).collect();
        let ended = parts.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The system starts no more of them.
            Err(_) => sync_all(part),
        });
        ended.collect::<Result<()>>()
    })?;
    directories.iter().try_for_each(|directory| sync(directory))
}

/// The files below a directory, and the directories, each after those in it. Links have no content to sync.
fn list(directory: &Path, files: &mut Vec<PathBuf>, directories: &mut Vec<PathBuf>) -> Result<()> {
    let of_directory = |error| failure(directory, &error);
    for entry in fs::read_dir(directory).map_err(of_directory)? {
        let entry = entry.map_err(of_directory)?;
        let kind = entry.file_type().map_err(of_directory)?;
        if kind.is_dir() {
            list(&entry.path(), files, directories)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    directories.push(directory.to_owned());
    Ok(())
}

/// Waits until a file's content, or a directory's entries, are on disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| failure(path, &error))?;
    trace("sync", path, path);
    Ok(())
}

/// Makes a directory that must not exist yet.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|error| failure(path, &error))?;
    trace("directory", path, path);
    Ok(())
}

/// Refuses a directory that is there already, unless it is empty; makes its parent, and returns the hidden sibling in which it
/// is to be built.
pub(crate) fn place_of_new(root: &Path) -> Result<PathBuf> {
    let occupied = fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some());
    if occupied || fs::symlink_metadata(root).is_ok_and(|metadata| !metadata.is_dir()) {
        return Err(Failure::usage(format!("{}: already there", show(root)))
            .hint("nothing is ever overwritten: remove it or choose another name"));
    }
    let name = root.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage(format!("{}: not a directory's name", show(root))))?;
    let parent = match root.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(|error| Failure::io(format!("{}: {error}", show(parent))))?;
    Ok(parent.join(format!(".{name}.new")))
}

/// Fills a new directory at `building` and renames it to `root`; on failure it removes everything.
pub(crate) fn build(building: &Path, root: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    remove(building)?;
    create_directory(building)?;
    fill(building).inspect_err(|_| {
        // The first failure is the one to report.
        let _ = remove(building);
    })?;
    rename(building, root)
}

/// Renames within one directory without a sync: a later change there syncs both.
pub(crate) fn move_within(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| failure(to, &error))?;
    trace("rename", from, to);
    Ok(())
}

/// Renames within one directory and waits until the new name is on disk.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    move_within(from, to)?;
    match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => sync(Path::new(".")),
    }
}

/// Makes `link` point to `target` in one step, without a sync. `temporary` must be in the same folder.
pub(crate) fn relink(link: &Path, target: &str, temporary: &Path) -> Result<()> {
    symlink(target, temporary).map_err(|error| failure(temporary, &error))?;
    trace("link", temporary, Path::new(target));
    if fs::symlink_metadata(link).is_ok_and(|there| there.is_dir()) {
        remove(link)?; // in a copy whose links were followed
    }
    move_within(temporary, link)
}

/// Copies a file, following links, for [`synchronize`].
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map_err(|error| failure(to, &error))?;
    trace("create", to, to);
    Ok(())
}

/// Gives a file, which is never written to again, a second name, for [`synchronize`]; a copy where the file system has no
/// hard links, or not for files of another user.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    let target = from.canonicalize().map_err(|error| failure(from, &error))?;
    if fs::hard_link(&target, to).is_err() {
        return copy(&target, to);
    }
    trace("create", to, to);
    Ok(())
}

/// Removes a file, a link or a whole directory, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    trace("remove", path, path);
    let is_directory = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    match if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) } {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failure(path, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
use tests::trace;

/// Tests of power losses record every change here.
#[cfg(not(test))]
fn trace(_change: &str, _path: &Path, _other: &Path) {}
