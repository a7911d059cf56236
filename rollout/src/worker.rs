//! One thread: a generator for each policy and its own set of tasks under way.
//!
//! There is no barrier between episodes, turns or agents. As soon as a group is generated its candidates are
//! scored, the next question is submitted, and the rows it left free take the next task. Environment steps run
//! here, between two runs of the model: the built-in environments take microseconds. Everything an environment
//! does happens inside [`Trial::answer`] and [`Environment::begin`], so that is where a slow one would be handed to
//! other threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use envs::Environment;
use record::failure::{DATA, Failure, Result, USAGE};

use crate::engine::{self, Completion, PhaseTimings, SamplingParams};
use crate::episode::{Candidate, Fault};
use crate::generator::Generator;
use crate::lines::Prompt;
use crate::prompts::Prompts;
use crate::queue::{Deal, Queue};
use crate::stage::Event;
use crate::team::Team;
use crate::trial::{Plan, Request, Trial, Work};

/// What the threads share.
pub struct Shared {
    /// Tasks to begin.
    pub queue: Queue,
    /// The environment of every task; `None`: the built-in one that each task names.
    pub external: Option<Box<dyn Environment>>,
    /// The workflow; `None`: each environment's default.
    pub workflow: Option<String>,
    /// Which policy speaks for which agent.
    pub team: Team,
    /// How episodes go and what lines say.
    pub plan: Arc<Plan>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The longest completion.
    pub max_tokens: usize,
}

/// Where the time of a thread went.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Running the model and sampling.
    pub model: Duration,
    /// Resetting and stepping environments, and writing lines.
    pub environment: Duration,
    /// Chat templates and tokenizers, both ways.
    pub text: Duration,
    /// Waiting for tasks.
    pub waiting: Duration,
    /// What of the model's was for prompts and what for new tokens, for each policy.
    pub timings: Vec<PhaseTimings>,
}

impl Times {
    /// Adds `other`.
    pub fn add(&mut self, other: &Times) {
        self.model += other.model;
        self.environment += other.environment;
        self.text += other.text;
        self.waiting += other.waiting;
        self.timings.resize(self.timings.len().max(other.timings.len()), PhaseTimings::default());
        self.timings.iter_mut().zip(&other.timings).for_each(|(mine, other)| mine.add(other));
    }
}

/// A request that is being generated.
struct Pending {
    trial: u64,
    policy: usize,
    request: Request,
    prompt: Arc<Prompt>,
}

/// A thread's state.
pub struct Worker<'a> {
    shared: &'a Shared,
    generators: Vec<Box<dyn Generator>>,
    prompts: Vec<Prompts>,
    trials: HashMap<u64, Trial>,
    pending: HashMap<u64, Pending>,
    last_id: u64,
    output: &'a Sender<Event>,
    times: &'a mut Times,
}

