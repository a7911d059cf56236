//! Linear layers with their LoRA adapters (arXiv 2106.09685), forward and backward: `W·x + scale · B·(A·x)`, of which
//! under an adapter only A and B are trained.
//!
//! Projections that are one product are adapted as one: their A are stacked, their B are the blocks of a block-diagonal
//! matrix, with the scale already in them. These factors are packed from the trained tensors before a pass and their
//! gradient is unpacked after it, so that a backend needs nothing but its products.
//! Left out: dropout between A and x. Rollout and update have to agree on every log-probability.

use super::{Entry, Layout};
use crate::backend::{self, Backend, Dense};
use policy::adapter::{Adapter, Target};
use policy::config::Config;
use std::ops::Range;
use std::sync::Arc;

/// Projections that are computed as one product. Queries are apart from keys and values: the last layer has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fused {
    Query,
    KeyValue,
    Output,
    GateUp,
    Down,
}

/// The targets of each [`Fused`], by its number.
const FUSED: [&[Target]; 5] = [
    &[Target::Query],
    &[Target::Key, Target::Value],
    &[Target::Output],
    &[Target::Gate, Target::Up],
    &[Target::Down],
];

/// Widths of the input and of the output of fused projections.
fn extent(config: &Config, targets: &[Target]) -> (usize, usize) {
    let outputs = targets.iter().map(|target| target.extent(config).1).sum();
    (targets[0].extent(config).0, outputs)
}

/// The module of which a projection is a part where checkpoints fuse them, and the parts before it.
fn fused_with(target: Target) -> Option<(Target, &'static [Target])> {
    match target {
        Target::Query => Some((Target::FusedQueryKeyValue, &[])),
        Target::Key => Some((Target::FusedQueryKeyValue, &[Target::Query])),
        Target::Gate => Some((Target::FusedGateUp, &[])),
        _ => None,
    }
}

/// Packed factors of fused projections: A `[inner, inputs]` and B `[outputs, inner]`.
#[derive(Clone, Copy, Debug)]
struct Factors {
    a: Dense,
    b: Dense,
}

/// Where a trained tensor lies among the packed factors: row by row, `stride` values apart.
#[derive(Clone, Debug)]
struct Block {
    tensor: Range<usize>,
    columns: usize,
    offset: usize,
    stride: usize,
    scale: f32,
}

/// A LoRA adapter over decoders of one configuration.
#[derive(Clone, Debug)]
pub struct LoraAdapter {
    /// The trained tensors, by PEFT's names.
    layout: Arc<Layout>,
    /// Factors by layer and by [`Fused`].
    layers: Vec<[Option<Factors>; FUSED.len()]>,
    blocks: Vec<Block>,
    /// Values of all packed factors.
    length: usize,
}

impl LoraAdapter {
    /// The adapter over a decoder of this configuration.
    pub fn new(adapter: &Adapter, config: &Config) -> LoraAdapter {
        let layout = Arc::new(Layout::of(Vec::new()));
        let mut made = LoraAdapter { layout, layers: Vec::new(), blocks: Vec::new(), length: 0 };
        let mut entries = Vec::new();
        for layer in 0..config.num_layers {
            let factors = FUSED.map(|targets| made.pack(&mut entries, adapter, config, layer, targets));
            made.layers.push(factors);
        }
        made.layout = Arc::new(Layout::of(entries));
        made
    }

