//! Plan-Path: lead a walker over a board with walls to its goal, a few moves a turn.
//!
//! From Stronger-MAS (arXiv 2510.11062). In the workflow `team` a tool proposes and the planner, who sees the
//! proposal, decides; only the planner's moves move the walker, and its position persists between turns. The
//! tool is scored as if its proposal were carried out. In the workflow `single` the planner is alone.
//!
//! Three controls tell what a team's gain comes from. In `mechanical` the tool is alone, and its route is translated
//! into moves as it is: what a planner adds is the difference to `team`. In `route-moves` the planner is alone and
//! writes a route and then moves in one answer: the language of the team without a second agent. With
//! `--set proposal=moves` the tool proposes in the planner's own language.
//!
//! - [`map`]: the board and its distances; [`rules`]: what moves do and earn;
//! - [`spec`]: settings and the `spec` of a task; [`generate`]: which tasks there are, train and test;
//! - [`compact`], [`full`]: the two ways of putting a situation into words and reading answers;
//! - [`state`]: a situation in an episode; [`demonstrate`]: samples for the warm-up; `test_actions`: for `envs check`.

pub mod compact;
pub mod demonstrate;
pub mod full;
pub mod generate;
pub mod map;
pub mod rules;
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
pub const NAME: &str = "plan-path";

/// The environment.
pub struct PlanPath;

static WORKFLOWS: LazyLock<[Arc<Workflow>; 4]> = LazyLock::new(|| {
    [
        Workflow::sequential("team", &["tool", "planner"]),
        Workflow::sequential("single", &["planner"]),
        Workflow::sequential("route-moves", &["planner"]),
        Workflow::sequential("mechanical", &["tool"]),
    ]
});

impl Environment for PlanPath {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "walk round walls to a goal, a few moves a turn"
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
        Ok(Box::new(state::PlanPathState::new(instance, workflow)))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(Box::new(state::PlanPathState::restore(state, |name| self.workflow(name, &Value::Null))?))
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
