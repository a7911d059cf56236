//! A worker thread: a player for each policy, and its tasks in progress.
//!
//! There are no barriers between episodes, turns or agents. As soon as a group is generated, its candidates
//! are scored, the next prompt is submitted, and freed rows take the next task. Environments and tokenizers
//! run here, while models continue with other groups in separate threads ([`crate::engine::service`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use record::failure::{DATA, Failure, Result, USAGE};

use crate::engine::{Completion, PhaseTimings, Request};
use crate::episode::EpisodeError;
use crate::episode::group::{Candidate, ServerTokens};
use crate::generator::Player;
use crate::policies::policy_of;
use crate::prompts::{Prompt, PromptCache};
use crate::queue::Queue;
use crate::server::CallError;
use crate::task_run::{QueuedTask, RunContext, SharedRequest, TaskRun};
use crate::writer::Event;

/// A thread's time by activity.
#[derive(Clone, Debug, Default)]
pub struct ThreadTimes {
    /// Environments, and writing lines.
    pub environment: Duration,
    /// Chat templates and tokenizers, both ways.
    pub text: Duration,
    /// Waiting for tasks and servers, but not for models, which run in parallel.
    pub waiting: Duration,
    /// The model's time for prompts and for new tokens, by policy.
    pub phases: Vec<PhaseTimings>,
}

impl ThreadTimes {
    /// Adds `other`.
    pub fn add(&mut self, other: &ThreadTimes) {
        self.environment += other.environment;
        self.text += other.text;
        self.waiting += other.waiting;
        self.phases.resize(self.phases.len().max(other.phases.len()), PhaseTimings::default());
        self.phases.iter_mut().zip(&other.phases).for_each(|(own, other)| own.add(other));
    }
}

/// A request in progress.
struct Pending {
    /// Sequence number of its task.
    task: u64,
    policy: usize,
    request: SharedRequest,
    prompt: Arc<Prompt>,
}

/// A playing thread.
pub struct Worker<'a> {
    context: &'a Arc<RunContext>,
    queue: &'a Queue,
    /// What plays for each policy, and its prompts.
    players: Vec<(Player, PromptCache)>,
    /// Tasks in progress, by sequence number.
    runs: HashMap<u64, TaskRun>,
    /// Requests in progress, by id.
    pending: HashMap<u64, Pending>,
    last_id: u64,
    writer: &'a Sender<Event>,
    times: &'a mut ThreadTimes,
}

