//! What a run directory does to the disk, call by call, so that a test can end the process at each of them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use record::failure::{Failure, Result};

const HINT: &str = "see that there is room on that disk (df -h), and who may write there (ls -l)";

/// A call that failed, and where.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::io(format!("cannot {what} {}: {error}", path.display()));
    if failure.hint.is_some() { failure } else { failure.hint(HINT) }
}

/// Makes a folder and those above it, if it is not there.
///
/// # Errors
/// I/O (exit 74).
pub fn make(folder: &Path) -> Result<()> {
    kill::check()?;
    fs::create_dir_all(folder).map_err(|error| failed("make", folder, &error))
}

/// Writes a file.
///
/// # Errors
/// I/O (exit 74).
pub fn write(file: &Path, text: &str) -> Result<()> {
    kill::check()?;
    fs::write(file, text).map_err(|error| failed("write", file, &error))
}

/// Renames a file or folder.
///
/// # Errors
/// I/O (exit 74).
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    kill::check()?;
    fs::rename(from, to).map_err(|error| failed("write", to, &error))
}

/// Makes a link that names `target`, in place of one that is there.
///
/// # Errors
/// I/O (exit 74).
pub fn link(target: &str, link: &Path) -> Result<()> {
    kill::check()?;
    let new = link.with_extension("tmp");
    let made = remove_if_there(&new).and_then(|()| std::os::unix::fs::symlink(target, &new));
    made.map_err(|error| failed("write", link, &error))?;
    rename(&new, link)
}

/// Removes a file or a folder with all that is in it; neither need be there.
///
/// # Errors
/// I/O (exit 74).
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

/// Waits until a file or folder is on the disk, not only in its cache.
///
/// # Errors
/// I/O (exit 74).
pub fn sync(path: &Path) -> Result<()> {
    kill::check()?;
    // A test ends processes, and no power.
    let synced = File::open(path).and_then(|file| if cfg!(test) { Ok(()) } else { file.sync_all() });
    synced.map_err(|error| failed("write to disk", path, &error))
}

/// Writes a file whole or not at all.
///
/// # Errors
/// I/O (exit 74).
pub fn replace(file: &Path, text: &str) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let new = file.with_file_name(name);
    write(&new, text)?;
    sync(&new)?;
    rename(&new, file)
}

/// The names in a folder, in order.
///
/// # Errors
/// I/O (exit 74).
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let read = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().into_string())).collect::<io::Result<Vec<_>>>()
    });
    // A name that is not UTF-8 is none of ours.
    let mut names: Vec<String> =
        read.map_err(|error| failed("read", folder, &error))?.into_iter().flatten().collect();
    names.sort();
    Ok(names)
}

/// Ends the work of a test before one of the calls.
#[cfg(test)]
pub mod kill {
    use std::cell::Cell;

    use record::failure::{Failure, Result};

    thread_local! { static LEFT: Cell<Option<usize>> = const { Cell::new(None) }; }

    /// So many more calls happen; `None`: all.
    pub fn after(calls: Option<usize>) {
        LEFT.set(calls);
    }

    /// Returns true if this call happens.
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
    /// Nobody ends it.
    pub fn check() -> record::failure::Result<()> {
        Ok(())
    }
}
