//! From logits to a token and its log-probability.
//!
//! Inverse transform sampling: the cumulative distribution in the order of token ids, inverted at the uniform
//! number of the branch's stream at the token's position. Nothing else enters, so a token is the same in any
//! batch and on any thread. Truncation (top-k, then top-p over the rest, Holtzman et al., arXiv 1904.09751, then
//! min-p, Nguyen et al., arXiv 2407.01082; the order of transformers) removes tokens and keeps the order of the
//! others; among equal logits the lowest ids are kept. The log-probability is taken from the whole distribution,
//! before any truncation.
//!
//! The cumulative sum has three levels: f32 sums of 64 weights (a tile), f64 sums of 64 tiles (a chunk),
//! whose weights are relative to the chunk's largest logit, and the sum of the chunks; sampling descends the
//! same levels. On a device no thread then adds more than 64 numbers in sequence, and training, which has no
//! whole row of logits in memory, finds the same sums.
//!
//! Truncation computes with weights as integers, in units of 2^-40 of the largest: their sums are exact, so a
//! device may add them in any order. `kernels/sampler.cu` is the device's twin of this file and gives the
//! same tokens.

use crate::engine::request::{SampledToken, SamplingParams};
use functional::{CHUNK, LogSumExp, LogitChunk, TILE, exp_scaled};
use record::failure::{Failure, Result};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Samples tokens from one row of logits at a time.
#[derive(Default)]
pub struct Sampler {
    distribution: LogSumExp,
    chunks: Vec<LogitChunk>,
    /// The sums of each chunk's tiles.
    tiles: Vec<[f32; CHUNK / TILE]>,
    weights: Vec<f32>,
    kept: Vec<(u32, u64)>,
    kept_total: u64,
    truncated: bool,
}

impl Sampler {
    /// Prepares a row of logits for [`Sampler::draw`] and [`Sampler::logprob`].
    pub fn prepare(&mut self, logits: &[f32], sampling: &SamplingParams) -> Result<()> {
        let temperature = temperature(sampling);
        self.tiles.resize(logits.len().div_ceil(CHUNK), [0.0; CHUNK / TILE]);
        let chunks = logits.chunks(CHUNK).zip(&mut self.tiles);
        self.chunks.clear();
        self.chunks.extend(chunks.map(|(chunk, tiles)| LogitChunk::new(chunk, temperature, tiles)));
        self.distribution = LogSumExp::new(self.chunks.iter(), temperature);
        if !self.distribution.is_distribution() {
            return Err(not_numbers());
        }
        let by_count = sampling.top_k > 0 && (sampling.top_k as usize) < logits.len();
        self.truncated = !sampling.greedy && (by_count || sampling.top_p < 1.0 || sampling.min_p > 0.0);
        if self.truncated {
            exp_scaled(logits, self.distribution.largest, temperature, &mut self.weights);
            self.truncate(logits, sampling, by_count);
        }
        Ok(())
    }

    /// log-softmax(logits / temperature) of a token of the prepared row.
    pub fn logprob(&self, logits: &[f32], id: u32) -> f32 {
        self.distribution.logprob(logits[id as usize])
    }

    /// Draws from the prepared row with a uniform number in [0, 1).
    pub fn draw(&mut self, logits: &[f32], sampling: &SamplingParams, uniform: f32) -> SampledToken {
        let id = if sampling.greedy {
            let largest = self.distribution.largest;
            logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
        } else if self.truncated {
            self.draw_kept(uniform)
        } else {
            self.draw_any(logits, sampling, uniform)
        };
        SampledToken { id, logprob: self.logprob(logits, id) }
    }

    /// Samples from the whole distribution: finds the chunk by its sum, the tile by its sum, then
    /// the token by its weight.
    fn draw_any(&mut self, logits: &[f32], sampling: &SamplingParams, uniform: f32) -> u32 {
        let (largest, temperature) = (self.distribution.largest, temperature(sampling));
        let mut target = f64::from(uniform) * self.distribution.total;
        let factor = |chunk: &LogitChunk| chunk.factor(largest, temperature);
        let index = pick(self.chunks.iter().map(|chunk| chunk.total * factor(chunk)), &mut target);
        let (chunk, first) = (&self.chunks[index], index * CHUNK);
        target /= factor(chunk);
        let tiles = self.tiles[index].iter().take((logits.len() - first).div_ceil(TILE));
        let begin = first + TILE * pick(tiles.map(|&sum| f64::from(sum)), &mut target);
        let tile = &logits[begin..logits.len().min(begin + TILE)];
        exp_scaled(tile, chunk.largest, temperature, &mut self.weights);
        (begin + pick(self.weights.iter().map(|&weight| f64::from(weight)), &mut target)) as u32
    }

