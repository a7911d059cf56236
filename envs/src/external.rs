//! An environment in any other program, over the step protocol: `rollout --env-command`, `envs check --env-command`.
//!
//! An episode's state is JSON, held here and sent with every request. So the program keeps no state, and a tree of
//! candidates costs it nothing. Or the state stays in a process of the program ([`state_value`]). [`response`] reads
//! answers. [`processes`] starts the program, exchanges lines with it, and replaces it when it dies or times out.
//!
//! Left out: drawing tasks and demonstrations; they come as lines on stdin.

pub mod processes;
mod response;
mod state_value;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use record::failure::{DATA, Failure, Result};
use record::line::Task;
use record::sample::{Message, Rewards};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use processes::Processes;
pub use response::ProbeResponse;
use response::{Actors, Local, Observation, Observations, ResetResponse, StepResponse, checked_info, read};
use state_value::StateValue;

use environment::workflow::Workflow;
use environment::{Environment, Generation, Outcome, State, apply_in_order};
use policy::tools::{self, ToolCall};

/// Turn limit if neither `--turns` nor the program gives one; the paper's T.
const TURNS: u32 = 4;

/// The environment behind a command. Clones share its processes.
#[derive(Clone)]
pub struct External {
    command: String,
    processes: Arc<Processes>,
    probing: Arc<Probing>,
    /// True if rewards out of range are refused.
    strict: bool,
}

impl External {
    /// The environment that `command` runs, with a time limit per response. The program
    /// starts with the first request.
    pub fn new(command: &str, timeout: Duration) -> External {
        External {
            command: command.to_owned(),
            processes: Arc::new(Processes::new(command, timeout)),
            probing: Arc::default(),
            strict: true,
        }
    }

    /// [`External::new`] for `envs check`, which accepts rewards out of range in order to report them.
    pub fn lenient(command: &str, timeout: Duration) -> External {
        External { strict: false, ..External::new(command, timeout) }
    }

    /// The processes of the program.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// The request that resets to `task`, without its number.
    pub fn reset_request(task: &Task, workflow: Option<&str>) -> Value {
        match workflow {
            None => json!({"task": task}),
            Some(workflow) => json!({"task": task, "workflow": workflow}),
        }
    }

    /// The first state of `task`.
    ///
    /// # Errors
    /// The program does not respond: work. It refuses the task, or violates the protocol: data.
    pub fn first_state(&self, task: &Task, workflow: Option<&str>) -> Result<ExternalState> {
        let (answer, process) = self.processes.ask(&External::reset_request(task, workflow))?;
        let response: ResetResponse = read(&answer)?;
        let (least, most) = response.reward_range;
        if !(least.is_finite() && most.is_finite() && least <= most) {
            return Err(Failure::data(format!(
                "`reward_range` is [{least}, {most}]: not least and greatest"
            )));
        }
        if response.turns == Some(0) {
            return Err(Failure::data("`turns` is 0: an episode has one turn at least")
                .hint("leave `turns` out, and --turns or its default applies"));
        }
        let mut state = ExternalState {
            reward_range: response.reward_range,
            strict: self.strict,
            processes: self.processes.clone(),
            probing: self.probing.clone(),
            workflow: Workflow::in_order(workflow.unwrap_or("default"), &response.order, &response.agents)?,
            turns: response.turns.unwrap_or(TURNS),
            together: response.together,
            begun: (!response.copies)
                .then(|| Arc::new((self.clone(), task.clone(), workflow.map(str::to_owned)))),
            state: StateValue::new(&self.processes, process, response.state, response.handles),
            observations: response.observations,
            generations: BTreeMap::new(),
            solved: false,
        };
        state.take_turn(response.turn)?;
        state.check_observations()?;
        Ok(state)
    }

    /// From now on oracles and test actions come from `probe` requests. The first failure of one is kept for
    /// [`External::probe_failure`].
    pub fn enable_probes(&self) {
        self.probing.lock().0 = true;
    }

