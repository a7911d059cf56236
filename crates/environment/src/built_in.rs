//! A built-in environment as a value: its name and settings as data, and functions that draw, begin and demonstrate its
//! tasks.

use std::sync::{Arc, LazyLock};

use record::failure::Result;
use serde_json::Value;

use crate::demonstration::Demonstration;
use crate::environment::{Demonstrator, Environment, ExtractionCase};
use crate::selection::{Selection, Tasks};
use crate::settings::{Setting, Settings};
use crate::state::State;
use crate::workflow::Workflow;

/// An environment. One with few tasks and rules can implement [`Environment`] itself.
pub struct BuiltIn {
    pub name: &'static str,
    pub summary: &'static str,
    /// The first is the default.
    pub workflows: &'static LazyLock<Vec<Arc<Workflow>>>,
    pub settings: &'static [Setting],
    /// Kinds of demonstrators with their default shares.
    pub demonstrators: &'static [(&'static str, f64)],
    /// Token limit of a completion: a bit more than the longest right answer, in prose with some words around it.
    pub max_tokens: fn(&Settings) -> u32,
    pub functions: Functions,
}

/// What depends on the type of a task. Each function has the errors of its namesake in [`Environment`].
pub struct Functions {
    pub workflow: fn(&BuiltIn, &str, &Value) -> Result<Arc<Workflow>>,
    pub tasks: fn(&BuiltIn, &Selection) -> Result<Tasks<'static>>,
    pub reset: fn(&BuiltIn, &Value, &str) -> Result<Box<dyn State>>,
    pub restore: fn(&BuiltIn, &Value) -> Result<Box<dyn State>>,
    pub demonstrator: fn(&BuiltIn, &Demonstration) -> Result<Demonstrator>,
    pub extraction_cases: fn() -> Vec<ExtractionCase>,
}

impl Environment for BuiltIn {
    fn name(&self) -> &str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn workflows(&self) -> &[Arc<Workflow>] {
        self.workflows
    }

    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        (self.functions.workflow)(self, name, spec)
    }

    fn settings(&self) -> &'static [Setting] {
        self.settings
    }

    fn max_tokens(&self, settings: &Settings) -> u32 {
        (self.max_tokens)(settings)
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        (self.functions.tasks)(self, selection)
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        (self.functions.reset)(self, spec, workflow)
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        (self.functions.restore)(self, state)
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        (self.functions.extraction_cases)()
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        self.demonstrators
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        (self.functions.demonstrator)(self, demonstration)
    }
}
