//! What a program says on stderr, passed on as it comes, but for tracebacks that were said before: a fault in an environment is one
//! fault, however many requests and processes meet it.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};

/// Tracebacks of all processes of a command; further ones than these are passed on every time.
const MOST: usize = 1000;
/// A line, or a traceback, that is passed on before it has ended.
const LONGEST: usize = 1 << 16;
/// How much of a line is told as the cause.
const TOLD: usize = 300;

/// The tracebacks that were passed on.
pub(super) type Told = Arc<Mutex<HashSet<String>>>;

/// The stderr of one process, which never blocks.
pub(super) struct Errors {
    /// None once it is closed.
    input: Option<ChildStderr>,
    told: Told,
    /// The beginning of a line.
    line: Vec<u8>,
    /// The beginning of a traceback, in whole lines.
    traceback: Vec<u8>,
    /// The last line that is not blank.
    last: String,
}

impl Errors {
    pub(super) fn new(input: Option<ChildStderr>, told: Told) -> Errors {
        Errors { input, told, line: Vec::new(), traceback: Vec::new(), last: String::new() }
    }

    /// The pipe, to wait for it; -1 once it is closed.
    pub(super) fn descriptor(&self) -> RawFd {
        self.input.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Passes on the rest.
    pub(super) fn pass_on(&mut self) {
        let mut buffer = [0; 1 << 12];
        while let Some(input) = &mut self.input {
            match input.read(&mut buffer) {
                Ok(count @ 1..) => {
                    for line in buffer[..count].split_inclusive(|byte| *byte == b'\n') {
                        self.line.extend_from_slice(line);
                        if line.ends_with(b"\n") || self.line.len() > LONGEST {
                            self.end_line();
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {
                    self.input = None;
                    self.finish();
                }
            }
        }
    }

    /// What it said last, to tell why it ended; nothing if it was silent.
    pub(super) fn last(&self) -> &str {
        &self.last
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() && !text.starts_with("hint: ") {
            self.last = text.trim().chars().take(TOLD).collect();
        }
        let within = !self.traceback.is_empty();
        // A mistake in the syntax of the program comes without a head.
        let begins = text.starts_with("Traceback (most recent call last):") || text.starts_with("  File \"");
        match within || begins {
            true => self.traceback.extend_from_slice(&line),
            false => write(&line),
        }
        let ended = within && !text.starts_with([' ', '\n', '\r']) && !begins;
        if ended || self.traceback.len() > LONGEST {
            self.end_traceback();
        }
    }

    fn end_traceback(&mut self) {
        let traceback = std::mem::take(&mut self.traceback);
        let text = String::from_utf8_lossy(&traceback);
        // A place is told once, whatever value it fails on.
        let place = text.trim_end().rsplit_once('\n').map_or(&*text, |(place, _)| place);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST || told.insert(place.to_owned()) {
            write(&traceback);
        }
    }

    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.line.push(b'\n');
            self.end_line();
        }
        if !self.traceback.is_empty() {
            self.end_traceback();
        }
    }
}

impl Drop for Errors {
    /// A process that is killed may leave a traceback without an end: the stack of a call that hangs.
    fn drop(&mut self) {
        self.finish();
    }
}

fn write(bytes: &[u8]) {
    // A closed stderr leaves nobody to tell.
    let _ = io::stderr().lock().write_all(bytes);
}
