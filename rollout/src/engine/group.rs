//! A request in progress: its prompt in the KV cache, then its branches, which share the prompt's blocks.

use super::batch::{Batch, NextToken, SampleRequest};
use super::block_pool::{BlockPool, CacheConfig, Fork};
use super::request::{Completion, Request, SampledToken, SamplingParams};
use super::sequence::Sequence;
use super::stop::StopStrings;
use record::philox::Stream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

#[derive(Debug)]
struct Branch {
    source: Source,
    sequence: Sequence,
    completion: Completion,
    /// The newest bytes of its text, which may begin a stop string.
    tail: Vec<u8>,
    done: bool,
}

/// The ends of a completion.
struct Ends<'a> {
    stop_ids: &'a [u32],
    stop: Option<&'a StopStrings>,
    max_tokens: usize,
    watch: Option<&'a Sender<SampledToken>>,
}

/// Where a branch's tokens come from.
#[derive(Debug)]
pub enum Source {
    /// Sampled with the branch's random numbers.
    Sampled(Stream),
    /// Given tokens, which the branch only scores.
    Given(Vec<u32>),
}

impl Branch {
    fn next(&self) -> NextToken {
        let position = self.completion.ids.len();
        match &self.source {
            Source::Sampled(stream) => NextToken::Sample(*stream, position as u64),
            Source::Given(ids) => NextToken::Given(ids[position]),
        }
    }

    /// Appends its next token, and ends the completion if that is to be its last.
    fn append(&mut self, token: SampledToken, ends: &Ends<'_>) {
        let completion = &mut self.completion;
        completion.ids.push(token.id);
        completion.logprobs.push(token.logprob);
        self.done = match &self.source {
            Source::Sampled(_) => {
                completion.stopped = ends.stop_ids.contains(&token.id)
                    || ends.stop.is_some_and(|stop| stop.completed_by(&mut self.tail, token.id));
                completion.stopped || completion.ids.len() == ends.max_tokens
            }
            Source::Given(ids) => completion.ids.len() == ids.len(),
        };
        self.done |= ends.watch.is_some_and(|watch| watch.send(token).is_err());
    }
}

#[derive(Debug)]
pub struct Group {
    id: u64,
    prompt: Vec<u32>,
    /// The part of the prompt in the cache; empty once the branches reference it.
    stored: Sequence,
    branches: Vec<Branch>,
    max_tokens: usize,
    sampling: SamplingParams,
    stop: Option<Arc<StopStrings>>,
    watch: Option<Sender<SampledToken>>,
    adapter: Option<u32>,
}

impl Group {
    /// A request's group, under one of the engine's adapters or the base model. It has a branch for each of
    /// `sources`; given branches have between 1 and `request.max_tokens` tokens.
    pub fn new(adapter: Option<u32>, request: Request, sources: impl Iterator<Item = Source>) -> Group {
        let Request { id, prompt, max_tokens, sampling, stop, watch, .. } = request;
        let branch = |source| Branch {
            source,
            sequence: Sequence::default(),
            completion: Completion::default(),
            tail: Vec::new(),
            done: false,
        };
        let branches = sources.map(branch).collect();
        Group {
            id,
            prompt,
            stored: Sequence::default(),
            branches,
            max_tokens,
            sampling,
            stop,
            watch,
            adapter,
        }
    }

    /// Returns true if its branches have their first token.
    pub fn has_begun(&self) -> bool {
        self.branches.iter().any(|branch| !branch.completion.ids.is_empty())
    }

    /// Number of branches that still generate.
    pub fn live(&self) -> usize {
        self.branches.iter().filter(|branch| !branch.done).count()
    }

    /// Takes the cached blocks of its prompt.
    pub fn begin(&mut self, pool: &mut BlockPool) {
        self.stored = Sequence::beginning(pool.lookup(self.adapter, &self.prompt), pool);
    }

    /// Undoes [`Group::begin`].
    pub fn withdraw(&mut self, pool: &mut BlockPool) {
        self.stored.release(pool);
    }

    /// The most blocks that it may still allocate.
    pub fn most_blocks(&self, pool: &BlockPool) -> usize {
        let cache = pool.config();
        if self.has_begun() {
            let end = branch_blocks(&cache, self.prompt.len(), self.max_tokens);
            // With copy-on-write the last block may be copied.
            let copies = usize::from(cache.fork == Fork::CopyOnWrite);
            let live = self.branches.iter().filter(|branch| !branch.done);
            return live.map(|branch| end - branch.sequence.blocks().len() + copies).sum();
        }
        let all = group_blocks(&cache, self.prompt.len(), self.max_tokens, self.branches.len());
        all - self.stored.blocks().len()
    }

    /// Prompt tokens that are not computed yet.
    pub fn prompt_left(&self) -> usize {
        self.prompt.len() - self.stored.tokens()
    }

