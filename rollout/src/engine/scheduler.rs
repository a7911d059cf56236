//! Schedules groups: each model run advances all groups in its batch.
//!
//! A batch holds the newest token of each live branch and, while prompts wait, prompt tokens up to a
//! budget; long prompts are prefilled in chunks. A group is admitted only if all blocks that it may ever
//! need are available, so no group is preempted. On a device a run holds either prompts or newest tokens,
//! because only decoding replays CUDA graphs; prompts are collected until a run is worth its time. A
//! group's result does not depend on the other groups in a batch or on the prefix cache, provided that the
//! model runner's arithmetic does not.

use super::batch::Batch;
use super::block_pool::{BlockPool, CacheConfig};
use super::group::{Group, Source, group_blocks};
use super::request::{Completion, Request, SampledToken};
use super::timings::{GraphCounts, PhaseTimings};
use policy::directory::Policy;
use record::failure::{Failure, Result};
use std::collections::VecDeque;
use std::time::Instant;

/// A model runner: runs the model over a batch and samples the tokens that it requests.
pub trait Runner {
    /// The sampled tokens for `batch.requests`, in their order.
    ///
    /// # Errors
    /// The model fails, or its logits are not finite numbers.
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>>;

    /// Frees the device for others until [`Runner::reload`]. Returns false if the runner
    /// should be dropped instead.
    fn release(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Loads other versions of its policies after [`Runner::release`]. Returns false if
    /// that needs a new runner.
    ///
    /// # Errors
    /// Files are missing, damaged or not supported; the device fails.
    fn reload(&mut self, _policies: &[Policy]) -> Result<bool> {
        Ok(false)
    }

    /// Counts of its CUDA graphs since the last call.
    fn take_graph_counts(&mut self) -> GraphCounts {
        GraphCounts::default()
    }
}

/// Most decoding runs that a prompt waits for others to arrive.
const PATIENCE: usize = 16;

/// Limits of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// The most sequences in one run.
    pub sequences: usize,
    /// The most prompt tokens in one run.
    pub prompt_tokens: usize,
    /// Size of the KV cache.
    pub cache: CacheConfig,
    /// True if a run holds either prompt tokens or newest tokens. Otherwise a run holds both, but branches
    /// wait while prompts use up the budget, so that later batches are fuller.
    pub separate: bool,
    /// True if a group larger than the cache still runs, alone, with blocks beyond the cache's size.
    pub expandable: bool,
    /// Context length of the model.
    pub positions: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
}

impl SchedulerConfig {
    /// Checks that a request can be served.
    ///
    /// # Errors
    /// The prompt is empty; there are no branches or no tokens to generate; a token is outside the
    /// vocabulary; the sequence exceeds the model's context or the whole cache; or sampling
    /// parameters are out of range.
    pub fn check(&self, request: &Request) -> Result<()> {
        request.sampling.check()?;
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= self.vocabulary) {
            return Err(Failure::data(format!("token {id} is not among the model's {}", self.vocabulary)));
        }
        let (prompt, branches, more) = (request.prompt.len(), request.streams.len(), request.max_tokens);
        if branches == 0 || more == 0 {
            return Err(Failure::usage("a group needs at least one branch and one token to generate"));
        }
        if prompt == 0 {
            return Err(Failure::data("the prompt has no tokens"));
        }
        let positions = self.positions;
        if prompt + more > positions {
            let message = format!(
                "a prompt of {prompt} tokens and {more} more do not fit the model's {positions} positions"
            );
            return Err(Failure::data(message).hint("ask for fewer tokens or give a shorter prompt"));
        }
        let needed = group_blocks(&self.cache, prompt, more, branches);
        if !self.expandable && (needed > self.cache.blocks || branches > self.sequences) {
            let message = format!(
                "a group of {branches} branches of up to {} tokens needs {needed} KV-cache blocks and {branches} rows; \
                 the device has {} and {}",
                prompt + more,
                self.cache.blocks,
                self.sequences
            );
            return Err(
                Failure::data(message).hint("fewer branches, fewer tokens, or a device with more memory")
            );
        }
        Ok(())
    }
}

/// Generates for any number of groups. Unusable after an error.
pub struct Scheduler<R> {
    runner: R,
    config: SchedulerConfig,
    pool: BlockPool,
    waiting: VecDeque<Group>,
    active: Vec<Group>,
    batch: Batch,
    /// Indices of the batch's groups, those with complete prompts first.
    prefilled: Vec<usize>,
    decoding: Vec<usize>,
    gathering: Gathering,
    timings: PhaseTimings,
}

/// Prompts that wait for more prompts, while other branches decode.
#[derive(Debug, Default)]
struct Gathering {
    /// Runs that they have waited.
    runs: usize,
    /// Tokens that their branches would have got meanwhile.
    tokens: usize,
}

impl<R: Runner> Scheduler<R> {
    /// A scheduler whose KV cache is empty.
    pub fn new(runner: R, config: SchedulerConfig) -> Scheduler<R> {
        Scheduler {
            runner,
            pool: BlockPool::new(config.cache),
            config,
            waiting: VecDeque::new(),
            active: Vec::new(),
            batch: Batch::default(),
            prefilled: Vec::new(),
            decoding: Vec::new(),
            gathering: Gathering::default(),
            timings: PhaseTimings::default(),
        }
    }

