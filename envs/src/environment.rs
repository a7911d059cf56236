//! What an environment is: tasks, states that are values, and outcomes of actions.
//!
//! Everything here is a pure function of its arguments. A state can be cloned, written to JSON and read
//! back, so a tree of candidate actions is just a tree of values: to score a candidate, clone the state,
//! apply the text to the clone and read the [`Outcome`]; to go on from the chosen candidate, keep its clone.
//!
//! An environment never counts turns. The caller stops after [`State::turn_limit`] of them (or its own
//! number), and running out of turns is never a success: only an [`Outcome`] can say `success`.
//!
//! Left out: policies, sampling, groups and advantages, which belong to the stages after this one.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::sample::{Message, Rewards, Sample};
use serde_json::Value;

use crate::settings::{Setting, Settings};
use crate::workflow::Workflow;

/// Which side of the train and test division tasks are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Tasks to learn from.
    Train,
    /// Held-out tasks; no seed changes which they are.
    Test,
}

impl Split {
    /// The name used in task lines and identifiers: `train` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "test",
        }
    }
}

/// The consequence of one agent's action.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The team's reward and the agent's own, each inside [`Environment::reward_range`].
    pub rewards: Rewards,
    /// What the rewards were made of, each component in [0, 1] before its weight.
    pub components: BTreeMap<String, f64>,
    /// The episode is over: no agent may act any more.
    pub terminated: bool,
    /// The task is solved. Implies `terminated`.
    pub success: bool,
}

/// Least and greatest value that rewards can take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RewardRange {
    /// Bounds of [`Rewards::team`].
    pub team: (f64, f64),
    /// Bounds of [`Rewards::local`].
    pub local: (f64, f64),
}

/// A situation in an episode: what the agents see, and what their actions lead to.
///
/// The caller goes through the stages of the workflow. Where a stage has one agent: observe, sample candidates,
/// score each on a clone, apply the chosen one. Where it has several: observe for all of them first, score each
/// candidate on a clone of the state before the stage (the other agents' parts being those last applied), and
/// then apply all chosen actions with [`State::apply_together`].
pub trait State: Send {
    /// The agents that act, and their order.
    fn workflow(&self) -> &Arc<Workflow>;

    /// Turns after which an episode is given up, unless the caller has its own limit.
    fn turn_limit(&self) -> u32;

    /// The conversation that `agent` is to continue: the same for all its candidates.
    fn observe(&self, agent: &str) -> Vec<Message>;

    /// Lets `agent` say `text`. A text that cannot be understood is an [`Outcome`] with low rewards; an
    /// `Err` means that the environment itself failed, for example a sandbox that could not start.
    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome>;

    /// Applies the chosen actions of a stage of several agents, in the workflow's order: the outcome of the joint
    /// result. Its team reward is the team's for the stage.
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        let mut last = None;
        for (agent, text) in actions {
            last = Some(self.apply(agent, text)?);
        }
        last.ok_or_else(|| Failure::data("no action was given"))
    }

    /// An independent copy with the same future.
    fn clone_state(&self) -> Box<dyn State>;

    /// Everything needed by [`Environment::restore`] to go on from here.
    fn to_json(&self) -> Value;

    /// An answer that no other answer of `agent` outscores here, or `None` without an oracle.
    fn oracle(&self, agent: &str) -> Option<String>;

    /// Whether the oracle finds the task solved here, by its own means. Where there is no oracle, the same as
    /// the last outcome's `success`.
    fn is_solved(&self) -> bool;

    /// Answers worth trying here when the contract is checked: all that matter where they can be
    /// enumerated, otherwise some of every kind, malformed ones among them.
    fn probes(&self, agent: &str) -> Vec<String>;

    /// The situation as a person would like to see it, for `envs play`.
    fn draw(&self) -> String;
}

