//! A request on its way through the decoder: its prompt, its branches, and the pages they hold.

use super::adapters::NONE;
use super::arena::{Arena, PAGE};
use super::branch::{Branch, NextToken, Source};
use super::request::{Completion, Request, SamplingParams};
use super::sampler::{SampledToken, Sampler};
use record::failure::Result;

/// One branch and the pages of its own tokens.
#[derive(Debug)]
struct BranchState {
    branch: Branch,
    pages: Vec<u32>,
}

/// One group in the decoder.
#[derive(Debug)]
pub struct Group {
    id: u64,
    prompt: Vec<u32>,
    stored: usize,
    pages: Vec<u32>,
    branches: Vec<BranchState>,
    live: usize,
    max_tokens: usize,
    sampling: SamplingParams,
    adapter: u32,
}

impl Group {
    /// A group that samples.
    pub fn sample(request: Request) -> Self {
        let sources = request.streams.into_iter().map(Source::Drawn).collect();
        Self::new(request.id, request.prompt, sources, request.max_tokens, request.sampling)
    }

    /// A group that scores given completions, none of them empty, under plain sampling at a temperature.
    pub fn score(id: u64, prompt: Vec<u32>, completions: &[Vec<u32>], temperature: f32) -> Self {
        let longest = completions.iter().map(Vec::len).max().unwrap_or(0);
        let sources = completions.iter().cloned().map(Source::Given).collect();
        Self::new(id, prompt, sources, longest, SamplingParams { temperature, ..SamplingParams::PLAIN })
    }

    fn new(
        id: u64,
        prompt: Vec<u32>,
        sources: Vec<Source>,
        max_tokens: usize,
        sampling: SamplingParams,
    ) -> Self {
        let branches: Vec<BranchState> = sources
            .into_iter()
            .map(|source| BranchState { branch: Branch::new(source), pages: Vec::new() })
            .collect();
        let live = branches.len();
        Group {
            id,
            prompt,
            stored: 0,
            pages: Vec::new(),
            branches,
            live,
            max_tokens,
            sampling,
            adapter: NONE,
        }
    }

    /// The same, completed by an adapter of the engine.
    pub fn adapted(self, adapter: Option<u32>) -> Self {
        Group { adapter: adapter.unwrap_or(NONE), ..self }
    }

    /// Its adapter, [`NONE`] for the base itself.
    pub fn adapter(&self) -> u32 {
        self.adapter
    }

    /// Pages that it may need at most from now on, those that it has included.
    pub fn most_pages(&self) -> usize {
        self.prompt.len().div_ceil(PAGE) + self.live * (self.max_tokens - 1).div_ceil(PAGE)
    }

    /// Whether its branches have their first token.
    pub fn has_begun(&self) -> bool {
        self.branches.iter().any(|state| !state.branch.ids().is_empty())
    }

    /// Branches that still generate.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Prompt tokens that no run has stored yet.
    pub fn missing(&self) -> &[u32] {
        &self.prompt[self.stored..]
    }

    /// The longest sequence that it may reach, in tokens.
    pub fn longest(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }

    /// Takes pages for the next `count` tokens of the prompt and counts them as stored from the next run on.
    pub fn store_prompt(&mut self, count: usize, arena: &mut Arena) -> (usize, &[u32], bool) {
        let start = self.stored;
        self.stored += count;
        while self.pages.len() * PAGE < self.stored {
            self.pages.push(arena.take());
        }
        (start, &self.pages, self.stored == self.prompt.len())
    }

    /// The prompt's length and pages.
    pub fn prefix(&self) -> (usize, &[u32]) {
        (self.prompt.len(), &self.pages)
    }

    /// Takes the pages that the live branches' next tokens go to, and gives these tokens to `push`.
    pub fn extend(&mut self, arena: &mut Arena, mut push: impl FnMut(u32)) {
        for BranchState { branch, pages } in self.branches.iter_mut().filter(|state| !state.branch.is_done())
        {
            while pages.len() * PAGE < branch.ids().len() {
                pages.push(arena.take());
            }
            push(*branch.ids().last().expect("a live branch after its prompt has a token"));
        }
    }

    /// For each live branch the tokens stored before its last one, and its pages.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let live = self.branches.iter().filter(|state| !state.branch.is_done());
        live.map(|state| (state.branch.ids().len() - 1, state.pages.as_slice()))
    }

    /// Gives every branch its first token, all from the logits after the prompt.
    pub fn first_tokens(
        &mut self,
        logits: &[f32],
        sampler: &mut Sampler,
        stop: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        sampler.prepare(logits, &self.sampling)?;
        for branch in 0..self.branches.len() {
            self.next_token(branch, logits, sampler, stop, arena);
        }
        Ok(())
    }

    /// Gives each live branch its next token, each from its own row of logits.
    pub fn next_tokens<'a>(
        &mut self,
        mut rows: impl Iterator<Item = &'a [f32]>,
        sampler: &mut Sampler,
        stop: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        for branch in 0..self.branches.len() {
            if self.branches[branch].branch.is_done() {
                continue;
            }
            let logits = rows.next().expect("a row of logits for each live branch");
            sampler.prepare(logits, &self.sampling)?;
            self.next_token(branch, logits, sampler, stop, arena);
        }
        Ok(())
    }

    fn next_token(
        &mut self,
        branch: usize,
        logits: &[f32],
        sampler: &mut Sampler,
        stop: &[u32],
        arena: &mut Arena,
    ) {
        let BranchState { branch, pages } = &mut self.branches[branch];
        let draw = match branch.want() {
            NextToken::Sample(stream, position) => {
                sampler.draw(logits, &self.sampling, stream.uniform(position))
            }
            NextToken::Given(id) => SampledToken { id, logprob: sampler.logprob(logits, &self.sampling, id) },
        };
        branch.take(draw, stop, self.max_tokens);
        if branch.is_done() {
            arena.give_back(pages);
            self.live -= 1;
        }
    }

    /// Gives all pages back and says what was generated.
    pub fn finish(mut self, arena: &mut Arena) -> (u64, Vec<Completion>) {
        arena.give_back(&mut self.pages);
        for state in &mut self.branches {
            arena.give_back(&mut state.pages);
        }
        (self.id, self.branches.into_iter().map(|state| state.branch.finish()).collect())
    }
}
