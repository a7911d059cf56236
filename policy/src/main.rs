//! `policy`: make, check, look at and use policies from the command line.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Policies on disk: make them, check them, encode text for them, write their decoder graph
///
/// Examples:
///   policy init run/tool --preset tiny --seed 7
///   policy check run/tool
///   envs demo plan-path --count 1000 --seed 7 | policy encode --policy run/tool > demonstrations.jsonl
///   policy graph run/tool
#[derive(Parser)]
#[command(name = "policy", version, verbatim_doc_comment, subcommand_required = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// No notes on stderr
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Init(command::init::Init),
    Encode(command::encode::Encode),
    Check(command::check::Check),
    Graph(command::graph::Graph),
}

fn main() -> ExitCode {
    record::stage::run("policy", || {
        let Arguments { command, quiet } = record::stage::parse();
        match command {
            Command::Init(arguments) => command::init::run(&arguments, quiet),
            Command::Encode(arguments) => command::encode::run(&arguments, quiet),
            Command::Check(arguments) => command::check::run(&arguments),
            Command::Graph(arguments) => command::graph::run(&arguments),
        }
    })
}
