//! stdout of a stage that finishes its work even if the reader closes the pipe.

use std::io::Write;

use record::failure::Result;
use record::write::Writer;
use serde::Serialize;

/// A writer that discards output once its reader has closed the pipe.
pub struct Output<W: Write> {
    writer: Option<Writer<W>>,
}

impl<W: Write> Output<W> {
    /// Writes through `writer`.
    pub fn new(writer: Writer<W>) -> Self {
        Output { writer: Some(writer) }
    }

    /// Discards everything: of several processes one writes.
    pub fn silent() -> Self {
        Output { writer: None }
    }

    /// Copies a line.
    pub fn raw(&mut self, text: &str) -> Result<()> {
        self.attempt(|writer| writer.raw(text))
    }

    /// Writes an object as one line.
    pub fn object(&mut self, value: &impl Serialize) -> Result<()> {
        self.attempt(|writer| writer.object(value))
    }

    /// The writer, unless its reader closed the pipe.
    pub fn writer(&mut self) -> Option<&mut Writer<W>> {
        self.writer.as_mut()
    }

    fn attempt(&mut self, write: impl FnOnce(&mut Writer<W>) -> Result<()>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        match write(writer) {
            Err(failure) if failure.is_closed() => {
                self.writer = None;
                Ok(())
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let mut output = Output::new(Writer::new(Gone));
        output.raw("{}").unwrap();
        assert!(output.writer.is_some(), "nothing reaches the reader before the buffer is full");
        let line = "x".repeat(1 << 17);
        output.raw(&line).unwrap();
        assert!(output.writer.is_none());
        output.object(&serde_json::json!({"type": "metrics"})).unwrap();
        assert!(output.writer().is_none());
    }
}