impl<'a> Worker<'a> {
    /// A worker with one player for each policy. It sends finished tasks to `writer` and adds its time to
    /// `times`.
    pub fn new(
        context: &'a Arc<RunContext>,
        queue: &'a Queue,
        players: Vec<Player>,
        writer: &'a Sender<Event>,
        times: &'a mut ThreadTimes,
    ) -> Worker<'a> {
        let players = players.into_iter().map(|player| (player, PromptCache::default())).collect();
        let (runs, pending) = (HashMap::new(), HashMap::new());
        Worker { context, queue, players, runs, pending, last_id: 0, writer, times }
    }

    /// Works until the tasks are used up or the queue is stopped.
    ///
    /// # Errors
    /// A model that fails to run, log-probabilities that are not finite, an agent without a policy.
    pub fn run(mut self) -> Result<()> {
        loop {
            let started = Instant::now();
            let tasks = self.queue.take(self.runs.len());
            self.times.waiting += started.elapsed();
            let Some(tasks) = tasks else { break };
            for task in tasks {
                self.begin(task)?;
            }
            // Take completed groups; wait only if there are none.
            if !self.advance(false)? {
                self.advance(true)?;
            }
        }
        let timings = |(player, _): &(Player, PromptCache)| match player {
            Player::Model(generator) => generator.timings(),
            Player::Server(_) => PhaseTimings::default(),
        };
        self.times.phases = self.players.iter().map(timings).collect();
        Ok(())
    }

    /// Continues with finished groups. With `wait`, waits a moment for one. Returns true if there were any.
    fn advance(&mut self, mut wait: bool) -> Result<bool> {
        let mut found = false;
        for policy in 0..self.players.len() {
            match &mut self.players[policy].0 {
                Player::Model(generator) if !generator.is_idle() => {
                    let groups = generator.advance(wait)?;
                    found |= !groups.is_empty();
                    groups.into_iter().try_for_each(|(id, completions)| self.complete(id, completions))?;
                }
                Player::Server(client) if !client.is_idle() => {
                    let started = Instant::now();
                    let groups = client.advance(wait);
                    self.times.waiting += started.elapsed();
                    found |= !groups.is_empty();
                    groups.into_iter().try_for_each(|(id, answer)| match answer {
                        Ok(candidates) => self.deliver(id, Ok(candidates)),
                        Err(CallError::Episode(cause)) => self.deliver(id, Err(cause)),
                        Err(CallError::Run(failure)) => Err(failure),
                    })?;
                }
                _ => continue,
            }
            // One wait for all policies.
            wait = false;
        }
        Ok(found)
    }

    fn begin(&mut self, task: QueuedTask) -> Result<()> {
        let started = Instant::now();
        let sequence = task.sequence;
        let RunContext { settings, external, .. } = &**self.context;
        let begun = envs::environment_of(external.as_deref(), &task.task)
            .and_then(|environment| environment.begin(&task.task, settings.flags.workflow.as_deref()));
        let state = match begun {
            Err(failure) if failure.code == USAGE => return Err(failure),
            Err(failure) if failure.code == DATA => Err(EpisodeError::at("task", failure.message)),
            state => state.map_err(EpisodeError::from),
        };
        if let (Some(joint), Ok(state)) = (&settings.episodes.joint, &state) {
            joint.check(&**state, &settings.episodes.widths, settings.flags.turns)?;
        }
        let (run, requests) = TaskRun::begin(self.context.clone(), task, state);
        self.times.environment += started.elapsed();
        for agent in run.agents() {
            policy_of(&settings.team, agent)?;
        }
        self.runs.insert(sequence, run);
        self.submit_all(sequence, requests)
    }

    /// Submits the `requests` of a task. If the policy refuses a prompt, its episode
    /// ends, and possibly the task.
    fn submit_all(&mut self, sequence: u64, requests: Vec<SharedRequest>) -> Result<()> {
        let Some(run) = self.runs.get_mut(&sequence) else { return Ok(()) };
        let settings = &self.context.settings;
        for request in requests {
            if !run.needs(&request) {
                // Another request of the same stage was refused.
                run.cancel(request);
                continue;
            }
            let first = request.first();
            let agent = run.agents()[first.agent].clone();
            let policy = policy_of(&settings.team, &agent)?;
            let (player, prompts) = &mut self.players[policy];
            let started = Instant::now();
            let prompt = prompts.get(&first.messages, |messages| match player {
                Player::Model(generator) => generator.encode(messages),
                // Its tokens are the server's.
                Player::Server(_) => Ok(Vec::new()),
            });
            self.times.text += started.elapsed();
            self.last_id += 1;
            let streams = run.streams();
            let submitted = prompt.and_then(|prompt| {
                let completion = Request {
                    id: self.last_id,
                    prompt: prompt.ids.clone(),
                    streams: request
                        .branches()
                        .map(|branch| streams.completion(&first.node, first.turn, &agent, branch))
                        .collect(),
                    max_tokens: settings.flags.max_tokens as usize,
                    sampling: settings.sampling,
                };
                match player {
                    Player::Model(generator) => generator.submit(completion)?,
                    Player::Server(client) => client.submit(&completion, &first.messages),
                }
                Ok(prompt)
            });
            match submitted {
                Ok(prompt) => {
                    self.pending.insert(self.last_id, Pending { task: sequence, policy, request, prompt });
                }
                Err(failure) => run.fail(request, &EpisodeError::at("policy", failure.at(agent))),
            }
        }
        self.finish_if_over(sequence)
    }

    fn complete(&mut self, id: u64, completions: Vec<Completion>) -> Result<()> {
        let policy = self.pending.get(&id).map(|pending| pending.policy);
        let Some(Player::Model(generator)) = policy.map(|policy| &self.players[policy].0) else {
            return Err(Failure::work(format!("the engine returned an unknown request id {id}")));
        };
        let started = Instant::now();
        let candidate = |Completion { ids, logprobs, stopped }| {
            let text = generator.decode(&ids)?;
            Ok(Candidate { text, ids, logprobs, stopped, usage: ServerTokens::default() })
        };
        let candidates: Result<Vec<Candidate>> = completions.into_iter().map(candidate).collect();
        self.times.text += started.elapsed();
        self.deliver(id, candidates.map_err(|failure| failure.message))
    }

    /// Goes on with the candidates of a request, or without.
    fn deliver(&mut self, id: u64, candidates: std::result::Result<Vec<Candidate>, String>) -> Result<()> {
        let Some(Pending { task, policy, request, prompt }) = self.pending.remove(&id) else {
            return Err(Failure::work(format!("an answer to an unknown request id {id}")));
        };
        let Some(run) = self.runs.get_mut(&task) else { return Ok(()) };
        match candidates {
            Ok(candidates) => {
                let started = Instant::now();
                let requests = run.step(request, &prompt, policy, candidates)?;
                self.times.environment += started.elapsed();
                self.submit_all(task, requests)
            }
            Err(cause) => {
                run.fail(request, &EpisodeError::at("policy", cause));
                self.finish_if_over(task)
            }
        }
    }

    fn finish_if_over(&mut self, sequence: u64) -> Result<()> {
        if !self.runs.get(&sequence).is_some_and(TaskRun::is_over) {
            return Ok(());
        }
        if let Some(run) = self.runs.remove(&sequence) {
            self.queue.finished();
            // Fails only while the run is being stopped, which the queue reports next.
            let _ = self.writer.send(Event::Output(run.finish()?));
        }
        Ok(())
    }
}
