//! The memory of one stream of work: what the forward pass keeps and what both passes use in between.
//!
//! Buffers grow to the largest micro-batch and are kept from one to the next. Where memory is short only the input
//! of each layer is kept, and the backward pass computes a layer again before it differentiates it (Chen et al.
//! 2016, arXiv 1604.06174): a third more work in the layers for a fraction of the memory.

use super::Shape;
use crate::backend::Backend;

/// What the backward pass needs of one layer.
pub(super) struct Saved<B: Backend> {
    /// Query projection, `[rows, query width]`.
    pub query: B::Buffer,
    /// Key and value projection, `[tokens, 2 * key width]`.
    pub key_value: B::Buffer,
    /// Attention's output, `[rows, query width]`.
    pub mixed: B::Buffer,
    /// Log-sum-exp of the attention scores, `[rows, heads]`.
    pub normalizers: B::Buffer,
    /// Residual stream after attention, `[rows, hidden]`.
    pub middle: B::Buffer,
    /// Gate and up projections, `[rows, 2 * intermediate]`.
    pub gate_up: B::Buffer,
}

/// The buffers of one stream of work, kept from one micro-batch to the next.
pub(super) struct Workspace<B: Backend> {
    /// Residual stream that enters each layer, `[tokens, hidden]`.
    pub inputs: Vec<B::Buffer>,
    /// One for each layer; or one for all, to be computed again.
    pub saved: Vec<Saved<B>>,
    /// Residual stream that leaves the last layer, `[scored, hidden]`.
    pub output: B::Buffer,
    /// A normalised residual stream, `[tokens, hidden]`.
    pub normal: B::Buffer,
    /// The rows of something that the last layer uses, `[scored, hidden]`.
    pub picked: B::Buffer,
    /// Rotated queries and keys.
    pub queries: B::Buffer,
    pub keys: B::Buffer,
    /// Output of the SwiGLU, `[rows, intermediate]`.
    pub swiglu: B::Buffer,
    /// Gradients of the residual stream, of something as wide, and of the widest.
    pub d_stream: B::Buffer,
    pub d_other: B::Buffer,
    pub d_swiglu: B::Buffer,
    pub d_mixed: B::Buffer,
    pub d_queries: B::Buffer,
    pub d_keys: B::Buffer,
    pub d_query: B::Buffer,
    pub d_key_value: B::Buffer,
}

impl<B: Backend> Workspace<B> {
    /// The buffers for a decoder of this shape; `recompute` keeps nothing of a layer but its input.
    pub(super) fn new(backend: &mut B, shape: &Shape, recompute: bool) -> Workspace<B> {
        let saved = (0..if recompute { 1 } else { shape.layers })
            .map(|_| Saved {
                query: backend.buffer(),
                key_value: backend.buffer(),
                mixed: backend.buffer(),
                normalizers: backend.statistics(),
                middle: backend.buffer(),
                gate_up: backend.buffer(),
            })
            .collect();
        Workspace {
            inputs: (0..shape.layers).map(|_| backend.buffer()).collect(),
            saved,
            output: backend.buffer(),
            normal: backend.buffer(),
            picked: backend.buffer(),
            queries: backend.buffer(),
            keys: backend.buffer(),
            swiglu: backend.buffer(),
            d_stream: backend.buffer(),
            d_other: backend.buffer(),
            d_swiglu: backend.buffer(),
            d_mixed: backend.buffer(),
            d_queries: backend.buffer(),
            d_keys: backend.buffer(),
            d_query: backend.buffer(),
            d_key_value: backend.buffer(),
        }
    }
}

impl<B: Backend> Workspace<B> {
    /// Which of the saved a layer uses.
    pub(super) fn place(&self, layer: usize) -> usize {
        layer.min(self.saved.len() - 1)
    }

    /// Whether another layer's forward pass has written over what was saved of this one.
    pub(super) fn is_gone(&self, layer: usize) -> bool {
        self.saved.len() == 1 && layer + 1 < self.inputs.len()
    }
}

/// Values kept for each token and layer, for sizing micro-batches.
pub(super) fn saved_values(shape: &Shape) -> usize {
    shape.layers
        * (2 * shape.hidden + shape.qkv_width() + shape.query_width() + shape.heads + 2 * shape.intermediate)
}

/// Values in use beside those kept, for each token.
pub(super) fn working_values(shape: &Shape) -> usize {
    5 * shape.hidden + 4 * shape.query_width() + 4 * shape.key_width() + 2 * shape.intermediate
}
