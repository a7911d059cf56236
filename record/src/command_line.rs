//! The command line of a program: parsing, usage errors in one line, manual pages and shell completions.

use std::io::{self, Write};
use std::path::Path;

use clap::error::ErrorKind;
use clap_complete::Shell;

use crate::failure::{self, Failure, Result};
use crate::manual;
use crate::message::report;
use crate::output::unwritten;

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
