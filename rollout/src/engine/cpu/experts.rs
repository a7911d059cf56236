//! Layers with experts in place of the MLP (arXiv 1701.06538, 2101.03961): a router picks a few experts for
//! each token, and the token gets the sum of their outputs, weighted by their probabilities.
//!
//! Each expert computes its tokens together, and experts run in order, so a token's sum does not depend on
//! the batch. The router is f32 in every precision, as in training.

use super::linear::Linear;
use gemm::{Isa, Precision, Scratch};
use policy::config::Config;
use policy::decoder::Tensor;
use policy::experts::Experts as Settings;
use policy::weights::Weights;
use record::failure::Result;

/// The experts of a layer.
pub struct Experts {
    router: Linear,
    /// Gate and up as one, and down.
    experts: Vec<[Linear; 2]>,
    settings: Settings,
}

/// A token of an expert.
struct Assigned {
    expert: usize,
    row: usize,
    weight: f32,
}

impl Experts {
    /// Packs the experts of each layer that has them.
    ///
    /// # Errors
    /// A tensor is missing or of no floating type.
    pub fn load(
        config: &Config,
        weights: &Weights,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Option<Experts>>> {
        let mut numbers = Vec::new();
        let mut pack =
            |tensors: &[&Tensor], precision| Linear::load(weights, tensors, precision, isa, &mut numbers);
        let mut layers = Vec::new();
        for (index, layer) in config.decoder().layers.iter().enumerate() {
            let (Some(settings), Some(tensors)) = (config.experts(index), &layer.experts) else {
                layers.push(None);
                continue;
            };
            let router = pack(&[&tensors.router], Precision::Float32)?;
            let mut experts = Vec::with_capacity(settings.count);
            for [gate, up, down] in &tensors.experts {
                experts.push([pack(&[gate, up], precision)?, pack(&[down], precision)?]);
            }
            layers.push(Some(Experts { router, experts, settings: settings.clone() }));
            weights.release();
        }
        Ok(layers)
    }

    /// Width of a token.
    pub fn width(&self) -> usize {
        self.router.inputs()
    }

    /// `y = residual + sum of weight · expert(x)` for each row of `x`.
    pub fn apply(&self, scratch: &mut Scratch, rows: usize, x: &[f32], residual: &[f32], y: &mut [f32]) {
        let width = self.width();
        y.copy_from_slice(residual);
        let assigned = self.route(scratch, rows, x);
        for own in assigned.chunk_by(|a, b| a.expert == b.expert) {
            let [gate_up, down] = &self.experts[own[0].expert];
            let inputs: Vec<f32> =
                own.iter().flat_map(|token| &x[token.row * width..][..width]).copied().collect();
            let mut gates = vec![0.0; own.len() * gate_up.outputs()];
            gate_up.apply(scratch, own.len(), &inputs, None, &mut gates);
            let mut gated = vec![0.0; own.len() * down.inputs()];
            functional::swiglu(down.inputs(), &gates, &mut gated);
            let mut outputs = vec![0.0; own.len() * width];
            down.apply(scratch, own.len(), &gated, None, &mut outputs);
            for (token, output) in own.iter().zip(outputs.chunks_exact(width)) {
                let y = &mut y[token.row * width..][..width];
                y.iter_mut().zip(output).for_each(|(y, output)| *y += token.weight * output);
            }
        }
    }

    /// Assigns rows to experts, sorted by expert, then by row.
    fn route(&self, scratch: &mut Scratch, rows: usize, x: &[f32]) -> Vec<Assigned> {
        let count = self.experts.len();
        let mut logits = vec![0.0; rows * count];
        self.router.apply(scratch, rows, x, None, &mut logits);
        let mut assigned = Vec::with_capacity(rows * self.settings.per_token);
        for (row, logits) in logits.chunks_exact_mut(count).enumerate() {
            let (taken, total) = self.settings.route(logits);
            let of = |expert| Assigned { expert, row, weight: logits[expert] / total };
            assigned.extend(taken.into_iter().map(of));
        }
        assigned.sort_unstable_by_key(|token| (token.expert, token.row));
        assigned
    }
}
