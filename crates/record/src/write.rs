//! Writes lines: copied lines byte for byte, and new objects without NaN or infinity.
//!
//! serde_json silently writes NaN and infinity as `null`. A wrong line is worse than no line, so the writer
//! refuses the object. If the reader of the output closes the pipe, the writer returns [`crate::failure::Failure::closed`],
//! which ends a stage silently with exit code 0.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Result;
use crate::finite;
use crate::line::End;
use crate::output::failure;
pub use crate::output::{stdout, unwritten};

/// Bytes buffered before a write: the size of a Linux pipe.
const BUFFER: usize = 1 << 16;

/// Writes lines. The output only gets complete lines, so an interrupted stage leaves no partial one.
pub struct Writer<W: Write> {
    output: W,
    buffer: Vec<u8>,
    to_terminal: bool,
}

impl Writer<io::StdoutLock<'static>> {
    /// Writes to stdout; line by line when that is a terminal.
    pub fn stdout() -> Self {
        use std::io::IsTerminal;
        let output = io::stdout().lock();
        let to_terminal = output.is_terminal();
        Writer { output, buffer: Vec::with_capacity(BUFFER), to_terminal }
    }
}

impl<W: Write> Writer<W> {
    /// Writes to any output.
    pub fn new(output: W) -> Self {
        Writer { output, buffer: Vec::with_capacity(BUFFER), to_terminal: false }
    }

    /// Writes a line as it is, and a line feed.
    pub fn raw(&mut self, text: &str) -> Result<()> {
        self.buffer.extend_from_slice(text.as_bytes());
        self.end_line()
    }

    /// Writes an object as one line. Refuses a NaN or an infinity anywhere in it.
    pub fn object(&mut self, value: &impl Serialize) -> Result<()> {
        let start = self.buffer.len();
        if let Err(failure) = finite::write(&mut self.buffer, value) {
            self.buffer.truncate(start);
            return Err(failure);
        }
        self.end_line()
    }

    /// Writes the `end` line of a stage; not to a terminal if the stage failed: who sits there reads its message on stderr.
    pub fn end(&mut self, end: &End) -> Result<()> {
        if self.to_terminal && !end.ok { Ok(()) } else { self.object(end) }
    }

    fn end_line(&mut self) -> Result<()> {
        self.buffer.push(b'\n');
        if self.to_terminal || self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the buffer to the output.
    pub fn flush(&mut self) -> Result<()> {
        let outcome = self.output.write_all(&self.buffer).and_then(|()| self.output.flush());
        self.buffer.clear();
        outcome.map_err(failure)
    }

    /// Flushes the buffer and returns the output.
    pub fn into_inner(mut self) -> Result<W> {
        self.flush()?;
        Ok(self.output)
    }
}