    fn draw_kept(&self, uniform: f32) -> u32 {
        // A uniform number is an integer multiple of 2^-24.
        let share = (uniform * 16_777_216.0) as u128;
        let mut target = ((share * u128::from(self.kept_total)) >> 24) as u64;
        for &(id, weight) in &self.kept {
            if target < weight {
                return id;
            }
            target -= weight;
        }
        self.kept.last().map_or(0, |&(id, _)| id)
    }

    /// Fills `kept` with the tokens that truncation keeps, in the order of their ids.
    fn truncate(&mut self, logits: &[f32], sampling: &SamplingParams, by_count: bool) {
        self.kept.clear();
        if by_count {
            let best = likeliest(logits, sampling.top_k as usize);
            self.kept.extend(best.iter().map(|&id| (id, whole(self.weights[id as usize]))));
        }
        if sampling.top_p < 1.0 {
            let mass: u64 = match by_count {
                true => self.kept.iter().map(|&(_, weight)| weight).sum(),
                false => self.weights.iter().map(|&weight| whole(weight)).sum(),
            };
            let wanted = ((f64::from(sampling.top_p) * mass as f64) as u64).max(1);
            if !by_count {
                // All tokens below this weight together weigh at most what top-p removes.
                let floor = (mass - wanted) / logits.len() as u64;
                let all = self.weights.iter().enumerate().map(|(id, &weight)| (id as u32, whole(weight)));
                self.kept.extend(all.filter(|&(_, weight)| weight >= floor));
            }
            self.kept.sort_unstable_by_key(|&(id, _)| Reverse(Candidate::new(logits[id as usize], id)));
            let mut covered = 0;
            let enough = self.kept.iter().position(|&(_, weight)| {
                covered += weight;
                covered >= wanted
            });
            self.kept.truncate(enough.map_or(self.kept.len(), |last| last + 1));
        }
        if sampling.min_p > 0.0 {
            let all = (0..).zip(&self.weights).map(|(id, &weight)| (id, whole(weight)));
            if !by_count && sampling.top_p >= 1.0 {
                self.kept.extend(all);
            }
            // A weight is relative to the likeliest token's.
            self.kept.retain(|&(id, _)| self.weights[id as usize] >= sampling.min_p);
        }
        self.kept.sort_unstable_by_key(|&(id, _)| id);
        self.kept_total = self.kept.iter().map(|&(_, weight)| weight).sum();
    }
}

/// A weight, at most 1, in units of 2^-40.
fn whole(weight: f32) -> u64 {
    (weight * 1_099_511_627_776.0) as u64
}

/// The error for logits that cannot be sampled from.
pub fn not_numbers() -> Failure {
    Failure::work("the model gave logits that are not numbers")
        .hint("a policy whose training diverged does this; go back to an earlier version")
}

fn temperature(sampling: &SamplingParams) -> f32 {
    if sampling.greedy { 1.0 } else { sampling.temperature }
}

/// The index at which the cumulative weight passes `target`, or the last index with any weight if rounding
/// leaves a remainder. Subtracts the weight before it from the target.
fn pick(weights: impl Iterator<Item = f64>, target: &mut f64) -> usize {
    let mut chosen = 0;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            chosen = index;
            if *target < weight {
                break;
            }
            *target -= weight;
        }
    }
    chosen
}

/// A token in the order of truncation: likelier first, then the lower id.
#[derive(PartialEq)]
struct Candidate(f32, u32);

impl Candidate {
    /// Treats both zeros as equal.
    fn new(logit: f32, id: u32) -> Self {
        Candidate(logit + 0.0, id)
    }
}

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

/// The ids of the `count` largest logits.
fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best = BinaryHeap::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        if best.len() < count {
            best.push(Reverse(Candidate::new(logit, id as u32)));
        } else if best.peek().is_some_and(|Reverse(least)| logit > least.0) {
            best.pop();
            best.push(Reverse(Candidate::new(logit, id as u32)));
        }
    }
    best.into_iter().map(|Reverse(Candidate(_, id))| id).collect()
}
