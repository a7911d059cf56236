//! `update`: samples with advantages in, the next version of each policy out.

use std::process::ExitCode;

fn main() -> ExitCode {
    record::stage::run("update", update::stage::run)
}
