//! The skeleton of a grid world: workflows, episodes, proposals, tasks and demonstrations.
//!
//! In the workflow `team` a tool proposes and the planner, who sees the proposal, decides. Only the planner's
//! action changes the board, which persists between turns. The tool is scored as if its proposal were
//! executed. In `single` the planner is alone. Two controls show the source of a team's gain: in `mechanical`
//! the tool is alone and its proposal is executed; in `route-moves`, for worlds with a walker, one planner
//! writes a route and then its moves in one action.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use record::sample::{Message, Rewards, Sample};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{ActionFormat, ActionSpace, Parsed};
use environment::demonstration::{self, Demonstration};
use environment::settings::{Encoding, RewardMode, Settings};
use environment::spec::{self, checked};
use environment::streams;
use environment::workflow::Workflow;
use environment::{
    Demonstrator, Environment, ExtractionCase, Metadata, Outcome, Selection, Split, State, Tasks,
};

/// The fields that every `spec` has, without the board.
#[derive(Clone, Debug)]
pub struct Episode {
    pub encoding: Encoding,
    /// Prompts in prose are short, and moves are words.
    pub brief: bool,
    /// The action space of the tool's proposals.
    pub space: ActionSpace,
    /// Most steps per action.
    pub steps: u32,
    pub turns: u32,
    pub reward: RewardMode,
    pub spec: Value,
}

impl Episode {
    /// # Errors
    /// Cells in prose, or numbers out of range: data.
    pub fn new(
        spec: &Value,
        encoding: Encoding,
        space: Option<ActionSpace>,
        (name, steps, most): (&str, u32, u32),
        turns: u32,
        reward: RewardMode,
    ) -> Result<Episode> {
        if (space, encoding) == (Some(ActionSpace::Cells), Encoding::Full) {
            return Err(Failure::data("spec: proposal: in prose the tool proposes moves"));
        }
        let space = space.unwrap_or(ActionSpace::default_of(encoding));
        checked(name, steps, 1, most)?;
        checked("turns", turns, 1, 99)?;
        Ok(Episode { encoding, brief: false, space, steps, turns, reward, spec: spec.clone() })
    }

    pub fn is_compact(&self) -> bool {
        self.encoding == Encoding::Compact
    }
}

/// A grid world: a task's instance, constant during its episodes.
pub trait GridWorld: Debug + Send + Sync + Sized + 'static {
    /// Draws after which settings are assumed to allow no task.
    const ATTEMPTS: u32;

    /// How tasks are drawn.
    type Rules: Clone + Send + Sync + 'static;
    /// The part of the state that actions change.
    type Situation: Clone + Debug + Send;
    /// A situation in state JSON.
    type RawSituation: Serialize + DeserializeOwned;
    /// One step of an action.
    type Step: Clone;

    /// # Errors
    /// Values are out of range or contradict each other: usage.
    fn rules(settings: &Settings) -> Result<Self::Rules>;
    /// One attempt at a task of `split`: its `spec`, and a number that identifies it.
    fn draw(rules: &Self::Rules, split: Split, draws: &mut Draws) -> Option<(Value, u64)>;
    /// The rules for an error message, and advice that would allow more tasks.
    fn describe(rules: &Self::Rules) -> (String, &'static str);

    fn parse(spec: &Value) -> Result<Self>;
    fn episode(&self) -> &Episode;
    fn start(&self) -> Self::Situation;
    fn save(&self, situation: &Self::Situation) -> Self::RawSituation;
    /// # Errors
    /// The situation cannot be reached: data.
    fn load(&self, raw: Self::RawSituation) -> Result<Self::Situation>;

    /// Why the episode is over, if it is.
    fn ending(&self, situation: &Self::Situation) -> Option<&'static str>;
    fn prompt(&self, situation: &Self::Situation, proposal: Option<&str>, agent: &str) -> String;
    fn write(&self, situation: &Self::Situation, format: ActionFormat, steps: &[Self::Step]) -> String;
    fn read(
        &self,
        situation: &Self::Situation,
        format: ActionFormat,
        text: &str,
    ) -> Option<Parsed<Self::Step>>;
    /// A proposal, as shown to the planner.
    fn shown(&self, format: ActionFormat, text: &str, action: &Parsed<Self::Step>) -> String;
    /// Executes an action.
    fn play(
        &self,
        situation: &Self::Situation,
        agent: &str,
        action: &Parsed<Self::Step>,
    ) -> (Self::Situation, Outcome);
    /// The outcome of a malformed action.
    fn malformed(agent: &str) -> Outcome;

    /// The first turn of a shortest solution.
    fn best(&self, situation: &Self::Situation) -> Vec<Self::Step>;
    /// Returns true if the world is solved, determined independently of [`GridWorld::play`].
    fn is_solved(&self, situation: &Self::Situation) -> bool;
    fn test_actions(
        &self,
        situation: &Self::Situation,
        write: &dyn Fn(&[Self::Step]) -> String,
    ) -> Vec<String>;
    fn extraction_cases() -> Vec<ExtractionCase>;
    fn picture(&self, situation: &Self::Situation) -> String;

    /// Draws situations to demonstrate.
    fn situations<'a>(&'a self, rules: &Self::Rules) -> Box<Situations<'a, Self>>;
    /// The steps of a demonstrator of `kind`, at least one.
    fn demonstrate(&self, kind: &str, situation: &Self::Situation, draws: &mut Draws) -> Vec<Self::Step>;
}