    /// Adds up to `budget` more prompt tokens to the batch. Returns their number, and whether
    /// that completes the prompt.
    pub fn add_prompt(&mut self, budget: usize, pool: &mut BlockPool, batch: &mut Batch) -> (usize, bool) {
        let begin = self.stored.tokens();
        let count = self.prompt_left().min(budget);
        if count == 0 || self.has_begun() {
            return (0, false);
        }
        self.stored.grow(count, pool, &mut batch.slots, &mut batch.copies);
        batch.ids.extend(self.prompt[begin..begin + count].iter().map(|&id| i64::from(id)));
        let complete = begin + count == self.prompt.len();
        batch.prompts = true;
        batch.end_sequence(&self.stored, count, self.adapter);
        batch.end_group(batch.sequences() - 1, 0, complete);
        if complete {
            let row = batch.need_logits();
            let sampling = self.sampling;
            let next = self.branches.iter().map(Branch::next);
            batch.requests.extend(next.map(|next| SampleRequest { row, sampling, next }));
        }
        (count, complete)
    }

    /// Adds the newest token of each live branch to the batch.
    pub fn add_branches(&mut self, pool: &mut BlockPool, batch: &mut Batch) {
        let first = batch.sequences();
        for branch in self.branches.iter_mut().filter(|branch| !branch.done) {
            let Some(&id) = branch.completion.ids.last() else { continue };
            branch.sequence.grow(1, pool, &mut batch.slots, &mut batch.copies);
            batch.ids.push(i64::from(id));
            batch.end_sequence(&branch.sequence, 1, self.adapter);
            let row = batch.need_logits();
            batch.requests.push(SampleRequest { row, sampling: self.sampling, next: branch.next() });
        }
        let prefix = match pool.config().fork {
            Fork::CopyOnWrite => 0,
            Fork::NewBlock => self.prompt.len(),
        };
        batch.end_group(first, prefix, true);
    }

    /// Gives every branch its first token; after that the branches reference the prompt.
    pub fn first_tokens(
        &mut self,
        tokens: &mut impl Iterator<Item = SampledToken>,
        stop_ids: &[u32],
        pool: &mut BlockPool,
    ) {
        pool.insert(self.adapter, self.stored.blocks(), &self.prompt);
        let (stop, watch) = (self.stop.as_deref(), self.watch.as_ref());
        let ends = Ends { stop_ids, stop, max_tokens: self.max_tokens, watch };
        for (branch, token) in self.branches.iter_mut().zip(tokens) {
            branch.append(token, &ends);
            if !branch.done {
                branch.sequence = self.stored.fork(pool);
            }
        }
        self.stored.release(pool);
    }

    /// Gives each live branch its next token.
    pub fn next_tokens(
        &mut self,
        tokens: &mut impl Iterator<Item = SampledToken>,
        stop_ids: &[u32],
        pool: &mut BlockPool,
    ) {
        let (stop, watch) = (self.stop.as_deref(), self.watch.as_ref());
        let ends = Ends { stop_ids, stop, max_tokens: self.max_tokens, watch };
        for branch in self.branches.iter_mut().filter(|branch| !branch.done) {
            let Some(token) = tokens.next() else { return };
            branch.append(token, &ends);
            if branch.done {
                // The next turn's prompt may continue this sequence. With `NewBlock` there is a gap, so
                // its blocks would not align.
                if pool.config().fork == Fork::CopyOnWrite {
                    let mut tokens = self.prompt.clone();
                    tokens.extend_from_slice(&branch.completion.ids);
                    tokens.truncate(branch.sequence.tokens());
                    pool.insert(self.adapter, branch.sequence.blocks(), &tokens);
                }
                branch.sequence.release(pool);
            }
        }
    }

    /// The request's id and its completions.
    pub fn finish(self) -> (u64, Vec<Completion>) {
        (self.id, self.branches.into_iter().map(|branch| branch.completion).collect())
    }
}

/// Blocks of a branch at its longest, including the prompt.
fn branch_blocks(cache: &CacheConfig, prompt: usize, max_tokens: usize) -> usize {
    let size = cache.block_size;
    match cache.fork {
        Fork::CopyOnWrite => (prompt + max_tokens - 1).div_ceil(size),
        Fork::NewBlock => prompt.div_ceil(size) + (max_tokens - 1).div_ceil(size),
    }
}

/// The most blocks that a group needs: the prompt's, plus each branch's unshared ones.
pub fn group_blocks(cache: &CacheConfig, prompt: usize, max_tokens: usize, branches: usize) -> usize {
    let size = cache.block_size;
    let shared = match cache.fork {
        Fork::CopyOnWrite => prompt / size,
        Fork::NewBlock => prompt.div_ceil(size),
    };
    prompt.div_ceil(size) + branches * (branch_blocks(cache, prompt, max_tokens) - shared)
}
