//! `troupe-pipeline keep RUN NAME STEP`: a `tee` that splits its input by step. It copies stdin to stdout, and
//! writes the stream up to each `end` line into file NAME of the next step's folder, beginning with STEP.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::read::Stdin;

use crate::disk;

const END: &[u8] = b"{\"type\":\"end\"";

/// Cuts a stream into blocks of whole lines, with a cut after each `end` line.
#[derive(Debug, Default)]
pub struct StreamSplitter {
    rest: Vec<u8>,
}

impl StreamSplitter {
    /// Adds bytes. Returns the complete blocks, each with true if it ends a step's part.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<(Vec<u8>, bool)> {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut blocks = Vec::new();
        let mut block = Vec::new();
        for line in self.rest[..whole].split_inclusive(|byte| *byte == b'\n') {
            block.extend_from_slice(line);
            if line.starts_with(END) {
                blocks.push((std::mem::take(&mut block), true));
            }
        }
        if !block.is_empty() {
            blocks.push((block, false));
        }
        self.rest.drain(..whole);
        blocks
    }

    /// The remaining bytes of an incomplete line, left by a stage that died.
    pub fn rest(self) -> Vec<u8> {
        self.rest
    }
}

/// The file of a step's part.
#[derive(Debug)]
pub struct PartFile {
    run: PathBuf,
    name: String,
    step: u64,
    file: Option<(PathBuf, File)>,
}

impl PartFile {
    /// Files called `name` in the step folders of a run, beginning with `step`.
    pub fn new(run: &Path, name: &str, step: u64) -> PartFile {
        PartFile { run: run.to_path_buf(), name: name.to_owned(), step, file: None }
    }

    /// Writes a block; if `ends`, later blocks go to the next step's file.
    pub fn write(&mut self, block: &[u8], ends: bool) -> Result<()> {
        let (path, file) = match self.file.take() {
            Some(open) => self.file.insert(open),
            None => {
                let path = self.run.join(format!("steps/{:06}", self.step)).join(&self.name);
                let file = File::create(&path).map_err(|error| disk::failed("write", &path, &error))?;
                self.file.insert((path, file))
            }
        };
        file.write_all(block).map_err(|error| disk::failed("write", path, &error))?;
        if ends {
            self.file = None;
            self.step += 1;
        }
        Ok(())
    }
}

/// Runs the program.
///
/// # Errors
/// Usage (exit 2), I/O (exit 74), a signal (exit 130 and 143).
pub fn run(arguments: &[String]) -> Result<()> {
    let [run, name, step] = arguments else {
        return Err(Failure::usage("keep RUN NAME STEP").hint("pipeline.sh --resident starts it"));
    };
    let step =
        step.parse().map_err(|_| Failure::usage(format!("{step}: not a step")).hint("keep RUN NAME STEP"))?;
    let mut file = PartFile::new(Path::new(run), name, step);
    let mut parts = StreamSplitter::default();
    let (mut input, mut output) = (Stdin, io::stdout().lock());
    let mut pass = |block: &[u8]| match output.write_all(block).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::closed()), // the reader reports why
        Err(error) => Err(record::stage::unwritten(&error)),
        Ok(()) => Ok(()),
    };
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(count) => count,
            Err(_) if record::stage::interrupted() => return Err(Failure::interrupted()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::io(format!("reading stdin: {error}"))),
        };
        if count == 0 {
            break;
        }
        for (block, ends) in parts.push(&buffer[..count]) {
            file.write(&block, ends)?;
            pass(&block)?;
        }
    }
    let rest = parts.rest();
    if !rest.is_empty() {
        file.write(&rest, false)?;
        pass(&rest)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_kept_by_step_however_the_pipe_cuts_them() {
        // Includes lines that only resemble an end, a part with nothing but its end, and an unfinished line.
        let first = "{\"type\":\"sample\",\"completion\":\"{\\\"type\\\":\\\"end\\\"\"}\n{\"type\":\"other\",\"at\":{\"type\":\"end\"}}\n \
                     {\"type\":\"end\"}\n{\"type\":\"end\",\"v\":1,\"ok\":true}\n";
        let (second, third) = ("{\"type\":\"end\",\"v\":1,\"ok\":true}\n", "{\"type\":\"sam");
        let whole = format!("{first}{second}{third}");
        for piece in [1, 7, 40, whole.len()] {
            let folder = tempfile::tempdir().unwrap();
            for step in 4..=6 {
                std::fs::create_dir_all(folder.path().join(format!("steps/{step:06}"))).unwrap();
            }
            let (mut parts, mut file) = (StreamSplitter::default(), PartFile::new(folder.path(), "lines", 4));
            for bytes in whole.as_bytes().chunks(piece) {
                parts.push(bytes).iter().for_each(|(block, ends)| file.write(block, *ends).unwrap());
            }
            file.write(&parts.rest(), false).unwrap();
            for (step, part) in [(4, first), (5, second), (6, third)] {
                let kept = std::fs::read_to_string(folder.path().join(format!("steps/{step:06}/lines")));
                assert_eq!(kept.unwrap(), part, "step {step}, pieces of {piece} bytes");
            }
        }
    }
}
