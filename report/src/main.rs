//! `report`: what a run did: a page, a table, TensorBoard events, and the result of an evaluation.
//!
//! It only reads the streams in a run directory. Left out: live updates (repeat the command, it is quick) and sending metrics to
//! a service.

mod arguments;
mod csv;
mod episodes;
mod evaluate;
mod metrics;
mod page;
mod run;
mod stage;
mod stats;
mod tensorboard;

use std::process::ExitCode;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    record::stage::run("report", || {
        let arguments: Arguments = record::stage::parse();
        match &arguments.command {
            Some(Command::Evaluate(arguments)) => evaluate::run(arguments),
            None => stage::run(&arguments.runs),
        }
    })
}
