//! Files at paths that people name: some are devices, FIFOs or links.
//!
//! A regular file is replaced by rename, so that nobody reads half of it; a link to one stays a link. Any
//! other file is written through and keeps its type. A wait, for the other end of a FIFO or for room in it,
//! ends when a signal arrives.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, Result};
use crate::output;
pub use crate::signal::InputFile;
use crate::signal::interrupted;

/// How long until a FIFO is looked at again.
const WAIT: Duration = Duration::from_millis(2);
/// More links in a row are a loop, as Linux counts.
const MOST_LINKS: usize = 40;

/// Puts `bytes` at `path`, as the module says.
///
/// # Errors
/// 74 with the path; a signal; [`Failure::closed`] where the reader of a FIFO went away.
pub fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let failure = |error: io::Error| Failure::io(format!("{}: {error}", path.display()));
    match fs::metadata(path) {
        Ok(found) if is_stdout(&found) => output::stdout(bytes),
        Ok(found) if !found.is_file() => through(path, bytes),
        _ => replace(&destination(path).map_err(failure)?, bytes),
    }
}

/// Puts a file of `bytes` at `path`, whatever was there; its permissions stay.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut half = Half::of(path)?;
    let written = half.file.write_all(bytes).and_then(|()| match fs::symlink_metadata(path) {
        Ok(before) if before.is_file() => half.file.set_permissions(before.permissions()),
        _ => Ok(()),
    });
    let put = written.and_then(|()| half.publish());
    put.map_err(|error| Failure::io(format!("{}: {error}", path.display())))
}

/// Returns true if a file is what stdout writes to: `/dev/stdout` is, whatever the shell made of it.
fn is_stdout(found: &Metadata) -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().and_then(|stdout| File::from(stdout).metadata());
    stdout.is_ok_and(|stdout| (stdout.dev(), stdout.ino()) == (found.dev(), found.ino()))
}

/// The file that a path leads to, which need not be there.
fn destination(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Writes to a device, a FIFO or a socket.
fn through(path: &Path, bytes: &[u8]) -> Result<()> {
    let failure = |error: io::Error| Failure::io(format!("{}: {error}", path.display()));
    let is_fifo = || fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let mut file = loop {
        match options.open(path) {
            // Nobody reads it yet.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_fifo() => wait()?,
            opened => break opened.map_err(failure)?,
        }
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err(failure(ErrorKind::WriteZero.into())),
            Ok(count) => rest = &rest[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => wait()?,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(Failure::closed()),
            Err(error) => return Err(failure(error)),
        }
    }
    Ok(())
}

fn wait() -> Result<()> {
    if interrupted() {
        return Err(Failure::interrupted());
    }
    std::thread::sleep(WAIT);
    Ok(())
}

/// `PATH.tmp`, which becomes `PATH`. One process at a time has it; one that was killed leaves it to the next.
pub(crate) struct Half {
    pub file: File,
    half: PathBuf,
    whole: PathBuf,
}

impl Half {
    /// Creates an empty file next to `whole`; waits while another process writes it.
    pub fn of(whole: &Path) -> Result<Half> {
        let mut half = whole.as_os_str().to_owned();
        half.push(".tmp");
        let half = PathBuf::from(half);
        let failure = |error: io::Error| Failure::io(format!("{}: {error}", half.display()));
        let mut options = File::options();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        loop {
            let file = options.open(&half).map_err(failure)?;
            let own = file.metadata().map_err(failure)?;
            if !own.is_file() {
                return Err(failure(not_regular()));
            }
            if let Err(error) = file.try_lock() {
                match error {
                    fs::TryLockError::WouldBlock => wait()?,
                    fs::TryLockError::Error(error) => return Err(failure(error)),
                }
                continue;
            }
            // Whoever had it may have published it meanwhile.
            if fs::symlink_metadata(&half).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
                file.set_len(0).map_err(failure)?;
                return Ok(Half { file, half, whole: whole.to_owned() });
            }
        }
    }

    /// Gives the file its name.
    pub fn publish(self) -> io::Result<()> {
        fs::rename(&self.half, &self.whole)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // A published file is no longer there. Any other leftover is useless and may be filling the disk.
        let own = |now: &Metadata| self.file.metadata().is_ok_and(|own| own.ino() == now.ino());
        if fs::symlink_metadata(&self.half).is_ok_and(|now| own(&now)) {
            let _ = fs::remove_file(&self.half);
        }
    }
}

fn not_regular() -> io::Error {
    io::Error::other("not a regular file")
}

/// Opens a file that somebody named, perhaps a FIFO.
pub fn open(path: &Path) -> io::Result<InputFile> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map(InputFile)
}

/// Opens a file of a run or a policy; one that is no regular file is refused, never waited for.
pub fn regular(path: &Path) -> io::Result<File> {
    let InputFile(file) = open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// The bytes of such a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (regular(path)?, Vec::new());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;

    use super::*;

    fn fifo(folder: &Path) -> PathBuf {
        let path = folder.join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    #[test]
    fn a_file_is_replaced_and_a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link, dangling, new] =
            ["target", "link", "dangling", "new"].map(|name| folder.path().join(name));
        fs::write(&target, "precious").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("target", &link).unwrap();
        symlink("new", &dangling).unwrap();
        let before = File::open(&target).unwrap();
        put(&link, b"page").unwrap();
        put(&dangling, b"other").unwrap();
        assert!(link.is_symlink() && dangling.is_symlink());
        assert_eq!(
            (fs::read(&target).unwrap(), fs::read(&new).unwrap()),
            (b"page".to_vec(), b"other".to_vec())
        );
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut text = String::new();
        (&before).read_to_string(&mut text).unwrap();
        assert_eq!(text, "precious", "who has it open goes on reading it");
        symlink("circle", folder.path().join("circle")).unwrap();
        assert_eq!(put(&folder.path().join("circle"), b"x").unwrap_err().code, 74);
        assert_eq!(put(folder.path(), b"x").unwrap_err().code, 74, "a folder");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "nothing half-written is left");
    }

    #[test]
    fn a_device_and_a_fifo_are_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let null = folder.path().join("null");
        symlink("/dev/null", &null).unwrap();
        put(&null, b"page").unwrap();
        put(Path::new("/dev/null"), b"page").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device() && null.is_symlink());
        let fifo = fifo(folder.path());
        let bytes = vec![7; 1 << 20];
        let reader = {
            let fifo = fifo.clone();
            thread::spawn(move || fs::read(fifo).unwrap())
        };
        put(&fifo, &bytes).unwrap();
        assert_eq!(reader.join().unwrap(), bytes);
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    }

    #[test]
    fn a_fifo_is_read_where_it_was_named_and_refused_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(folder.path());
        assert_eq!(regular(&fifo).unwrap_err().to_string(), "not a regular file");
        let mut input = open(&fifo).unwrap();
        let writer = thread::spawn(move || {
            // The reader waits for a writer, then for its bytes.
            thread::sleep(Duration::from_millis(20));
            let mut fifo = File::options().write(true).open(fifo).unwrap();
            thread::sleep(Duration::from_millis(20));
            fifo.write_all(b"line").unwrap();
        });
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        writer.join().unwrap();
        assert_eq!(text, "line");
    }

    #[test]
    fn many_writers_of_one_file_leave_one_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        thread::scope(|scope| {
            for number in 0..8_u8 {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| put(path, &vec![number; 100_000]).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 100_000 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
