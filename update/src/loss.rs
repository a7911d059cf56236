//! The objective over a minibatch, as the model asks for it: the derivative by each token's log-probability, and on
//! the way the figures that the metrics report.
//!
//! Threads visit trees in any order; each tree's figures are summed by itself and the trees are added up in their
//! order, so that no figure depends on the threads.

use std::sync::Mutex;

use crate::aggregate::Mean;
use crate::arguments::Objective;
use crate::model::RowLoss;
use crate::objective;
use crate::samples::Samples;
use crate::tree::Tree;

/// Figures over the scored tokens of a tree or of a minibatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Scored tokens.
    pub tokens: usize,
    /// The weighted sum of the token terms: this part of the loss.
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
    /// Recomputed log-probabilities that are no number.
    pub not_finite: usize,
    /// Tokens whose importance weight was truncated.
    pub truncated: usize,
}

impl Tally {
    /// Adds the figures of another part.
    pub fn add(&mut self, other: &Tally) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.kl += other.kl;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.ratio += other.ratio;
        self.gap += other.gap;
        self.largest_gap = self.largest_gap.max(other.largest_gap);
        self.not_finite += other.not_finite;
        self.truncated += other.truncated;
    }

    /// Compares one recomputed log-probability with the recorded one.
    pub fn compare(&mut self, recomputed: f64, recorded: f64) {
        let gap = (recomputed - recorded).abs();
        self.tokens += 1;
        self.ratio += (recomputed - recorded).exp();
        self.gap += gap;
        self.largest_gap = self.largest_gap.max(gap);
        self.not_finite += usize::from(!recomputed.is_finite());
    }
}

/// The resolved numbers of the objective.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Which objective.
    pub objective: Objective,
    /// How far below and above 1 a ratio may go.
    pub range: (f64, f64),
    /// Weight of the KL term.
    pub kl: f64,
    /// Bound of the importance weights between sampler and trainer; none: they are 1, and ratios are taken to what the
    /// sampler recorded.
    pub importance_cap: Option<f64>,
}

/// Log-probabilities of other weights than those in training, by the sample's index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others<'a> {
    /// Those of the reference policy, for the KL term.
    pub reference: Option<&'a [Vec<f32>]>,
    /// The trainer's own before its first step, for importance weights; none: those in training are still the same.
    pub start: Option<&'a [Vec<f32>]>,
}

/// The loss of the trees of one batch.
pub struct BatchLoss<'a> {
    terms: Terms,
    samples: &'a Samples,
    members: &'a [Vec<usize>],
    mean: Mean,
    others: Others<'a>,
    tallies: Vec<Mutex<Tally>>,
}

impl<'a> BatchLoss<'a> {
    /// The loss of trees whose sequences are `members`, as their part of the mean over an optimiser batch.
    pub fn new(
        terms: Terms,
        samples: &'a Samples,
        members: &'a [Vec<usize>],
        mean: Mean,
        others: Others<'a>,
    ) -> Self {
        let tallies = members.iter().map(|_| Mutex::default()).collect();
        BatchLoss { terms, samples, members, mean, others, tallies }
    }

    /// The figures of all trees.
    pub fn tally(self) -> Tally {
        let mut total = Tally::default();
        for tally in self.tallies {
            total.add(&tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        total
    }

    fn term(&self, sample: usize, index: usize, new: f64, tally: &mut Tally) -> objective::Term {
        let advantage = self.samples.rows[sample].advantage;
        if self.terms.objective == Objective::Nll {
            tally.tokens += 1;
            tally.not_finite += usize::from(!new.is_finite());
            return objective::nll(new, advantage);
        }
        let old = f64::from(self.samples.logprobs(sample)[index]);
        let (low, high) = self.terms.range;
        tally.compare(new, old);
        let (mut term, clipped) = match self.terms.importance_cap {
            None => {
                let (term, _, clipped) = objective::clip(new, old, advantage, low, high);
                (term, clipped)
            }
            Some(cap) => {
                let start = self.others.start.map_or(new, |start| f64::from(start[sample][index]));
                let (weight, truncated) = objective::importance(start, old, cap);
                let (term, _, clipped) = objective::clip(new, start, advantage, low, high);
                tally.truncated += usize::from(truncated);
                (objective::Term { loss: weight * term.loss, slope: weight * term.slope }, clipped)
            }
        };
        // The lower bound holds tokens with a negative advantage, the upper one those with a positive one.
        tally.clipped_low += usize::from(clipped && advantage < 0.0);
        tally.clipped_high += usize::from(clipped && advantage > 0.0);
        if let Some(reference) = self.others.reference {
            let kl = objective::kl(new, f64::from(reference[sample][index]));
            tally.kl += kl.loss;
            term.loss += self.terms.kl * kl.loss;
            term.slope += self.terms.kl * kl.slope;
        }
        term
    }
}

impl RowLoss for BatchLoss<'_> {
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        let mut tally = Tally::default();
        for ((row, &new), derivative) in tree.rows.iter().zip(logprobs).zip(derivative) {
            let sample = self.members[tree_index][row.sequence as usize];
            let term = self.term(sample, row.index as usize, f64::from(new), &mut tally);
            let weight = self.mean.weight(self.samples.rows[sample].length());
            tally.loss += weight * term.loss;
            *derivative = (weight * term.slope) as f32;
        }
        *self.tallies[tree_index].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = tally;
    }
}
