//! The environment contract: tasks, states that are values, and outcomes of actions.
//!
//! Everything here is a pure function of its arguments. A state can be cloned, written to JSON and read back, so a tree of
//! candidate actions is a tree of values: to score a candidate, clone the state, apply the text to the clone and read the
//! [`Outcome`]; to continue from the chosen candidate, keep its clone.
//!
//! An environment never counts turns. The caller stops after [`State::turn_limit`] of them (or at a limit of
//! its choice), and running out of turns is never a success: only an [`Outcome`] says `success`.
//!
//! Left out: policies, sampling, groups and advantages.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{DATA, Failure, Result};
use record::line::Task;
use record::sample::{Message, Rewards, Sample};
use serde_json::Value;

use crate::demonstration::Demonstration;
use crate::find_workflow;
use crate::settings::{Setting, Settings};
use crate::workflow::Workflow;

/// The train or the test split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Split {
    /// Tasks to learn from.
    Train,
    /// Held-out tasks: no seed changes which they are.
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
    /// The team's and the agent's local reward, each within [`State::reward_range`].
    pub rewards: Rewards,
    /// Local rewards by agent after a joint action, within the same range. Empty if `rewards.local` has the
    /// value.
    pub locals: BTreeMap<String, f64>,
    /// Components of the rewards, each in [0, 1] before its weight; a component of one agent of a joint
    /// action is named `AGENT.NAME`.
    pub components: BTreeMap<String, f64>,
    /// The episode is over: no agent may act any more.
    pub terminated: bool,
    /// The task is solved. Implies `terminated`.
    pub success: bool,
}

impl Outcome {
    /// An outcome after which the episode goes on.
    pub fn new(team: f64, local: f64, components: &[(&str, f64)]) -> Outcome {
        Outcome {
            rewards: Rewards { team, local },
            locals: BTreeMap::new(),
            components: components.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            terminated: false,
            success: false,
        }
    }

    /// The outcome of a joint action that earned the team `team`, from each agent's part: local rewards and
    /// components by agent. `rewards.local` is their mean. It does not end the episode.
    pub fn together(team: f64, parts: &[(&str, Outcome)]) -> Outcome {
        let locals: BTreeMap<String, f64> =
            parts.iter().map(|(agent, part)| ((*agent).to_owned(), part.rewards.local)).collect();
        let local = locals.values().sum::<f64>() / locals.len().max(1) as f64;
        let named = |(agent, part): &(&str, Outcome)| -> Vec<(String, f64)> {
            part.components.iter().map(|(name, value)| (format!("{agent}.{name}"), *value)).collect()
        };
        let components = parts.iter().flat_map(named).collect();
        Outcome { locals, components, ..Outcome::new(team, local, &[]) }
    }

    /// What `agent` earned itself.
    pub fn local_of(&self, agent: &str) -> f64 {
        self.locals.get(agent).copied().unwrap_or(self.rewards.local)
    }
}

/// A situation in an episode.
///
/// The caller goes through the stages of the workflow. In a stage of one agent: observe, sample candidates,
/// score each on a clone, apply the chosen one. In a stage of several: observe for all of them first, score
/// each candidate on a clone of the state before the stage (with the other agents' last actions), choose,
/// score each given the choices of the others with [`State::apply_beside`], then apply all chosen actions
/// with [`State::apply_together`].
pub trait State: Send {
    /// The agents that act, and their order.
    fn workflow(&self) -> &Arc<Workflow>;

    /// Turns after which an episode is truncated, unless the caller sets another limit.
    fn turn_limit(&self) -> u32;

    /// Least and greatest value of its rewards.
    fn reward_range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    /// Whether `agent` acts when its stage comes; otherwise it skips it. While the episode goes on, one agent does.
    fn acts(&self, agent: &str) -> bool {
        let _ = agent;
        true
    }

    /// The conversation that `agent`, which acts, continues: the same for all its candidates.
    fn observe(&self, agent: &str) -> Vec<Message>;

    /// Tools that `agent` may call, as OpenAI's API lists them: a JSON array, at least one.
    fn tools(&self, agent: &str) -> Option<Arc<Value>> {
        let _ = agent;
        None
    }

    /// Executes the action `text` of `agent`. A malformed text is an [`Outcome`] with low rewards; an `Err` means that
    /// the environment itself failed, for example a sandbox that could not start.
    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome>;

    /// Executes the actions of a stage of several agents as one: the outcome of the joint action, which does not depend on
    /// the order of `actions`. Its team reward is the team's for the stage, and [`Outcome::locals`] what each agent earned
    /// itself.
    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        apply_in_order(self, actions)
    }

    /// Executes the action `text` of `agent` together with the chosen actions of the others of its stage: the outcome for
    /// `agent`. A success that takes several agents is credited here, when it happens. `None`: what `agent` earns does not
    /// depend on the others, so [`State::apply`] says it all.
    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        let _ = (agent, text, others);
        Ok(None)
    }

    /// Returns true if a joint action has a joint outcome; false if [`State::apply_together`] applies the
    /// actions in order and returns the last outcome.
    fn scores_together(&self) -> bool {
        true
    }

    /// An independent copy with the same future.
    fn clone_state(&self) -> Box<dyn State>;

    /// Everything that [`Environment::restore`] needs to go on from here.
    fn to_json(&self) -> Value;

    /// What checking needs; `None` for a state that can only be played.
    fn checks(&self) -> Option<&dyn Checks> {
        None
    }
}

