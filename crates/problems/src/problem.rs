//! A problem as an environment: workflows, tasks, episodes, state JSON and demonstrations.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use record::sample::{Message, Sample};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::workflow_file::state::FileState;
use crate::workflow_file::{Checker, is_file, load};
use environment::demonstration::{self, Demonstration};
use environment::settings::Settings;
use environment::spec;
use environment::streams;
use environment::workflow::{Workflow, find};
use environment::{
    Demonstrator, Environment, ExtractionCase, Metadata, Outcome, Selection, Split, State, Tasks,
};

/// Token limit for problems from a file, whose answers are unknown.
const MAX_TOKENS_OF_FILES: u32 = 512;

/// A problem: a task's instance, constant during its episodes.
pub trait Problem: Clone + Debug + Send + Sync + 'static {
    /// Default of `--set data`; `None`: tasks are generated.
    const DATA: Option<&'static str> = None;
    /// The shipped problems: a `spec` without rules on each line.
    const SHIPPED: &'static str = "";

    /// How tasks are drawn.
    type Rules: Clone + Send + Sync + 'static;

    /// The shipped problems of the environment called `name`.
    fn shipped(_name: &str) -> &'static str {
        Self::SHIPPED
    }
    /// What checks answers in workflows of a file; `None`: such workflows cannot be played.
    fn checker(self: Arc<Self>) -> Option<Arc<dyn Checker>> {
        None
    }
    /// The workflow `name`, if its agents depend on `spec`; `None` for the environment's.
    fn workflow(_name: &str, _spec: &Value) -> Result<Option<Arc<Workflow>>> {
        Ok(None)
    }

    /// # Errors
    /// Values are out of range or contradict each other: usage.
    fn rules(settings: &Settings) -> Result<Self::Rules>;
    /// The first task of `stream` that is in `split`.
    fn draw(_rules: &Self::Rules, _split: Split, _stream: Stream) -> Result<Task> {
        Err(Failure::usage("these tasks are not drawn").hint("--set data=shipped"))
    }
    /// The `spec` of the problem called `name` under these rules. The caller copies
    /// the other fields of `raw`.
    ///
    /// # Errors
    /// `raw` is not a valid problem: data.
    fn from_file(_rules: &Self::Rules, _raw: &Value, _name: &str) -> Result<Value> {
        Err(spec::fail("these tasks are drawn, not read"))
    }

    /// The `spec` of a user's question, with something in the place of the answer that nobody knows; `None`: a text alone
    /// is no problem.
    fn question(_rules: &Self::Rules, _text: &str) -> Option<Value> {
        None
    }

    /// The task of the environment called `name`.
    fn parse(name: &str, spec: &Value) -> Result<Self>;
    fn turns(&self, workflow: &Workflow) -> u32;
    /// Least and greatest reward.
    fn reward_range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }
    fn extraction_cases() -> Vec<ExtractionCase>;
}

/// How a problem is played; [`crate::joint`] plays every [`crate::joint::JointTask`].
pub trait Playable: Problem {
    /// True if an agent's success can depend on the actions of the others in its stage.
    const JOINT: bool;

    /// The part of the state that actions change.
    type Situation: Clone + Debug + Send + Serialize + DeserializeOwned + 'static;

    fn start(&self, workflow: &Workflow) -> Self::Situation;
    /// Checks a situation read from JSON.
    fn check(episode: &Episode<Self>) -> Result<()>;

    /// The reason why the episode is over; `None` while it continues.
    fn ending(episode: &Episode<Self>) -> Option<&'static str>;
    fn prompt(episode: &Episode<Self>, agent: &str) -> String;
    /// Executes the actions of a stage together, or of one agent alone. Returns the outcome for the agent
    /// `credited`, or else the joint outcome.
    ///
    /// # Errors
    /// A program must run, but there is no sandbox: unavailable.
    fn play(episode: &mut Episode<Self>, actions: &[(&str, &str)], credited: Option<&str>)
    -> Result<Outcome>;

    fn oracle(episode: &Episode<Self>, agent: &str) -> Option<String>;
    /// Returns true if the problem is solved, determined independently of [`Playable::play`].
    fn is_solved(episode: &Episode<Self>) -> bool;
    fn test_actions(episode: &Episode<Self>, agent: &str) -> Vec<String>;
    fn picture(episode: &Episode<Self>) -> String;
    /// The text of a demonstrator of `agent`.
    fn demonstrate(
        episode: &Episode<Self>,
        agent: &str,
        demonstration: &Demonstration,
        draws: &mut Draws,
    ) -> String;
}

/// Token limit of a completion: `compact`, or `prose` with room for an explained answer, as untrained chat models give.
pub fn max_tokens(settings: &Settings, compact: u32, prose: u32) -> u32 {
    match settings.text("data") {
        Some(_) if settings.text("reasoning") != Some("brief") => MAX_TOKENS_OF_FILES,
        None if !settings.is_prose() => compact,
        _ => prose,
    }
}

