//! `envs`: tasks and environments on the command line. Each subcommand is a file in `command/`; what they do with an
//! environment goes through the library's traits alone.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use envs::{Environment, Selection, Settings, Split};
use record::failure::Result;

mod command {
    pub mod check;
    pub mod demo;
    pub mod import;
    pub mod list;
    pub mod play;
    pub mod step;
    pub mod tasks;
}

/// Help with the examples first.
const TEMPLATE: &str = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Tasks and environments.
#[derive(Parser)]
#[command(name = "envs", version, help_template = TEMPLATE, before_help = "\
Examples:
  envs list
  envs tasks plan-path --count 32 --seed 7
  envs tasks plan-path --split test --count 300 --set size=10 --set encoding=full
  envs demo plan-path --count 1000 --mix opt=0.25,lazy=0.55,manhattan=0.1,random=0.1
  envs play plan-path
  envs import aime24.jsonl --split test > aime24-tasks.jsonl")]
struct Arguments {
    /// No progress on stderr.
    #[arg(long, global = true)]
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
}

/// Which tasks, where the split is the user's choice.
#[derive(clap::Args)]
struct Choice {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV")]
    environment: String,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Changes a setting; `envs list` names them (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Choice {
    fn environment(&self) -> Result<&'static dyn Environment> {
        envs::find(&self.environment)
    }

    fn selection(&self, split: Split) -> Result<Selection> {
        let environment = self.environment()?;
        let settings = Settings::parse(&self.settings, environment.name(), environment.settings())?;
        Ok(Selection { split, seed: self.seed, settings })
    }
}

fn main() -> ExitCode {
    record::stage::run("envs", || {
        let arguments: Arguments = record::stage::parse();
        match arguments.command {
            Command::List(list) => list.run(),
            Command::Tasks(tasks) => tasks.run(),
            Command::Demo(demo) => demo.run(),
            Command::Step(step) => step.run(),
            Command::Check(check) => check.run(arguments.quiet),
            Command::Play(play) => play.run(),
            Command::Import(import) => import.run(),
        }
    })
}
