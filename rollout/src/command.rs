//! `--env-command`: an environment that is any program speaking the step protocol of `envs step`.
//!
//! The state of an episode lives here as JSON and travels with every request, so the program keeps nothing and a
//! tree of candidates costs it nothing either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envs::workflow::Order;
use envs::{Outcome, State, Workflow};
use record::failure::{DATA, Failure, Result};
use record::line::Task;
use record::sample::{Message, Rewards};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::child::Children;
use crate::world::World;

/// Turns after which an episode is cut off when neither `--turns` nor the program says: the paper's T.
const TURNS: u32 = 4;

/// The world behind a command.
pub struct CommandWorld {
    children: Arc<Children>,
    workflow: Option<String>,
}

impl CommandWorld {
    /// Episodes of `workflow` (`None`: the program's default) played by `command`.
    pub fn new(command: &str, timeout: Duration, workflow: Option<String>) -> CommandWorld {
        CommandWorld { children: Arc::new(Children::new(command, timeout)), workflow }
    }

    fn begin(&self, task: &Task) -> Result<CommandState> {
        let mut request = Map::new();
        request.insert("task".to_owned(), serde_json::to_value(task).map_err(Failure::work)?);
        if let Some(workflow) = &self.workflow {
            request.insert("workflow".to_owned(), workflow.as_str().into());
        }
        let began: Began = read(self.children.ask(request)?)?;
        if began.agents.is_empty() {
            return Err(Failure::data("the answer to `task` names no agents"));
        }
        let name = self.workflow.as_deref().unwrap_or("default");
        let workflow = began.order.workflow(name, began.agents)?;
        let state = CommandState {
            children: self.children.clone(),
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
}

impl World for CommandWorld {
    /// Only the program knows them; when it refuses this task, none are known.
    fn agents(&self, task: &Task) -> Result<Vec<String>> {
        match self.begin(task) {
            Ok(state) => Ok(state.workflow.agents().to_vec()),
            Err(failure) if failure.code == DATA => Ok(Vec::new()),
            Err(failure) => Err(Failure::usage(format!("--env-command {}", failure.message))
                .hint("the program answers one line of JSON for each line, like: envs step plan-path")),
        }
    }

    fn reset(&self, task: &Task) -> Result<Box<dyn State>> {
        Ok(Box::new(self.begin(task)?))
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

fn read<T: for<'a> Deserialize<'a>>(answer: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(answer))
        .map_err(|error| Failure::data(format!("an answer of the environment's program: {error}")))
}

/// A situation that the program described.
#[derive(Clone)]
struct CommandState {
    children: Arc<Children>,
    workflow: Arc<Workflow>,
    turns: u32,
    together: bool,
    state: Value,
    observations: BTreeMap<String, Vec<Message>>,
    solved: bool,
}

impl CommandState {
    fn check_observations(&self) -> Result<()> {
        match self.workflow.agents().iter().find(|agent| !self.observations.contains_key(*agent)) {
            None => Ok(()),
            Some(agent) => Err(Failure::data(format!("`observations` has nothing for the agent {agent}"))),
        }
    }

    /// Puts `request` to the program, in this state.
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
}

impl State for CommandState {
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

    /// The protocol has no oracle.
    fn oracle(&self, _agent: &str) -> Option<String> {
        None
    }

    fn is_solved(&self) -> bool {
        self.solved
    }

    fn probes(&self, _agent: &str) -> Vec<String> {
        Vec::new()
    }

    fn draw(&self) -> String {
        self.state.to_string()
    }
}
