//! From logits to a token and its log-probability.
//!
//! A token is drawn by the inverse of the cumulative distribution: tokens stand in the order of their ids, each as
//! wide as its probability, and the uniform number of the branch's stream at the token's position picks one. Nothing
//! else enters, so a draw is the same in any batch and on any thread. Truncation (top-k, then top-p over what is left,
//! Holtzman et al., arXiv 1904.09751) removes tokens from that line and keeps the order of the others; equal logits
//! count by id, lowest first. The log-probability is that of the whole distribution, before any truncation.

use super::isa::Kernels;
use super::job::SamplingParams;
use super::softmax::BLOCK;
use record::failure::{Failure, Result};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Draws tokens from one row of logits at a time.
pub struct Sampler {
    kernels: Kernels,
    sums: Vec<f32>,
    weights: Vec<f32>,
    kept: Vec<(u32, f32)>,
    total: f64,
    kept_total: f64,
    largest: f32,
    truncated: bool,
}

/// What was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The token.
    pub id: u32,
    /// log-softmax(logits / temperature) of the token, in nats.
    pub logprob: f32,
}

impl Sampler {
    /// A sampler that uses these kernels.
    pub fn new(kernels: Kernels) -> Self {
        let (sums, weights, kept) = (Vec::new(), Vec::new(), Vec::new());
        Sampler { kernels, sums, weights, kept, total: 0.0, kept_total: 0.0, largest: 0.0, truncated: false }
    }

    /// Makes a row of logits ready for [`Sampler::draw`] and [`Sampler::logprob`].
    pub fn prepare(&mut self, logits: &[f32], sampling: &SamplingParams) -> Result<()> {
        let scale = 1.0 / temperature(sampling);
        // SAFETY: the kernels were chosen for this processor; so below.
        unsafe {
            self.largest = (self.kernels.largest)(logits);
            (self.kernels.block_sums)(logits, self.largest, scale, &mut self.sums);
        }
        self.total = self.sums.iter().map(|&sum| f64::from(sum)).sum();
        if !(self.total.is_finite() && self.total > 0.0) {
            let message = "the model gave logits that are not numbers";
            return Err(Failure::work(message)
                .hint("a policy whose training diverged does this; go back to an earlier version"));
        }
        let by_count = sampling.top_k > 0 && (sampling.top_k as usize) < logits.len();
        self.truncated = !sampling.greedy && (by_count || sampling.top_p < 1.0);
        if self.truncated {
            // SAFETY: as above.
            unsafe { (self.kernels.weights)(logits, self.largest, scale, &mut self.weights) };
            self.truncate(logits, sampling, by_count);
        }
        Ok(())
    }

    /// log-softmax(logits / temperature) of a token of the prepared row.
    pub fn logprob(&self, logits: &[f32], sampling: &SamplingParams, id: u32) -> f32 {
        let logit = f64::from(logits[id as usize]) - f64::from(self.largest);
        (logit / f64::from(temperature(sampling)) - self.total.ln()) as f32
    }

    /// Draws from the prepared row with a uniform number in [0, 1).
    pub fn draw(&mut self, logits: &[f32], sampling: &SamplingParams, uniform: f32) -> Draw {
        let id = if sampling.greedy {
            let largest = self.largest;
            logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
        } else if self.truncated {
            self.draw_kept(uniform)
        } else {
            self.draw_any(logits, sampling, uniform)
        };
        Draw { id, logprob: self.logprob(logits, sampling, id) }
    }

    /// The whole distribution: the block is found by its sum, the token within it by its weight.
    fn draw_any(&mut self, logits: &[f32], sampling: &SamplingParams, uniform: f32) -> u32 {
        let mut target = f64::from(uniform) * self.total;
        let mut chosen = 0;
        for (block, &sum) in self.sums.iter().enumerate() {
            if sum > 0.0 {
                chosen = block;
                if target < f64::from(sum) {
                    break;
                }
                target -= f64::from(sum);
            }
        }
        let begin = chosen * BLOCK;
        let block = &logits[begin..logits.len().min(begin + BLOCK)];
        // SAFETY: as in `prepare`.
        unsafe {
            (self.kernels.weights)(block, self.largest, 1.0 / temperature(sampling), &mut self.weights)
        };
        pick(self.weights.iter().enumerate().map(|(index, &weight)| ((begin + index) as u32, weight)), target)
    }

    fn draw_kept(&self, uniform: f32) -> u32 {
        pick(self.kept.iter().copied(), f64::from(uniform) * self.kept_total)
    }

    /// Fills `kept` with the tokens that truncation leaves, in the order of their ids.
    fn truncate(&mut self, logits: &[f32], sampling: &SamplingParams, by_count: bool) {
        self.kept.clear();
        let mut mass = self.total;
        if by_count {
            let best = likeliest(logits, sampling.top_k as usize);
            self.kept.extend(best.iter().map(|&id| (id, self.weights[id as usize])));
            mass = self.kept.iter().map(|&(_, weight)| f64::from(weight)).sum();
        }
        if sampling.top_p < 1.0 {
            let wanted = f64::from(sampling.top_p) * mass;
            if !by_count {
                // All tokens below this weight together are less than what top-p leaves out.
                let floor = (mass - wanted) / logits.len() as f64;
                let all = self.weights.iter().enumerate();
                self.kept.extend(
                    all.filter(|&(_, &weight)| f64::from(weight) >= floor)
                        .map(|(id, &weight)| (id as u32, weight)),
                );
            }
            self.kept.sort_unstable_by(|&(a, _), &(b, _)| {
                let by_logit = logits[b as usize].total_cmp(&logits[a as usize]);
                by_logit.then(a.cmp(&b))
            });
            let mut covered = 0.0;
            let enough = self.kept.iter().position(|&(_, weight)| {
                covered += f64::from(weight);
                covered >= wanted
            });
            self.kept.truncate(enough.map_or(self.kept.len(), |last| last + 1));
        }
        self.kept.sort_unstable_by_key(|&(id, _)| id);
        self.kept_total = self.kept.iter().map(|&(_, weight)| f64::from(weight)).sum();
    }
}

fn temperature(sampling: &SamplingParams) -> f32 {
    if sampling.greedy { 1.0 } else { sampling.temperature }
}

/// The token under `target` on the line of weights; the last one of any weight where rounding leaves a rest.
fn pick(weights: impl Iterator<Item = (u32, f32)>, mut target: f64) -> u32 {
    let mut chosen = 0;
    for (id, weight) in weights {
        if weight > 0.0 {
            chosen = id;
            if target < f64::from(weight) {
                break;
            }
            target -= f64::from(weight);
        }
    }
    chosen
}

/// A token in the order of truncation: likelier first, then the lower id.
#[derive(PartialEq)]
struct Candidate(f32, u32);

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(other.1.cmp(&self.1))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `count` largest logits' ids.
fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best = BinaryHeap::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        if best.len() < count {
            best.push(Reverse(Candidate(logit, id as u32)));
        } else if best.peek().is_some_and(|Reverse(least)| logit > least.0) {
            best.pop();
            best.push(Reverse(Candidate(logit, id as u32)));
        }
    }
    best.into_iter().map(|Reverse(Candidate(_, id))| id).collect()
}
