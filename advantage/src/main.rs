//! `advantage`: turns the rewards of a group into advantages.
//!
//! Reads groups, contiguous or interleaved, and adds `advantage`, `group_mean` and `group_std`. Left out:
//! forming groups (`group`) and the loss (`update`).

mod anchors;
mod arguments;
mod baselines;
mod components;
mod credit;
mod estimator;
mod gate;
mod more;
mod score;
mod stage;
mod statistics;
mod tree;
mod whiten;

use std::process::ExitCode;

use record::decorate;

use crate::arguments::Arguments;
use crate::stage::Advantages;

fn main() -> ExitCode {
    record::stage::run("advantage", || {
        let arguments: Arguments = record::stage::parse();
        let method = arguments.method()?;
        record::stage::end_if_dry_run();
        decorate::run("advantage", arguments.flags, Advantages::new(arguments, method))
    })
}