    /// Queues a group for one of the engine's adapters, or for the base model. It waits until there
    /// are rows and blocks for it.
    pub fn submit(&mut self, adapter: Option<u32>, request: Request) -> Result<()> {
        self.config.check(&request)?;
        let sources: Vec<Source> = request.streams.iter().map(|&stream| Source::Sampled(stream)).collect();
        self.waiting.push_back(Group::new(adapter, request, sources.into_iter()));
        Ok(())
    }

    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Time by phase since the last call.
    pub fn take_timings(&mut self) -> PhaseTimings {
        let graphs = self.runner.take_graph_counts();
        PhaseTimings { graphs, ..std::mem::take(&mut self.timings) }
    }

    /// Empties the KV cache and frees the device. Returns true if the scheduler can be kept
    /// for [`Scheduler::reload`].
    pub fn release(&mut self) -> Result<bool> {
        self.waiting.clear();
        self.active.clear();
        self.pool = BlockPool::new(self.config.cache);
        self.runner.release()
    }

    /// Loads other versions of its policies.
    pub fn reload(&mut self, policies: &[Policy], stop_ids: &[u32]) -> Result<bool> {
        self.config.stop_ids = stop_ids.to_vec();
        self.runner.reload(policies)
    }

    /// Returns true if no group is queued or in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Runs the model once. Returns the groups that are finished, as (request id,
    /// completions in branch order).
    ///
    /// # Errors
    /// The model fails, or its logits are not finite numbers.
    pub fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.admit();
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let prompt = self.schedule();
        let mut tokens = self.runner.run(&self.batch)?.into_iter();
        self.timings.add_run(started.elapsed(), prompt, self.batch.ids.len());
        let stop_ids = &self.config.stop_ids;
        for &group in &self.prefilled {
            self.active[group].first_tokens(&mut tokens, stop_ids, &mut self.pool);
        }
        for &group in &self.decoding {
            self.active[group].next_tokens(&mut tokens, stop_ids, &mut self.pool);
        }
        Ok(self.active.extract_if(.., |group| group.live() == 0).map(Group::finish).collect())
    }

    /// Admits groups, in order, while there are enough rows and blocks for everything
    /// that they may ever need.
    fn admit(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut rows: usize = self.active.iter().map(Group::live).sum();
        let mut promised: usize = self.active.iter().map(|group| group.most_blocks(&self.pool)).sum();
        while let Some(group) = self.waiting.front_mut() {
            rows += group.live();
            group.begin(&mut self.pool);
            promised += group.most_blocks(&self.pool);
            let available = self.pool.available();
            if rows > self.config.sequences || promised > available {
                if !(self.config.expandable && self.active.is_empty()) {
                    group.withdraw(&mut self.pool);
                    return;
                }
                self.pool.add_blocks(promised.saturating_sub(available));
            }
            self.active.extend(self.waiting.pop_front());
        }
    }

    /// Fills the next run's batch; returns the number of prompt tokens in it.
    fn schedule(&mut self) -> usize {
        let separate = self.config.separate;
        let prompts = !separate || self.prompts_are_due();
        let Scheduler { pool, batch, active, .. } = self;
        batch.clear();
        self.prefilled.clear();
        self.decoding.clear();
        let mut budget = self.config.prompt_tokens;
        for (index, group) in active.iter_mut().enumerate().filter(|_| prompts) {
            let (count, complete) = group.add_prompt(budget, pool, batch);
            budget -= count;
            if complete {
                self.prefilled.push(index);
            }
        }
        let prompt = batch.ids.len();
        if budget == 0 || (separate && prompts) {
            return prompt;
        }
        for (index, group) in active.iter_mut().enumerate().filter(|(_, group)| group.has_begun()) {
            group.add_branches(pool, batch);
            self.decoding.push(index);
        }
        prompt
    }

    /// Returns true if the next run is for prompts. They wait while more may come, because a run of a few
    /// prompts takes about as long as decoding one token for each branch. They are due when they fill a run,
    /// or when waiting has cost as much decoding as a run.
    fn prompts_are_due(&mut self) -> bool {
        let (begun, waiting): (Vec<&Group>, Vec<&Group>) =
            self.active.iter().partition(|group| group.has_begun());
        if waiting.is_empty() {
            return false;
        }
        let live = |groups: &[&Group]| groups.iter().map(|group| group.live()).sum::<usize>();
        let prompt: usize = waiting.iter().map(|group| group.prompt_left()).sum();
        let Gathering { runs, tokens } = self.gathering;
        let due = prompt >= self.config.prompt_tokens || tokens >= live(&begun) || runs >= PATIENCE;
        self.gathering = match due {
            true => Gathering::default(),
            false => Gathering { runs: runs + 1, tokens: tokens + live(&waiting) },
        };
        due
    }
}

#[cfg(test)]
impl<R> Scheduler<R> {
    /// Queues a group.
    pub fn push(&mut self, group: Group) {
        self.waiting.push_back(group);
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn runner(&mut self) -> &mut R {
        &mut self.runner
    }
}
