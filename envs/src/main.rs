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
    pub mod step;
    pub mod tasks;
}

use std::process::ExitCode;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    record::stage::run("envs", || {
        let Arguments { command, quiet } = record::stage::parse();
        record::stage::end_if_dry_run();
        match command {
            Command::List(list) => list.run(),
            Command::Tasks(tasks) => tasks.run(),
            Command::Demo(demo) => demo.run(),
            Command::Step(step) => step.run(),
            Command::Check(check) => check.run(quiet),
            Command::Play(play) => play.run(),
            Command::Import(import) => import.run(),
            Command::New(new) => new.run(quiet),
        }
    })
}