/// An environment whose tasks are problems of one kind.
pub struct ProblemEnvironment<P> {
    pub name: &'static str,
    metadata: Metadata,
    kind: PhantomData<fn() -> P>,
}

impl<P: Playable> ProblemEnvironment<P> {
    pub const fn new(name: &'static str, metadata: Metadata) -> ProblemEnvironment<P> {
        ProblemEnvironment { name, metadata, kind: PhantomData }
    }

    /// What checks the answers to a problem in a workflow of a file.
    fn checker(&self, spec: &Value) -> Result<Arc<dyn Checker>> {
        let problem = Arc::new(P::parse(self.name, spec)?);
        problem.checker().ok_or_else(|| {
            Failure::usage(format!("this task of {} plays no workflow of a file", self.name))
                .hint("math and code do, in prose: --set encoding=full")
        })
    }
}

impl<P: Playable> Environment for ProblemEnvironment<P> {
    fn name(&self) -> &str {
        self.name
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn workflow(&self, name: &str, spec: &Value) -> Result<Arc<Workflow>> {
        if is_file(name) {
            let definition = load(name)?;
            if !spec.is_null() {
                self.checker(spec)?;
            }
            return definition.workflow(name);
        }
        P::workflow(name, spec)?.map_or_else(|| find(self.workflows(), self.name, name), Ok)
    }

    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let (name, rules) = (self.name, P::rules(&selection.settings)?);
        match selection.settings.text("data").or(P::DATA) {
            Some(file) => crate::file::tasks::<P>(name, file, &rules, selection),
            None => Ok(streams::tasks(name, selection, move |split, stream| P::draw(&rules, split, stream))),
        }
    }

    fn question(&self, text: &str, settings: &Settings) -> Result<Task> {
        let refused = |cause: &str| {
            Failure::usage(format!("{}: {cause}", self.name)).hint(
                "math and code take questions in prose (--set encoding=full), tldr and arxiv take texts",
            )
        };
        let spec = P::question(&P::rules(settings)?, text);
        let spec = spec.ok_or_else(|| refused("its tasks cannot be stated as a text"))?;
        P::parse(self.name, &spec).map_err(|failure| refused(&failure.message))?;
        let task = format!("{}/{}/{:016x}", self.name, streams::ASKED, crate::file::identity(text));
        let (env, split) = (self.name.to_owned(), Some(streams::ASKED.to_owned()));
        Ok(Task { env, task, split, spec, ..Task::default() })
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        if is_file(workflow) {
            let definition = load(workflow)?;
            let (checker, spec) = (self.checker(spec)?, Arc::new(spec.clone()));
            return Ok(Box::new(FileState::begin(self.name, checker, spec, definition, workflow)?));
        }
        let workflow = self.workflow(workflow, spec)?;
        let problem = Arc::new(P::parse(self.name, spec)?);
        Ok(Box::new(Episode::begin(self.name, &problem, &Arc::new(spec.clone()), &workflow)))
    }

    fn restore(&self, state: &Value) -> Result<Box<dyn State>> {
        let name = self.name;
        if state["workflow"].is_object() {
            let checker = self.checker(&state["spec"])?;
            return Ok(Box::new(FileState::restore(name, checker, state)?));
        }
        let mut raw: Map<String, Value> = spec::read_state(state)?;
        raw.shift_remove("env");
        let mut take = |key: &str| raw.shift_remove(key).unwrap_or_default();
        let (spec, workflow) = (Arc::new(take("spec")), take("workflow"));
        let problem = Arc::new(P::parse(name, &spec)?);
        let workflow = self.workflow(&spec::read_state::<String>(&workflow)?, &spec)?;
        let situation = spec::read_state(&Value::Object(raw))?;
        let episode = Episode { name, problem, spec, workflow, situation };
        P::check(&episode)?;
        Ok(Box::new(episode))
    }

    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        P::extraction_cases()
    }

    fn demonstrator(&self, demonstration: &Demonstration) -> Result<Demonstrator> {
        let (name, rules) = (self.name, P::rules(&demonstration.tasks.settings)?);
        if demonstration.tasks.settings.text("data").is_some() {
            return Err(Failure::usage(
                "only generated tasks are demonstrated, and a file of problems has no demonstrations",
            )
            .hint(
                "a pretrained policy needs none: ./pipeline.sh --model NAME, or --warmup 0; or leave out data",
            ));
        }
        if is_file(&demonstration.workflow) {
            return Err(Failure::usage("a workflow of a file is not demonstrated").hint(
                "a pretrained policy needs no demonstrations: ./pipeline.sh --model NAME, or --warmup 0",
            ));
        }
        let workflow = find(self.workflows(), name, &demonstration.workflow)?;
        let demonstration = demonstration.clone();
        Ok(Box::new(move |index| demonstrate::<P>(name, &rules, &workflow, &demonstration, index)))
    }
}

