//! Tasks, environments, rewards and oracles.
//!
//! A new environment is one module here and one line in [`ENVIRONMENTS`]. The command line (`envs tasks`,
//! `demo`, `step`, `check`, `play`) and `rollout` find it there by name and use it through
//! [`Environment`] and [`State`] alone.

pub mod check;
pub mod code;
mod demonstration;
pub mod environment;
pub mod grid;
pub mod import;
pub mod math;
pub mod outside;
pub mod plan_path;
pub mod problems;
pub mod sandbox;
pub mod settings;
pub mod sokoban;
pub mod step;
pub mod streams;
pub mod sudoku;
pub mod workflow;

pub use environment::{
    Demonstration, Demonstrations, Environment, ExtractionCase, Outcome, RewardRange, Selection, Split,
    State, Tasks,
};
pub use settings::{Setting, Settings};
pub use workflow::Workflow;

use std::sync::Arc;

use record::failure::{Failure, Result};

/// Every environment there is.
pub static ENVIRONMENTS: &[&dyn Environment] =
    &[&plan_path::PlanPath, &math::Math, &sudoku::Sudoku, &sokoban::Sokoban, &code::Code];

/// The environment called `name`.
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

/// The workflow of `environment` called `name`, with the agents that it has by default.
///
/// # Errors
/// No such workflow: usage, with the nearest name as hint.
pub fn find_workflow(environment: &dyn Environment, name: &str) -> Result<Arc<Workflow>> {
    named_workflow(environment.name(), environment.workflows(), name)
}

/// The one of `workflows` called `name`.
pub(crate) fn named_workflow(
    environment: &str,
    workflows: &[Arc<Workflow>],
    name: &str,
) -> Result<Arc<Workflow>> {
    if let Some(workflow) = workflows.iter().find(|workflow| workflow.name() == name) {
        return Ok(Arc::clone(workflow));
    }
    let names: Vec<&str> = workflows.iter().map(|workflow| workflow.name()).collect();
    Err(Failure::usage(format!("{environment} has no workflow '{name}'"))
        .hint(settings::suggest(name, &names)))
}
