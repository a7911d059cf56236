//! How a stage fails: an exit code, a one-line message, and usually a hint.
//!
//! Codes follow `sysexits.h` if one fits, so that scripts can tell bad data (65) from a full disk (74)
//! without parsing text. The message names the place and the cause, the hint says what to try next. Left out:
//! error chains and backtraces.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// Success, also if the reader of our output closed the pipe.
pub const DONE: u8 = 0;
/// The work itself failed.
pub const FAILED: u8 = 1;
/// Invalid command line.
pub const USAGE: u8 = 2;
/// A record violates the contract, or the stream is incomplete.
pub const DATA: u8 = 65;
/// A device or a library is unavailable.
pub const UNAVAILABLE: u8 = 69;
/// Reading or writing failed.
pub const IO: u8 = 74;
/// Stopped by SIGINT.
pub const INTERRUPTED: u8 = 130;
/// Stopped by SIGTERM.
pub const TERMINATED: u8 = 143;

/// Hints for errors of the system, by the end of the standard library's message.
const SYSTEM_HINTS: [(&str, &str); 6] = [
    ("(os error 2)", "see that the path is right, and that its folder is there"),
    ("(os error 13)", "see who may read and write there: ls -l"),
    ("(os error 20)", "a part of that path is a file: see where it should lead"),
    ("(os error 21)", "this is a directory: name a file in it"),
    ("(os error 28)", "make room on that disk (df -h), then run the same command again"),
    ("(os error 30)", "nothing can be written there: choose a path on another disk"),
];

/// The result of a stage or a library function.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a stage stops: exit code, message and hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process, one of the constants of this module.
    pub code: u8,
    /// One line, `place: cause`, without the name of the program.
    pub message: String,
    /// The remedy to try next.
    pub hint: Option<String>,
}

impl Failure {
    fn new(code: u8, message: impl Display) -> Self {
        Failure { code, message: message.to_string(), hint: None }
    }

    /// The work itself failed (exit 1).
    pub fn work(message: impl Display) -> Self {
        Self::new(FAILED, message)
    }

    /// Invalid command line (exit 2).
    pub fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    /// A record violates the contract, or the stream is incomplete (exit 65).
    pub fn data(message: impl Display) -> Self {
        Self::new(DATA, message)
    }

    /// A device or a library is unavailable (exit 69).
    pub fn unavailable(message: impl Display) -> Self {
        Self::new(UNAVAILABLE, message)
    }

    /// Reading or writing failed (exit 74); where the system's error says enough, with a hint.
    pub fn io(message: impl Display) -> Self {
        let failure = Self::new(IO, message);
        let known = SYSTEM_HINTS.iter().find(|(error, _)| failure.message.ends_with(error));
        Failure { hint: known.map(|(_, hint)| (*hint).to_owned()), ..failure }
    }

    /// A file that the command line names cannot be read: a slip where it is not there (exit 2), else exit 74.
    pub fn named_file(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => Self::usage(format!("{path}: no such file"))
                .hint("a relative path begins in the folder where the program was started"),
            _ => Self::io(format!("reading {path}: {error}")),
        }
    }

    /// Stopped by a signal (exit 130 for SIGINT, 143 for SIGTERM).
    pub fn interrupted() -> Self {
        let code = crate::signal::received().unwrap_or(INTERRUPTED);
        Self::new(code, if code == TERMINATED { "terminated" } else { "interrupted" })
    }

    /// The reader of our output closed the pipe: silent, exit 0.
    pub fn closed() -> Self {
        Self::new(DONE, "the reader of the output went away")
    }

    /// Returns true if the reader of our output closed the pipe, which is not our error.
    pub fn is_closed(&self) -> bool {
        self.code == DONE
    }

    /// Returns true if a signal asked the stage to stop.
    pub fn is_interruption(&self) -> bool {
        matches!(self.code, INTERRUPTED | TERMINATED)
    }

    /// Adds a hint: what to try next.
    #[must_use]
    pub fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Puts a place before the message: `place: message`.
    #[must_use]
    pub fn at(mut self, place: impl Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::io(error)
    }
}
