//! Math: work out the answer of a problem, by thinking and by program.
//!
//! From Stronger-MAS (arXiv 2510.11062). Workflows:
//!
//! - `team`: a tool, who writes a program, and a reasoner, who thinks; both see the state before the turn, and the episode
//!   ends when their answers agree, in success when the answer is also right. Running out of turns is no success, even
//!   where the reasoner is right.
//! - `single`: a reasoner who answers once.
//! - `turns`: a reasoner who sees its last solution, until it gives the same answer twice.
//! - `ensemble`: so many reasoners and tools at once as the task's `spec` says, then a judge, who sees them all; the
//!   episode ends when the judge adopts one of their answers.
//!
//! Files:
//! - [`answer`]: what an answer means, where it is in a text, and whether two mean the same;
//! - [`story`]: word problems of our own; [`generate`]: which tasks there are; [`spec`]: settings and the `spec` of a task;
//! - [`program`]: the tool's program; [`compact`], [`full`]: the two ways of putting a situation into words;
//! - [`state`]: a situation in an episode; [`rules`]: what answers earn; [`demonstrate`]: samples for the warm-up.

pub(crate) mod answer;
mod compact;
mod demonstrate;
mod full;
mod generate;
mod program;
mod rules;
mod spec;
mod state;
mod story;
mod test_actions;

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use serde_json::Value;

use crate::demonstration::Demonstration;
use crate::environment::{Demonstrator, Environment, ExtractionCase, Selection, State, Tasks};
use crate::settings::Setting;
use crate::workflow::Workflow;

/// The environment's name.
pub const NAME: &str = "math";

/// The environment.
pub struct Math;

static WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| {
    let mut workflows = vec![
        Workflow::parallel("team", &["tool", "reasoner"]),
        Workflow::sequential("single", &["reasoner"]),
        Workflow::sequential("turns", &["reasoner"]),
    ];
    // The default numbers are good ones.
    workflows.extend(spec::ensemble(2, 1));
    workflows
});

impl Environment for Math {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "work out the answer of a problem, by thinking and by program"
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        &WORKFLOWS
    }

    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        match name {
            "ensemble" => spec::Problem::parse(spec)?.ensemble(),
            name => crate::find_workflow(self, name),
        }
    }

    fn settings(&self) -> &'static [Setting] {
        spec::SETTINGS
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        generate::tasks(spec::Rules::from_settings(&selection.settings)?, selection)
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        let workflow = self.workflow(workflow, spec)?;
        Ok(Box::new(state::MathState::new(Arc::new(spec::Problem::parse(spec)?), workflow)))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(Box::new(state::MathState::restore(state, |name, spec| self.workflow(name, spec))?))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        demonstrate::KINDS
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let rules = spec::Rules::from_settings(&demonstration.tasks.settings)?;
        let workflow = match demonstration.workflow.as_str() {
            "ensemble" => spec::ensemble(rules.reasoners, rules.tools)?,
            name => crate::find_workflow(self, name)?,
        };
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| demonstrate::samples(&rules, &workflow, &demonstration, index)))
    }
}
