//! The loss of a minibatch: its gradient with respect to each token's log-probability, and statistics for the metrics.
//!
//! Threads visit trees in any order; statistics are summed per tree and then over trees in their order, so that none
//! depends on the threads.

use std::sync::Mutex;

use crate::aggregate::Aggregate;
use crate::arguments::Objective;
use crate::model::{RowDerivative, RowLoss};
use crate::objective;
use crate::samples::Samples;
use crate::tree::{LossRow, Tree};

/// A difference of log-probabilities, nats, that rounding to 16 bits leaves in few tokens.
pub const FAR: f64 = 0.5;

/// Statistics of the scored tokens of a tree or of a minibatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// Scored tokens.
    pub tokens: usize,
    /// Weighted sum of the token terms: scaled, this part of the loss.
    pub loss: f64,
    /// Sum of k3, the KL estimate.
    pub kl: f64,
    /// Tokens whose gradient the lower bound of the ratio cut off.
    pub clipped_low: usize,
    /// Tokens whose gradient the upper bound cut off.
    pub clipped_high: usize,
    /// Sum of the ratios.
    pub ratio: f64,
    /// Sum of |recomputed − recorded| log-probability.
    pub gap: f64,
    /// Largest |recomputed − recorded|.
    pub largest_gap: f64,
    /// Tokens where it is more than [`FAR`].
    pub far: usize,
    /// Recomputed log-probabilities that are not finite.
    pub not_finite: usize,
    /// Tokens whose importance weight was truncated.
    pub truncated: usize,
}

impl TokenStats {
    /// Adds those of another part.
    pub fn add(&mut self, other: &TokenStats) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.kl += other.kl;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.ratio += other.ratio;
        self.gap += other.gap;
        self.largest_gap = self.largest_gap.max(other.largest_gap);
        self.far += other.far;
        self.not_finite += other.not_finite;
        self.truncated += other.truncated;
    }

    /// As numbers, for another process.
    pub fn words(&self) -> [u64; 11] {
        [
            self.tokens as u64,
            self.loss.to_bits(),
            self.kl.to_bits(),
            self.clipped_low as u64,
            self.clipped_high as u64,
            self.ratio.to_bits(),
            self.gap.to_bits(),
            self.largest_gap.to_bits(),
            self.far as u64,
            self.not_finite as u64,
            self.truncated as u64,
        ]
    }

    /// Those that another process has as these numbers.
    pub fn of_words(words: &[u64; 11]) -> TokenStats {
        let [
            tokens,
            loss,
            kl,
            clipped_low,
            clipped_high,
            ratio,
            gap,
            largest_gap,
            far,
            not_finite,
            truncated,
        ] = *words;
        let (count, real) = (|word: u64| word as usize, f64::from_bits);
        TokenStats {
            tokens: count(tokens),
            loss: real(loss),
            kl: real(kl),
            clipped_low: count(clipped_low),
            clipped_high: count(clipped_high),
            ratio: real(ratio),
            gap: real(gap),
            largest_gap: real(largest_gap),
            far: count(far),
            not_finite: count(not_finite),
            truncated: count(truncated),
        }
    }

    /// Compares one recomputed log-probability with the recorded one.
    pub fn compare(&mut self, recomputed: f64, recorded: f64) {
        let gap = (recomputed - recorded).abs();
        self.tokens += 1;
        self.ratio += (recomputed - recorded).exp();
        self.gap += gap;
        self.largest_gap = self.largest_gap.max(gap);
        self.far += usize::from(gap > FAR);
        self.not_finite += usize::from(!recomputed.is_finite());
    }
}

/// The objective and its coefficients.
#[derive(Clone, Copy, Debug)]
pub struct LossConfig {
    /// Which objective.
    pub objective: Objective,
    /// Clip range: how far a ratio may go below and above 1.
    pub clip_range: (f64, f64),
    /// Weight of the KL term.
    pub kl: f64,
    /// Cap of the trainer-to-sampler importance weights; without one they are 1, and ratios are taken to the recorded
    /// log-probabilities.
    pub importance_cap: Option<f64>,
}

/// Log-probabilities under weights other than the current ones, by the sample's index.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceLogprobs<'a> {
    /// Under the reference policy, for the KL term.
    pub reference: Option<&'a [Vec<f32>]>,
    /// Under the weights before the first step, for importance weights; none while the weights are still those.
    pub start: Option<&'a [Vec<f32>]>,
}

/// The loss of the trees of one batch, not yet scaled ([`crate::aggregate`]).
pub struct BatchLoss<'a> {
    config: LossConfig,
    samples: &'a Samples,
    members: &'a [Vec<usize>],
    aggregate: Aggregate,
    logprobs: ReferenceLogprobs<'a>,
    by_tree: Vec<Mutex<TokenStats>>,
}

