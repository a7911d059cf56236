//! The decoder's forward and backward pass over packed trees, written once above [`crate::backend::Backend`].
//!
//! Gradients are derived by hand, operation by operation; there is no graph. What the loss is, the caller
//! says through [`RowLoss`]; how weights move, the optimizer's business.

mod parameters;
mod pass;
mod schedule;
mod shape;
mod workspace;

pub use parameters::{Entry, Gradients, Layout, Parameters};
pub use shape::Shape;

use crate::backend::{Batch, Cpu};
use crate::tree::Tree;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A loss over the scored tokens of a tree.
pub trait RowLoss: Sync {
    /// Writes `d loss / d logprob` of each loss row of tree `tree_index` into `derivative`.
    ///
    /// `logprobs` and `derivative` are in the order of `tree.rows`. Trees are visited in any order and from
    /// several threads, each exactly once.
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]);
}

/// What the forward pass says of one tree's loss rows, each in the order of `tree.rows`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Natural log-probability of each target under the temperature.
    pub logprobs: Vec<f32>,
    /// Entropy of each row's next-token distribution under the temperature, nats.
    pub entropies: Vec<f32>,
}

/// What one thread computes with, kept between calls.
struct Worker {
    cpu: Cpu,
    space: workspace::Workspace<Cpu>,
    derivative: Vec<f32>,
}

/// A decoder of one shape, ready to score and to differentiate.
pub struct Model {
    shape: Shape,
    layout: Arc<Layout>,
    recompute: bool,
    workers: Mutex<Vec<Worker>>,
}

impl Model {
    /// A decoder of this shape.
    ///
    /// # Panics
    /// If the shape has no layers, a head width that is odd, or query heads that key heads do not divide.
    pub fn new(shape: Shape) -> Model {
        assert!(shape.layers > 0, "a decoder has at least one layer");
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "key heads divide query heads");
        assert_eq!(shape.inverse_frequencies.len() * 2, shape.head_dim, "one frequency for each pair");
        let layout = Arc::new(Layout::new(&shape));
        Model { shape, layout, recompute: false, workers: Mutex::default() }
    }

    /// The same decoder, which keeps nothing of a layer for the backward pass but its input, and computes the rest
    /// again. Not a bit of any result differs.
    pub fn recomputing(self) -> Model {
        Model { recompute: true, workers: Mutex::default(), ..self }
    }

    /// The decoder's sizes and variants.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Reads every tensor through `read`, which gets the Hugging Face name and shape and fills the values.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn parameters<E>(
        &self,
        mut read: impl FnMut(&Entry, &mut [f32]) -> Result<(), E>,
    ) -> Result<Parameters, E> {
        let mut parameters = Parameters::zeros(&self.layout);
        for entry in &self.layout.entries {
            read(entry, &mut parameters.values[entry.range.clone()])?;
        }
        Ok(parameters)
    }

    /// A gradient of zeros.
    pub fn gradients(&self) -> Gradients {
        Gradients::zeros(&self.layout)
    }

    /// Log-probabilities and entropies of every tree's loss rows, without a gradient.
    ///
    /// # Panics
    /// If a token id is not in the vocabulary.
    pub fn logprobs(
        &self,
        parameters: &Parameters,
        trees: &[Tree],
        temperature: f32,
        threads: usize,
    ) -> Vec<Scores> {
        let batches = schedule::micro_batches(trees, workspace::saved_values(&self.shape));
        let next = AtomicUsize::new(0);
        let scores = Mutex::new(vec![Scores::default(); trees.len()]);
        schedule::on_threads(threads.min(batches.len()), || {
            let mut worker = self.hire();
            while let Some(range) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (found, _) = self.score(&mut worker, parameters, &trees[range.clone()], temperature);
                schedule::lock(&scores)[range.clone()].clone_from_slice(&found);
            }
            self.release(worker);
        });
        scores.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the gradient of `loss` over all trees to `gradients`, and returns what the forward pass said.
    ///
    /// The same bytes whatever the number of threads.
    ///
    /// # Panics
    /// If a token id is not in the vocabulary.
    pub fn accumulate(
        &self,
        parameters: &Parameters,
        trees: &[Tree],
        temperature: f32,
        threads: usize,
        gradients: &mut Gradients,
        loss: &dyn RowLoss,
    ) -> Vec<Scores> {
        let batches = schedule::micro_batches(trees, workspace::saved_values(&self.shape));
        let chunks = schedule::chunks(batches.len());
        let threads = threads.clamp(1, chunks.len().max(1));
        let reduction = schedule::Reduction::new(chunks.len(), threads, &mut gradients.values);
        let scores = Mutex::new(vec![Scores::default(); trees.len()]);
        schedule::on_threads(threads, || {
            let mut worker = self.hire();
            while let Some((chunk, mut gradient)) = reduction.take() {
                for range in &batches[chunks[chunk].clone()] {
                    let found = self.differentiate(
                        &mut worker,
                        parameters,
                        (range.start, &trees[range.clone()]),
                        temperature,
                        &mut gradient,
                        loss,
                    );
                    schedule::lock(&scores)[range.clone()].clone_from_slice(&found);
                }
                reduction.finish(chunk, gradient);
            }
            self.release(worker);
        });
        scores.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The forward pass of one micro-batch.
    fn score(
        &self,
        worker: &mut Worker,
        parameters: &Parameters,
        trees: &[Tree],
        temperature: f32,
    ) -> (Vec<Scores>, pass::Prepared<Cpu>) {
        let batch = Batch::new(trees);
        let mut all =
            Scores { logprobs: vec![0.0; batch.rows.len()], entropies: vec![0.0; batch.rows.len()] };
        let decoder = pass::Decoder::new(&self.shape, &self.layout, temperature);
        let prepared = decoder.forward(
            &mut worker.cpu,
            &mut worker.space,
            &parameters.values,
            batch,
            &mut all.logprobs,
            &mut all.entropies,
        );
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
    fn differentiate(
        &self,
        worker: &mut Worker,
        parameters: &Parameters,
        (first, trees): (usize, &[Tree]),
        temperature: f32,
        gradient: &mut Vec<f32>,
        loss: &dyn RowLoss,
    ) -> Vec<Scores> {
        let (scores, prepared) = self.score(worker, parameters, trees, temperature);
        worker.derivative.clear();
        for (index, (tree, scores)) in trees.iter().zip(&scores).enumerate() {
            let start = worker.derivative.len();
            worker.derivative.resize(start + tree.rows.len(), 0.0);
            loss.rows(first + index, tree, &scores.logprobs, &mut worker.derivative[start..]);
        }
        // A micro-batch whose loss does not depend on the weights has no gradient to compute.
        if worker.derivative.iter().any(|&derivative| derivative != 0.0) {
            pass::Decoder::new(&self.shape, &self.layout, temperature).backward(
                &mut worker.cpu,
                &mut worker.space,
                &parameters.values,
                &prepared,
                &worker.derivative,
                Some(gradient),
            );
        }
        scores
    }

    fn hire(&self) -> Worker {
        schedule::lock(&self.workers).pop().unwrap_or_else(|| {
            let mut cpu = Cpu::new(&self.shape.inverse_frequencies);
            let space = workspace::Workspace::new(&mut cpu, &self.shape, self.recompute);
            Worker { cpu, space, derivative: Vec::new() }
        })
    }

    fn release(&self, worker: Worker) {
        schedule::lock(&self.workers).push(worker);
    }
}