/// Draws situations without end, or `None` if there are no more.
pub type Situations<'a, W> = dyn FnMut(&mut Draws) -> Option<<W as GridWorld>::Situation> + 'a;

/// Workflows of worlds with a walker.
pub static WALKING: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| workflows(true));
/// Workflows of other worlds.
pub static PLACING: LazyLock<Vec<Arc<Workflow>>> = LazyLock::new(|| workflows(false));

fn workflows(walks: bool) -> Vec<Arc<Workflow>> {
    let mut workflows = vec![
        Workflow::sequential("team", &["tool", "planner"]),
        Workflow::sequential("single", &["planner"]),
    ];
    workflows.extend(walks.then(|| Workflow::sequential("route-moves", &["planner"])));
    workflows.push(Workflow::sequential("mechanical", &["tool"]));
    workflows
}

/// An environment whose tasks are worlds of one kind.
pub struct GridEnvironment<W> {
    name: &'static str,
    metadata: Metadata,
    kind: PhantomData<fn() -> W>,
}

impl<W: GridWorld> GridEnvironment<W> {
    pub const fn new(name: &'static str, metadata: Metadata) -> GridEnvironment<W> {
        GridEnvironment { name, metadata, kind: PhantomData }
    }
}

/// The first task of `stream` that is in `split`.
fn draw<W: GridWorld>(name: &str, rules: &W::Rules, split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let (spec, identity) = W::draw(rules, split, draws)?;
        Some(streams::task(name, split, &format!("{identity:016x}"), spec))
    };
    streams::first_task(W::ATTEMPTS, split, stream, drawn, || W::describe(rules))
}

impl<W: GridWorld> Environment for GridEnvironment<W> {
    fn name(&self) -> &str {
        self.name
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let (name, rules) = (self.name, W::rules(&selection.settings)?);
        Ok(streams::tasks(name, selection, move |split, stream| draw::<W>(name, &rules, split, stream)))
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        let workflow = self.workflow(workflow, spec)?;
        let world = Arc::new(W::parse(spec)?);
        let situation = world.start();
        Ok(Box::new(GridState { name: self.name, world, workflow, situation, proposal: None }))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        let mut raw: Map<String, Value> = spec::read_state(state)?;
        raw.shift_remove("env");
        let mut take = |key: &str| raw.shift_remove(key).unwrap_or_default();
        let world = Arc::new(W::parse(&take("spec"))?);
        let workflow: String = spec::read_state(&take("workflow"))?;
        let proposal: Option<String> = spec::read_state(&take("proposal"))?;
        let situation = world
            .load(spec::read_state(&Value::Object(raw))?)
            .map_err(|failure| Failure { message: format!("state: {}", failure.message), ..failure })?;
        let workflow = self.workflow(&workflow, &Value::Null)?;
        let proposal = proposal.map(Arc::from);
        Ok(Box::new(GridState { name: self.name, world, workflow, situation, proposal }))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        W::extraction_cases()
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let (name, rules) = (self.name, W::rules(&demonstration.tasks.settings)?);
        let workflow = self.workflow(&demonstration.workflow, &Value::Null)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| demonstrate::<W>(name, &rules, &workflow, &demonstration, index)))
    }
}

