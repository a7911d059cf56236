//! Code: a coder writes a program, a tester a test case, until they agree.
//!
//! From Stronger-MAS (arXiv 2510.11062). In the workflow `team` both answer at once, seeing the state before the turn;
//! when the program does on the tester's input what the tester expects, the episode ends. Success is another matter:
//! the program has to pass every golden test, none of which an agent sees beyond the examples of the statement. In
//! `single` the coder is alone and is shown on which example its program failed; in `one-shot` it has one turn.
//!
//! Programs run in [`sandbox`], and expected outputs stay outside of it. The expressions of tiny policies are
//! computed without one ([`expression`]).
//!
//! - [`spec`]: settings, problems and the `spec` of a task; [`generate`], [`list`], [`expression`]: tasks without end;
//!   [`mutate`]: wrong programs made of right ones;
//! - [`extract`]: programs and cases in answers; [`full`], [`compact`]: prompts and answers in two encodings;
//! - [`judge`], [`compare`]: running, remembering, comparing;
//! - [`state`]: a situation in an episode; [`demonstrate`]: samples for the warm-up; `test_actions`: for `envs check`.

mod compact;
mod compare;
mod demonstrate;
pub mod expression;
mod extract;
mod full;
mod generate;
pub mod judge;
mod list;
pub(crate) mod mutate;
pub mod spec;
pub mod state;
mod test_actions;

use std::sync::{Arc, LazyLock};

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::demonstration::Demonstration;
use crate::environment::{Demonstrator, Environment, ExtractionCase, Selection, State, Tasks};
use crate::settings::Setting;
use crate::workflow::Workflow;
use spec::TaskSettings;

/// The environment's name.
pub const NAME: &str = "code";

/// The environment.
pub struct Code;

static WORKFLOWS: LazyLock<[Arc<Workflow>; 3]> = LazyLock::new(|| {
    [
        Workflow::parallel("team", &["coder", "tester"]),
        Workflow::sequential("single", &["coder"]),
        Workflow::sequential("one-shot", &["coder"]),
    ]
});

impl Environment for Code {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "write a program and a test case that agree, and pass the golden tests"
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        &*WORKFLOWS
    }

    fn settings(&self) -> &'static [Setting] {
        spec::SETTINGS
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        generate::tasks(TaskSettings::from_settings(&selection.settings)?, selection)
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        let workflow = self.workflow(workflow, spec)?;
        Ok(Box::new(state::CodeState::new(spec::Instance::parse(spec)?, workflow)))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        Ok(Box::new(state::CodeState::restore(state, |name| self.workflow(name, &Value::Null))?))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        test_actions::extraction_cases()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        demonstrate::KINDS
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let settings = TaskSettings::from_settings(&demonstration.tasks.settings)?;
        if settings.data.is_some() {
            return Err(
                Failure::usage("only generated tasks of code are demonstrated").hint("leave out data")
            );
        }
        let workflow = self.workflow(&demonstration.workflow, &Value::Null)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| demonstrate::samples(&settings, &workflow, &demonstration, index)))
    }
}
