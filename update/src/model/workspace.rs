//! The buffers of one stream of work: what the forward pass saves and what both passes use in between.
//!
//! They grow to the largest micro-batch and are reused. With activation recomputation (Chen et al. 2016,
//! arXiv 1604.06174) only the input of each layer is saved, and the backward pass computes the layer again: a third more
//! work in the layers for a fraction of the memory. [`Batch::workspace`] alone says how long each buffer is: the passes
//! reserve by it, and a device's memory is planned by it.

use super::linear::{LoraAdapter, LoraBuffers};
use crate::backend::{Backend, Rows};
use policy::config::Config;

/// Numbers of rows in a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub tokens: usize,
    pub scored: usize,
}

impl Counts {
    pub(super) fn of(self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.tokens,
            Rows::Scored => self.scored,
        }
    }
}

/// The rows that have queries and an MLP in a layer: in the last layer only the scored ones.
pub(super) fn rows(config: &Config, layer: usize) -> Rows {
    if layer + 1 == config.num_layers { Rows::Scored } else { Rows::All }
}

/// What the backward pass needs of one layer.
pub(super) struct Saved<T> {
    /// Query projection, `[rows, query width]`.
    pub query: T,
    /// Key and value projection, `[tokens, 2 * key width]`.
    pub key_value: T,
    /// Attention's output, `[rows, query width]`.
    pub attn_out: T,
    /// Log-sum-exp of the attention scores, `[rows, heads]`.
    pub lse: T,
    /// Residual stream after attention, `[rows, hidden]`.
    pub post_attn: T,
    /// Gate and up projections, `[rows, 2 * intermediate]`.
    pub gate_up: T,
    /// Outputs of attention and of the MLP before their norms, `[rows, hidden]` each, where they have norms.
    pub branches: [T; 2],
}

/// The buffers of one stream of work, kept from one micro-batch to the next; or something of each of them.
pub(super) struct Workspace<T> {
    /// Residual stream that enters each layer, `[tokens, hidden]`.
    pub inputs: Vec<T>,
    /// One for each layer; or one for all, to be computed again.
    pub saved: Vec<Saved<T>>,
    /// Residual stream that leaves the last layer, `[scored, hidden]`; before, what enters its second half, and in the
    /// backward pass room for the stream's gradient, `[tokens, hidden]`.
    pub output: T,
    /// A normalized residual stream, `[tokens, hidden]`.
    pub normal: T,
    /// The rows of something that the last layer uses, `[scored, hidden]`.
    pub gathered: T,
    /// Queries and keys after RoPE.
    pub queries: T,
    pub keys: T,
    /// Output of the SwiGLU, `[rows, intermediate]`.
    pub swiglu: T,
    /// Gradients of the residual stream, of something as wide, and of the widest.
    pub d_stream: T,
    /// The first as products read it, where that is another.
    pub d_stream_cast: T,
    pub d_other: T,
    pub d_swiglu: T,
    pub d_attn_out: T,
    pub d_queries: T,
    pub d_keys: T,
    pub d_query: T,
    pub d_key_value: T,
    /// Buffers of an adapter.
    pub lora: LoraBuffers<T>,
}

impl<T> Workspace<T> {
    /// Index in `saved` of a layer's buffers.
    pub(super) fn saved_index(&self, layer: usize) -> usize {
        layer.min(self.saved.len() - 1)
    }

    /// Returns true if another layer's forward pass has overwritten this layer's saved activations.
    pub(super) fn is_gone(&self, layer: usize) -> bool {
        self.saved.len() == 1 && layer + 1 < self.inputs.len()
    }

    /// Every buffer, always in the same order.
    pub(super) fn all(&mut self) -> Vec<&mut T> {
        let mut all: Vec<&mut T> = self.inputs.iter_mut().collect();
        for Saved { query, key_value, attn_out, lse, post_attn, gate_up, branches } in &mut self.saved {
            all.extend([query, key_value, attn_out, lse, post_attn, gate_up]);
            all.extend(branches);
        }
        all.extend([&mut self.output, &mut self.normal, &mut self.gathered]);
        all.extend([&mut self.queries, &mut self.keys, &mut self.swiglu]);
        all.extend([&mut self.d_stream, &mut self.d_stream_cast, &mut self.d_other]);
        all.extend([&mut self.d_swiglu, &mut self.d_attn_out, &mut self.d_queries, &mut self.d_keys]);
        all.extend([&mut self.d_query, &mut self.d_key_value]);
        all.extend([&mut self.lora.factors, &mut self.lora.inner, &mut self.lora.d_inner]);
        all
    }
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Values of the activations' type.
    Activations,
    /// Values that are f32 whatever activations are.
    F32,
    /// The rounding of f32 values: unused where activations are f32.
    Rounded,
}

/// The largest micro-batch that buffers are for.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub config: &'a Config,
    pub adapter: Option<&'a LoraAdapter>,
    pub counts: Counts,
    /// True if only the input of each layer is saved.
    pub recompute: bool,
    pub backward: bool,
}

