//! The loss of a minibatch: its gradient with respect to each token's log-probability, and statistics for the metrics.
//!
//! Threads visit trees in any order; statistics are summed per tree and then over trees in their order, so that none
//! depends on the threads.

use std::sync::Mutex;

use crate::aggregate::Aggregate;
use crate::loss_config::{Importance, LossConfig, Objective, RatioLevel, WeightLevel};
use crate::model::{RowDerivative, RowLoss};
use crate::objective;
use crate::samples::Samples;
use crate::sequences::{SequenceStats, TokenLogprobs};
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
    /// Tokens whose importance weight was truncated or dropped.
    pub truncated: usize,
    /// Tokens of sequences that are masked.
    pub masked: usize,
}

impl TokenStats {
    /// Adds the statistics of another part.
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
        self.masked += other.masked;
    }

    /// The statistics as numbers, for another process.
    pub fn words(&self) -> [u64; 12] {
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
            self.masked as u64,
        ]
    }

    /// The statistics that another process sent as these numbers.
    pub fn of_words(words: &[u64; 12]) -> TokenStats {
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
            masked,
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
            masked: count(masked),
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

/// Log-probabilities under weights other than the current ones, by the sample's index.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceLogprobs<'a> {
    /// Under the reference policy, for the KL term.
    pub reference: Option<&'a [Vec<f32>]>,
    /// Under the weights before the first step, for importance weights. None while the weights have not changed.
    pub start: Option<&'a [Vec<f32>]>,
}

/// The inputs of every token's loss, whatever tree it is in.
#[derive(Clone, Copy)]
pub struct LossInputs<'a> {
    pub config: LossConfig,
    /// How the terms of tokens are averaged.
    pub aggregate: Aggregate,
    pub samples: &'a Samples,
    pub logprobs: ReferenceLogprobs<'a>,
}

/// A token's log-probability, and the numbers of its sequence where a derivative needs them.
#[derive(Clone, Copy)]
struct Scored<'a> {
    /// Under the weights in training.
    new: f64,
    sequence: Option<&'a SequenceStats>,
}

/// The loss of the trees of one batch, not yet scaled ([`crate::aggregate`]).
pub struct BatchLoss<'a> {
    inputs: LossInputs<'a>,
    members: &'a [Vec<usize>],
    by_tree: Vec<Mutex<TokenStats>>,
}

impl<'a> BatchLoss<'a> {
    /// The loss of trees whose sequences are the samples `members`.
    pub fn new(inputs: LossInputs<'a>, members: &'a [Vec<usize>]) -> Self {
        let by_tree = members.iter().map(|_| Mutex::default()).collect();
        BatchLoss { inputs, members, by_tree }
    }