impl<'a> BatchLoss<'a> {
    /// The loss of trees whose sequences are the samples `members`.
    pub fn new(
        config: LossConfig,
        samples: &'a Samples,
        members: &'a [Vec<usize>],
        aggregate: Aggregate,
        logprobs: ReferenceLogprobs<'a>,
    ) -> Self {
        let by_tree = members.iter().map(|_| Mutex::default()).collect();
        BatchLoss { config, samples, members, aggregate, logprobs, by_tree }
    }

    /// The statistics of all trees.
    pub fn token_stats(self) -> TokenStats {
        let mut total = TokenStats::default();
        for token_stats in self.by_tree {
            total.add(&token_stats.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        total
    }

    /// The gradient at a row whose log-probability is `new`; counted in `token_stats`.
    fn row(&self, tree_index: usize, row: &LossRow, new: f32, token_stats: &mut TokenStats) -> f32 {
        let sample = self.members[tree_index][row.sequence as usize];
        let term = self.term(sample, row.index as usize, f64::from(new), token_stats);
        let weight = self.aggregate.weight(self.samples.rows[sample].length());
        token_stats.loss += weight * term.loss;
        (weight * term.grad) as f32
    }

    fn term(&self, sample: usize, index: usize, new: f64, token_stats: &mut TokenStats) -> objective::Term {
        let advantage = self.samples.rows[sample].advantage;
        if self.config.objective == Objective::Nll {
            token_stats.tokens += 1;
            token_stats.not_finite += usize::from(!new.is_finite());
            return objective::nll(new, advantage);
        }
        let old = f64::from(self.samples.logprobs(sample)[index]);
        let (low, high) = self.config.clip_range;
        token_stats.compare(new, old);
        let (mut term, clipped) = match self.config.importance_cap {
            None => {
                let (term, _, clipped) = objective::clip(new, old, advantage, low, high);
                (term, clipped)
            }
            Some(cap) => {
                let start = self.logprobs.start.map_or(new, |start| f64::from(start[sample][index]));
                let (weight, truncated) = objective::importance(start, old, cap);
                let (term, _, clipped) = objective::clip(new, start, advantage, low, high);
                token_stats.truncated += usize::from(truncated);
                (objective::Term { loss: weight * term.loss, grad: weight * term.grad }, clipped)
            }
        };
        // The lower bound holds tokens with a negative advantage, the upper one those with a positive one.
        token_stats.clipped_low += usize::from(clipped && advantage < 0.0);
        token_stats.clipped_high += usize::from(clipped && advantage > 0.0);
        if let Some(reference) = self.logprobs.reference {
            let kl = objective::kl(new, f64::from(reference[sample][index]));
            token_stats.kl += kl.loss;
            term.loss += self.config.kl * kl.loss;
            term.grad += self.config.kl * kl.grad;
        }
        term
    }
}

impl RowLoss for BatchLoss<'_> {
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        let mut token_stats = TokenStats::default();
        for ((row, &new), derivative) in tree.rows.iter().zip(logprobs).zip(derivative) {
            *derivative = self.row(tree_index, row, new, &mut token_stats);
        }
        *self.by_tree[tree_index].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = token_stats;
    }

    fn by_row(&self) -> Option<&dyn RowDerivative> {
        Some(self)
    }
}

impl RowDerivative for BatchLoss<'_> {
    fn derivative(&self, tree_index: usize, tree: &Tree, row: usize, logprob: f32) -> f32 {
        self.row(tree_index, &tree.rows[row], logprob, &mut TokenStats::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a step reports is the sum over its micro-batches, of gaps the largest.
    #[test]
    fn statistics_of_parts_add_up() {
        let part = |number: usize| TokenStats {
            tokens: number,
            loss: number as f64,
            kl: number as f64,
            clipped_low: number,
            clipped_high: number,
            ratio: number as f64,
            gap: number as f64,
            largest_gap: number as f64,
            far: number,
            not_finite: number,
            truncated: number,
        };
        let mut sum = part(3);
        sum.add(&part(5));
        sum.add(&part(2));
        assert_eq!(sum, TokenStats { largest_gap: 5.0, ..part(10) });
        let different =
            TokenStats { kl: -0.0, clipped_low: 1, ratio: 1e-300, gap: f64::MAX, truncated: 9, ..sum };
        assert_eq!(TokenStats::of_words(&different.words()), different);
    }

    #[test]
    fn logprobs_that_are_no_numbers_are_counted() {
        let mut stats = TokenStats::default();
        stats.compare(f64::NAN, -1.0);
        stats.compare(-1.0, -1.5);
        stats.compare(f64::NEG_INFINITY, -1.0);
        assert_eq!((stats.tokens, stats.not_finite), (3, 2));
    }
}