/// The demonstrations of the train task at `index`: what every agent says in the first turn, and every second time after
/// a turn of such answers, if that did not end the episode.
fn demonstrate<P: Playable>(
    name: &'static str,
    rules: &P::Rules,
    workflow: &Arc<Workflow>,
    demonstration: &Demonstration,
    index: u64,
) -> Result<Vec<Sample<'static>>> {
    let task = P::draw(rules, Split::Train, streams::train_stream(name, demonstration.tasks.seed, index))?;
    let (problem, spec) = (Arc::new(P::parse(name, &task.spec)?), Arc::new(task.spec.clone()));
    let workflow = P::workflow(workflow.name(), &task.spec)?.unwrap_or_else(|| Arc::clone(workflow));
    let mut draws = demonstration.draws(name, index);
    let mut samples = Vec::new();
    for number in 0..demonstration.states {
        let mut episode = Episode::begin(name, &problem, &spec, &workflow);
        if number % 2 == 1 {
            let mut later = episode.clone();
            if !later.demonstrated_turn(demonstration, &mut draws, None)? {
                episode = later;
            }
        }
        let id = format!("{index}.{number}");
        let mut record = |episode: &Episode<P>, agent: &str, text: &str| {
            let prompt = episode.observe(agent);
            samples.push(demonstration::sample(&task, &id, agent, prompt, text.to_owned()));
        };
        episode.demonstrated_turn(demonstration, &mut draws, Some(&mut record))?;
    }
    Ok(samples)
}

/// Called with a situation, an agent and its text.
type Recorder<'a, P> = &'a mut dyn FnMut(&Episode<P>, &str, &str);

/// A situation in an episode.
#[derive(Clone, Debug)]
pub struct Episode<P: Playable> {
    /// The environment's.
    name: &'static str,
    pub problem: Arc<P>,
    spec: Arc<Value>,
    pub workflow: Arc<Workflow>,
    pub situation: P::Situation,
}

impl<P: Playable> Episode<P> {
    fn begin(name: &'static str, problem: &Arc<P>, spec: &Arc<Value>, workflow: &Arc<Workflow>) -> Self {
        let situation = problem.start(workflow);
        let (problem, spec, workflow) = (Arc::clone(problem), Arc::clone(spec), Arc::clone(workflow));
        Episode { name, problem, spec, workflow, situation }
    }

    fn play(&mut self, actions: &[(&str, &str)], credited: Option<&str>) -> Result<Outcome> {
        if actions.is_empty() {
            return Err(Failure::data("no action was given"));
        }
        actions.iter().try_for_each(|(agent, _)| self.workflow.check(agent))?;
        if let Some(reason) = P::ending(self) {
            return Err(Failure::data(format!("the episode is over: {reason}")));
        }
        P::play(self, actions, credited)
    }

    /// Plays a turn of demonstrators; returns true if the episode is over. A recorded turn stops at its last
    /// stage, because nothing depends on that stage's actions.
    fn demonstrated_turn(
        &mut self,
        demonstration: &Demonstration,
        draws: &mut Draws,
        mut record: Option<Recorder<'_, P>>,
    ) -> Result<bool> {
        let workflow = Arc::clone(&self.workflow);
        for stage in 0..workflow.stages() {
            let mut texts = Vec::new();
            for agent in &workflow.agents()[workflow.stage(stage)] {
                let text = P::demonstrate(self, agent, demonstration, draws);
                if let Some(record) = &mut record {
                    record(self, agent, &text);
                }
                texts.push((agent.as_str(), text));
            }
            if record.is_some() && stage + 1 == workflow.stages() {
                break;
            }
            let actions: Vec<(&str, &str)> =
                texts.iter().map(|(agent, text)| (*agent, text.as_str())).collect();
            if self.play(&actions, None)?.terminated {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<P: Playable> State for Episode<P> {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.problem.turns(&self.workflow)
    }

    fn reward_range(&self) -> (f64, f64) {
        self.problem.reward_range()
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        vec![Message { role: "user".to_owned(), content: P::prompt(self, agent) }]
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.play(&[(agent, text)], Some(agent))
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        self.play(actions, None)
    }

    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        if !P::JOINT {
            return Ok(None);
        }
        let actions: Vec<(&str, &str)> = others.iter().copied().chain([(agent, text)]).collect();
        self.play(&actions, Some(agent)).map(Some)
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        spec::state(self.name, (*self.spec).clone(), self.workflow.name(), &self.situation).into()
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        P::oracle(self, agent)
    }

    fn is_solved(&self) -> bool {
        P::is_solved(self)
    }

    fn test_actions(&self, agent: &str) -> Vec<String> {
        P::test_actions(self, agent)
    }

    fn draw(&self) -> String {
        P::picture(self)
    }
}
