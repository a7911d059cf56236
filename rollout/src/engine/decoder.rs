//! One thread's decoder: groups come at any time, one model run after another moves all of them on.
//!
//! A run holds the next token of each live branch and, while prompts wait, up to a budget of their tokens. Nothing is
//! padded, finished branches are gone from the next run, and what a row gives does not depend on its neighbours.
//! Prompts come first: a fuller batch makes every later run cheaper for each of its rows.

use super::arena::Arena;
use super::attention::Pass;
use super::group::Group;
use super::model::Model;
use super::plan::Plan;
use super::request::{Completion, Request};
use super::rope::Rope;
use super::sampler::Sampler;
use super::timings::PhaseTimings;
use super::workspace::Workspace;
use record::failure::{Failure, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Prompt tokens a run. More would not make the matrix products faster, only their inputs larger than the caches.
const PROMPT_BUDGET: usize = 512;

/// Generates for one thread. It owns its keys and values; the model is shared. After an error it is not to be used.
pub struct Decoder {
    model: Arc<Model>,
    waiting: VecDeque<Group>,
    active: Vec<Group>,
    pub(super) pass: Pass,
    sampler: Sampler,
    ids: Vec<i64>,
    logits: Vec<f32>,
    turns: Vec<Turn>,
    timings: PhaseTimings,
}

/// Whose rows of logits come next: a group by its place among the active ones.
enum Turn {
    /// One row, from which all branches draw their first token.
    First(usize),
    /// A row for each live branch.
    Next(usize),
}

impl Decoder {
    pub(super) fn new(model: Arc<Model>) -> Self {
        let config = &model.config;
        let pass = Pass {
            arena: Arena::new(model.shape),
            plan: Plan::default(),
            rope: Rope::new(config.inverse_frequencies(), config.rope_layers.clone()),
            work: Workspace::new(config.head_dim),
            adapters: model.adapters.clone(),
            products: gemm::Scratch::default(),
        };
        let sampler = Sampler::new(model.kernels);
        Decoder {
            waiting: VecDeque::new(),
            active: Vec::new(),
            pass,
            sampler,
            ids: Vec::new(),
            logits: Vec::new(),
            turns: Vec::new(),
            timings: PhaseTimings::default(),
            model,
        }
    }

    /// Takes a group. It waits its turn if the decoder is full.
    ///
    /// # Errors
    /// An empty prompt, no branch, no token to generate, a token outside the vocabulary, more tokens than the model
    /// has positions for, or sampling settings without a meaning. The decoder stays usable.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.submit_to(None, request)
    }

    /// The same for a group that the engine's `adapter`-th adapter completes.
    ///
    /// # Errors
    /// As [`Decoder::submit`].
    pub fn submit_to(&mut self, adapter: Option<u32>, request: Request) -> Result<()> {
        request.sampling.check()?;
        if request.streams.is_empty() || request.max_tokens == 0 {
            return Err(Failure::usage("a group needs at least one branch and one token to generate"));
        }
        self.accept(Group::sample(request).adapted(adapter))
    }

    /// Whether no group is waiting or under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Branches that still have tokens to generate, those of waiting groups included.
    pub fn rows(&self) -> usize {
        self.waiting.iter().chain(&self.active).map(Group::live).sum()
    }

    /// Where its time went since this was last asked.
    pub fn take_timings(&mut self) -> PhaseTimings {
        std::mem::take(&mut self.timings)
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
        self.model.session.run(&mut self.pass, &self.ids, &mut self.logits)?;
        self.sample()?;
        self.timings.add_run(started.elapsed(), prompt, self.ids.len());
        let mut finished = Vec::new();
        for group in self.active.extract_if(.., |group| group.live() == 0) {
            finished.push(group.finish(&mut self.pass.arena));
        }
        Ok(finished)
    }

    /// For each completion the log-probabilities, in nats, of its tokens after `prompt`: log-softmax(logits /
    /// temperature). The decoder must be idle. Goes through the same runs as generating does.
    ///
    /// # Errors
    /// As [`Decoder::submit`] and [`Decoder::advance`].
    pub fn score(
        &mut self,
        prompt: &[u32],
        completions: &[Vec<u32>],
        temperature: f32,
    ) -> Result<Vec<Vec<f32>>> {
        self.score_by(None, prompt, completions, temperature)
    }

    /// The same under an adapter.
    ///
    /// # Errors
    /// As [`Decoder::score`].
    pub fn score_by(
        &mut self,
        adapter: Option<u32>,
        prompt: &[u32],
        completions: &[Vec<u32>],
        temperature: f32,
    ) -> Result<Vec<Vec<f32>>> {
        if !self.is_idle() {
            return Err(Failure::work("a decoder that generates cannot score"));
        }
        let given: Vec<Vec<u32>> = completions.iter().filter(|ids| !ids.is_empty()).cloned().collect();
        if given.is_empty() {
            return Ok(vec![Vec::new(); completions.len()]);
        }
        if let Some(&id) = given.iter().flatten().find(|&&id| id as usize >= self.model.config.vocab_size) {
            return Err(self.outside(id));
        }
        self.accept(Group::score(0, prompt.to_vec(), &given, temperature).adapted(adapter))?;
        let mut scored = Vec::new();
        while !self.is_idle() {
            for (_, completions) in self.advance()? {
                scored.extend(completions.into_iter().map(|completion| completion.logprobs));
            }
        }
        let mut scored = scored.into_iter();
        let of = |ids: &Vec<u32>| if ids.is_empty() { Some(Vec::new()) } else { scored.next() };
        Ok(completions.iter().filter_map(of).collect())
    }

    fn accept(&mut self, group: Group) -> Result<()> {
        let config = &self.model.config;
        if group.missing().is_empty() {
            return Err(Failure::data("the prompt has no tokens"));
        }
        if let Some(&id) = group.missing().iter().find(|&&id| id as usize >= config.vocab_size) {
            return Err(self.outside(id));
        }
        if group.longest() > config.max_positions {
            let message = format!(
                "a prompt of {} tokens and {} more do not fit the model's {} positions",
                group.missing().len(),
                group.longest() - group.missing().len(),
                config.max_positions
            );
            return Err(Failure::data(message).hint("ask for fewer tokens or give a shorter prompt"));
        }
        self.waiting.push_back(group);
        Ok(())
    }

    fn outside(&self, id: u32) -> Failure {
        Failure::data(format!("token {id} is not among the model's {}", self.model.config.vocab_size))
    }

    /// Lets groups in while there are rows and memory for them; one group always.
    fn admit(&mut self) {
        let limits = &self.model.limits;
        let mut rows: usize = self.active.iter().map(Group::live).sum();
        let mut pages: usize = self.active.iter().map(Group::most_pages).sum();
        while let Some(group) = self.waiting.front() {
            rows += group.live();
            pages += group.most_pages();
            if !self.active.is_empty() && (rows > limits.rows || pages > limits.pages) {
                break;
            }
            self.pass.rope.reserve(group.longest());
            self.active.extend(self.waiting.pop_front());
        }
    }

    /// Decides the rows of the next run; how many are tokens of prompts.
    fn plan(&mut self) -> usize {
        let Pass { arena, plan, .. } = &mut self.pass;
        plan.clear();
        self.ids.clear();
        self.turns.clear();
        let mut budget = PROMPT_BUDGET;
        for (place, group) in self.active.iter_mut().enumerate() {
            let count = group.missing().len().min(budget);
            if count == 0 {
                continue;
            }
            budget -= count;
            self.ids.extend(group.missing()[..count].iter().map(|&id| i64::from(id)));
            let (start, pages, complete) = group.store_prompt(count, arena);
            plan.prompt(start, count, pages, complete);
            plan.adapt(group.adapter());
            if complete {
                self.turns.push(Turn::First(place));
            }
        }
        let prompt = self.ids.len();
        if budget == 0 {
            return prompt;
        }
        for (place, group) in self.active.iter_mut().enumerate().filter(|(_, group)| group.has_begun()) {
            group.extend(arena, |id| self.ids.push(i64::from(id)));
            let (prefix, pages) = group.prefix();
            plan.branches(prefix, pages, group.rows());
            plan.adapt(group.adapter());
            self.turns.push(Turn::Next(place));
        }
        prompt
    }

    /// Gives the tokens that the logits of the last run say.
    fn sample(&mut self) -> Result<()> {
        let mut rows = self.logits.chunks_exact(self.model.config.vocab_size);
        let (sampler, stop, arena) = (&mut self.sampler, &self.model.stop_ids[..], &mut self.pass.arena);
        for turn in &self.turns {
            match *turn {
                Turn::First(place) => {
                    let logits = rows.next().ok_or_else(|| Failure::work("the model gave too few logits"))?;
                    self.active[place].first_tokens(logits, sampler, stop, arena)?;
                }
                Turn::Next(place) => self.active[place].next_tokens(&mut rows, sampler, stop, arena)?,
            }
        }
        Ok(())
    }
}
