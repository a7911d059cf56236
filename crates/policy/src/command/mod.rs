//! The subcommands of `policy`.

use std::io::{self, Write};

use record::failure::{Failure, Result};
use record::stage;

pub mod check;
pub mod encode;
pub mod export;
pub mod fetch;
pub mod graph;
pub mod init;
mod sources;

/// Prints lines on stdout; a reader that went away is no error.
fn print(lines: &[String]) -> Result<()> {
    match writeln!(io::stdout().lock(), "{}", lines.join("\n")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::closed()),
        other => other.map_err(|error| stage::unwritten(&error)),
    }
}