    /// Adds fused projections of which some are adapted.
    fn pack(
        &mut self,
        entries: &mut Vec<Entry>,
        adapter: &Adapter,
        config: &Config,
        layer: usize,
        targets: &[Target],
    ) -> Option<Factors> {
        let rank = adapter.rank;
        let whole = targets
            .iter()
            .find_map(|&target| fused_with(target))
            .filter(|(fused, _)| adapter.targets.contains(fused));
        let adapted = match whole {
            Some(_) => 1,
            None => targets.iter().filter(|target| adapter.targets.contains(target)).count(),
        };
        if adapted == 0 {
            return None;
        }
        let (inner, (inputs, outputs)) = (adapted * rank, extent(config, targets));
        let a = Dense { offset: self.length, outputs: inner, inputs };
        let b = Dense { offset: self.length + inner * inputs, outputs, inputs: inner };
        self.length += inner * (inputs + outputs);
        let mut add = |name: &str, shape: [usize; 2]| match entries.iter().find(|entry| entry.name == name) {
            Some(entry) => entry.range.start,
            None => {
                let start = entries.last().map_or(0, |entry: &Entry| entry.range.end);
                let range = start..start + shape[0] * shape[1];
                entries.push(Entry { name: name.to_owned(), shape: shape.to_vec(), range });
                start
            }
        };
        if let Some((module, before)) = whole {
            // Some rows of a module's B; its A is shared with the others'.
            let [name_a, name_b] = Adapter::names(layer, module);
            let start_a = add(&name_a, [rank, inputs]);
            let start_b = add(&name_b, [module.extent(config).1, rank]);
            let above: usize = before.iter().map(|target| target.extent(config).1).sum();
            let start_b = start_b + above * rank;
            let (tensor_a, tensor_b) = (start_a..start_a + rank * inputs, start_b..start_b + outputs * rank);
            let scale = adapter.scale();
            self.blocks.extend([
                Block { tensor: tensor_a, columns: inputs, offset: a.offset, stride: inputs, scale: 1.0 },
                Block { tensor: tensor_b, columns: rank, offset: b.offset, stride: inner, scale },
            ]);
            return Some(Factors { a, b });
        }
        let (mut column, mut row) = (0, 0);
        for &target in targets {
            let width = target.extent(config).1;
            if adapter.targets.contains(&target) {
                let [name_a, name_b] = Adapter::names(layer, target);
                let mut block =
                    |name: String, shape: [usize; 2], offset: usize, stride: usize, scale: f32| {
                        let start = add(&name, shape);
                        let tensor = start..start + shape[0] * shape[1];
                        self.blocks.push(Block { tensor, columns: shape[1], offset, stride, scale });
                    };
                block(name_a, [rank, inputs], a.offset + column * inputs, inputs, 1.0);
                block(name_b, [width, rank], b.offset + row * inner + column, inner, adapter.scale());
                column += rank;
            }
            row += width;
        }
        Some(Factors { a, b })
    }

    /// The trained tensors.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Values of all packed factors.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The greatest width of `A·x`.
    pub(super) fn inner(&self) -> usize {
        self.layers.iter().flatten().flatten().map(|factors| factors.a.outputs).max().unwrap_or(0)
    }

    /// Returns true if every width of `A·x` is a multiple of `of`.
    pub(super) fn is_multiple(&self, of: usize) -> bool {
        self.blocks.iter().all(|block| block.stride.is_multiple_of(of) && block.columns.is_multiple_of(of))
    }

    /// The packed factors of the trained values.
    pub(super) fn packed(&self, trained: &[f32]) -> Vec<f32> {
        let mut factors = vec![0.0; self.length];
        for block in &self.blocks {
            let rows = trained[block.tensor.clone()].chunks_exact(block.columns);
            for (row, values) in rows.enumerate() {
                let packed = &mut factors[block.offset + row * block.stride..][..block.columns];
                packed.iter_mut().zip(values).for_each(|(packed, &value)| *packed = block.scale * value);
            }
        }
        factors
    }

    /// Adds the gradient of the packed factors to the gradient of the trained values.
    pub(super) fn unpack_gradient(&self, factors: &[f32], trained: &mut [f32]) {
        for block in &self.blocks {
            let rows = trained[block.tensor.clone()].chunks_exact_mut(block.columns);
            for (row, values) in rows.enumerate() {
                let packed = &factors[block.offset + row * block.stride..][..block.columns];
                values.iter_mut().zip(packed).for_each(|(value, &packed)| *value += block.scale * packed);
            }
        }
    }
}

/// An adapter's buffers; empty without one.
pub(super) struct LoraBuffers<T> {
    /// [`LoraAdapter::packed`].
    pub factors: T,
    /// `A·x` and its gradient, each `[rows, width]`.
    pub inner: T,
    pub d_inner: T,
}

/// The tensors of linear layers.
pub(super) struct Operands<'a, B: Backend> {
    pub backend: &'a mut B,
    pub weights: &'a B::Buffer,
    pub lora: &'a mut LoraBuffers<B::Buffer>,
}

/// Where a backward pass accumulates the gradient: of the weights, or of an adapter's packed factors.
pub(super) struct Accumulator<'a, T> {
    pub gradients: &'a mut T,
    pub lora: bool,
}