    /// The error of the first failed `probe` request; reported once.
    pub fn probe_failure(&self) -> Option<Failure> {
        self.probing.lock().1.take()
    }
}

impl Environment for External {
    fn name(&self) -> &str {
        &self.command
    }

    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        self.begin(&Task { spec: spec.clone(), ..Task::default() }, Some(workflow))
    }

    fn begin(&self, task: &Task, workflow: Option<&str>) -> Result<Box<dyn State>> {
        Ok(Box::new(self.first_state(task, workflow)?))
    }

    fn agents(&self, task: &Task, workflow: Option<&str>) -> Result<Vec<String>> {
        match self.first_state(task, workflow) {
            Ok(state) => Ok(state.workflow.agents().to_vec()),
            Err(failure) if failure.code == DATA => Ok(Vec::new()),
            Err(failure) if failure.is_interruption() => Err(failure),
            Err(failure) => {
                const ANSWERS: &str =
                    "the program answers one line of JSON for each line, like: envs step plan-path";
                let hint = failure.hint.unwrap_or_else(|| ANSWERS.to_owned());
                Err(Failure::usage(format!("--env-command {}", failure.message)).hint(hint))
            }
        }
    }
}

/// True if the program supports `probe`, and the first failure of one.
#[derive(Default)]
struct Probing(Mutex<(bool, Option<Failure>)>);

impl Probing {
    fn lock(&self) -> MutexGuard<'_, (bool, Option<Failure>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request with `action` or `actions`.
#[derive(Serialize)]
struct ActionRequest {
    #[serde(flatten)]
    fields: Value,
    /// As text, in which integers of any size keep their digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Box<RawValue>>,
}

impl ActionRequest {
    fn new(fields: Value, calls: Option<String>) -> ActionRequest {
        ActionRequest { fields, tool_calls: calls.and_then(|calls| RawValue::from_string(calls).ok()) }
    }
}

/// A state that the program described.
#[derive(Clone)]
pub struct ExternalState {
    processes: Arc<Processes>,
    probing: Arc<Probing>,
    workflow: Arc<Workflow>,
    turns: u32,
    together: bool,
    /// If states cannot be copied, what began the episode.
    begun: Option<Arc<(External, Task, Option<String>)>>,
    reward_range: (f64, f64),
    strict: bool,
    state: StateValue,
    observations: Observations,
    /// How the next action of each agent was generated.
    generations: BTreeMap<String, Generation>,
    solved: bool,
}

impl ExternalState {
    /// True if the state is kept by the program's process.
    pub fn is_handle(&self) -> bool {
        self.state.is_handle()
    }

    /// Lets everyone that `turn` leaves out skip its turn.
    fn take_turn(&mut self, turn: Option<Actors>) -> Result<()> {
        let named = match turn {
            None => return Ok(()),
            Some(Actors::One(agent)) => vec![agent],
            Some(Actors::Several(agents)) => agents,
        };
        if let Some(agent) = named.iter().find(|agent| !self.workflow.agents().contains(agent)) {
            return Err(self.no_agent("turn", agent));
        }
        for agent in self.workflow.agents().iter().filter(|agent| !named.contains(agent)) {
            self.observations.insert(agent.clone(), None);
        }
        Ok(())
    }

    /// The failure of a `field` that names an `agent` whom the workflow does not have.
    fn no_agent(&self, field: &str, agent: &str) -> Failure {
        let agents = self.workflow.agents().join(", ");
        Failure::data(format!("`{field}` names {agent}, who is no agent; the agents are: {agents}"))
    }

    fn check_observations(&self) -> Result<()> {
        const SKIP: &str = "null says that an agent skips its turn";
        for agent in self.workflow.agents() {
            match self.observations.get(agent) {
                None => {
                    return Err(
                        Failure::data(format!("`observations` has nothing for the agent {agent}")).hint(SKIP)
                    );
                }
                Some(Some(observation)) if observation.messages.is_empty() => {
                    return Err(Failure::data(format!(
                        "`observations` has no message for the agent {agent}, and a prompt is not empty"
                    ))
                    .hint(SKIP));
                }
                Some(_) => {}
            }
        }
        match self.workflow.agents().iter().any(|agent| self.acts(agent)) {
            true => Ok(()),
            false => {
                Err(Failure::data("`observations` is null for every agent, and `terminated` is not true")
                    .hint("one agent acts, or the episode is over"))
            }
        }
    }

