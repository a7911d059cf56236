//! The decoder's forward and backward pass over packed trees, written once above [`crate::backend::Backend`] and the
//! table of [`policy::decoder`].
//!
//! Gradients are derived by hand, operation by operation; there is no autograd. The caller defines the loss by
//! [`RowLoss`]; the optimizer updates the weights.

mod device_model;
mod linear;
mod memory;
mod parameters;
mod pass;
mod schedule;
mod worker;
mod workspace;

pub(crate) use device_model::elementwise;
pub use device_model::{DeviceModel, check as check_for_device};
pub use linear::LoraAdapter;
pub use memory::{Bytes, DeviceMemory, MemoryPlan, MemoryRequest};
pub(crate) use memory::{SQUARES, STAGING};
pub(crate) use memory::{most_tokens, on_host as memory_on_host};
pub use parameters::{Entry, Gradients, Layout, Parameters, Source};
pub(crate) use schedule::on_threads;
pub use worker::Spent;

use crate::backend::Cpu;
use crate::tree::Tree;
use gemm::Precision;
use policy::config::Config;
use std::ops::Range;
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

    /// Writes `d loss / d entropy` of each loss row into `derivative`; false, and nothing is written, where the loss has no such
    /// term.
    fn entropies(&self, _tree_index: usize, _tree: &Tree, _derivative: &mut [f32]) -> bool {
        false
    }

    /// The same a row at a time, where each depends on its own log-probability alone.
    fn by_row(&self) -> Option<&dyn RowDerivative> {
        None
    }
}

/// A loss whose gradient at a row follows from that row.
pub trait RowDerivative: Sync {
    /// What [`RowLoss::rows`] writes for row `row` of a tree; asked any number of times.
    fn derivative(&self, tree_index: usize, tree: &Tree, row: usize, logprob: f32) -> f32;
}

/// Results of one tree's loss rows, each in the order of `tree.rows`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Natural log-probability of each target under the temperature.
    pub logprobs: Vec<f32>,
    /// Entropy of each row's next-token distribution under the temperature, nats.
    pub entropies: Vec<f32>,
}

/// A decoder on the CPU, ready to score and to differentiate.
pub struct Model {
    config: Config,
    /// Layout of the trained parameters: the weights or an adapter.
    layout: Arc<Layout>,
    /// The adapter and its base, if that is trained.
    adapter: Option<(LoraAdapter, Arc<Parameters>)>,
    recompute: bool,
    precision: Precision,
    /// Tokens of a micro-batch that memory was planned for.
    planned: usize,
    workers: Mutex<Vec<Worker<Cpu>>>,
    spent: Mutex<Spent>,
}

impl Model {
    /// The decoder of a configuration.
    ///
    /// # Panics
    /// If it has no layers, an odd head width, or key heads that do not divide the query heads.
    pub fn new(config: Config) -> Model {
        assert!(config.num_layers > 0, "a decoder has at least one layer");
        assert!(config.num_heads.is_multiple_of(config.num_kv_heads), "key heads divide query heads");
        assert!(config.head_dim.is_multiple_of(2), "rotary positions turn pairs");
        let layout = Arc::new(Layout::new(&config));
        let (workers, spent) = (Mutex::default(), Mutex::default());
        Model {
            config,
            layout,
            adapter: None,
            recompute: false,
            precision: Precision::Float32,
            planned: 0,
            workers,
            spent,
        }
    }

    /// Adds an adapter over a frozen base, which several may share: parameters and gradients are the
    /// adapter's.
    pub fn adapted(self, adapter: LoraAdapter, base: Arc<Parameters>) -> Model {
        let layout = adapter.layout().clone();
        Model { layout, adapter: Some((adapter, base)), ..self }
    }

    /// The adapter and its frozen base, if an adapter is trained.
    pub fn adapter(&self) -> Option<(&LoraAdapter, &Parameters)> {
        self.adapter.as_ref().map(|(adapter, base)| (adapter, base.as_ref()))
    }

    /// Turns on activation recomputation: only the input of each layer is saved for the backward pass.
    /// Results are bit-identical.
    pub fn recomputing(self) -> Model {
        Model { recompute: true, workers: Mutex::default(), ..self }
    }

    /// Rounds the operands of the linear layers' products, forward and backward. Weights, sums and everything
    /// else stay f32.
    pub fn rounding(self, precision: Precision) -> Model {
        Model { precision, workers: Mutex::default(), ..self }
    }

