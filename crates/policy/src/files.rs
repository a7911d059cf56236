//! Paths and small files of a policy, with messages that name them.

use std::fs;
use std::io;
use std::path::Path;

use record::failure::{Failure, Result};

/// Linux's errno for a loop of symbolic links; the standard library's name for it is unstable.
const ELOOP: i32 = 40;

/// Hint for a file that is not what its name says.
pub(crate) const COPY: &str = "the file is damaged: copy or download it again";

/// A path as messages show it, without control characters.
pub(crate) fn show(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "\u{fffd}")
}

/// An I/O error on a path that was to be read: 65 if it is missing, else 74.
pub(crate) fn io_failure(path: &Path, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        Failure::data(format!("{}: no such file or directory", show(path)))
            .hint("part of the policy is missing, or a link dangles: copy or download all of it")
    } else if error.raw_os_error() == Some(ELOOP) {
        Failure::data(format!("{}: symbolic links form a loop", show(path)))
            .hint("put the file itself there, or a link to it")
    } else {
        Failure::io(format!("{}: {error}", show(path)))
    }
}

/// The text of a file of at most `largest` bytes.
pub(crate) fn read_text(path: &Path, largest: u64) -> Result<String> {
    let metadata = fs::metadata(path).map_err(|error| io_failure(path, &error))?;
    // Opening a pipe would block.
    if !metadata.is_file() {
        return Err(Failure::data(format!("{}: not a file", show(path))).hint(COPY));
    }
    if metadata.len() > largest {
        return Err(
            Failure::data(format!("{}: {} bytes is too large", show(path), metadata.len())).hint(COPY)
        );
    }
    let bytes = fs::read(path).map_err(|error| io_failure(path, &error))?;
    String::from_utf8(bytes).map_err(|_| Failure::data(format!("{}: not UTF-8", show(path))).hint(COPY))
}

/// Returns true if the name exists, even as a dangling link; opening it then gives the precise error.
///
/// # Errors
/// 74 if the disk cannot tell. An unreadable name is never treated as missing.
pub(crate) fn exists(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(io_failure(path, &error)),
    }
}
