//! Files that are there after a power cut, or not at all.
//!
//! A rename is atomic but says nothing about the bytes renamed: each file and directory is synchronised to the disk
//! before the rename that makes it visible.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::files::show;

/// An error of the disk on a path that was to be written.
pub(crate) fn failure(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("{}: {error}", show(path)));
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            failure.hint("free some space and run the same command again: nothing is half-published")
        }
        _ => failure,
    }
}

/// Writes a new file and waits until the disk has it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(|error| failure(path, &error))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| failure(path, &error))
}

/// Waits until the disk has a directory's entries.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(|error| failure(path, &error))
}

/// Makes a directory that must not be there yet.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|error| failure(path, &error))
}

/// Renames within one directory and waits until the disk has the new name.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| failure(to, &error))?;
    match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Makes `link` point to `target`, replacing what it pointed to in one step. `temporary` lies beside it.
pub(crate) fn relink(link: &Path, target: &str, temporary: &Path) -> Result<()> {
    symlink(target, temporary).map_err(|error| failure(temporary, &error))?;
    rename(temporary, link)
}

/// Copies a regular file (what a symlink points to) byte for byte.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map_err(|error| failure(to, &error))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| failure(to, &error))
}

/// Removes a file, link or whole directory; nothing there is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failure(path, &error)),
        _ => Ok(()),
    }
}