    /// Raises the activation buffers to the size planned for micro-batches of `tokens` tokens.
    pub fn planned_for(self, tokens: usize) -> Model {
        Model { planned: tokens, ..self }
    }

    /// What the decoder computes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads every tensor through `read`, which gets the Hugging Face name and shape and fills the values.
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
        let batches = schedule::micro_batches(trees, workspace::saved_values(&self.config));
        let next = AtomicUsize::new(0);
        let scores = Mutex::new(vec![Scores::default(); trees.len()]);
        let (decoder, weights, factors) = self.decoder(parameters, temperature);
        let parallelism = self.parallelism(trees, &batches, None, threads);
        schedule::on_threads(parallelism.streams, || {
            let mut worker = self.acquire(&factors, parallelism.threads);
            while let Some(range) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (found, _) = worker.score(&decoder, &weights.values, &trees[range.clone()], None);
                schedule::lock(&scores)[range.clone()].clone_from_slice(&found);
            }
            self.release(worker);
        });
        scores.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the gradient of `loss` over all trees to `gradients`, and returns the scores of the forward pass.
    ///
    /// Bit-identical for any number of threads.
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
        let batches = schedule::micro_batches(trees, workspace::saved_values(&self.config));
        let (decoder, weights, factors) = self.decoder(parameters, temperature);
        let mut of_factors = vec![0.0; factors.len()];
        let total = if self.adapter.is_some() { &mut of_factors } else { &mut gradients.values };
        let parallelism = self.parallelism(trees, &batches, Some(total.len()), threads);
        let scores = Mutex::new(vec![Scores::default(); trees.len()]);
        let differentiate = |worker: &mut Worker<Cpu>, range: &Range<usize>, gradient: &mut Vec<f32>| {
            let (first, part) = (range.start, &trees[range.clone()]);
            let sink = pass::Sink { gradients: gradient, leave: &mut |_: &mut Cpu, _: &mut Vec<f32>, _| {} };
            let found = worker.differentiate(&decoder, &weights.values, first, part, sink, loss);
            schedule::lock(&scores)[range.clone()].clone_from_slice(&found);
        };
        if parallelism.streams == 1 {
            // One after another, they add to the sum itself.
            let mut worker = self.acquire(&factors, parallelism.threads);
            batches.iter().for_each(|range| differentiate(&mut worker, range, total));
            self.release(worker);
        } else {
            let reduction = schedule::Reduction::new(batches.len(), parallelism.streams, total);
            schedule::on_threads(parallelism.streams, || {
                let mut worker = self.acquire(&factors, parallelism.threads);
                while let Some((index, mut gradient)) = reduction.take() {
                    differentiate(&mut worker, &batches[index], &mut gradient);
                    reduction.finish(index, gradient);
                }
                self.release(worker);
            });
        }
        if let Some((adapter, _)) = &self.adapter {
            adapter.unpack_gradient(&of_factors, &mut gradients.values);
        }
        scores.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// How threads share micro-batches, with a gradient of the given length, if any.
    fn parallelism(
        &self,
        trees: &[Tree],
        batches: &[Range<usize>],
        gradient: Option<usize>,
        threads: usize,
    ) -> memory::Parallelism {
        let tokens = |range: &Range<usize>| trees[range.clone()].iter().map(Tree::len).sum();
        let tokens = batches.iter().map(tokens).max().unwrap_or(0).max(self.planned);
        memory::Parallelism::new(&self.config, tokens, batches.len(), self.recompute, gradient, threads)
    }

    /// The decoder, its weights (`parameters`, or the base of the adapter that they are), and an adapter's packed factors.
    fn decoder<'a>(
        &'a self,
        parameters: &'a Parameters,
        temperature: f32,
    ) -> (pass::Decoder<'a>, &'a Parameters, Vec<f32>) {
        let (base, adapter, factors) = match &self.adapter {
            None => (parameters, None, Vec::new()),
            Some((adapter, base)) => (base.as_ref(), Some(adapter), adapter.packed(&parameters.values)),
        };
        let decoder = pass::Decoder { config: &self.config, layout: base.layout(), adapter, temperature };
        (decoder, base, factors)
    }

    fn acquire(&self, factors: &Vec<f32>, threads: usize) -> Worker<Cpu> {
        let mut worker = schedule::lock(&self.workers).pop().unwrap_or_else(|| {
            let backend = Cpu::of(&self.config).with_precision(self.precision);
            Worker::new(backend, &self.config, self.recompute)
        });
        worker.backend.set_threads(threads);
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
