//! `envs`: tasks and environments on the command line. `command/` has a file per subcommand; they use environments
//! through the library's traits alone.

mod arguments;
mod command {
    pub mod check;
    pub mod demo;
    pub mod import;
    pub mod list;
    pub mod new;
    pub mod play;
    pub mod program;
    pub mod step;
    pub mod tasks;
}

use std::process::ExitCode;

use arguments::TEMPLATE;
use clap::{Parser, Subcommand};

/// Tasks and environments.
#[derive(Parser)]
#[command(name = "envs", version, help_template = TEMPLATE, before_help = "\
Examples:
  envs list
  envs tasks plan-path --count 32 --seed 7
  envs tasks plan-path --split test --count 300 --set size=10 --set encoding=full
  envs demo plan-path --count 1000 --mix opt=0.25,lazy=0.55,manhattan=0.1,random=0.1
  envs play plan-path
  envs import aime24.jsonl --split test > aime24-tasks.jsonl
  envs fetch gsm8k > gsm8k.jsonl
  envs new my-game
  envs program --roles solver,checker --tasks sums.jsonl -- python3 team.py check")]
struct Arguments {
    /// No progress on stderr.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(command::list::List),
    Tasks(command::tasks::Tasks),
    Demo(command::demo::Demo),
    Step(command::step::Step),
    Check(command::check::Check),
    Play(command::play::Play),
    Import(command::import::Import),
    Fetch(command::import::Fetch),
    New(command::new::New),
    Program(Box<command::program::Program>),
}

fn main() -> ExitCode {
    record::stage::run("envs", || {
        let Arguments { command, quiet } = record::stage::parse();
        if let Command::Demo(demo) = &command {
            demo.check()?;
        }
        record::stage::end_if_dry_run();
        match command {
            Command::List(list) => list.run(),
            Command::Tasks(tasks) => tasks.run(),
            Command::Demo(demo) => demo.run(),
            Command::Step(step) => step.run(),
            Command::Check(check) => check.run(quiet),
            Command::Play(play) => play.run(),
            Command::Import(import) => import.run(),
            Command::Fetch(fetch) => fetch.run(),
            Command::New(new) => new.run(quiet),
            Command::Program(program) => program.run(),
        }
    })
}
