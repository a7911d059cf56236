//! Which groups run, and what of them: one model run after another moves all of them on.
//!
//! A run holds the newest token of each live branch and, while prompts wait, up to a budget of their tokens; long
//! prompts are taken in pieces so that nobody waits for them. Groups are let in while the blocks that all of them may
//! come to need are there, so none ever has to be thrown out. Where branches part and blocks are copied is decided in
//! `sequence`, what is remembered for later prompts in `cache`, and the arithmetic is the [`Runner`]'s.

use super::batch::Batch;
use super::cache::Cache;
use super::group::Group;
use super::limits::Limits;
use crate::engine::request::{Completion, Request};
use crate::engine::sampler::SampledToken;
use crate::engine::timings::PhaseTimings;
use record::failure::Result;
use std::collections::VecDeque;
use std::time::Instant;

/// Runs the model over a batch and chooses the tokens that it asks for.
pub trait Runner {
    /// The tokens of `batch.requests`, in their order.
    ///
    /// # Errors
    /// The model failed, or its logits are not numbers.
    fn run(&mut self, batch: &Batch) -> Result<Vec<SampledToken>>;
}

/// Generates for any number of groups. After an error it is not to be used.
pub struct Scheduler<R> {
    runner: R,
    limits: Limits,
    cache: Cache,
    waiting: VecDeque<Group>,
    active: Vec<Group>,
    batch: Batch,
    /// Whose tokens the requests of the batch are: places among the active groups, those of complete prompts first.
    firsts: Vec<usize>,
    nexts: Vec<usize>,
    timings: PhaseTimings,
}

impl<R: Runner> Scheduler<R> {
    /// A scheduler whose cache is empty.
    pub fn new(runner: R, limits: Limits) -> Scheduler<R> {
        Scheduler {
            runner,
            cache: Cache::new(limits.blocks, limits.block_size),
            limits,
            waiting: VecDeque::new(),
            active: Vec::new(),
            batch: Batch::default(),
            firsts: Vec::new(),
            nexts: Vec::new(),
            timings: PhaseTimings::default(),
        }
    }

    /// Takes a group that one of the engine's adapters completes, or the model as it is. It waits until there are rows
    /// and blocks for it.
    ///
    /// # Errors
    /// As [`Limits::check`]. The scheduler stays usable.
    pub fn submit(&mut self, adapter: Option<u32>, request: Request) -> Result<()> {
        self.limits.check(&request)?;
        self.waiting.push_back(Group::sample(adapter, request));
        Ok(())
    }

    /// Where the time went since this was last asked.
    pub fn take_timings(&mut self) -> PhaseTimings {
        std::mem::take(&mut self.timings)
    }

    /// Whether no group is waiting or under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Runs the model once and gives back the groups that this finished, as (id, completions in branch order).
    ///
    /// # Errors
    /// The model failed, or its logits are not numbers.
    pub fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.admit();
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let prompt = self.plan();
        let mut draws = self.runner.run(&self.batch)?.into_iter();
        self.timings.add_run(started.elapsed(), prompt, self.batch.ids.len());
        let stop = &self.limits.stop_ids;
        for &place in &self.firsts {
            self.active[place].first_tokens(&mut draws, stop, &mut self.cache);
        }
        for &place in &self.nexts {
            self.active[place].next_tokens(&mut draws, stop, &mut self.cache);
        }
        Ok(self.active.extract_if(.., |group| group.live() == 0).map(Group::finish).collect())
    }

    /// Lets groups in, in order, while there are rows and blocks for all that they may come to need.
    fn admit(&mut self) {
        let mut rows: usize = self.active.iter().map(Group::live).sum();
        let mut promised: usize = self.active.iter().map(|group| group.most_blocks(&self.cache)).sum();
        while let Some(group) = self.waiting.front_mut() {
            rows += group.live();
            group.begin(&mut self.cache);
            promised += group.most_blocks(&self.cache);
            if rows > self.limits.rows || promised > self.cache.available() {
                group.withdraw(&mut self.cache);
                return;
            }
            self.active.extend(self.waiting.pop_front());
        }
    }

    /// Decides the rows of the next run; how many are tokens of prompts.
    fn plan(&mut self) -> usize {
        let Scheduler { cache, batch, active, .. } = self;
        batch.clear();
        self.firsts.clear();
        self.nexts.clear();
        let mut budget = self.limits.prompt_tokens;
        for (place, group) in active.iter_mut().enumerate() {
            let (count, complete) = group.store_prompt(budget, cache, batch);
            budget -= count;
            if complete {
                self.firsts.push(place);
            }
        }
        let prompt = batch.ids.len();
        for (place, group) in active.iter_mut().enumerate().filter(|(_, group)| group.has_begun()) {
            group.extend(cache, batch);
            self.nexts.push(place);
        }
        prompt
    }
}

#[cfg(test)]
impl<R> Scheduler<R> {
    /// Takes a group whose completions are given, none of them empty: only their log-probabilities come back.
    pub fn submit_scores(
        &mut self,
        adapter: Option<u32>,
        id: u64,
        prompt: Vec<u32>,
        given: &[Vec<u32>],
        temperature: f32,
    ) {
        self.waiting.push_back(Group::score(adapter, id, prompt, given, temperature));
    }

    /// What its blocks hold.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// What runs the model.
    pub fn runner(&mut self) -> &mut R {
        &mut self.runner
    }
}
