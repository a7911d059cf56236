//! `group`: decides which samples are compared.
//!
//! Grouped by agent and turn, all members of a group share one prompt, which is checked, and every branch is there
//! (AT-GRPO, arXiv 2510.11062, section 3). A group is written once it and all before it are complete; interleaved groups
//! only cost memory. Left out: what a reward means, see `advantage`.

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
