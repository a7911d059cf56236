//! Files in a run directory: committed steps, evaluations, and streams that may be compressed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use record::compressed;
use record::failure::{Failure, Result};

/// The numbers among the names in a folder, without `prefix` and `suffix`; empty if there is no folder.
pub fn numbered_files(folder: &Path, prefix: &str, suffix: &str) -> Result<BTreeMap<u64, PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Failure::io(format!("{}: {error}", folder.display()))),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::io(format!("{}: {error}", folder.display())))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.insert(number, path);
        }
    }
    Ok(found)
}

/// The committed steps from 1 (step 0 is the starting point and has no samples), and one that was begun after
/// them.
pub fn committed_steps(directory: &Path) -> Result<(Vec<u64>, Option<u64>)> {
    let found = numbered_files(&directory.join("steps"), "", "")?;
    let (committed, begun): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, path)| path.join("done").exists());
    let committed = committed.into_iter().map(|(number, _)| number).filter(|&number| number > 0);
    Ok((committed.collect(), begun.first().map(|(number, _)| *number)))
}

/// A stream of a step, compressed or not.
pub fn stream_path(folder: &Path, name: &str) -> PathBuf {
    current_path(&folder.join(name)).into_owned()
}

/// A stream by its path, compressed if it was since it was found.
pub fn current_path(path: &Path) -> Cow<'_, Path> {
    let compressed = compressed::path(path);
    if !path.exists() && compressed.exists() { compressed.into() } else { path.into() }
}
