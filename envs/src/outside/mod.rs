//! An environment that is any program speaking the step protocol: `rollout --env-command`, `envs check --env-command`.
//!
//! The state of an episode lives here as JSON and travels with every request, so the program keeps nothing and a
//! tree of candidates costs it nothing either. [`child`] starts the program, puts lines to it, and replaces it where it
//! dies or stays silent.
//!
//! Left out: tasks, which come as lines from whoever made them, and demonstrations.

pub mod child;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use record::failure::{Failure, Result};
use record::line::Task;
use record::sample::{Message, Rewards};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::environment::{Outcome, State};
use crate::workflow::{Order, Workflow};
use child::Children;

/// Turns after which an episode is cut off when neither `--turns` nor the program says: the paper's T.
const TURNS: u32 = 4;

/// The environment behind a command.
pub struct Outside {
    children: Arc<Children>,
    workflow: Option<String>,
    inquiry: Arc<Inquiry>,
}

impl Outside {
    /// Episodes of `workflow` (`None`: the program's default) played by `command`, each answer within `timeout`. The
    /// program is not started before it is asked something.
    pub fn new(command: &str, timeout: Duration, workflow: Option<String>) -> Outside {
        Outside {
            children: Arc::new(Children::new(command, timeout)),
            workflow,
            inquiry: Arc::new(Inquiry::default()),
        }
    }

    /// The processes of the program.
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// The request that resets to `task`, without its number.
    pub fn reset_request(&self, task: &Task) -> Result<Map<String, Value>> {
        let mut request = Map::new();
        request.insert("task".to_owned(), serde_json::to_value(task).map_err(Failure::work)?);
        if let Some(workflow) = &self.workflow {
            request.insert("workflow".to_owned(), workflow.as_str().into());
        }
        Ok(request)
    }

    /// The first state of `task`.
    ///
    /// # Errors
    /// The program does not answer: work. It refuses the task, or answers something else than the protocol says: data.
    pub fn begin(&self, task: &Task) -> Result<OutsideState> {
        let began: Began = read(self.children.ask(self.reset_request(task)?)?)?;
        if began.agents.is_empty() || began.agents.iter().any(String::is_empty) {
            return Err(Failure::data("the answer to `task` names no agents, or one by an empty name"));
        }
        let name = self.workflow.as_deref().unwrap_or("default");
        let workflow = began.order.workflow(name, began.agents)?;
        let state = OutsideState {
            children: self.children.clone(),
            inquiry: self.inquiry.clone(),
            workflow,
            turns: began.turns.unwrap_or(TURNS),
            together: began.together,
            state: began.state,
            observations: began.observations,
            solved: false,
        };
        state.check_observations()?;
        Ok(state)
    }

    /// From now on [`State::oracle`], [`State::probes`] and [`State::is_solved`] ask the program, by requests with
    /// `probe`. The first failure of such a request is kept for [`Outside::inquiry_failure`].
    pub fn inquire(&self) {
        self.inquiry.lock().0 = true;
    }

    /// Why a request with `probe` could not be answered, if one could not; it is told once.
    pub fn inquiry_failure(&self) -> Option<Failure> {
        self.inquiry.lock().1.take()
    }
}

/// Whether the program answers requests with `probe`, and the first failure of one.
#[derive(Default)]
struct Inquiry(Mutex<(bool, Option<Failure>)>);

impl Inquiry {
    fn lock(&self) -> std::sync::MutexGuard<'_, (bool, Option<Failure>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a request with `task`.
#[derive(Deserialize)]
struct Began {
    state: Value,
    observations: BTreeMap<String, Vec<Message>>,
    agents: Vec<String>,
    order: Order,
    turns: Option<u32>,
    /// Whether it understands `actions`.
    #[serde(default)]
    together: bool,
}

/// The answer to a request with `state`, `agent` and `action`.
#[derive(Deserialize)]
struct Stepped {
    state: Value,
    rewards: Rewards,
    #[serde(default)]
    reward_components: BTreeMap<String, f64>,
    terminated: bool,
    success: bool,
    #[serde(default)]
    observations: BTreeMap<String, Vec<Message>>,
}

/// The answer to a request with `state`, `agent` and `probe`.
#[derive(Clone, Debug, Deserialize)]
pub struct Probed {
    /// Answers worth trying; none where the episode is over.
    #[serde(default)]
    pub probes: Vec<String>,
    /// An answer that no other outscores.
    pub oracle: Option<String>,
    /// Whether the task is solved here, found by other means than the last action's.
    pub solved: bool,
}

fn read<T: for<'a> Deserialize<'a>>(answer: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(answer))
        .map_err(|error| Failure::data(format!("an answer of the environment's program: {error}")))
}

