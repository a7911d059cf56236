//! The chassis of every program: signals, exit codes, the command line, and how a failure reads.
//!
//! SIGINT and SIGTERM set a flag and wake a reader that waits for stdin, so a stage stops between two lines and what
//! it wrote stays whole. A second signal ends the process at once.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use clap::error::ErrorKind;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::{self, Failure, Result};

static INTERRUPT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static TERMINATE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Becomes readable when a signal arrives.
static WAKE: OnceLock<UnixStream> = OnceLock::new();

/// Runs a program's body and turns its outcome into an exit code and, on stderr, one line and perhaps a hint.
pub fn run(name: &'static str, body: impl FnOnce() -> Result<()>) -> ExitCode {
    ExitCode::from(code(name, body))
}

/// The same, and ends the process without the exit handlers of the libraries that it loaded: ONNX Runtime's give back
/// piece by piece what the kernel takes back at once.
pub fn run_and_exit(name: &'static str, body: impl FnOnce() -> Result<()>) -> ! {
    let code = code(name, body);
    // SAFETY: the body is over. The writer hands over whole lines and the standard library flushes each; nothing
    // of our own is left to be done at exit.
    unsafe { libc::_exit(i32::from(code)) }
}

fn code(name: &'static str, body: impl FnOnce() -> Result<()>) -> u8 {
    // SAFETY: the first thing that main does; no other thread exists that could read the environment meanwhile.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
    if let Err(error) = watch_signals() {
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

fn watch_signals() -> io::Result<()> {
    let (reader, writer) = UnixStream::pair()?;
    for (signal, code, flag) in
        [(SIGINT, failure::INTERRUPTED, &*INTERRUPT), (SIGTERM, failure::TERMINATED, &*TERMINATE)]
    {
        // The order matters: the second signal finds the flag set by the first.
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(code), Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    // Set once; a second call in one process keeps the first pipe, which works as well.
    let _ = WAKE.set(reader);
    Ok(())
}

fn report(name: &str, failure: &Failure) {
    if failure.is_closed() {
        return;
    }
    let mut text = format!("{name}: {}\n", failure.message);
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    // Nobody is left to tell when stderr is closed.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// One line on stderr, `name: message`: a note that is no failure. Programs call it unless told `--quiet`.
pub fn note(name: &str, message: impl std::fmt::Display) {
    // A note is a courtesy: a closed stderr must not stop the work.
    let _ = io::stderr().lock().write_all(format!("{name}: {message}\n").as_bytes());
}

/// A number of things for people: `1 group`, `2 groups`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Whether SIGINT or SIGTERM asked the program to stop; poll it in long loops and return [`Failure::interrupted`].
pub fn interrupted() -> bool {
    signal_code().is_some()
}

/// The exit code for the signal that asked the program to stop.
pub(crate) fn signal_code() -> Option<u8> {
    if TERMINATE.load(Ordering::Relaxed) {
        Some(failure::TERMINATED)
    } else if INTERRUPT.load(Ordering::Relaxed) {
        Some(failure::INTERRUPTED)
    } else {
        None
    }
}

/// Stdin that a signal interrupts: a read that waits ends with [`io::ErrorKind::Interrupted`] instead of going on.
#[derive(Debug, Clone, Copy)]
pub struct Input;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(wake) = WAKE.get() {
            wait(libc::STDIN_FILENO, wake.as_raw_fd())?;
            if interrupted() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        // Larger reads than its own buffer go straight to the file descriptor.
        io::stdin().lock().read(buffer)
    }
}

/// Waits until one of two file descriptors is readable or closed.
fn wait(first: i32, second: i32) -> io::Result<()> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(first), entry(second)];
    // SAFETY: the pointer and the count describe `entries`, which outlives the call.
    let outcome = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, -1) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The command line as `A`. Prints help or the version and exits 0; an unusable command line exits 2.
pub fn parse<A: clap::Parser>() -> A {
    match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            if !error.use_stderr() {
                error.exit();
            }
            let (name, failure) = usage::<A>(&error);
            report(&name, &failure);
            std::process::exit(i32::from(failure::USAGE));
        }
    }
}

/// A usage error in one line and a hint, in place of clap's paragraphs.
fn usage<A: clap::Parser>(error: &clap::Error) -> (String, Failure) {
    let name = A::command().get_name().to_owned();
    let see = format!("see {name} --help");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return (name, Failure::usage("a command is missing").hint(see));
    }
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let message = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // That a value may follow `--` is true and of no use: no argument of ours begins with a dash.
    let tips = rendered.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let hint = tips.map(str::to_owned).find(|tip| !tip.starts_with("to pass ")).unwrap_or(see);
    (name, Failure::usage(message).hint(hint))
}

/// The build of this program, for the `timing` object of `end` and `metrics` lines.
pub fn build() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The `timing` object of a stage that began at `started`: everything in which two equal runs may differ.
pub fn timing(started: Instant) -> BTreeMap<String, Value> {
    let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    BTreeMap::from([
        ("build".to_owned(), Value::from(build())),
        ("seconds".to_owned(), Value::from(milliseconds as f64 / 1000.0)),
    ])
}