impl<T> Accumulator<'_, T> {
    /// The gradient of the weights; `None` where they are frozen.
    pub(super) fn weights(&mut self) -> Option<&mut T> {
        (!self.lora).then_some(&mut *self.gradients)
    }
}

/// A linear layer, or several fused, with its LoRA adapter where it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    weight: Dense,
    /// Offset of the bias. The bias of queries, keys and values is added before their norm and rotation
    /// instead.
    bias: Option<usize>,
    lora: Option<Factors>,
}

impl Linear {
    pub(super) fn new(
        config: &Config,
        layout: &Layout,
        adapter: Option<&LoraAdapter>,
        layer: usize,
        fused: Fused,
    ) -> Linear {
        let targets = FUSED[fused as usize];
        let (inputs, outputs) = extent(config, targets);
        let offsets = &layout.layers[layer];
        let offset = offsets.weights[targets[0] as usize];
        let own_bias = !matches!(fused, Fused::Query | Fused::KeyValue);
        Linear {
            weight: Dense { offset, outputs, inputs },
            bias: offsets.biases[targets[0] as usize].filter(|_| own_bias),
            lora: adapter.and_then(|adapter| adapter.layers[layer][fused as usize]),
        }
    }

    /// `out = residual + x · weightᵀ + bias`, plus `(x · Aᵀ) · Bᵀ` with an adapter.
    pub(super) fn forward<B: Backend>(
        &self,
        operands: &mut Operands<B>,
        rows: usize,
        x: &B::Buffer,
        residual: Option<&B::Buffer>,
        out: &mut B::Buffer,
    ) {
        let Operands { backend, weights, lora } = operands;
        let base = backend::Linear { rows, weights: *weights, weight: self.weight };
        if let Some(Factors { a, b }) = self.lora {
            let factor = |weight| backend::Linear { rows, weights: &lora.factors, weight };
            // The small part first: where it is rounded before the sum, that costs least.
            backend.linear(&factor(a), x, None, &mut lora.inner);
            backend.linear(&factor(b), &lora.inner, residual, out);
            backend.linear_add(&base, x, out);
        } else {
            backend.linear(&base, x, residual, out);
        }
        if let Some(offset) = self.bias {
            backend::variants(*backend).add_bias(rows, self.weight.outputs, weights, offset, out);
        }
    }

    /// `d_x = d_out · weight`, or `d_x += …` if `add`, with what the adapter contributes. The gradient of `A·x` stays for
    /// [`Linear::backward_weight`].
    pub(super) fn backward_input<B: Backend>(
        &self,
        operands: &mut Operands<B>,
        rows: usize,
        d_out: &B::Buffer,
        add: bool,
        d_x: &mut B::Buffer,
    ) {
        let Operands { backend, weights, lora } = operands;
        let base = backend::Linear { rows, weights: *weights, weight: self.weight };
        backend.linear_backward_input(&base, d_out, add, d_x);
        if let Some(Factors { a, b }) = self.lora {
            let factor = |weight| backend::Linear { rows, weights: &lora.factors, weight };
            backend.linear_backward_input(&factor(b), d_out, false, &mut lora.d_inner);
            backend.linear_backward_input(&factor(a), &lora.d_inner, true, d_x);
        }
    }

    /// Adds the gradient of the trained tensors: the weight, or the factors of an adapter. Follows
    /// [`Linear::backward_input`] of the same layer.
    pub(super) fn backward_weight<B: Backend>(
        &self,
        operands: &mut Operands<B>,
        rows: usize,
        d_out: &B::Buffer,
        x: &B::Buffer,
        gradient: &mut Accumulator<B::Buffer>,
    ) {
        let Operands { backend, lora, .. } = operands;
        if let Some(gradients) = gradient.weights() {
            backend.linear_backward_weight(rows, d_out, x, gradients, self.weight);
            if let Some(offset) = self.bias {
                backend::variants(*backend).bias_backward(
                    rows,
                    self.weight.outputs,
                    d_out,
                    gradients,
                    offset,
                );
            }
        } else if let Some(Factors { a, b }) = self.lora {
            let inner = backend::Linear { rows, weights: &lora.factors, weight: a };
            backend.linear(&inner, x, None, &mut lora.inner);
            backend.linear_backward_weight(rows, d_out, &lora.inner, gradient.gradients, b);
            backend.linear_backward_weight(rows, &lora.d_inner, x, gradient.gradients, a);
        }
    }
}
