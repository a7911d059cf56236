//! How this program was installed, as far as its messages and its helpers depend on it.

use std::process::Command;

/// Returns true if this program came as a package, with `troupe-rl` in the same folder and the scripts
/// elsewhere. (`troupe` may be another package's.)
fn is_installed() -> bool {
    std::env::current_exe().is_ok_and(|program| program.with_file_name("troupe-rl").is_file())
}

/// The command that starts the training loop.
pub fn pipeline() -> &'static str {
    if is_installed() { "troupe pipeline" } else { "./pipeline.sh" }
}

/// The Python that has what this program needs of Python: the one beside it, in whose environment it was installed, or the one on
/// `PATH`.
pub fn python() -> Command {
    let beside = std::env::current_exe().map(|program| program.with_file_name("python3"));
    Command::new(beside.ok().filter(|python| python.is_file()).unwrap_or_else(|| "python3".into()))
}

/// The build of this program, for the `timing` object of `end` and `metrics` lines.
pub fn build() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