/// Which tasks to draw.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Train or test.
    pub split: Split,
    /// Names the stream of tasks; of no influence on which tasks the test split holds.
    pub seed: u64,
    /// Values given with `--set`.
    pub settings: Settings,
}

/// Which demonstrations to write: text of imperfect experts, to warm a policy up on.
#[derive(Clone, Debug)]
pub struct Demonstration {
    /// Which tasks they are about.
    pub tasks: Selection,
    /// The workflow whose agents are demonstrated.
    pub workflow: String,
    /// Share of each kind of demonstrator, in the order given; the shares sum to 1.
    pub mix: Vec<(String, f64)>,
    /// States demonstrated for each task.
    pub states: u32,
    /// Probability that an agent goes along with what the agent before it said, instead of an answer of its
    /// own.
    pub follow: f64,
}

/// An answer in a style that a reader would understand, or one that nobody could.
#[derive(Clone, Debug)]
pub struct ExtractionCase {
    /// The style, in a few words.
    pub name: &'static str,
    /// The situation: the first of this `spec`.
    pub spec: Value,
    /// The workflow.
    pub workflow: &'static str,
    /// Who answers.
    pub agent: &'static str,
    /// The answer.
    pub text: String,
    /// A plain answer with the same meaning, or `None` if it has to count as malformed.
    pub means: Option<String>,
}

/// An endless stream of tasks.
pub type Tasks<'a> = Box<dyn Iterator<Item = Result<Task>> + Send + 'a>;
/// A stream of demonstrations, one batch of samples for each task, in the order of the tasks.
pub type Demonstrations<'a> = Box<dyn Iterator<Item = Result<Vec<Sample>>> + Send + 'a>;

/// A family of tasks with one set of rules.
pub trait Environment: Send + Sync {
    /// The name on the command line and in task lines, for example `plan-path`.
    fn name(&self) -> &'static str;

    /// One line that says what is to be done in it.
    fn summary(&self) -> &'static str;

    /// The workflows that it can be played with, with the agents that they have unless a setting says otherwise;
    /// the first is the default.
    fn workflows(&self) -> &[Arc<Workflow>];

    /// The workflow called `name` with the agents that `spec` asks for.
    ///
    /// # Errors
    /// No such workflow: usage. A `spec` that makes no sense: data.
    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        let _ = spec;
        crate::named_workflow(self.name(), self.workflows(), name)
    }

    /// What `--set` understands.
    fn settings(&self) -> &'static [Setting];

    /// Bounds of the rewards.
    fn reward_range(&self) -> RewardRange;

    /// Tasks in order, without end: where the split has fewer, it is repeated in a new order. Task i depends
    /// on the selection and on i alone.
    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>>;

    /// The first state of the episode that `spec` describes; `spec` alone decides the rules.
    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>>;

    /// The state that [`State::to_json`] wrote.
    fn restore(&self, state: &Value) -> Result<Box<dyn State>>;

    /// Answers in styles that policies are known to use, for `envs check`.
    fn extraction_cases(&self) -> Vec<ExtractionCase>;

    /// The kinds of demonstrators with the default share of each; empty where there are none.
    fn demonstrators(&self) -> &'static [(&'static str, f64)];

    /// Demonstrations in task order, without end.
    ///
    /// # Errors
    /// Tasks of the test split, and what [`Environment::training_demonstrations`] refuses: usage.
    fn demonstrations(&self, demonstration: &Demonstration) -> Result<Demonstrations<'_>> {
        match demonstration.tasks.split {
            Split::Train => self.training_demonstrations(demonstration),
            Split::Test => {
                Err(Failure::usage("demonstrations of the test split would teach what is to be tested"))
            }
        }
    }

    /// The same for tasks that are known to be of the training split.
    ///
    /// # Errors
    /// Settings, a workflow or a mix that cannot be: usage.
    fn training_demonstrations(&self, demonstration: &Demonstration) -> Result<Demonstrations<'_>>;
}
