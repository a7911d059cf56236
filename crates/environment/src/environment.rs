//! A family of tasks: how they are drawn, where an episode begins, which demonstrations there are.

use std::sync::{Arc, LazyLock};

use record::failure::{DATA, Failure, Result};
use record::line::Task;
use record::sample::Sample;
use serde_json::Value;

use crate::demonstration::Demonstration;
use crate::selection::{Selection, Split, Tasks};
use crate::settings::{Setting, Settings};
use crate::state::State;
use crate::workflow::{self, Workflow};

/// An action in a style that has to be understood, or has to count as malformed; in the default workflow.
#[derive(Clone, Debug)]
pub struct ExtractionCase {
    /// The style, in a few words.
    pub name: &'static str,
    /// The situation: the first of this `spec`.
    pub spec: Value,
    /// Who acts.
    pub agent: &'static str,
    /// The action.
    pub text: String,
    /// A plain action with the same meaning; `None`: malformed.
    pub means: Option<String>,
}

impl ExtractionCase {
    /// A case of name, text and meaning.
    pub fn new(
        spec: &Value,
        agent: &'static str,
        (name, text, means): (&'static str, &str, Option<&str>),
    ) -> ExtractionCase {
        let means = means.map(str::to_owned);
        ExtractionCase { name, spec: spec.clone(), agent, text: text.to_owned(), means }
    }
}

/// The demonstrations of the task at an index of the train split.
pub type Demonstrator = Box<dyn Fn(u64) -> Result<Vec<Sample<'static>>> + Send>;

/// What `envs list` says about an environment, and defaults.
pub struct Metadata {
    /// One line.
    pub summary: &'static str,
    /// The workflows with the agents that they have unless a setting says otherwise; the first is the default.
    pub workflows: &'static LazyLock<Vec<Arc<Workflow>>>,
    /// What `--set` understands.
    pub settings: &'static [Setting],
    /// The kinds of demonstrators with the default share of each.
    pub demonstrators: &'static [(&'static str, f64)],
    /// Tokens of a completion at most where nobody says: of a tiny policy a bit more than the longest right answer takes; of a chat model,
    /// which reads prose, with room for the words around the answer.
    pub max_tokens: fn(&Settings) -> u32,
}

static NO_WORKFLOWS: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(Vec::new);

impl Metadata {
    /// Nothing but defaults.
    pub const NOTHING: Metadata = Metadata {
        summary: "",
        workflows: &NO_WORKFLOWS,
        settings: &[],
        demonstrators: &[],
        max_tokens: |settings| if settings.is_prose() { 128 } else { 8 },
    };
}

/// A family of tasks with one set of rules. Only `name` and `reset` are needed to play; an environment that is built
/// in gives the rest too.
pub trait Environment: Send + Sync {
    /// The name on the command line and in task lines, for example `plan-path`.
    fn name(&self) -> &str;

    /// The first state of the episode that `spec` describes; `spec` alone decides the rules.
    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>>;

    /// The first state of `task`; `workflow`: `None` for the default.
    fn begin(&self, task: &Task, workflow: Option<&str>) -> Result<Box<dyn State>> {
        self.reset(&task.spec, workflow.unwrap_or(self.default_workflow()))
    }

    /// The agents that will act in `task`, known before a policy is loaded; empty if the task is refused,
    /// which is reported when it is played.
    fn agents(&self, task: &Task, workflow: Option<&str>) -> Result<Vec<String>> {
        match self.workflow(workflow.unwrap_or(self.default_workflow()), &task.spec) {
            Ok(workflow) => Ok(workflow.agents().to_vec()),
            Err(failure) if failure.code == DATA => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    /// The state that [`State::to_json`] wrote.
    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        let _ = state;
        Err(Failure::data(format!("{}: states cannot be restored", self.name())))
    }

    /// What `envs list` says about it, and defaults.
    fn metadata(&self) -> &Metadata {
        &Metadata::NOTHING
    }

    /// The workflows that it can be played with.
    fn workflows(&self) -> &[Arc<Workflow>] {
        self.metadata().workflows
    }

    /// The name of the first workflow.
    fn default_workflow(&self) -> &str {
        self.workflows().first().map_or("", |workflow| workflow.name())
    }

    /// The workflow called `name` with the agents that `spec` asks for.
    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        let _ = spec;
        workflow::find(self.workflows(), self.name(), name)
    }

    /// Tasks in order, without end: where the split has fewer, it is repeated in a new order. Task i depends
    /// on the selection and on i alone.
    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let _ = selection;
        Err(Failure::usage(format!("{} draws no tasks", self.name())))
    }

    /// The task of a user's question, to which no answer is known.
    ///
    /// # Errors
    /// No task can be made of a text, or not of this one: usage.
    fn question(&self, text: &str, settings: &Settings) -> Result<Task> {
        let _ = (text, settings);
        Err(Failure::usage(format!("no task of {} can be stated as a text", self.name()))
            .hint("math, code, tldr and arxiv take questions, and programs that know `tasks --ask TEXT`"))
    }

    /// Actions in styles that policies are known to use, for `envs check`.
    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        Vec::new()
    }

    /// What demonstrates the tasks of the train split, one index after another.
    ///
    /// # Errors
    /// Settings, a workflow or a mix that cannot be: usage.
    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let _ = demonstration;
        Err(Failure::usage(format!("{} has no demonstrators", self.name())))
    }

    /// Demonstrations in task order, without end: a batch of samples for each task.
    ///
    /// # Errors
    /// Tasks of the test split, and what [`Environment::demonstrator`] refuses: usage.
    fn demonstrations(
        &self,
        demonstration: &Demonstration,
    ) -> Result<Box<dyn Iterator<Item = Result<Vec<Sample<'static>>>> + Send>> {
        match demonstration.tasks.split {
            Split::Train => Ok(Box::new((0..).map(self.demonstrator(demonstration)?))),
            Split::Test => {
                Err(Failure::usage("demonstrations of the test split would leak it into training"))
            }
        }
    }
}
