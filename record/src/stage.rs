//! What every program does alike: parse the command line, watch for signals, print a failure, end with its exit code.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Instant;

use clap::error::ErrorKind;
use clap_complete::Shell;
use serde_json::Value;

use crate::failure::{self, Failure, Result};
use crate::manual;
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

static NAME: OnceLock<&'static str> = OnceLock::new();

/// The name of this program, as its messages begin.
pub fn name() -> &'static str {
    NAME.get().copied().unwrap_or("troupe")
}

fn code(name: &'static str, body: impl FnOnce() -> Result<()>) -> u8 {
    // A second call in one process keeps the first name.
    let _ = NAME.set(name);
    // SAFETY: the first thing that main does; no other thread exists that could read the environment meanwhile.
    unsafe {
        std::env::set_var("ORT_DISABLE_TELEMETRY", "1");
        // Eight times 4 MiB for each cuBLAS handle, made with it: otherwise a captured product allocates its workspace in
        // the CUDA graph, and may be another one than outside of it.
        if std::env::var_os("CUBLAS_WORKSPACE_CONFIG").is_none() {
            std::env::set_var("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
        }
    }
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

/// Returns true if this program came as a package, with `troupe` in the same folder and the scripts
/// elsewhere.
fn is_installed() -> bool {
    std::env::current_exe().is_ok_and(|program| program.with_file_name("troupe").is_file())
}

/// What people type to start the training loop.
pub fn pipeline() -> &'static str {
    if is_installed() { "troupe pipeline" } else { "./pipeline.sh" }
}

/// The Python that has what this program needs of Python: the one beside it, in whose environment it was installed, or the one on
/// `PATH`.
pub fn python() -> Command {
    let beside = std::env::current_exe().map(|program| program.with_file_name("python3"));
    Command::new(beside.ok().filter(|python| python.is_file()).unwrap_or_else(|| "python3".into()))
}

/// Prints a failure and its hint on stderr, as [`run`] does.
pub fn report(name: &str, failure: &Failure) {
    if failure.is_closed() {
        return;
    }
    let mut text = format!("{name}: {}\n", printable(&failure.message));
    if let Some(hint) = &failure.hint {
        let hint = hint.replace("./pipeline.sh", pipeline());
        text.push_str(&format!("hint: {}\n", printable(&hint)));
    }
    // A closed stderr leaves nobody to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints `name: message` on stderr: information, not a failure. Programs skip it with `--quiet`.
pub fn note(name: &str, message: impl std::fmt::Display) {
    // A note is a courtesy: a closed stderr must not stop the work.
    let _ =
        io::stderr().lock().write_all(format!("{name}: {}\n", printable(&message.to_string())).as_bytes());
}

/// `text` with control characters escaped (`\u{1b}`), so that a name in a stream cannot steer a terminal,
/// reorder the output or start a new line.
pub fn printable(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let escaped = |c: char| if steers(c) { c.escape_default().to_string() } else { c.to_string() };
    if text.contains(steers) { text.chars().map(escaped).collect() } else { text.to_owned() }
}

/// `1 group`, `2 groups`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The name of a choice on the command line.
pub fn choice(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The programs that have manual pages.
pub const PROGRAMS: [&str; 7] = ["envs", "rollout", "group", "advantage", "update", "report", "policy"];

/// If set, a program writes its man pages and shell completions to this folder, laid out like `share`, and exits.
const MANUALS: &str = "TROUPE_MANUALS";

/// The command line as `A`. Prints help or the version and exits 0; an unusable command line exits 2.
pub fn parse<A: clap::Parser>() -> A {
    try_parse().unwrap_or_else(|failure| {
        report(A::command().get_name(), &failure);
        std::process::exit(i32::from(failure.code));
    })
}

/// If set, a program checks its command line and exits.
const DRY_RUN: &str = "TROUPE_DRY_RUN";

/// Where a program has checked its command line, and done nothing yet: ends here if it was started for that alone, so that a script
/// finds a mistake before it begins.
pub fn end_if_dry_run() {
    if std::env::var_os(DRY_RUN).is_some_and(|asked| !asked.is_empty()) {
        std::process::exit(i32::from(failure::DONE));
    }
}

/// Like [`parse`], but returns a usage error instead of exiting.
///
/// # Errors
/// Usage (exit 2).
pub fn try_parse<A: clap::Parser>() -> Result<A> {
    if let Some(folder) = std::env::var_os(MANUALS).filter(|folder| !folder.is_empty()) {
        let written = manuals(A::command(), Path::new(&folder));
        std::process::exit(written.map_or_else(
            |mut failure| {
                failure.message = format!("{MANUALS}={}: {}", Path::new(&folder).display(), failure.message);
                report(A::command().get_name(), &failure);
                i32::from(failure.code)
            },
            |()| i32::from(failure::DONE),
        ));
    }
    A::try_parse().map_err(|error| {
        if !error.use_stderr() {
            let printed = error.print().and_then(|()| io::stdout().flush());
            match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return unwritten(&error),
                _ => std::process::exit(i32::from(failure::DONE)),
            }
        }
        usage::<A>(&error)
    })
}

/// The output cannot be written (exit 74).
pub fn unwritten(error: &io::Error) -> Failure {
    Failure::io(format!("writing the output: {error}"))
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

fn manuals(mut command: clap::Command, share: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    let page_of = command.clone(); // completions add a subcommand for help
    for (shell, folder) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
        (Shell::Zsh, "zsh/site-functions"),
    ] {
        std::fs::create_dir_all(share.join(folder))?;
        clap_complete::generate_to(shell, &mut command, &name, share.join(folder))?;
    }
    let pages = share.join("man/man1");
    std::fs::create_dir_all(&pages)?;
    for (name, page) in manual::pages(&page_of, &PROGRAMS)? {
        std::fs::write(pages.join(format!("{name}.1")), page)?;
    }
    Ok(())
}

/// A usage error in one line and a hint, in place of clap's paragraphs.
fn usage<A: clap::Parser>(error: &clap::Error) -> Failure {
    let name = A::command().get_name().to_owned();
    let see = format!("see {name} --help");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").hint(see);
    }
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let message = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // The tip that a value may follow `--` is true but useless: no argument of ours begins with a dash.
    let tips = rendered.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let hint = tips.map(str::to_owned).find(|tip| !tip.starts_with("to pass ")).unwrap_or(see);
    Failure::usage(message).hint(hint)
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
