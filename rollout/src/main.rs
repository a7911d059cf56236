//! `rollout`: tasks in, samples out.

use std::process::ExitCode;

fn main() -> ExitCode {
    record::stage::run("rollout", rollout::run::main)
}
