//! `group`: decides which samples are compared.
//!
//! Grouped by agent and turn, the members of a group have one prompt, which is checked, and every branch is
//! present (AT-GRPO, arXiv 2510.11062, section 3). A group is written once it and all earlier groups are
//! complete; interleaved groups only cost memory. Left out: the meaning of rewards (`advantage`).

mod anchors;
mod arguments;
mod key;
mod siblings;
mod stage;

use std::process::ExitCode;

use record::decorate;

use crate::arguments::Arguments;
use crate::stage::Grouping;

fn main() -> ExitCode {
    record::stage::run("group", || {
        let arguments: Arguments = record::stage::parse();
        record::stage::end_if_dry_run();
        decorate::run("group", arguments.flags, Grouping::new(arguments))
    })
}