/// Executes actions one after another, in the workflow's order whatever theirs; the outcome of the last, with what each
/// agent earned itself.
///
/// # Errors
/// No action: data, and what [`State::apply`] fails with.
pub fn apply_in_order<S: State + ?Sized>(state: &mut S, actions: &[(&str, &str)]) -> Result<Outcome> {
    let workflow = Arc::clone(state.workflow());
    let mut actions = actions.to_vec();
    actions.sort_by_key(|(agent, _)| workflow.position(agent));
    let mut parts = Vec::new();
    for (agent, text) in &actions {
        parts.push((*agent, state.apply(agent, text)?));
    }
    match &parts[..] {
        [] => Err(Failure::data("no action was given")),
        [(_, only)] => Ok(only.clone()),
        [.., (_, Outcome { rewards, terminated, success, .. })] => {
            let joint = Outcome::together(rewards.team, &parts);
            Ok(Outcome { terminated: *terminated, success: *success, ..joint })
        }
    }
}

/// What `envs check` and `envs play` need of a state, beyond playing it.
pub trait Checks {
    /// An action that no other action of `agent` outscores here, or `None` without an oracle.
    fn oracle(&self, agent: &str) -> Option<String>;

    /// Returns true if the oracle finds the task solved here, independently of the rewards. Without an
    /// oracle: the last outcome's `success`.
    fn is_solved(&self) -> bool;

    /// Actions worth trying here when the contract is checked: all that matter where they can be
    /// enumerated, otherwise some of every kind, malformed ones among them.
    fn test_actions(&self, agent: &str) -> Vec<String>;

    /// The situation as a person would like to see it.
    fn draw(&self) -> String;
}

/// [`Checks`] of any state, with defaults for states without checks.
impl dyn State + '_ {
    /// The agents of stage number `stage` that act, as positions in [`Workflow::agents`].
    pub fn acting(&self, stage: usize) -> Vec<usize> {
        let agents = self.workflow().agents();
        self.workflow().stage(stage).filter(|agent| self.acts(&agents[*agent])).collect()
    }

    /// [`Checks::oracle`]; `None` without checks.
    pub fn oracle(&self, agent: &str) -> Option<String> {
        self.checks()?.oracle(agent)
    }

    /// [`Checks::is_solved`]; false without checks.
    pub fn is_solved(&self) -> bool {
        self.checks().is_some_and(Checks::is_solved)
    }

    /// [`Checks::test_actions`]; empty without checks.
    pub fn test_actions(&self, agent: &str) -> Vec<String> {
        self.checks().map_or_else(Vec::new, |checks| checks.test_actions(agent))
    }

    /// [`Checks::draw`]; the state's JSON without checks.
    pub fn draw(&self) -> String {
        self.checks().map_or_else(|| self.to_json().to_string(), Checks::draw)
    }
}

/// Selects the tasks to draw.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Train or test.
    pub split: Split,
    /// Names the stream of tasks; of no influence on which tasks the test split holds.
    pub seed: u64,
    /// Values given with `--set`.
    pub settings: Settings,
}

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

/// An endless stream of tasks.
pub type Tasks<'a> = Box<dyn Iterator<Item = Result<Task>> + Send + 'a>;
/// The demonstrations of the task at an index of the train split.
pub type Demonstrator = Box<dyn Fn(u64) -> Result<Vec<Sample<'static>>> + Send>;

/// A family of tasks with one set of rules. Only `name` and `reset` are needed to play; an environment that is built
/// in gives the rest too.
pub trait Environment: Send + Sync {
    /// The name on the command line and in task lines, for example `plan-path`.
    fn name(&self) -> &str;

    /// The first state of the episode that `spec` describes; `spec` alone decides the rules.
    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>>;

    /// The first state of `task`; `workflow`: `None` for the default.
    ///
    /// # Errors
    /// No such workflow: usage, which ends a run. A task that is refused: data.
    fn begin(&self, task: &Task, workflow: Option<&str>) -> Result<Box<dyn State>> {
        self.reset(&task.spec, workflow.unwrap_or(self.default_workflow()))
    }

    /// The agents that will act in `task`, known before a policy is loaded; empty if the task is refused,
    /// which is reported when it is played.
    ///
    /// # Errors
    /// No such workflow, or an environment that does not respond: usage.
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

    /// One-line description.
    fn summary(&self) -> &'static str {
        ""
    }

    /// The workflows that it can be played with, with the agents that they have unless a setting says otherwise;
    /// the first is the default.
    fn workflows(&self) -> &[Arc<Workflow>] {
        &[]
    }

    /// The name of the first workflow.
    fn default_workflow(&self) -> &str {
        self.workflows().first().map_or("", |workflow| workflow.name())
    }

    /// The workflow called `name` with the agents that `spec` asks for.
    ///
    /// # Errors
    /// No such workflow: usage. A `spec` that makes no sense: data.
    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        let _ = spec;
        find_workflow(self, name)
    }

    /// What `--set` understands.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Tokens of a completion at most where nobody says: of a tiny policy a bit more than the longest right answer takes; of a chat model,
    /// which reads prose, with room for the words around the answer.
    fn max_tokens(&self, settings: &Settings) -> u32 {
        if settings.is_prose() { 128 } else { 8 }
    }

    /// Tasks in order, without end: where the split has fewer, it is repeated in a new order. Task i depends
    /// on the selection and on i alone.
    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let _ = selection;
        Err(Failure::usage(format!("{} draws no tasks", self.name())))
    }

    /// Actions in styles that policies are known to use, for `envs check`.
    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        Vec::new()
    }

    /// The kinds of demonstrators with the default share of each; empty without demonstrators.
    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[]
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
