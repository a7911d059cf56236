//! The chassis of every program: signals, exit codes, and how a failure reads.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::failure::{self, Failure, Result};

static INTERRUPT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static TERMINATE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Runs a program's body and turns its outcome into an exit code and, on stderr, one line and perhaps a hint.
///
/// SIGINT and SIGTERM only set a flag that [`interrupted`] reads; a second one ends the process at once.
pub fn run(name: &'static str, body: impl FnOnce() -> Result<()>) -> ExitCode {
    // SAFETY: nothing else runs yet: this is the first thing that main does, before any thread.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
    for (signal, code, flag) in [
        (signal_hook::consts::SIGINT, failure::INTERRUPTED, &*INTERRUPT),
        (signal_hook::consts::SIGTERM, failure::TERMINATED, &*TERMINATE),
    ] {
        // Without a handler the signal still ends the process, only less tidily.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, i32::from(code), Arc::clone(flag));
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(name, &failure);
            ExitCode::from(failure.code)
        }
    }
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
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
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

/// The command line as `A`. Prints help or the version and exits 0; an unusable command line exits 2.
pub fn parse<A: clap::Parser>() -> A {
    match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            if !error.use_stderr() {
                error.exit();
            }
            let name = A::command().get_name().to_owned();
            let rendered = error.render().to_string();
            let mut paragraphs = rendered.lines().filter(|line| !line.trim().is_empty());
            let first = paragraphs.next().unwrap_or("unusable command line");
            let message = first.strip_prefix("error: ").unwrap_or(first);
            let tip = rendered.lines().find_map(|line| line.trim().strip_prefix("tip: "));
            let hint = tip.map_or(format!("see {name} --help"), str::to_owned);
            report(&name, &Failure::usage(message).hint(hint));
            std::process::exit(i32::from(failure::USAGE));
        }
    }
}

/// The build of this program, for the `timing` object of `end` and `metrics` lines.
pub fn build() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
