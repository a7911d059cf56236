//! `report`: what a run did, for people: a page, a table, TensorBoard events, and the figures of an evaluation.
//!
//! It reads the streams that the stages left in a run directory and never takes part in a run. Left out on purpose:
//! watching a run as it goes (run it again, it is quick) and any service that figures are sent to.

mod accounts;
mod arguments;
mod crc32c;
mod csv;
mod evaluate;
mod moments;
mod page;
mod run;
mod stream;
mod table;
mod tensorboard;
mod trees;
mod write;

use std::process::ExitCode;

use record::stage;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    stage::run("report", || {
        let arguments: Arguments = stage::parse();
        match &arguments.command {
            Some(Command::Evaluate(arguments)) => evaluate::run(arguments),
            None => write::everything(&arguments.runs),
        }
    })
}
