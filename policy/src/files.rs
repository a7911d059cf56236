//! Reading small files of a policy with sentences that name them.

use std::fs;
use std::io;
use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::Value;

/// JSON side files of a checkpoint are kilobytes; a tokenizer is tens of megabytes. Beyond this it is neither.
const LARGEST_JSON: u64 = 256 << 20;

/// `ELOOP` of Linux; the standard library's name for it is not stable.
const LINKS_IN_A_CIRCLE: i32 = 40;

/// What to do about a file that cannot be what its name says.
pub(crate) const COPY: &str = "the file is damaged: copy or download it again";

/// A path as a message shows it.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}

/// An operating-system error on a path: absence is a fault of the data (65), anything else of the machine (74).
pub(crate) fn io_failure(path: &Path, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        Failure::data(format!("{}: no such file or directory", show(path)))
            .hint("part of the policy is missing, or a link leads nowhere: copy or download it whole")
    } else if error.raw_os_error() == Some(LINKS_IN_A_CIRCLE) {
        Failure::data(format!("{}: symbolic links that lead in a circle", show(path)))
            .hint("put the file itself there, or a link to it")
    } else {
        Failure::io(format!("{}: {error}", show(path)))
    }
}

/// The file's text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let metadata = fs::metadata(path).map_err(|error| io_failure(path, &error))?;
    // Opening a pipe would wait for a writer that never comes.
    if !metadata.is_file() {
        return Err(Failure::data(format!("{}: not a file", show(path))).hint(COPY));
    }
    if metadata.len() > LARGEST_JSON {
        return Err(Failure::data(format!(
            "{}: {} bytes is too large for such a file",
            show(path),
            metadata.len()
        ))
        .hint(COPY));
    }
    let bytes = fs::read(path).map_err(|error| io_failure(path, &error))?;
    String::from_utf8(bytes).map_err(|_| Failure::data(format!("{}: not UTF-8", show(path))).hint(COPY))
}

/// The file as one JSON object.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = read_text(path)?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::data(format!("{}: not JSON: {error}", show(path))).hint(COPY))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Failure::data(format!("{}: not a JSON object", show(path))).hint(COPY))
    }
}

/// The same, or `None` where there is nothing of that name. A link that leads nowhere is something, and an error.
pub(crate) fn read_json_if_present(path: &Path) -> Result<Option<Value>> {
    match fs::symlink_metadata(path) {
        Ok(_) => read_json(path).map(Some),
        Err(_) => Ok(None),
    }
}
