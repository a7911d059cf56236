//! The decoder's forward and backward pass over packed trees, written once above [`crate::backend::Backend`].
//!
//! Gradients are derived by hand, operation by operation; there is no graph. What the loss is, the caller
//! says through [`RowLoss`]; how weights move, the optimizer's business.

mod adapter;
pub mod host;
mod memory;
mod parameters;
mod pass;
mod resident;
mod schedule;
mod shape;
mod worker;
mod workspace;

pub use adapter::LowRank;
pub use memory::{DeviceMemory, MemoryPlan, MemoryRequest};
pub use parameters::{Entry, Gradients, Layout, Parameters, Source};
pub(crate) use resident::elementwise;
pub use resident::{Resident, check as check_for_device};
pub use shape::Shape;
pub use worker::Spent;

use crate::backend::Cpu;
use crate::tree::Tree;
use gemm::Precision;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use worker::Worker;

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

/// A decoder of one shape, ready to score and to differentiate.
pub struct Model {
    shape: Shape,
    /// Of what is trained.
    layout: Arc<Layout>,
    /// Where that is an adapter: it, and the weights under it.
    adapter: Option<(LowRank, Arc<Parameters>)>,
    recompute: bool,
    precision: Precision,
    workers: Mutex<Vec<Worker<Cpu>>>,
    spent: Mutex<Spent>,
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
        let (workers, spent) = (Mutex::default(), Mutex::default());
        Model {
            shape,
            layout,
            adapter: None,
            recompute: false,
            precision: Precision::Float32,
            workers,
            spent,
        }
    }

    /// The same decoder with frozen weights and an adapter over them: its parameters and gradients are the adapter's.
    /// Several may share the weights.
    pub fn adapted(self, adapter: LowRank, base: Arc<Parameters>) -> Model {
        let layout = adapter.layout().clone();
        Model { layout, adapter: Some((adapter, base)), ..self }
    }

    /// Where an adapter is trained: it, and the frozen weights under it.
    pub fn adapter(&self) -> Option<(&LowRank, &Parameters)> {
        self.adapter.as_ref().map(|(adapter, base)| (adapter, base.as_ref()))
    }

    /// The same decoder, which keeps nothing of a layer for the backward pass but its input, and computes the rest
    /// again. Not a bit of any result differs.
    pub fn recomputing(self) -> Model {
        Model { recompute: true, workers: Mutex::default(), ..self }
    }

    /// The same decoder, which rounds the operands of its linear layers' products, forward and back. Weights, sums
    /// and everything else stay f32.
    pub fn rounding(self, precision: Precision) -> Model {
        Model { precision, workers: Mutex::default(), ..self }
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
        let (decoder, weights, factors) = self.decoder(parameters, temperature);
        schedule::on_threads(threads.min(batches.len()), || {
            let mut worker = self.hire(&factors);
            while let Some(range) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (found, _) = worker.score(&decoder, &weights.values, &trees[range.clone()]);
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
        let (decoder, weights, factors) = self.decoder(parameters, temperature);
        let mut of_factors = vec![0.0; factors.len()];
        let total = if self.adapter.is_some() { &mut of_factors } else { &mut gradients.values };
        let reduction = schedule::Reduction::new(chunks.len(), threads, total);
        let scores = Mutex::new(vec![Scores::default(); trees.len()]);
        schedule::on_threads(threads, || {
            let mut worker = self.hire(&factors);
            while let Some((chunk, mut gradient)) = reduction.take() {
                for range in &batches[chunks[chunk].clone()] {
                    let part = (range.start, &trees[range.clone()]);
                    let found = worker.differentiate(&decoder, &weights.values, part, &mut gradient, loss);
                    schedule::lock(&scores)[range.clone()].clone_from_slice(&found);
                }
                reduction.finish(chunk, gradient);
            }
            self.release(worker);
        });
        if let Some((adapter, _)) = &self.adapter {
            adapter.collect(&of_factors, &mut gradients.values);
        }
        scores.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The passes, the weights that they run over, and an adapter's factors as they need them: the weights are
    /// `parameters`, or what lies under the adapter that these are.
    fn decoder<'a>(
        &'a self,
        parameters: &'a Parameters,
        temperature: f32,
    ) -> (pass::Decoder<'a>, &'a Parameters, Vec<f32>) {
        let decoder = |layout| pass::Decoder::new(&self.shape, layout, temperature);
        match &self.adapter {
            None => (decoder(&self.layout), parameters, Vec::new()),
            Some((adapter, base)) => {
                let factors = adapter.arrange(&parameters.values);
                (decoder(base.layout()).adapted(Some(adapter)), base, factors)
            }
        }
    }

    fn hire(&self, factors: &Vec<f32>) -> Worker<Cpu> {
        let mut worker = schedule::lock(&self.workers).pop().unwrap_or_else(|| {
            let backend = Cpu::new(&self.shape.inverse_frequencies).with_precision(self.precision);
            Worker::new(backend, &self.shape, self.recompute)
        });
        worker.set_factors(|_, place| place.clone_from(factors));
        worker
    }

    /// Time that all threads together spent in the passes since this was last asked.
    pub fn take_spent(&self) -> Spent {
        std::mem::take(&mut *schedule::lock(&self.spent))
    }

    fn release(&self, mut worker: Worker<Cpu>) {
        *schedule::lock(&self.spent) += std::mem::take(&mut worker.spent);
        schedule::lock(&self.workers).push(worker);
    }
}
