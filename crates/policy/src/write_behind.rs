//! A large file, hashed and written by a thread while the caller computes or downloads the values that follow.
//!
//! Writing to disk begins at once instead of with the sync before a version is published. A small file is written by the caller.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use record::failure::{Failure, Result};

use crate::durable::{self, failure};

/// Files of at least this many bytes have a thread.
const LARGE: u64 = 64 << 20;

/// Pieces that may wait for the thread.
const WAITING: usize = 4;

/// Bytes after which the system is asked to write them to disk.
const WRITE_BACK: u64 = 64 << 20;

/// Zeros at once that are not written, bytes.
const HOLE: usize = 1 << 20;

/// A file being written from its first byte to its last.
pub(crate) struct WriteBehind(Option<Writer>);

enum Writer {
    Caller(Box<Output>),
    Thread(Thread),
}

/// A buffer that the caller and the thread exchange.
struct Thread {
    pieces: SyncSender<Vec<u8>>,
    /// Buffers whose bytes were written.
    spare: Receiver<Vec<u8>>,
    output: JoinHandle<Result<Output>>,
}

struct Output {
    path: PathBuf,
    file: File,
    /// Bytes so far, and those among them that the system was asked to write to disk.
    end: u64,
    written_back: u64,
    /// Hashes all bytes.
    digest: blake3::Hasher,
}

impl WriteBehind {
    /// Creates a file of about `length` bytes, which must not exist yet. Its bytes are added to `digest`.
    pub(crate) fn create(path: &Path, length: u64, digest: blake3::Hasher) -> Result<WriteBehind> {
        WriteBehind::with(path, length >= LARGE, digest)
    }

    fn with(path: &Path, thread: bool, digest: blake3::Hasher) -> Result<WriteBehind> {
        let file = durable::create(path)?;
        let output = Output { path: path.to_owned(), file, end: 0, written_back: 0, digest };
        Ok(WriteBehind(Some(if thread { Thread::start(output) } else { Writer::Caller(Box::new(output)) })))
    }

    /// A buffer to fill for [`WriteBehind::write`], with whatever it held before.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        match &self.0 {
            Some(Writer::Thread(thread)) => thread.spare.try_recv().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// Writes bytes; many zeros, such as an optimizer's first moments, become a hole.
    pub(crate) fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        match &mut self.0 {
            Some(Writer::Caller(output)) => output.write(&bytes),
            // A thread that no longer receives has met an error.
            Some(Writer::Thread(thread)) if thread.pieces.send(bytes).is_err() => self.end().map(drop),
            _ => Ok(()),
        }
    }

    /// Waits until all bytes are written, which does not sync them, and returns the digest.
    pub(crate) fn finish(mut self) -> Result<blake3::Hasher> {
        self.end()
    }

    fn end(&mut self) -> Result<blake3::Hasher> {
        let output = match self.0.take() {
            Some(Writer::Caller(output)) => *output,
            Some(Writer::Thread(Thread { pieces, spare, output })) => {
                drop((pieces, spare));
                output.join().unwrap_or_else(|panic| resume_unwind(panic))?
            }
            None => return Err(Failure::work("a file that failed is written again")),
        };
        Ok(output.digest)
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        // The caller has met an error, and removes the folder next: by then nothing must be written there.
        if self.0.is_some() {
            let _ = self.end();
        }
    }
}

impl Thread {
    /// Starts a thread for the output; where the system starts none, the caller writes.
    fn start(output: Output) -> Writer {
        let (hand_over, handed_over) = sync_channel::<Output>(1);
        let (pieces, waiting) = sync_channel::<Vec<u8>>(WAITING);
        let (written, spare) = sync_channel(WAITING);
        let thread = Builder::new().spawn(move || {
            let mut output =
                handed_over.recv().map_err(|_| Failure::work("a thread was started for no file"))?;
            for piece in waiting {
                output.write(&piece)?;
                // Where enough are spare, or nobody takes one any more, it is freed.
                let _ = written.try_send(piece);
            }
            Ok(output)
        });
        let Ok(thread) = thread else { return Writer::Caller(Box::new(output)) };
        match hand_over.send(output) {
            Ok(()) => Writer::Thread(Thread { pieces, spare, output: thread }),
            Err(refused) => Writer::Caller(Box::new(refused.0)),
        }
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.digest.update(bytes);
        self.end += bytes.len() as u64;
        let written = match bytes.len() >= HOLE && bytes.iter().all(|&byte| byte == 0) {
            true => {
                self.file.set_len(self.end).and_then(|()| self.file.seek(SeekFrom::Start(self.end)).map(drop))
            }
            false => self.file.write_all(bytes),
        };
        written.map_err(|error| failure(&self.path, &error))?;
        if self.end - self.written_back >= WRITE_BACK {
            write_back(&self.file, self.written_back, self.end);
            self.written_back = self.end;
        }
        Ok(())
    }
}

/// Asks the system to begin writing a part of a file to disk. A hint: the sync that follows waits for it and has its errors.
#[cfg(target_os = "linux")]
fn write_back(file: &File, from: u64, to: u64) {
    use std::os::fd::AsRawFd;
    let (Ok(from), Ok(length)) = (from.try_into(), (to - from).try_into()) else { return };
    // SAFETY: the descriptor is open, and the call touches no memory of ours.
    unsafe { libc::sync_file_range(file.as_raw_fd(), from, length, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(not(target_os = "linux"))]
fn write_back(_file: &File, _from: u64, _to: u64) {}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Pieces of 3 MiB with a hole in the middle, by the caller and by a thread.
    #[test]
    fn a_thread_writes_the_same_bytes_and_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let pieces: Vec<Vec<u8>> = (0u8..40).map(|number| vec![number % 5; 3 << 20]).collect();
        let expected = pieces.concat();
        for thread in [false, true] {
            let path = folder.path().join(thread.to_string());
            let mut file = WriteBehind::with(&path, thread, blake3::Hasher::new()).expect("created");
            for piece in &pieces {
                let mut buffer = file.buffer();
                buffer.clone_from(piece);
                file.write(buffer).expect("written");
            }
            let digest = file.finish().expect("finished").finalize();
            assert_eq!(digest, blake3::hash(&expected));
            assert!(fs::read(&path).expect("read") == expected);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_error_of_the_disk_reaches_the_caller() {
        let full = || File::options().write(true).open("/dev/full").expect("opened");
        for thread in [false, true] {
            let output = Output {
                path: "weights".into(),
                file: full(),
                end: 0,
                written_back: 0,
                digest: blake3::Hasher::new(),
            };
            let writer = if thread { Thread::start(output) } else { Writer::Caller(Box::new(output)) };
            let mut file = WriteBehind(Some(writer));
            let error =
                (0..3 * WAITING).try_for_each(|_| file.write(vec![1; 1000])).expect_err("the disk is full");
            assert_eq!(error.code, record::failure::IO);
            assert!(error.to_string().starts_with("weights: No space left"), "{error}");
            // Nothing is written, and no digest given, after that.
            assert!(!thread || file.finish().is_err());
        }
    }
}
