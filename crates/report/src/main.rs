//! `report` shows a run as a page, figures, a table or TensorBoard events, evaluates streams, and compares
//! methods.
//!
//! It reads the streams in a run directory and keeps its findings of each, so that one more step costs one
//! more stream. Left out: sending metrics to a service.

mod arguments;
mod boards;
mod chart;
mod compare;
mod compress;
mod credit;
mod csv;
mod episode_index;
mod episodes;
mod evaluate;
mod figure;
mod methods;
mod metrics;
mod outputs;
mod page;
mod roles;
mod run_directory;
mod run_files;
mod run_summary;
mod stats;
mod stream_summary;
mod table;
mod tensorboard;
mod vocabulary;
mod watch;

use std::process::ExitCode;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    record::stage::run("report", || {
        let arguments: Arguments = record::stage::parse();
        match &arguments.command {
            Some(Command::Evaluate(arguments)) => evaluate::run(arguments),
            Some(Command::Compress(arguments)) => compress::run(arguments),
            Some(Command::Compare(arguments)) => compare::run(arguments),
            Some(Command::Roles(arguments)) => roles::run(arguments),
            None if arguments.runs.watch => watch::run(&arguments.runs.runs),
            None => outputs::run(&arguments.runs),
        }
    })
}
