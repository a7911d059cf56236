//! Low-rank adapters in training (LoRA, arXiv 2106.09685): a projection becomes `W·x + scale · B·(A·x)` and only A and B
//! move.
//!
//! Projections that the passes compute as one (keys and values, gate and up) are adapted as one: their A stand on top of
//! each other, their B on the diagonal of a matrix that is zero elsewhere, with the scale already in it. These factors
//! are made from the trained tensors before a pass and undone for their gradient after it, so the passes need nothing of
//! a backend but its products.
//! Left out: dropout between A and x. Rollout and update have to agree on every log-probability.

use super::{Entry, Layout, Shape};
use crate::backend::{Backend, Dense, Linear};
use policy::adapter::{Adapter, Target};
use std::ops::Range;
use std::sync::Arc;

/// The two factors of one adapted projection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    a: Dense,
    b: Dense,
}

/// The adapted projections of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sites {
    pub query: Option<Site>,
    pub key_value: Option<Site>,
    pub output: Option<Site>,
    pub gate_up: Option<Site>,
    pub down: Option<Site>,
}

/// Where a trained tensor stands among the factors: row by row, `stride` values apart.
#[derive(Clone, Debug)]
struct Piece {
    tensor: Range<usize>,
    columns: usize,
    at: usize,
    stride: usize,
    factor: f32,
}

/// An adapter of one shape of decoder.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// The trained tensors, by PEFT's names.
    layout: Arc<Layout>,
    layers: Vec<Sites>,
    pieces: Vec<Piece>,
    length: usize,
}

impl LowRank {
    /// The adapter over a decoder of this shape.
    pub fn new(adapter: &Adapter, shape: &Shape) -> LowRank {
        let mut made = LowRank {
            layout: Arc::new(Layout::of(Vec::new())),
            layers: Vec::new(),
            pieces: Vec::new(),
            length: 0,
        };
        let mut entries = Vec::new();
        let (hidden, queries, keys) = (shape.hidden, shape.query_width(), shape.key_width());
        for layer in 0..shape.layers {
            let mut site = |inputs: usize, parts: &[(Target, usize)]| {
                made.site(&mut entries, adapter, layer, inputs, parts)
            };
            let sites = Sites {
                query: site(hidden, &[(Target::Query, queries)]),
                key_value: site(hidden, &[(Target::Key, keys), (Target::Value, keys)]),
                output: site(queries, &[(Target::Output, hidden)]),
                gate_up: site(
                    hidden,
                    &[(Target::Gate, shape.intermediate), (Target::Up, shape.intermediate)],
                ),
                down: site(shape.intermediate, &[(Target::Down, hidden)]),
            };
            made.layers.push(sites);
        }
        made.layout = Arc::new(Layout::of(entries));
        made
    }

    /// Adds a projection of which some parts, of these widths, are adapted.
    fn site(
        &mut self,
        entries: &mut Vec<Entry>,
        adapter: &Adapter,
        layer: usize,
        inputs: usize,
        parts: &[(Target, usize)],
    ) -> Option<Site> {
        let rank = adapter.rank;
        let adapted = parts.iter().filter(|(target, _)| adapter.targets.contains(target)).count();
        if adapted == 0 {
            return None;
        }
        let inner = adapted * rank;
        let outputs = parts.iter().map(|(_, width)| width).sum();
        let a = Dense { offset: self.length, outputs: inner, inputs };
        let b = Dense { offset: self.length + inner * inputs, outputs, inputs: inner };
        self.length += inner * (inputs + outputs);
        let (mut place, mut row) = (0, 0);
        for &(target, width) in parts {
            if adapter.targets.contains(&target) {
                let [name_a, name_b] = Adapter::names(layer, target);
                let mut add = |name: String, shape: [usize; 2], at: usize, stride: usize, factor: f32| {
                    let start = entries.last().map_or(0, |entry: &Entry| entry.range.end);
                    let tensor = start..start + shape[0] * shape[1];
                    entries.push(Entry { name, shape: shape.to_vec(), range: tensor.clone() });
                    self.pieces.push(Piece { tensor, columns: shape[1], at, stride, factor });
                };
                add(name_a, [rank, inputs], a.offset + place * rank * inputs, inputs, 1.0);
                add(name_b, [width, rank], b.offset + row * inner + place * rank, inner, adapter.scale());
                place += 1;
            }
            row += width;
        }
        Some(Site { a, b })
    }

    /// The trained tensors.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The adapted projections of a layer.
    pub(super) fn sites(&self, layer: usize) -> Sites {
        self.layers[layer]
    }

