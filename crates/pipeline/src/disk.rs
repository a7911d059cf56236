//! Disk operations of the run directory, one call at a time, so that tests can kill the process before any of
//! them. Failures are I/O errors (exit 74).

use std::fs::{self, File};
use std::io;
use std::path::Path;

use record::failure::{Failure, Result};

const HINT: &str = "see that there is room on that disk (df -h), and who may write there (ls -l)";

/// An I/O error that names the operation and the path.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::io(format!("cannot {what} {}: {error}", path.display()));
    if failure.hint.is_some() { failure } else { failure.hint(HINT) }
}

/// Creates a folder and its parents if they are missing.
pub fn make(folder: &Path) -> Result<()> {
    kill::check()?;
    fs::create_dir_all(folder).map_err(|error| failed("make", folder, &error))
}

pub fn write(file: &Path, text: &str) -> Result<()> {
    kill::check()?;
    fs::write(file, text).map_err(|error| failed("write", file, &error))
}

/// Renames a file or folder.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    kill::check()?;
    fs::rename(from, to).map_err(|error| failed("write", to, &error))
}

/// Copies a file, whole or not at all.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    kill::check()?;
    let new = to.with_added_extension("tmp");
    fs::copy(from, &new).map_err(|error| failed("write", to, &error))?;
    sync(&new)?;
    rename(&new, to)
}

/// Creates a symbolic link to `target`, replacing an existing one or, in a copy whose links were followed, the folder.
pub fn link(target: &str, link: &Path) -> Result<()> {
    kill::check()?;
    let new = link.with_extension("tmp");
    let made = remove_if_there(&new).and_then(|()| std::os::unix::fs::symlink(target, &new));
    let made = if link.is_symlink() { made } else { made.and_then(|()| remove_if_there(link)) };
    made.map_err(|error| failed("write", link, &error))?;
    rename(&new, link)
}

/// Removes a file, or a folder with its contents, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    kill::check()?;
    remove_if_there(path).map_err(|error| failed("remove", path, &error))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Flushes a file or folder to disk (`fsync`).
pub fn sync(path: &Path) -> Result<()> {
    kill::check()?;
    // Tests end the process, not the power, so the flush is not needed.
    let synced = File::open(path).and_then(|file| if cfg!(test) { Ok(()) } else { file.sync_all() });
    synced.map_err(|error| failed("write to disk", path, &error))
}

/// Replaces a file atomically.
pub fn replace(file: &Path, text: &str) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let new = file.with_file_name(name);
    write(&new, text)?;
    sync(&new)?;
    rename(&new, file)
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let read = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().into_string())).collect::<io::Result<Vec<_>>>()
    });
    // The run directory has no names that are not UTF-8.
    let mut names: Vec<String> =
        read.map_err(|error| failed("read", folder, &error))?.into_iter().flatten().collect();
    names.sort();
    Ok(names)
}

/// Ends a test's work before a chosen disk call.
#[cfg(test)]
pub mod kill {
    use std::cell::Cell;

    use record::failure::{Failure, Result};

    thread_local! { static LEFT: Cell<Option<usize>> = const { Cell::new(None) }; }

    /// Allows `calls` more calls; `None` allows all.
    pub fn after(calls: Option<usize>) {
        LEFT.set(calls);
    }

    /// Fails if no more calls are allowed.
    pub fn check() -> Result<()> {
        match LEFT.get() {
            Some(0) => Err(Failure::work("killed")),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[cfg(not(test))]
mod kill {
    /// Always succeeds outside tests.
    pub fn check() -> record::failure::Result<()> {
        Ok(())
    }
}