/// The demonstrations of the train task at `index`. A planner adopts the proposal that it sees, good or bad,
/// with probability `follow`; otherwise a demonstrator decides. Consecutive samples share a board, and so the
/// beginning of their prompts.
fn demonstrate<W: GridWorld>(
    name: &'static str,
    rules: &W::Rules,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample<'static>>> {
    let stream = streams::train_stream(name, demonstration.tasks.seed, index);
    let task = draw::<W>(name, rules, Split::Train, stream)?;
    let world = Arc::new(W::parse(&task.spec)?);
    let mut draws = demonstration.draws(name, index);
    let mut situations = world.situations(rules);
    let mut samples = Vec::with_capacity(demonstration.states as usize * workflow.agents().len());
    for number in 0..demonstration.states {
        let Some(situation) = situations(&mut draws) else { break };
        let mut state = GridState {
            name,
            world: Arc::clone(&world),
            workflow: Arc::clone(workflow),
            situation,
            proposal: None,
        };
        let episode = format!("{index}.{number}");
        let mut proposed: Option<Vec<W::Step>> = None;
        for agent in workflow.agents() {
            let steps = match proposed.take() {
                Some(steps) if f64::from(draws.uniform()) < demonstration.follow => steps,
                _ => world.demonstrate(demonstration.kind(&mut draws), &state.situation, &mut draws),
            };
            let completion = state.write(agent, &steps);
            let prompt = state.observe(agent);
            samples.push(demonstration::sample(&task, &episode, agent, prompt, completion.clone()));
            state.apply(agent, &completion)?;
            proposed = Some(steps);
        }
    }
    Ok(samples)
}

/// A situation in an episode, and the tool's proposal.
struct GridState<W: GridWorld> {
    /// The environment's.
    name: &'static str,
    world: Arc<W>,
    workflow: Arc<Workflow>,
    situation: W::Situation,
    /// The proposal as shown to the planner; `None` if there is none or it was malformed.
    proposal: Option<Arc<str>>,
}

impl<W: GridWorld> GridState<W> {
    fn format(&self, agent: &str) -> ActionFormat {
        match *self.world.episode() {
            Episode { brief: true, .. } => ActionFormat::Words,
            Episode { encoding, space, .. } => ActionFormat::of(encoding, space, agent, self.workflow.name()),
        }
    }

    fn write(&self, agent: &str, steps: &[W::Step]) -> String {
        self.world.write(&self.situation, self.format(agent), steps)
    }
}

impl<W: GridWorld> State for GridState<W> {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.world.episode().turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let proposal = match self.workflow.name() {
            "team" if agent != "tool" => Some(self.proposal.as_deref().unwrap_or("")),
            _ => None,
        };
        let content = self.world.prompt(&self.situation, proposal, agent);
        vec![Message { role: "user".to_owned(), content }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.workflow.check(agent)?;
        if let Some(reason) = self.world.ending(&self.situation) {
            return Err(Failure::data(format!("the episode is over: {reason}")));
        }
        let format = self.format(agent);
        self.proposal = None;
        let Some(action) = self.world.read(&self.situation, format, text) else {
            return Ok(W::malformed(agent));
        };
        let (after, mut outcome) = self.world.play(&self.situation, agent, &action);
        if self.world.episode().reward == RewardMode::Success {
            outcome.rewards = Rewards { team: f64::from(outcome.success), local: 0.0 };
        }
        // A proposal changes nothing, unless the tool is alone.
        if agent == "tool" && self.workflow.agents().len() > 1 {
            self.proposal = Some(self.world.shown(format, text, &action).into());
            return Ok(Outcome { terminated: false, success: false, ..outcome });
        }
        self.situation = after;
        Ok(outcome)
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(GridState {
            name: self.name,
            world: Arc::clone(&self.world),
            workflow: Arc::clone(&self.workflow),
            situation: self.situation.clone(),
            proposal: self.proposal.clone(),
        })
    }

    fn to_json(&self) -> Value {
        let spec = self.world.episode().spec.clone();
        let mut state = spec::state(self.name, spec, self.workflow.name(), &self.world.save(&self.situation));
        state.insert("proposal".to_owned(), self.proposal.as_deref().into());
        Value::Object(state)
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        Some(self.write(agent, &self.world.best(&self.situation)))
    }

    fn is_solved(&self) -> bool {
        self.world.is_solved(&self.situation)
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        self.world.test_actions(&self.situation, &|steps| self.write(agent, steps))
    }

    fn board(&self) -> Option<String> {
        Some(self.world.picture(&self.situation))
    }
}