    /// The statistics of all trees.
    pub fn token_stats(self) -> TokenStats {
        let mut total = TokenStats::default();
        for token_stats in self.by_tree {
            total.add(&token_stats.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        total
    }

    /// Weight of a row's entropy.
    fn entropy_weight(&self, tree_index: usize, row: &LossRow) -> f64 {
        let sample = self.members[tree_index][row.sequence as usize];
        self.inputs.config.entropy * self.inputs.aggregate.weight(self.inputs.samples.rows[sample].length())
    }

    /// The entropy term of a tree's rows, not yet scaled.
    pub fn entropy_term(&self, tree_index: usize, tree: &Tree, entropies: &[f32]) -> f64 {
        let term =
            |(row, &entropy): (&LossRow, &f32)| -self.entropy_weight(tree_index, row) * f64::from(entropy);
        if self.inputs.config.entropy == 0.0 { 0.0 } else { tree.rows.iter().zip(entropies).map(term).sum() }
    }

    /// The gradient at a row; counted in `token_stats`.
    fn row(&self, tree_index: usize, row: &LossRow, scored: Scored, token_stats: &mut TokenStats) -> f32 {
        let sample = self.members[tree_index][row.sequence as usize];
        let term = self.term(sample, row.index as usize, scored, token_stats);
        let weight = self.inputs.aggregate.weight(self.inputs.samples.rows[sample].length());
        token_stats.loss += weight * term.loss;
        (weight * term.grad) as f32
    }

    /// The log-probabilities of a token.
    fn token(&self, sample: usize, index: usize, new: f64) -> TokenLogprobs {
        let recorded = f64::from(self.inputs.samples.logprobs(sample)[index]);
        let start = match self.inputs.config.importance {
            None => recorded,
            // Before the first step the trainer's own is the new one.
            Some(_) => self.inputs.logprobs.start.map_or(new, |start| f64::from(start[sample][index])),
        };
        TokenLogprobs { new, start, recorded }
    }

    /// The numbers of each sequence of a tree, if a token asks for them.
    fn sequences(&self, tree_index: usize, tree: &Tree, logprobs: &[f32]) -> Vec<SequenceStats> {
        if self.inputs.config.objective == Objective::Nll || !self.inputs.config.needs_sequences() {
            return Vec::new();
        }
        let rows: Vec<(&LossRow, f32)> = tree.rows.iter().zip(logprobs.iter().copied()).collect();
        let mut stats = vec![SequenceStats::default(); self.members[tree_index].len()];
        for rows in rows.chunk_by(|(one, _), (next, _)| one.sequence == next.sequence) {
            let sequence = rows[0].0.sequence as usize;
            let sample = self.members[tree_index][sequence];
            let tokens =
                rows.iter().map(|(row, new)| self.token(sample, row.index as usize, f64::from(*new)));
            stats[sequence] = self.inputs.config.sequence(tokens);
        }
        stats
    }

    fn term(
        &self,
        sample: usize,
        index: usize,
        Scored { new, sequence }: Scored,
        token_stats: &mut TokenStats,
    ) -> objective::Term {
        let advantage = self.inputs.samples.rows[sample].advantage;
        if self.inputs.config.objective == Objective::Nll {
            token_stats.tokens += 1;
            token_stats.not_finite += usize::from(!new.is_finite());
            return objective::nll(new, advantage);
        }
        let token = self.token(sample, index, new);
        token_stats.compare(new, token.recorded);
        let mut term = self.surrogate(&token, sequence, advantage, token_stats);
        if let Some(reference) = self.inputs.logprobs.reference {
            let kl = objective::kl(new, f64::from(reference[sample][index]));
            token_stats.kl += kl.loss;
            term.loss += self.inputs.config.kl * kl.loss;
            term.grad += self.inputs.config.kl * kl.grad;
        }
        term
    }

    /// The term of a token without the KL: its objective, weighted and masked.
    fn surrogate(
        &self,
        token: &TokenLogprobs,
        sequence: Option<&SequenceStats>,
        advantage: f64,
        token_stats: &mut TokenStats,
    ) -> objective::Term {
        let LossConfig { clip_range: (low, high), importance, mask_negative_above, .. } = self.inputs.config;
        let TokenLogprobs { new, start, recorded } = *token;
        let of_sequence = sequence.filter(|_| self.inputs.config.ratio == RatioLevel::Sequence);
        let (mut term, clipped) = match (self.inputs.config.objective, of_sequence) {
            (Objective::Cispo, _) => objective::cispo(new, start, advantage, 1.0 + high),
            (_, None) => {
                let (term, _, clipped) = objective::clip(new, start, advantage, low, high);
                (term, clipped)
            }
            (_, Some(sequence)) => {
                let (term, _, clipped) = objective::clip(sequence.log_ratio, 0.0, advantage, low, high);
                (term, clipped)
            }
        };
        // The lower bound holds tokens with a negative advantage, the upper one those with a positive one.
        let below = self.inputs.config.objective == Objective::Clip && advantage < 0.0;
        token_stats.clipped_low += usize::from(clipped && below);
        token_stats.clipped_high += usize::from(clipped && !below && advantage != 0.0);
        if let Some(Importance { level, outside }) = importance {
            let weight = match sequence.filter(|_| level == WeightLevel::Sequence) {
                None => (start - recorded).exp(),
                Some(sequence) => objective::sequence_weight(sequence.log_weight),
            };
            let (weight, truncated) = objective::importance(weight, outside);
            token_stats.truncated += usize::from(truncated);
            // A sequence's ratio moves all of its tokens, each by its own weight: that is by their mean.
            let slope =
                of_sequence.filter(|_| level == WeightLevel::Token).map(|sequence| sequence.mean_weight);
            term = objective::Term { loss: weight * term.loss, grad: slope.unwrap_or(weight) * term.grad };
        }
        let drifts = |bound: f64| advantage < 0.0 && sequence.is_some_and(|sequence| sequence.drift > bound);
        if mask_negative_above.is_some_and(drifts) {
            token_stats.masked += 1;
            return objective::Term { loss: 0.0, grad: 0.0 };
        }
        term
    }
}

impl RowLoss for BatchLoss<'_> {
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        let mut token_stats = TokenStats::default();
        let sequences = self.sequences(tree_index, tree, logprobs);
        for ((row, &new), derivative) in tree.rows.iter().zip(logprobs).zip(derivative) {
            let sequence = sequences.get(row.sequence as usize);
            let scored = Scored { new: f64::from(new), sequence };
            *derivative = self.row(tree_index, row, scored, &mut token_stats);
        }
        *self.by_tree[tree_index].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = token_stats;
    }

    fn entropies(&self, tree_index: usize, tree: &Tree, derivative: &mut [f32]) -> bool {
        if self.inputs.config.entropy == 0.0 {
            return false;
        }
        for (row, derivative) in tree.rows.iter().zip(derivative) {
            *derivative = -self.entropy_weight(tree_index, row) as f32;
        }
        true
    }

    fn by_row(&self) -> Option<&dyn RowDerivative> {
        (!self.inputs.config.needs_sequences() && self.inputs.config.entropy == 0.0).then_some(self)
    }
}

impl RowDerivative for BatchLoss<'_> {
    fn derivative(&self, tree_index: usize, tree: &Tree, row: usize, logprob: f32) -> f32 {
        let scored = Scored { new: f64::from(logprob), sequence: None };
        self.row(tree_index, &tree.rows[row], scored, &mut TokenStats::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step reports the sums over its micro-batches, and the largest gap.
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
            masked: number,
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
