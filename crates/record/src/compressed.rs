//! Compressed streams (zstd, RFC 8878): told by their first bytes, so that files and pipes are read alike.
//!
//! A stream is one frame or several in a row, as `cat` joins them. Writing is for whole files that nobody reads any more:
//! [`compress`]. Left out: dictionaries, and frames that are to be skipped.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::stream::write::Encoder;

use crate::failure::{Failure, Result};
use crate::file::{self, Half};

/// How a frame begins.
pub(crate) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes asked of the input at once.
const INPUT: usize = 1 << 17;
/// The level of [`compress`].
const LEVEL: i32 = 9;

pub(crate) struct Frames {
    decoder: Decoder<'static>,
    input: Vec<u8>,
    start: usize,
    /// True if a frame is not at its end.
    open: bool,
}

impl Frames {
    /// Starts with `begun`, the bytes of the first frame that were already read.
    pub fn new(begun: &[u8]) -> io::Result<Frames> {
        Ok(Frames { decoder: Decoder::new()?, input: begun.to_vec(), start: 0, open: false })
    }

    /// Fills the beginning of `output`, with more input from `receive` as needed; 0 bytes at the end of the stream.
    pub fn read(
        &mut self,
        source: &str,
        output: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let broken = |cause: &dyn std::fmt::Display| {
            Failure::data(format!("{source}: a compressed stream that is cut or broken: {cause}"))
                .hint("zstd --test FILE checks a file")
        };
        loop {
            if self.open || self.start < self.input.len() {
                let mut from = InBuffer::around(&self.input[self.start..]);
                let mut to = OutBuffer::around(output);
                let wanted = self.decoder.run(&mut from, &mut to).map_err(|error| broken(&error))?;
                self.start += from.pos();
                self.open = wanted > 0;
                if to.pos() > 0 {
                    return Ok(to.pos());
                }
            }
            if self.start == self.input.len() {
                self.input.resize(INPUT, 0);
                self.start = 0;
                let count = receive(&mut self.input);
                self.input.truncate(*count.as_ref().unwrap_or(&0));
                match count? {
                    0 if self.open => return Err(broken(&"it ends within a frame")),
                    0 => return Ok(0),
                    _ => {}
                }
            }
        }
    }
}

/// Where [`compress`] puts a file: `path.zst`.
pub fn path(path: &Path) -> PathBuf {
    let mut packed = path.as_os_str().to_owned();
    packed.push(".zst");
    PathBuf::from(packed)
}

/// Replaces the file `path` by `path.zst`, with its modification time. If it is interrupted, one or both
/// files are left, each complete. The output depends only on the file's bytes. Returns the sizes before and
/// after, or `None` if another process has compressed the file meanwhile.
pub fn compress(path: &Path) -> Result<Option<(u64, u64)>> {
    let packed = self::path(path);
    let half = Half::of(&packed)?;
    let write = || -> io::Result<Option<(u64, u64)>> {
        let mut file = match file::regular(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && packed.exists() => return Ok(None),
            opened => opened?,
        };
        let facts = file.metadata()?;
        let mut encoder = Encoder::new(&half.file, LEVEL)?;
        encoder.include_checksum(true)?;
        io::copy(&mut file, &mut encoder)?;
        let written = encoder.finish()?;
        written.set_modified(facts.modified()?)?;
        written.sync_all()?;
        let after = written.metadata()?.len();
        half.publish()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(Some((facts.len(), after))),
        }
    };
    write().map_err(|error| Failure::io(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::read::Reader;

    /// Gives a few bytes at a time, as pipes may.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(from: usize, to: usize) -> String {
        let line =
            |number| format!("{{\"type\":\"note\",\"v\":1,\"text\":\"{}\"}}\n", "ä".repeat(number % 700));
        (from..to).map(line).collect()
    }

    fn read(bytes: &[u8], step: usize) -> Result<String> {
        let (mut reader, mut text) = (Reader::new("t", Drip(bytes, step)), String::new());
        while let Some(line) = reader.next()? {
            text.push_str(&line.text);
            text.push('\n');
        }
        Ok(text)
    }

    #[test]
    fn frames_are_read_as_what_they_hold_however_they_come() {
        let (first, second) = (lines(0, 3000), lines(3000, 3100));
        let pack = |text: &str| zstd::encode_all(text.as_bytes(), 3).unwrap();
        let both = [pack(&first), pack(&second)].concat();
        for step in [1, 3, 4, 1 << 20] {
            assert_eq!(read(&both, step).unwrap(), format!("{first}{second}"), "{step}");
        }
        assert_eq!(read(&pack(""), 2).unwrap(), "");
        assert_eq!(read(first.as_bytes(), 1 << 10).unwrap(), first);
    }

    #[test]
    fn a_cut_or_broken_frame_is_no_end() {
        let mut bytes = zstd::encode_all(lines(0, 500).as_bytes(), 3).unwrap();
        for cut in [4, 5, bytes.len() / 2, bytes.len() - 1] {
            let failure = read(&bytes[..cut], 1 << 20).unwrap_err();
            assert!(
                failure.code == 65 && failure.message.starts_with("t: a compressed stream"),
                "{failure:?}"
            );
        }
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        assert_eq!(read(&bytes, 7).unwrap_err().code, 65);
        // Bytes that only begin like a frame are a line that is no JSON.
        assert!(read(&MAGIC[..3], 1).unwrap_err().message.starts_with("t:1:"));
    }

    #[test]
    fn a_compressed_file_takes_the_place_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, again) = (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"));
        let text = lines(0, 2000);
        for path in [&path, &again] {
            fs::write(path, &text).unwrap();
        }
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let (before, after) = compress(&path).unwrap().unwrap();
        compress(&again).unwrap();
        assert!(before == text.len() as u64 && after < before / 20, "{before} {after}");
        let packed = folder.path().join("a.jsonl.zst");
        let bytes = fs::read(&packed).unwrap();
        assert_eq!(bytes, fs::read(folder.path().join("b.jsonl.zst")).unwrap());
        assert_eq!(fs::metadata(&packed).unwrap().modified().unwrap(), time);
        assert!(!path.exists() && read(&bytes, 1 << 16).unwrap() == text);
        assert_eq!(compress(&path).unwrap(), None, "another process did it");
        let failure = compress(&folder.path().join("c.jsonl")).unwrap_err();
        assert!(failure.code == 74 && failure.message.contains("c.jsonl: "), "{failure:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn processes_that_compress_one_file_agree() {
        let folder = tempfile::tempdir().unwrap();
        let text = lines(0, 3000);
        for round in 0..10 {
            let path = folder.path().join(format!("{round}.jsonl"));
            fs::write(&path, &text).unwrap();
            let done: usize = std::thread::scope(|scope| {
                let workers: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| compress(&path).unwrap().is_some())).collect();
                workers.into_iter().map(|worker| usize::from(worker.join().unwrap())).sum()
            });
            assert!(done > 0);
            let packed = fs::read(folder.path().join(format!("{round}.jsonl.zst"))).unwrap();
            assert_eq!(read(&packed, 1 << 16).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 10);
    }
}