impl Batch<'_> {
    /// Makes a workspace of each buffer's kind and number of values. 0: no buffer, without a backward pass or an adapter; or
    /// an adapter's factors, whose length does not depend on the micro-batch.
    pub(super) fn workspace<T>(self, mut make: impl FnMut(Kind, usize) -> T) -> Workspace<T> {
        use Kind::{Activations, F32, Rounded};
        let Batch { config, adapter, counts: Counts { tokens, scored }, recompute, backward } = self;
        let (hidden, intermediate) = (config.hidden_size, mlp_width(config));
        let (query, key) = (config.query_width(), config.key_width());
        let inner = adapter.map_or(0, LoraAdapter::inner);
        let branch = if config.variant.post_norms { hidden } else { 0 };
        let gradient = |width: usize| if backward { tokens * width } else { 0 };
        // Where layers share one, it is as long as the first layer's: no other has more rows.
        let saved = 0..if recompute { 1 } else { config.num_layers };
        Workspace {
            inputs: (0..config.num_layers).map(|_| make(F32, tokens * hidden)).collect(),
            saved: saved
                .map(|layer| {
                    let rows = self.counts.of(rows(config, layer));
                    Saved {
                        query: make(Activations, rows * query),
                        key_value: make(Activations, tokens * 2 * key),
                        attn_out: make(Activations, rows * query),
                        lse: make(F32, rows * config.num_heads),
                        post_attn: make(F32, rows * hidden),
                        gate_up: make(Activations, rows * 2 * intermediate),
                        branches: [(); 2].map(|()| make(F32, branch * rows)),
                    }
                })
                .collect(),
            output: make(F32, tokens * hidden),
            normal: make(Activations, tokens * hidden),
            gathered: make(Activations, scored * hidden),
            queries: make(Activations, tokens * query),
            keys: make(Activations, tokens * key),
            swiglu: make(Activations, tokens * intermediate),
            d_stream: make(F32, gradient(hidden)),
            d_stream_cast: make(Rounded, gradient(hidden)),
            d_other: make(F32, gradient(hidden)),
            d_swiglu: make(F32, gradient(intermediate)),
            d_attn_out: make(Activations, gradient(query)),
            d_queries: make(F32, gradient(query)),
            d_keys: make(F32, gradient(key)),
            d_query: make(Activations, gradient(query)),
            d_key_value: make(Activations, gradient(2 * key)),
            lora: LoraBuffers {
                factors: make(Activations, 0),
                inner: make(Activations, tokens * inner),
                d_inner: make(Activations, gradient(inner)),
            },
        }
    }

    /// Grows every buffer to what this micro-batch needs.
    pub(super) fn reserve<B: Backend>(self, backend: &mut B, space: &mut Workspace<B::Buffer>) {
        let recompute = space.saved.len() < self.config.num_layers;
        let mut sizes = Batch { recompute, ..self }.workspace(|kind, length| (kind, length));
        for (buffer, (kind, length)) in space.all().into_iter().zip(sizes.all()) {
            if *length > 0 && (B::LOW_PRECISION || *kind != Kind::Rounded) {
                backend.reserve(buffer, *length);
            }
        }
    }
}

/// The empty buffers for a decoder of this config; `recompute` keeps nothing of a layer but its input.
pub(super) fn empty<B: Backend>(backend: &mut B, config: &Config, recompute: bool) -> Workspace<B::Buffer> {
    let counts = Counts { tokens: 0, scored: 0 };
    Batch { config, adapter: None, counts, recompute, backward: false }.workspace(|kind, _| match kind {
        Kind::F32 => backend.f32_buffer(),
        Kind::Activations | Kind::Rounded => backend.buffer(),
    })
}

/// Values kept for each token and layer, for sizing micro-batches.
pub(super) fn saved_values(config: &Config) -> usize {
    config.num_layers
        * ((if config.variant.post_norms { 4 } else { 2 }) * config.hidden_size
            + 2 * config.query_width()
            + 2 * config.key_width()
            + config.num_heads
            + 2 * mlp_width(config))
}

/// Width of the MLPs; 0 where every layer has experts, of which nothing is kept.
fn mlp_width(config: &Config) -> usize {
    if config.has_mlp() { config.intermediate_size } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use policy::config::Variant;
    use policy::rope::RopeScaling;
    use policy::weights::ElementType;

    #[test]
    fn lengths_are_zipped_with_the_buffers_they_are_of() {
        let config = Config {
            family: "test",
            hidden_size: 3,
            intermediate_size: 5,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 2,
            vocab_size: 7,
            rms_norm_eps: 1e-6,
            rope_theta: 1e3,
            rope_scaling: RopeScaling::None,
            tie_word_embeddings: false,
            qk_norm: false,
            attention_bias: false,
            rope_layers: vec![true; 2],
            max_positions: 4096,
            variant: Variant::default(),
            dtype: ElementType::F32,
        };
        let mut backend = Cpu::new(&config.inverse_frequencies());
        let mut space = empty(&mut backend, &config, false);
        let counts = Counts { tokens: 11, scored: 6 };
        let batch = Batch { config: &config, adapter: None, counts, recompute: false, backward: true };
        batch.reserve(&mut backend, &mut space);
        assert_eq!((space.saved[0].gate_up.len(), space.saved[1].gate_up.len()), (110, 60));
        assert_eq!((space.saved[0].lse.len(), space.saved[1].key_value.len()), (44, 88));
        assert_eq!((space.d_key_value.len(), space.output.len()), (88, 33));
        assert_eq!((space.gathered.len(), space.d_stream.len(), space.d_stream_cast.len()), (18, 33, 0));
    }
}
