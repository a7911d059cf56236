//! One stream of work: a backend, its memory, and micro-batches through them.

use super::pass::{Decoder, Prepared};
use super::workspace::Workspace;
use super::{RowLoss, Scores, Shape};
use crate::backend::{Backend, Batch};
use crate::tree::Tree;

/// What one thread, or one device, computes with, kept between calls.
pub(super) struct Worker<B: Backend> {
    pub backend: B,
    space: Workspace<B>,
    derivative: Vec<f32>,
}

impl<B: Backend> Worker<B> {
    /// A worker for decoders of this shape; `recompute` keeps nothing of a layer but its input.
    pub(super) fn new(mut backend: B, shape: &Shape, recompute: bool) -> Worker<B> {
        let space = Workspace::new(&mut backend, shape, recompute);
        Worker { backend, space, derivative: Vec::new() }
    }

    /// The forward pass of one micro-batch.
    pub(super) fn score(
        &mut self,
        decoder: &Decoder<'_>,
        weights: &B::Buffer,
        trees: &[Tree],
    ) -> (Vec<Scores>, Prepared<B>) {
        let batch = Batch::new(trees);
        let mut all =
            Scores { logprobs: vec![0.0; batch.rows.len()], entropies: vec![0.0; batch.rows.len()] };
        let (backend, space) = (&mut self.backend, &mut self.space);
        let prepared = decoder.forward(backend, space, weights, batch, &mut all.logprobs, &mut all.entropies);
        let mut start = 0;
        let scores = trees.iter().map(|tree| {
            let range = start..start + tree.rows.len();
            start = range.end;
            Scores {
                logprobs: all.logprobs[range.clone()].to_vec(),
                entropies: all.entropies[range].to_vec(),
            }
        });
        (scores.collect(), prepared)
    }

    /// Forward and backward pass of one micro-batch, whose first tree has the index given.
    pub(super) fn differentiate(
        &mut self,
        decoder: &Decoder<'_>,
        weights: &B::Buffer,
        (first, trees): (usize, &[Tree]),
        gradient: &mut B::Buffer,
        loss: &dyn RowLoss,
    ) -> Vec<Scores> {
        let (scores, prepared) = self.score(decoder, weights, trees);
        self.derivative.clear();
        for (index, (tree, scores)) in trees.iter().zip(&scores).enumerate() {
            let start = self.derivative.len();
            self.derivative.resize(start + tree.rows.len(), 0.0);
            loss.rows(first + index, tree, &scores.logprobs, &mut self.derivative[start..]);
        }
        // A micro-batch whose loss does not depend on the weights has no gradient to compute.
        if self.derivative.iter().any(|&derivative| derivative != 0.0) {
            let (backend, space) = (&mut self.backend, &mut self.space);
            decoder.backward(backend, space, weights, &prepared, &self.derivative, Some(gradient));
        }
        scores
    }
}