    /// The calls in an action of an agent that may call tools, as JSON.
    fn calls(&self, agent: &str, text: &str) -> Option<String> {
        let calls = tools::reading(text, Some(&*self.tools(agent)?)).calls;
        let calls: Vec<String> = calls.iter().map(ToolCall::to_json).collect();
        Some(format!("[{}]", calls.join(",")))
    }

    /// The request that applies an action.
    fn action(&self, agent: &str, text: &str) -> ActionRequest {
        let mut request =
            ActionRequest::new(json!({"agent": agent, "action": text}), self.calls(agent, text));
        if let Some(generation) = self.generations.get(agent) {
            request.fields["generation"] = json!(generation);
        }
        request
    }

    /// Sends `request` about actions of `agents` in this state.
    fn step(&mut self, request: &ActionRequest, agents: &[&str]) -> Result<Outcome> {
        let response: StepResponse = read(&self.state.apply(&self.processes, request)?)?;
        let (team, (least, most)) = (response.rewards.team, self.reward_range);
        let (local, locals) = match response.rewards.local {
            Local::Of(local) => (local, BTreeMap::new()),
            Local::By(locals) => {
                if let Some(agent) = locals.keys().find(|agent| !self.workflow.agents().contains(agent)) {
                    return Err(self.no_agent("rewards.local", agent));
                }
                if let Some(agent) = agents.iter().find(|agent| !locals.contains_key(**agent)) {
                    return Err(Failure::data(format!("`rewards.local` has nothing for the agent {agent}")));
                }
                let local = match agents {
                    [agent] => locals[*agent],
                    _ => locals.values().sum::<f64>() / locals.len().max(1) as f64,
                };
                (local, locals)
            }
        };
        let within = |reward: &f64| (least..=most).contains(reward);
        if let Some(reward) = [team, local].iter().chain(locals.values()).find(|reward| !within(reward))
            && self.strict
        {
            let which = if *reward == team { "team" } else { "local" };
            return Err(Failure::data(format!(
                "a {which} reward of {reward} is not in [{least}, {most}], the range of the environment"
            )));
        }
        if response.success && !response.terminated && self.strict {
            return Err(Failure::data(
                "`success` is true and `terminated` false: a success ends the episode",
            ));
        }
        let info = response.info.map_or(Ok(None), |info| checked_info(&info))?;
        self.observations = response.observations;
        self.generations.clear();
        self.solved = response.success;
        if !response.terminated {
            self.take_turn(response.turn)?;
            self.check_observations()?;
        }
        Ok(Outcome {
            rewards: Rewards { team, local },
            locals,
            components: response.reward_components,
            terminated: response.terminated,
            success: response.success,
            info,
        })
    }

    /// The program's test actions and oracle for `agent`.
    pub fn probe(&self, agent: &str) -> Result<ProbeResponse> {
        read(&self.state.ask(&self.processes, &json!({"agent": agent, "probe": true}))?)
    }

    /// [`ExternalState::probe`] once probes are enabled; a failure is kept for [`External::probe_failure`].
    fn enabled_probe(&self, agent: &str) -> Option<ProbeResponse> {
        if !self.probing.lock().0 {
            return None;
        }
        let response = self.probe(agent);
        response.map_err(|failure| self.probing.lock().1.get_or_insert(failure).code).ok()
    }
}

impl State for ExternalState {
    fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    fn turn_limit(&self) -> u32 {
        self.turns
    }

    fn reward_range(&self) -> (f64, f64) {
        self.reward_range
    }

    fn can_be_copied(&self) -> bool {
        self.begun.is_none()
    }

