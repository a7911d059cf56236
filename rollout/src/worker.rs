//! A worker thread: a generator for each policy, and its tasks in progress.
//!
//! There are no barriers between episodes, turns or agents. As soon as a group is generated, its candidates
//! are scored, the next prompt is submitted, and freed rows take the next task. Environments and tokenizers
//! run here, while models continue with other groups in separate threads ([`crate::engine::service`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use record::failure::{DATA, Failure, Result, USAGE};

use crate::engine::PhaseTimings;
use crate::episode::EpisodeError;
use crate::episode::group::Candidate;
use crate::generator::{Generator, GroupRequest};
use crate::policies::policy_of;
use crate::prompts::Prompt;
use crate::queue::Queue;
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
    /// The player of each policy.
    generators: Vec<Box<dyn Generator>>,
    /// Tasks in progress, by sequence number.
    runs: HashMap<u64, TaskRun>,
    /// Requests in progress, by id.
    pending: HashMap<u64, Pending>,
    last_id: u64,
    writer: &'a Sender<Event>,
    times: &'a mut ThreadTimes,
}

impl<'a> Worker<'a> {
    /// A worker with one generator for each policy. It sends finished tasks to `writer` and adds its time to
    /// `times`.
    pub fn new(
        context: &'a Arc<RunContext>,
        queue: &'a Queue,
        generators: Vec<Box<dyn Generator>>,
        writer: &'a Sender<Event>,
        times: &'a mut ThreadTimes,
    ) -> Worker<'a> {
        let (runs, pending) = (HashMap::new(), HashMap::new());
        Worker { context, queue, generators, runs, pending, last_id: 0, writer, times }
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
        for generator in &self.generators {
            let times = generator.times();
            self.times.text += times.text;
            self.times.waiting += times.waiting;
            self.times.phases.push(times.phases);
        }
        Ok(())
    }

    /// Continues with finished groups. With `wait`, waits a moment for one. Returns true if there were any.
    fn advance(&mut self, mut wait: bool) -> Result<bool> {
        let mut found = false;
        for policy in 0..self.generators.len() {
            if self.generators[policy].is_idle() {
                continue;
            }
            let groups = self.generators[policy].advance(wait)?;
            found |= !groups.is_empty();
            groups.into_iter().try_for_each(|(id, candidates)| self.deliver(id, candidates))?;
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
        let compares = !settings.metadata.parallel && settings.metadata.branches > 1;
        if compares && state.as_ref().is_ok_and(|state| !state.can_be_copied()) {
            return Err(Failure::usage(
                "this environment makes no copies of a state, and a tree compares candidates on them",
            )
            .hint("--sampling parallel plays each candidate as an episode of its own"));
        }
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
            let policy = run.player_of(first.agent)?;
            self.last_id += 1;
            let streams = run.streams();
            let submitted = self.generators[policy].submit(GroupRequest {
                id: self.last_id,
                messages: &first.messages,
                tools: first.tools.as_deref(),
                after: first.after.as_deref().map(|spoken| (spoken, &*spoken.candidate.prompt_ids)),
                streams: request
                    .branches()
                    .map(|branch| streams.completion(&first.node, first.turn, &agent, branch))
                    .collect(),
                sampling: settings.sampling.of(&agent),
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
