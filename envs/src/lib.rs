//! Tasks, environments, rewards and oracles.
//!
//! A new environment is one module in `crates/games` or `crates/problems` and one line in [`ENVIRONMENTS`]. The command line (`envs tasks`,
//! `demo`, `step`, `check`, `play`) and `rollout` find it there by name and use it through
//! [`Environment`] and [`State`] alone.

pub mod check;
pub mod external;
pub mod import;
pub mod program;
pub mod step;

pub use environment::{
    Demonstration, Demonstrator, Environment, ExtractionCase, Generation, Outcome, Selection, Setting,
    Settings, Split, State, Tasks, Workflow, apply_in_order,
};
pub use external::External;

use record::failure::{Failure, Result};
use record::line::Task;

/// Every built-in environment.
pub static ENVIRONMENTS: &[&dyn Environment] = &[
    &games::plan_path::PLAN_PATH,
    &problems::math::MATH,
    &games::sudoku::SUDOKU,
    &games::sokoban::SOKOBAN,
    &problems::code::CODE,
    &problems::writing::tiny::WRITE,
    &problems::writing::prose::TLDR,
    &problems::writing::prose::ARXIV,
    &problems::coop_code::COOP_CODE,
];

/// The built-in environment called `name`.
pub fn find(name: &str) -> Result<&'static dyn Environment> {
    if let Some(environment) = ENVIRONMENTS.iter().find(|environment| environment.name() == name) {
        return Ok(*environment);
    }
    let names: Vec<&str> = ENVIRONMENTS.iter().map(|environment| environment.name()).collect();
    Err(Failure::usage(format!("there is no environment '{name}'"))
        .hint(environment::settings::suggest(name, &names)))
}

/// The environment of `task`: `external` if given, otherwise the built-in one that the task names.
pub fn environment_of<'a>(external: Option<&'a dyn Environment>, task: &Task) -> Result<&'a dyn Environment> {
    external.map_or_else(|| find(&task.env), Ok)
}
