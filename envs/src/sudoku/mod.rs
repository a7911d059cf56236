//! Sudoku: fill a board of 4×4 or 9×9 cells, some digits a turn.
//!
//! From Stronger-MAS (arXiv 2510.11062). In the workflow `team` a tool proposes digits and the planner, who sees the
//! proposal, decides; only the planner's digits go on the board, which persists between turns. The tool is scored
//! as if its proposal were carried out. In `single` the planner is alone; in `mechanical` the tool is, and its
//! proposal goes on the board as it is.
//!
//! Puzzles are proper: they have exactly one solution, and their clues never change.
//!
//! - [`board`]: cells, units and what placing a digit does; [`solve`]: the solver; [`rules`]: what turns earn;
//! - [`spec`]: settings and the `spec` of a task; [`generate`]: which tasks there are, train and test;
//!   [`canonical`]: what all forms of one puzzle share;
//! - [`compact`], [`full`]: the two ways of putting a situation into words and reading answers;
//! - [`state`]: a situation in an episode; [`demonstrate`]: samples for the warm-up; `test_actions`: for `envs check`.

pub mod board;
pub mod canonical;
pub mod compact;
pub mod demonstrate;
pub mod full;
pub mod generate;
pub mod rules;
pub mod solve;
pub mod spec;
pub mod state;
mod test_actions;

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use serde_json::Value;

use crate::environment::{Demonstration, Demonstrator, Environment, ExtractionCase, Selection, State, Tasks};
use crate::settings::Setting;
use crate::workflow::Workflow;

/// The environment's name.
pub const NAME: &str = "sudoku";

/// The environment.
pub struct Sudoku;

static WORKFLOWS: LazyLock<[Arc<Workflow>; 3]> = LazyLock::new(|| {
    [
        Workflow::sequential("team", &["tool", "planner"]),
        Workflow::sequential("single", &["planner"]),
        Workflow::sequential("mechanical", &["tool"]),
    ]
});

impl Environment for Sudoku {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "fill a board with digits, some a turn"
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        &*WORKFLOWS
    }

    fn settings(&self) -> &'static [Setting] {
        spec::SETTINGS
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let rules = spec::Rules::from_settings(&selection.settings)?;
        Ok(generate::tasks(rules, selection))
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        let workflow = self.workflow(workflow, spec)?;
        let instance = Arc::new(spec::Instance::parse(spec)?);
        Ok(Box::new(state::SudokuState::new(instance, workflow)))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(Box::new(state::SudokuState::restore(state, |name| self.workflow(name, &Value::Null))?))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        demonstrate::KINDS
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let rules = spec::Rules::from_settings(&demonstration.tasks.settings)?;
        let workflow = self.workflow(&demonstration.workflow, &Value::Null)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| demonstrate::samples(&rules, &workflow, &demonstration, index)))
    }
}