    fn begin_again(&self) -> Result<Box<dyn State>> {
        match self.begun.as_deref() {
            None => Ok(self.clone_state()),
            Some((external, task, workflow)) => external.begin(task, workflow.as_deref()),
        }
    }

    fn acts(&self, agent: &str) -> bool {
        self.observations.get(agent).is_some_and(Option::is_some)
    }

    fn observe(&self, agent: &str) -> Vec<Message> {
        let observation = self.observations.get(agent).and_then(Option::as_ref);
        observation.map(|observation| observation.messages.clone()).unwrap_or_default()
    }

    fn tools(&self, agent: &str) -> Option<Arc<Value>> {
        self.observations.get(agent)?.as_ref()?.tools.clone()
    }

    fn set_generation(&mut self, agent: &str, generation: Generation) {
        self.generations.insert(agent.to_owned(), generation);
    }

    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        self.step(&self.action(agent, text), &[agent])
    }

    fn apply_together(&mut self, actions: &[(&str, &str)]) -> Result<Outcome> {
        if self.together {
            let texts: Map<String, Value> =
                actions.iter().map(|(agent, text)| ((*agent).to_owned(), (*text).into())).collect();
            let agents: Vec<&str> = actions.iter().map(|(agent, _)| *agent).collect();
            let calls: Vec<String> = actions
                .iter()
                .filter_map(|(agent, text)| Some(format!("{}:{}", json!(agent), self.calls(agent, text)?)))
                .collect();
            let calls = (!calls.is_empty()).then(|| format!("{{{}}}", calls.join(",")));
            let mut request = ActionRequest::new(json!({"actions": texts}), calls);
            if !self.generations.is_empty() {
                request.fields["generation"] = json!(self.generations);
            }
            return self.step(&request, &agents);
        }
        apply_in_order(self, actions)
    }

    fn apply_beside(&mut self, agent: &str, text: &str, others: &[(&str, &str)]) -> Result<Option<Outcome>> {
        if !self.together {
            return Ok(None);
        }
        let others: Map<String, Value> =
            others.iter().map(|(agent, text)| ((*agent).to_owned(), (*text).into())).collect();
        let mut request = self.action(agent, text);
        request.fields["beside"] = others.into();
        self.step(&request, &[agent]).map(Some)
    }

    fn scores_together(&self) -> bool {
        self.together
    }

    fn clone_state(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    /// The program's state; of a state that it keeps, what the agents see.
    fn to_json(&self) -> Value {
        match &self.state {
            StateValue::Json(state) => serde_json::from_str(state.get()).unwrap_or_default(),
            StateValue::Handle(_) => {
                let seen = |observation: &Option<Observation>| {
                    json!(observation.as_ref().map(|seen| &seen.messages))
                };
                self.observations
                    .iter()
                    .map(|(agent, observation)| (agent.clone(), seen(observation)))
                    .collect()
            }
        }
    }

    fn oracle(&self, agent: &str) -> Option<String> {
        self.enabled_probe(agent)?.oracle
    }

    fn is_solved(&self) -> bool {
        let agents = self.workflow.agents();
        let first = agents.iter().find(|agent| self.acts(agent)).or(agents.first());
        first.and_then(|agent| self.enabled_probe(agent)).map_or(self.solved, |response| response.solved)
    }

    /// The program's test actions, or else the words of the observation; then malformed ones.
    fn test_actions(&self, agent: &str) -> Vec<String> {
        let mut texts = match self.enabled_probe(agent) {
            Some(response) => response.probes,
            None => words(&self.observe(agent)),
        };
        texts.extend(MALFORMED.map(str::to_owned));
        texts
    }

    fn draw(&self) -> String {
        self.state.value().to_string()
    }
}

/// Texts for which every environment must have an outcome.
pub const MALFORMED: [&str; 9] =
    ["", " ", "\n", "\u{0}", "[[[", "{\"action\":1}", "\\\"", "🦀 日本", "-1e999"];
/// How many words of an observation to try.
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
