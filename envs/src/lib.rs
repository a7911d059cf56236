//! Tasks, environments, rewards and oracles.
//!
//! A new environment is one module here and one line in [`ENVIRONMENTS`]. The command line (`envs tasks`,
//! `demo`, `step`, `check`, `play`) and `rollout` find it there by name and use it through
//! [`Environment`] and [`State`] alone.

pub mod check;
pub mod class_eval;
pub mod code;
pub mod coop_code;
mod demonstration;
pub mod environment;
pub mod external;
pub mod grid;
pub mod import;
pub mod math;
mod philosophers;
pub mod plan_path;
mod problems;
pub mod settings;
pub mod sokoban;
mod spec;
pub mod step;
pub mod strbuild;
pub mod streams;
pub mod sudoku;
mod tic_tac_toe;
pub mod workflow;
pub mod writing;

pub use demonstration::Demonstration;
pub use environment::{
    Checks, Demonstrator, Environment, ExtractionCase, Outcome, Selection, Split, State, Tasks,
};
pub use external::External;
pub use settings::{Setting, Settings};
pub use workflow::Workflow;

use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;

/// Every built-in environment.
pub static ENVIRONMENTS: &[&dyn Environment] = &[
    &plan_path::PLAN_PATH,
    &math::MATH,
    &sudoku::SUDOKU,
    &sokoban::SOKOBAN,
    &code::CODE,
    &tic_tac_toe::TicTacToe,
    &philosophers::Philosophers,
    &writing::WRITE,
    &writing::TLDR,
    &writing::ARXIV,
    &coop_code::COOP_CODE,
    &class_eval::CLASS_EVAL,
    &strbuild::STRBUILD,
];

/// The built-in environment called `name`.
///
/// # Errors
/// No such environment: usage, with the nearest name as hint.
pub fn find(name: &str) -> Result<&'static dyn Environment> {
    if let Some(environment) = ENVIRONMENTS.iter().find(|environment| environment.name() == name) {
        return Ok(*environment);
    }
    let names: Vec<&str> = ENVIRONMENTS.iter().map(|environment| environment.name()).collect();
    Err(Failure::usage(format!("there is no environment '{name}'")).hint(settings::suggest(name, &names)))
}

/// The environment of `task`: `external` if given, otherwise the built-in one that the task names.
///
/// # Errors
/// No such environment: usage.
pub fn environment_of<'a>(external: Option<&'a dyn Environment>, task: &Task) -> Result<&'a dyn Environment> {
    external.map_or_else(|| find(&task.env), Ok)
}

/// The workflow of `environment` called `name`, with the agents that it has by default.
///
/// # Errors
/// No such workflow: usage, with the nearest name as hint.
pub fn find_workflow<E: Environment + ?Sized>(environment: &E, name: &str) -> Result<Arc<Workflow>> {
    if let Some(workflow) = environment.workflows().iter().find(|workflow| workflow.name() == name) {
        return Ok(Arc::clone(workflow));
    }
    let names: Vec<&str> = environment.workflows().iter().map(|workflow| workflow.name()).collect();
    Err(Failure::usage(format!("{} has no workflow '{name}'", environment.name()))
        .hint(settings::suggest(name, &names)))
}
