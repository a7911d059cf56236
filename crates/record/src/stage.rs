//! The frame of every program: it watches for signals, prints a failure and ends with its exit code.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;

pub use crate::command_line::{
    PROGRAMS, choice, end_if_dry_run, end_if_manuals, parse, parse_words, try_parse,
};
use crate::failure::{self, Failure, Result};
pub use crate::installation::{build, pipeline, python};
use crate::message::set_name;
pub use crate::message::{counted, name, note, printable, report};
pub use crate::output::unwritten;
use crate::signal;
pub use crate::signal::interrupted;

/// Runs a program; a failure becomes its exit code and, on stderr, one line and perhaps a hint.
pub fn run(name: &'static str, body: impl FnOnce() -> Result<()>) -> ExitCode {
    ExitCode::from(code(name, body))
}

/// Like [`run`], but skips the exit handlers of loaded libraries: ONNX Runtime's free piece by piece what the kernel
/// frees at once.
pub fn run_and_exit(name: &'static str, body: impl FnOnce() -> Result<()>) -> ! {
    let code = code(name, body);
    // SAFETY: the body is over. The writer hands over whole lines and the standard library flushes each, so
    // nothing of ours is left to do at exit.
    unsafe { libc::_exit(i32::from(code)) }
}

fn code(name: &'static str, body: impl FnOnce() -> Result<()>) -> u8 {
    set_name(name);
    if let Err(error) = signal::watch() {
        report(name, &Failure::unavailable(format!("signals cannot be watched: {error}")));
        return failure::UNAVAILABLE;
    }
    match body() {
        Ok(()) => failure::DONE,
        Err(failure) => {
            report(name, &failure);
            failure.code
        }
    }
}

/// Waits up to 5 s until a piped stderr has been read, because a launcher that ends with this process may
/// never read the rest.
pub fn drain_stderr() {
    for _ in 0..250 {
        let mut left: libc::c_int = 0;
        // SAFETY: it writes one int.
        let asked = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::FIONREAD, &raw mut left) };
        // Also after the last look: the reader has to pass it on.
        std::thread::sleep(std::time::Duration::from_millis(20));
        if asked != 0 || left == 0 {
            return;
        }
    }
}

/// The `timing` object of a stage that began at `started`: everything in which two equal runs may differ.
pub fn timing(started: Instant) -> BTreeMap<String, Value> {
    let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    BTreeMap::from([
        ("build".to_owned(), Value::from(build())),
        ("seconds".to_owned(), Value::from(milliseconds as f64 / 1000.0)),
    ])
}