impl<'a> Worker<'a> {
    /// A worker with one generator for each policy. It sends what it finishes to `output` and adds up in `times`
    /// where its time goes.
    pub fn new(
        shared: &'a Shared,
        generators: Vec<Box<dyn Generator>>,
        output: &'a Sender<Event>,
        times: &'a mut Times,
    ) -> Worker<'a> {
        let prompts = generators.iter().map(|_| Prompts::default()).collect();
        Worker {
            shared,
            generators,
            prompts,
            trials: HashMap::new(),
            pending: HashMap::new(),
            last_id: 0,
            output,
            times,
        }
    }

    /// Works until the tasks are used up or the queue is stopped.
    ///
    /// # Errors
    /// A model that fails to run, log-probabilities that are not finite, an agent that no policy speaks for.
    pub fn run(mut self) -> Result<()> {
        loop {
            let started = Instant::now();
            let deal = self.shared.queue.deal(self.trials.len());
            self.times.waiting += started.elapsed();
            match deal {
                Deal::Tasks(tasks) => {
                    for work in tasks {
                        self.begin(work)?;
                    }
                }
                Deal::Over => {
                    self.times.timings =
                        self.generators.iter().map(|generator| generator.timings()).collect();
                    return Ok(());
                }
            }
            for policy in 0..self.generators.len() {
                if self.generators[policy].is_idle() {
                    continue;
                }
                let started = Instant::now();
                let groups = self.generators[policy].advance()?;
                self.times.model += started.elapsed();
                for (id, completions) in groups {
                    self.complete(id, completions)?;
                }
            }
        }
    }

    fn begin(&mut self, work: Work) -> Result<()> {
        let started = Instant::now();
        let number = work.sequence;
        let begun = envs::environment_of(self.shared.external.as_deref(), &work.task)
            .and_then(|environment| environment.begin(&work.task, self.shared.workflow.as_deref()));
        let state = match begun {
            Ok(state) => Ok(state),
            Err(failure) if failure.code == USAGE => return Err(failure),
            Err(failure) if failure.code == DATA => Err(Fault::task(failure.message)),
            Err(failure) => Err(Fault::from(failure)),
        };
        let (trial, requests) = Trial::begin(self.shared.plan.clone(), work, state);
        self.times.environment += started.elapsed();
        self.shared.team.covers(trial.agents())?;
        self.trials.insert(number, trial);
        self.submit_all(number, requests)
    }

    /// Submits what can be completed; what cannot ends its episode. Then the trial may be over.
    fn submit_all(&mut self, number: u64, requests: Vec<Request>) -> Result<()> {
        for request in requests {
            let Some(trial) = self.trials.get_mut(&number) else { break };
            if !trial.wants(&request) {
                // An earlier question of the same turn could not be put.
                trial.withdraw(request);
                continue;
            }
            let agent = trial.agents()[request.agent()].clone();
            let policy = self.shared.team.policy_of(&agent)?;
            let generator = self.generators[policy].as_mut();

            let started = Instant::now();
            let prompt = self.prompts[policy].get(request.messages(), generator);
            self.times.text += started.elapsed();
            self.last_id += 1;
            let streams = trial.streams();
            let submission = |prompt: &Prompt| engine::Request {
                id: self.last_id,
                prompt: prompt.ids.clone(),
                streams: request
                    .branches()
                    .map(|branch| streams.completion(request.turn(), &agent, branch))
                    .collect(),
                max_tokens: self.shared.max_tokens,
                sampling: self.shared.sampling,
            };
            match prompt.and_then(|prompt| generator.submit(submission(&prompt)).map(|()| prompt)) {
                Ok(prompt) => {
                    self.pending.insert(self.last_id, Pending { trial: number, policy, request, prompt });
                }
                Err(failure) => trial.fail(request, &Fault::policy(failure.at(agent))),
            }
        }
        self.finish_if_over(number)
    }

    fn complete(&mut self, id: u64, completions: Vec<Completion>) -> Result<()> {
        let Some(Pending { trial: number, policy, request, prompt }) = self.pending.remove(&id) else {
            return Err(Failure::work(format!("the engine finished a group {id} that was not asked for")));
        };
        let Some(trial) = self.trials.get_mut(&number) else { return Ok(()) };
        let started = Instant::now();
        let mut candidates = Vec::with_capacity(completions.len());
        for Completion { ids, logprobs, stopped } in completions {
            match self.generators[policy].decode(&ids) {
                Ok(text) => candidates.push(Candidate { text, ids, logprobs, stopped }),
                Err(failure) => {
                    trial.fail(request, &Fault::policy(failure.message));
                    return self.finish_if_over(number);
                }
            }
        }
        self.times.text += started.elapsed();

        let started = Instant::now();
        let requests = trial.answer(request, &prompt, policy, candidates)?;
        self.times.environment += started.elapsed();
        self.submit_all(number, requests)
    }

    fn finish_if_over(&mut self, number: u64) -> Result<()> {
        if !self.trials.get(&number).is_some_and(Trial::is_over) {
            return Ok(());
        }
        if let Some(trial) = self.trials.remove(&number) {
            self.shared.queue.finished();
            // The receiver is gone only when the run is being stopped; the queue says so next.
            let _ = self.output.send(Event::Finished(trial.finish()?));
        }
        Ok(())
    }
}
