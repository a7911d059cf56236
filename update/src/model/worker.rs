//! One stream of work: a backend, its memory, and micro-batches through them.

use std::time::{Duration, Instant};

use super::pass::{Decoder, Prepared, RowGradient, Sink};
use super::workspace::{self, Workspace};
use super::{RowLoss, Scores};
use crate::backend::{Backend, MicroBatch, RowScores, ScoreGradient};
use crate::tree::Tree;
use policy::config::Config;

/// Time spent in the passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In forward passes.
    pub forward: Duration,
    /// In backward passes, with the layers that they compute again.
    pub backward: Duration,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        self.forward += other.forward;
        self.backward += other.backward;
    }
}

/// What one thread, or one device, computes with, kept between calls.
pub(super) struct Worker<B: Backend> {
    pub backend: B,
    /// Since it was last looked at.
    pub spent: Spent,
    space: Workspace<B::Buffer>,
    derivative: Vec<f32>,
    /// By the entropies, and these.
    spreads: [Vec<f32>; 2],
}

impl<B: Backend> Worker<B> {
    /// A worker for decoders of this config; `recompute` keeps nothing of a layer but its input.
    pub(super) fn new(mut backend: B, config: &Config, recompute: bool) -> Worker<B> {
        let space = workspace::empty(&mut backend, config, recompute);
        Worker {
            backend,
            spent: Spent::default(),
            space,
            derivative: Vec::new(),
            spreads: [Vec::new(), Vec::new()],
        }
    }

    /// Lets `write` fill the packed factors of an adapter.
    pub(super) fn set_factors(&mut self, write: impl FnOnce(&mut B, &mut B::Buffer)) {
        write(&mut self.backend, &mut self.space.lora.factors);
    }

    /// Reserves memory for micro-batches up to this one.
    pub(super) fn reserve(&mut self, batch: workspace::Batch<'_>) {
        batch.reserve(&mut self.backend, &mut self.space);
    }

    /// The forward pass of one micro-batch; see [`Decoder::forward`].
    pub(super) fn score(
        &mut self,
        decoder: &Decoder<'_>,
        weights: &B::Buffer,
        trees: &[Tree],
        gradient: Option<RowGradient<'_, B::Buffer>>,
    ) -> (Vec<Scores>, Prepared<B>) {
        let started = Instant::now();
        let batch = MicroBatch::new(trees);
        let (mut logprobs, mut entropies) = (vec![0.0; batch.rows.len()], vec![0.0; batch.rows.len()]);
        let (backend, space) = (&mut self.backend, &mut self.space);
        let found = RowScores { logprobs: &mut logprobs, entropies: &mut entropies };
        let prepared = decoder.forward(backend, space, weights, batch, found, gradient);
        let (mut logprobs, mut entropies) = (logprobs.into_iter(), entropies.into_iter());
        let of_tree = |tree: &Tree| Scores {
            logprobs: logprobs.by_ref().take(tree.rows.len()).collect(),
            entropies: entropies.by_ref().take(tree.rows.len()).collect(),
        };
        let scores = trees.iter().map(of_tree).collect();
        self.spent.forward += started.elapsed();
        (scores, prepared)
    }

    /// Forward and backward pass of one micro-batch, whose first tree has the given index. The gradient
    /// covers the weights, or the factors of the decoder's adapter.
    pub(super) fn differentiate(
        &mut self,
        decoder: &Decoder<'_>,
        weights: &B::Buffer,
        first: usize,
        trees: &[Tree],
        sink: Sink<'_, B>,
        loss: &dyn RowLoss,
    ) -> Vec<Scores> {
        let starts: Vec<usize> = trees
            .iter()
            .scan(0, |end, tree| {
                *end += tree.rows.len();
                Some(*end - tree.rows.len())
            })
            .collect();
        let by_row = loss.by_row().filter(|_| B::SCORES_WITH_GRADIENT);
        let derivative = by_row.map(|loss| {
            move |row: usize, logprob: f32| {
                let (tree, row) = place(&starts, row);
                loss.derivative(first + tree, &trees[tree], row, logprob)
            }
        });
        let row_gradient =
            derivative.as_ref().map(|derivative| RowGradient { derivative, gradients: &mut *sink.gradients });
        let (scores, prepared) = self.score(decoder, weights, trees, row_gradient);
        let started = Instant::now();
        self.derivative.clear();
        self.spreads.iter_mut().for_each(Vec::clear);
        let mut spreads = false;
        for (index, (tree, scores)) in trees.iter().zip(&scores).enumerate() {
            let start = self.derivative.len();
            self.derivative.resize(start + tree.rows.len(), 0.0);
            loss.rows(first + index, tree, &scores.logprobs, &mut self.derivative[start..]);
            let [derivative, entropies] = &mut self.spreads;
            derivative.resize(start + tree.rows.len(), 0.0);
            entropies.extend(&scores.entropies);
            spreads |= loss.entropies(first + index, tree, &mut derivative[start..]);
        }
        // A micro-batch whose loss does not depend on the weights has no gradient to compute.
        if spreads || self.derivative.iter().any(|&derivative| derivative != 0.0) {
            let (backend, space) = (&mut self.backend, &mut self.space);
            let [derivative, entropies] = &self.spreads;
            let entropies = spreads.then_some((&derivative[..], &entropies[..]));
            let d_scores = ScoreGradient { logprobs: &self.derivative, entropies };
            decoder.backward(backend, space, weights, &prepared, d_scores, sink);
            backend.synchronize();
        }
        self.spent.backward += started.elapsed();
        scores
    }
}

/// The tree of a micro-batch's loss row, and the row in it; `starts` are the first rows of all trees.
fn place(starts: &[usize], row: usize) -> (usize, usize) {
    let tree = starts.partition_point(|&start| start <= row) - 1;
    (tree, row - starts[tree])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_trees_that_have_some() {
        // Two rows, zero, three, zero.
        let starts = [0, 2, 2, 5];
        let places: Vec<(usize, usize)> = (0..5).map(|row| place(&starts, row)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
    }
}
