//! Tasks, environments, rewards and oracles.
//!
//! A new environment is one module here and one line in [`ENVIRONMENTS`]. The command line (`envs tasks`,
//! `demo`, `step`, `check`, `play`) and `rollout` find it there by name and use it through
//! [`Environment`] and [`State`] alone.

pub mod check;
pub mod environment;
pub mod plan_path;
pub mod settings;
pub mod step;

pub use environment::{
    Demonstration, Demonstrations, Environment, ExtractionCase, Order, Outcome, RewardRange, Selection,
    Split, State, Tasks, Workflow,
};
pub use settings::{Setting, Settings};

use record::failure::{Failure, Result};

/// Every environment there is.
pub static ENVIRONMENTS: &[&dyn Environment] = &[&plan_path::PlanPath];

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

/// The workflow of `environment` called `name`.
///
/// # Errors
/// No such workflow: usage, with the nearest name as hint.
pub fn find_workflow(environment: &dyn Environment, name: &str) -> Result<&'static Workflow> {
    let workflows = environment.workflows();
    if let Some(workflow) = workflows.iter().find(|workflow| workflow.name == name) {
        return Ok(workflow);
    }
    let names: Vec<&str> = workflows.iter().map(|workflow| workflow.name).collect();
    Err(Failure::usage(format!("{} has no workflow '{name}'", environment.name()))
        .hint(settings::suggest(name, &names)))
}
