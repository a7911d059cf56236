//! Which groups run, and what of them: one model run after another moves all of them on.
//!
//! A run holds the newest token of each live branch and, while prompts wait, up to a budget of their tokens; long
//! prompts are taken in pieces so that nobody waits for them. Groups are let in while the blocks that all of them may
//! come to need are there, so none ever has to be thrown out. Where branches part and blocks are copied is decided in
//! `sequence`, what is remembered for later prompts in `cache`, and the arithmetic is the [`Runner`]'s.

use super::batch::Batch;
use super::cache::Cache;
use super::group::Group;
use crate::engine::job::{Completion, Job};
use crate::engine::sampler::Draw;
use record::failure::{Failure, Result};
use std::collections::VecDeque;

/// Runs the model over a batch and chooses the tokens that it asks for.
pub trait Runner {
    /// The tokens of `batch.requests`, in their order.
    ///
    /// # Errors
    /// The model failed, or its logits are not numbers.
    fn run(&mut self, batch: &Batch) -> Result<Vec<Draw>>;
}

/// What a scheduler may do.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Sequences in one run, at most.
    pub rows: usize,
    /// Prompt tokens in one run, at most.
    pub prompt_tokens: usize,
    /// Positions that the model has.
    pub positions: usize,
    /// Tokens that the model has.
    pub vocabulary: usize,
    /// Tokens that end a completion.
    pub stop_ids: Vec<u32>,
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
}

impl<R: Runner> Scheduler<R> {
    /// A scheduler over a cache of `blocks` blocks of `block_size` tokens.
    pub fn new(runner: R, limits: Limits, blocks: usize, block_size: usize) -> Scheduler<R> {
        Scheduler {
            runner,
            limits,
            cache: Cache::new(blocks, block_size),
            waiting: VecDeque::new(),
            active: Vec::new(),
            batch: Batch::default(),
            firsts: Vec::new(),
            nexts: Vec::new(),
        }
    }

    /// Takes a group. It waits until there are rows and blocks for it.
    ///
    /// # Errors
    /// An empty prompt, no branch, no token to generate, a token outside the vocabulary, more tokens than the model
    /// has positions for or than the cache can ever hold, or sampling settings without a meaning. The scheduler stays
    /// usable.
    pub fn submit(&mut self, job: Job) -> Result<()> {
        job.sampling.check()?;
        if job.streams.is_empty() || job.max_tokens == 0 {
            return Err(Failure::usage("a group needs at least one branch and one token to generate"));
        }
        self.accept(Group::sample(job))
    }

    /// Takes a group whose completions are given, none of them empty: only their log-probabilities come back.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_scores(
        &mut self,
        ticket: u64,
        prompt: Vec<u32>,
        given: &[Vec<u32>],
        temperature: f32,
    ) -> Result<()> {
        if let Some(&id) = given.iter().flatten().find(|&&id| id as usize >= self.limits.vocabulary) {
            return Err(self.outside(id));
        }
        self.accept(Group::score(ticket, prompt, given, temperature))
    }

    fn accept(&mut self, group: Group) -> Result<()> {
        if group.prompt().is_empty() {
            return Err(Failure::data("the prompt has no tokens"));
        }
        if let Some(&id) = group.prompt().iter().find(|&&id| id as usize >= self.limits.vocabulary) {
            return Err(self.outside(id));
        }
        let (prompt, longest) = (group.prompt().len(), group.longest());
        if longest > self.limits.positions {
            let (more, positions) = (longest - prompt, self.limits.positions);
            let message = format!(
                "a prompt of {prompt} tokens and {more} more do not fit the model's {positions} positions"
            );
            return Err(Failure::data(message).hint("ask for fewer tokens or give a shorter prompt"));
        }
        let (wanted, blocks) = (group.most_blocks(&self.cache), self.cache.pool.count());
        if wanted > blocks || group.live() > self.limits.rows {
            let message = format!(
                "a group of {} branches with up to {longest} tokens each needs {wanted} blocks of keys and values, and \
                 there are {blocks}",
                group.live()
            );
            return Err(
                Failure::data(message).hint("fewer branches, fewer tokens, or a device with more memory")
            );
        }
        self.waiting.push_back(group);
        Ok(())
    }

    fn outside(&self, id: u32) -> Failure {
        Failure::data(format!("token {id} is not among the model's {}", self.limits.vocabulary))
    }

    /// Whether no group is waiting or under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Runs the model once and gives back the groups that this finished, as (ticket, completions in branch order).
    ///
    /// # Errors
    /// The model failed, or its logits are not numbers.
    pub fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.admit();
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        self.plan();
        let mut draws = self.runner.run(&self.batch)?.into_iter();
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

    /// Decides the rows of the next run.
    fn plan(&mut self) {
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
        for (place, group) in active.iter_mut().enumerate().filter(|(_, group)| group.has_begun()) {
            group.extend(cache, batch);
            self.nexts.push(place);
        }
    }
}

#[cfg(test)]
impl<R> Scheduler<R> {
    /// What its blocks hold.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// What runs the model.
    pub fn runner(&mut self) -> &mut R {
        &mut self.runner
    }
}