/// A situation that the program described.
#[derive(Clone)]
pub struct OutsideState {
    children: Arc<Children>,
    inquiry: Arc<Inquiry>,
    workflow: Arc<Workflow>,
    turns: u32,
    together: bool,
    state: Value,
    observations: BTreeMap<String, Vec<Message>>,
    solved: bool,
}

impl OutsideState {
    fn check_observations(&self) -> Result<()> {
        match self.workflow.agents().iter().find(|agent| !self.observations.contains_key(*agent)) {
            None => Ok(()),
            Some(agent) => Err(Failure::data(format!("`observations` has nothing for the agent {agent}"))),
        }
    }

    /// Puts a request with `fields` to the program, in this state.
    fn step<const N: usize>(&mut self, fields: [(String, Value); N]) -> Result<Outcome> {
        let mut request = Map::from_iter(fields);
        request.insert("state".to_owned(), self.state.clone());
        let stepped: Stepped = read(self.children.ask(request)?)?;
        self.state = stepped.state;
        self.observations = stepped.observations;
        self.solved = stepped.success;
        if !stepped.terminated {
            self.check_observations()?;
        }
        Ok(Outcome {
            rewards: stepped.rewards,
            components: stepped.reward_components,
            terminated: stepped.terminated,
            success: stepped.success,
        })
    }

    /// What the program thinks worth trying for `agent`.
    ///
    /// # Errors
    /// It does not answer: work. It does not understand `probe`: data.
    pub fn probe(&self, agent: &str) -> Result<Probed> {
        let mut request = Map::new();
        request.insert("state".to_owned(), self.state.clone());
        request.insert("agent".to_owned(), agent.into());
        request.insert("probe".to_owned(), true.into());
        read(self.children.ask(request)?)
    }

    /// The same where the program is known to understand it; a failure is kept and not told here.
    fn inquire(&self, agent: &str) -> Option<Probed> {
        if !self.inquiry.lock().0 {
            return None;
        }
        match self.probe(agent) {
            Ok(probed) => Some(probed),
            Err(failure) => {
                self.inquiry.lock().1.get_or_insert(failure);
                None
            }
        }
    }
}

impl State for OutsideState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.turns
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        self.observations.get(agent).cloned().unwrap_or_default()
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.step([("agent".to_owned(), agent.into()), ("action".to_owned(), text.into())])
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        if self.together {
            let texts: Map<String, Value> =
                actions.iter().map(|(agent, text)| ((*agent).to_owned(), (*text).into())).collect();
            return self.step([("actions".to_owned(), texts.into())]);
        }
        let mut last = Err(Failure::data("no action was given"));
        for (agent, text) in actions {
            last = Ok(self.apply(agent, text)?);
        }
        last
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Value {
        self.state.clone()
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        self.inquire(agent)?.oracle
    }

    fn is_solved(&self) -> bool {
        let first = self.workflow.agents().first();
        first.and_then(|agent| self.inquire(agent)).map_or(self.solved, |probed| probed.solved)
    }

    /// The program's own, or where it has none the words of the observation; nonsense besides.
    fn probes(&self, agent: &str) -> Vec<String> {
        let mut texts = match self.inquire(agent) {
            Some(probed) => probed.probes,
            None => words(&self.observe(agent)),
        };
        texts.extend(NONSENSE.map(str::to_owned));
        texts
    }

    fn draw(&self) -> String {
        self.state.to_string()
    }
}

/// What every environment has to have an outcome for.
pub const NONSENSE: [&str; 9] =
    ["", " ", "\n", "\u{0}", "[[[", "{\"action\":1}", "\\\"", "🦀 日本", "-1e999"];
/// Words of an observation that are tried.
const WORDS: usize = 24;

fn words(messages: &[Message]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in messages.iter().flat_map(|message| message.content.split_whitespace()) {
        if words.len() < WORDS && words.iter().all(|other| other != word) {
            words.push(word.to_owned());
        }
    }
    words
}
