//! A request on its way: its prompt in the cache, then its branches, which hold the prompt's blocks together.

use super::batch::{Batch, SampleRequest};
use super::cache::Cache;
use super::sequence::Sequence;
use crate::engine::branch::{Branch, Source};
use crate::engine::request::{Completion, Request, SamplingParams};
use crate::engine::sampler::SampledToken;

/// One group.
#[derive(Debug)]
pub struct Group {
    id: u64,
    prompt: Vec<u32>,
    /// The prompt as far as it is in the cache; empty once the branches have it.
    stored: Sequence,
    branches: Vec<(Branch, Sequence)>,
    max_tokens: usize,
    sampling: SamplingParams,
    adapter: Option<u32>,
}

impl Group {
    /// A group that samples from one of the engine's adapters, or from the model as it is.
    pub fn sample(adapter: Option<u32>, request: Request) -> Group {
        let sources = request.streams.into_iter().map(Source::Drawn).collect();
        Group::new(adapter, request.id, request.prompt, sources, request.max_tokens, request.sampling)
    }

    /// A group that scores given completions, none of them empty, under plain sampling at a temperature.
    pub fn score(
        adapter: Option<u32>,
        id: u64,
        prompt: Vec<u32>,
        completions: &[Vec<u32>],
        temperature: f32,
    ) -> Group {
        let longest = completions.iter().map(Vec::len).max().unwrap_or(0);
        let sources = completions.iter().cloned().map(Source::Given).collect();
        let sampling = SamplingParams { temperature, ..SamplingParams::PLAIN };
        Group::new(adapter, id, prompt, sources, longest, sampling)
    }

    fn new(
        adapter: Option<u32>,
        id: u64,
        prompt: Vec<u32>,
        sources: Vec<Source>,
        max_tokens: usize,
        sampling: SamplingParams,
    ) -> Group {
        let branches = sources.into_iter().map(|source| (Branch::new(source), Sequence::default())).collect();
        Group { id, prompt, stored: Sequence::default(), branches, max_tokens, sampling, adapter }
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The longest sequence that it may reach, in tokens.
    pub fn longest(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }

    /// Whether its branches have their first token.
    pub fn has_begun(&self) -> bool {
        self.branches.iter().any(|(branch, _)| !branch.ids().is_empty())
    }

    /// Branches that still generate.
    pub fn live(&self) -> usize {
        self.branches.iter().filter(|(branch, _)| !branch.is_done()).count()
    }

    /// Begins with what the cache remembers of its prompt.
    pub fn begin(&mut self, cache: &mut Cache) {
        let found = cache.find(self.adapter, &self.prompt);
        self.stored = Sequence::beginning(&found, cache);
    }

    /// Undoes [`Group::begin`].
    pub fn withdraw(&mut self, cache: &mut Cache) {
        self.stored.release(cache);
    }

    /// Blocks that it may still take, at most.
    pub fn most_blocks(&self, cache: &Cache) -> usize {
        let size = cache.pool.block_size();
        let end = (self.prompt.len() + self.max_tokens - 1).div_ceil(size);
        if self.has_begun() {
            // One more than the missing ones where the last block may have to be copied.
            let live = self.branches.iter().filter(|(branch, _)| !branch.is_done());
            return live.map(|(_, sequence)| end - sequence.blocks().len() + 1).sum();
        }
        let prompt = self.prompt.len().div_ceil(size) - self.stored.blocks().len();
        prompt + self.branches.len() * (end - self.prompt.len() / size)
    }

    /// Adds up to `budget` more tokens of the prompt to the run; how many, and whether that completes it.
    pub fn store_prompt(&mut self, budget: usize, cache: &mut Cache, batch: &mut Batch) -> (usize, bool) {
        let begin = self.stored.tokens();
        let count = (self.prompt.len() - begin).min(budget);
        if count == 0 || self.has_begun() {
            return (0, false);
        }
        self.stored.grow(count, cache, &mut batch.slots, &mut batch.copies);
        batch.ids.extend(self.prompt[begin..begin + count].iter().map(|&id| i64::from(id)));
        batch.close(&self.stored, count, self.adapter);
        let complete = begin + count == self.prompt.len();
        if complete {
            let row = batch.want();
            let sampling = self.sampling;
            let wants = self.branches.iter().map(|(branch, _)| branch.want());
            batch.requests.extend(wants.map(|want| SampleRequest { row, sampling, want }));
        }
        (count, complete)
    }

    /// Adds the newest token of each live branch to the run.
    pub fn extend(&mut self, cache: &mut Cache, batch: &mut Batch) {
        for (branch, sequence) in self.branches.iter_mut().filter(|(branch, _)| !branch.is_done()) {
            let Some(&id) = branch.ids().last() else { continue };
            sequence.grow(1, cache, &mut batch.slots, &mut batch.copies);
            batch.ids.push(i64::from(id));
            batch.close(sequence, 1, self.adapter);
            let row = batch.want();
            batch.requests.push(SampleRequest { row, sampling: self.sampling, want: branch.want() });
        }
    }

    /// Gives every branch its first token, after which the branches hold the prompt.
    pub fn first_tokens(
        &mut self,
        draws: &mut impl Iterator<Item = SampledToken>,
        stop: &[u32],
        cache: &mut Cache,
    ) {
        cache.remember(self.adapter, &self.stored, self.prompt.iter().copied());
        for ((branch, sequence), draw) in self.branches.iter_mut().zip(draws) {
            branch.take(draw, stop, self.max_tokens);
            if !branch.is_done() {
                *sequence = self.stored.fork(cache);
            }
        }
        self.stored.release(cache);
    }

    /// Gives each live branch its next token.
    pub fn next_tokens(
        &mut self,
        draws: &mut impl Iterator<Item = SampledToken>,
        stop: &[u32],
        cache: &mut Cache,
    ) {
        for (branch, sequence) in self.branches.iter_mut().filter(|(branch, _)| !branch.is_done()) {
            let Some(draw) = draws.next() else { return };
            branch.take(draw, stop, self.max_tokens);
            if branch.is_done() {
                // A next turn's prompt may go on from here.
                cache.remember(self.adapter, sequence, self.prompt.iter().chain(branch.ids()).copied());
                sequence.release(cache);
            }
        }
    }

    /// Says what was generated.
    pub fn finish(self) -> (u64, Vec<Completion>) {
        (self.id, self.branches.into_iter().map(|(branch, _)| branch.finish()).collect())
    }
}