    /// How much room it takes.
    pub(super) fn sizes(&self) -> Sizes {
        let all = |sites: &Sites| [sites.query, sites.key_value, sites.output, sites.gate_up, sites.down];
        let inner = self.layers.iter().flat_map(all).flatten().map(|site| site.a.outputs).max();
        Sizes { values: self.length, inner: inner.unwrap_or(0) }
    }

    /// Values of all factors.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Whether every width of `A·x` is a multiple of `of`.
    pub(super) fn is_multiple(&self, of: usize) -> bool {
        self.pieces.iter().all(|piece| piece.stride.is_multiple_of(of) && piece.columns.is_multiple_of(of))
    }

    /// The factors as the passes need them.
    pub(super) fn arrange(&self, trained: &[f32]) -> Vec<f32> {
        let mut factors = vec![0.0; self.length];
        for piece in &self.pieces {
            let rows = trained[piece.tensor.clone()].chunks_exact(piece.columns);
            for (row, values) in rows.enumerate() {
                let place = &mut factors[piece.at + row * piece.stride..][..piece.columns];
                place.iter_mut().zip(values).for_each(|(place, &value)| *place = piece.factor * value);
            }
        }
        factors
    }

    /// Adds the gradient of the factors to that of the trained values.
    pub(super) fn collect(&self, factors: &[f32], trained: &mut [f32]) {
        for piece in &self.pieces {
            let rows = trained[piece.tensor.clone()].chunks_exact_mut(piece.columns);
            for (row, values) in rows.enumerate() {
                let place = &factors[piece.at + row * piece.stride..][..piece.columns];
                values.iter_mut().zip(place).for_each(|(value, &place)| *value += piece.factor * place);
            }
        }
    }
}

/// What an adapter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Values of all factors.
    pub values: usize,
    /// The greatest width of `A·x`.
    pub inner: usize,
}

/// What the passes need to run an adapter, beside the buffers of the decoder itself.
pub(super) struct Adapted<T> {
    /// [`LowRank::arrange`]d.
    pub factors: T,
    /// `A·x` and its gradient, each `[rows, width]`.
    pub inner: T,
    pub d_inner: T,
}

impl<T> Adapted<T> {
    /// `out = residual + x · weightᵀ + (x · Aᵀ) · Bᵀ`, the last where there is a site.
    pub(super) fn linear<B: Backend<Buffer = T>>(
        &mut self,
        backend: &mut B,
        site: Option<Site>,
        linear: &Linear<'_, T>,
        x: &T,
        residual: Option<&T>,
        out: &mut T,
    ) {
        let Some(Site { a, b }) = site else {
            return backend.linear(linear, x, residual, out);
        };
        let factor = |weight| Linear { rows: linear.rows, weights: &self.factors, weight };
        // The small part first: where it is rounded before the sum, that costs least.
        backend.linear(&factor(a), x, None, &mut self.inner);
        backend.linear(&factor(b), &self.inner, residual, out);
        backend.linear_add(linear, x, out);
    }

    /// First of the backward pass of a site: the gradient of `A·x`, which the other two use.
    pub(super) fn begin<B: Backend<Buffer = T>>(
        &mut self,
        backend: &mut B,
        site: Option<Site>,
        rows: usize,
        d_out: &T,
    ) {
        if let Some(Site { b, .. }) = site {
            let linear = Linear { rows, weights: &self.factors, weight: b };
            backend.linear_backward_input(&linear, d_out, false, &mut self.d_inner);
        }
    }

    /// Adds the gradients of the factors.
    pub(super) fn weights<B: Backend<Buffer = T>>(
        &mut self,
        backend: &mut B,
        site: Option<Site>,
        rows: usize,
        (d_out, x): (&T, &T),
        gradients: Option<&mut T>,
    ) {
        if let (Some(Site { a, b }), Some(gradients)) = (site, gradients) {
            let linear = Linear { rows, weights: &self.factors, weight: a };
            backend.linear(&linear, x, None, &mut self.inner);
            backend.linear_backward_weight(rows, d_out, &self.inner, gradients, b);
            backend.linear_backward_weight(rows, &self.d_inner, x, gradients, a);
        }
    }

    /// Adds what the site gives to the gradient of `x`.
    pub(super) fn input<B: Backend<Buffer = T>>(
        &mut self,
        backend: &mut B,
        site: Option<Site>,
        rows: usize,
        d_x: &mut T,
    ) {
        if let Some(Site { a, .. }) = site {
            let linear = Linear { rows, weights: &self.factors, weight: a };
            backend.linear_backward_input(&linear, &self.d_inner, true, d_x);
        }
    }
}
