//! `policy`: make, check, encode for, export and draw policies from the command line.

mod arguments;
mod command;

use std::process::ExitCode;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    record::stage::run("policy", || {
        let Arguments { command, quiet } = record::stage::parse();
        record::stage::end_if_dry_run();
        match command {
            Command::Init(arguments) => command::init::run(&arguments, quiet),
            Command::Fetch(arguments) => command::fetch::run(&arguments, quiet),
            Command::Encode(arguments) => command::encode::run(&arguments, quiet),
            Command::Check(arguments) => command::check::run(&arguments),
            Command::Export(arguments) => command::export::run(&arguments, quiet),
            Command::Graph(arguments) => command::graph::run(&arguments),
        }
    })
}
