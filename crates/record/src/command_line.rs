//! The command line of a program: parsing, usage errors in one line, manual pages and shell completions.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

use crate::failure::{self, Result};
use crate::manual;
use crate::message::report;
use crate::output::unwritten;
use crate::usage;

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
pub fn try_parse<A: clap::Parser>() -> Result<A> {
    end_if_manuals(&A::command(), None);
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut matches = parse_words(A::command(), &words)?;
    A::from_arg_matches_mut(&mut matches).map_err(|error| {
        let name = A::command().get_name().to_owned();
        usage::failure(&name, &name, &error)
    })
}

/// The values of a command's words, without its name. Prints help or the version and exits 0.
///
/// # Errors
/// The words are no usable command line (exit 2).
pub fn parse_words<T: Into<OsString> + Clone>(command: Command, words: &[T]) -> Result<ArgMatches> {
    let command = with_negative_numbers(command).no_binary_name(true);
    let name = command.get_name().to_owned();
    let called = command.get_bin_name().unwrap_or(&name).to_owned();
    command.try_get_matches_from(words.iter().cloned()).map_err(|error| {
        if !error.use_stderr() {
            let printed = error.print().and_then(|()| io::stdout().flush());
            match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return unwritten(&error),
                _ => std::process::exit(i32::from(failure::DONE)),
            }
        }
        usage::failure(&name, &called, &error)
    })
}

/// The command with options that take `-3` as their value, so that the option says which numbers it takes.
pub(crate) fn with_negative_numbers(command: Command) -> Command {
    let takes_value = |option: &Arg| !option.is_positional() && option.get_action().takes_values();
    command
        .mut_args(|option| if takes_value(&option) { option.allow_negative_numbers(true) } else { option })
        .mut_subcommands(with_negative_numbers)
}

/// If asked to, writes the completions and man pages of a command and exits. The pages may have another name.
pub fn end_if_manuals(command: &Command, page: Option<&'static str>) {
    let Some(folder) = std::env::var_os(MANUALS).filter(|folder| !folder.is_empty()) else { return };
    let written = manuals(command.clone(), page, Path::new(&folder)).map_err(|mut failure| {
        failure.message = format!("{MANUALS}={}: {}", Path::new(&folder).display(), failure.message);
        report(command.get_name(), &failure);
        i32::from(failure.code)
    });
    std::process::exit(written.err().unwrap_or(i32::from(failure::DONE)));
}

fn manuals(mut command: Command, page: Option<&'static str>, share: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    let page_of = command.clone(); // completions add a subcommand for help
    let page_of = if let Some(page) = page { page_of.name(page) } else { page_of };
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
