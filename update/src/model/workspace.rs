//! The buffers of one stream of work: what the forward pass saves and what both passes use in between.
//!
//! They grow to the largest micro-batch and are reused. With activation recomputation (Chen et al. 2016,
//! arXiv 1604.06174) only the input of each layer is saved, and the backward pass computes the layer again: a third more
//! work in the layers for a fraction of the memory. [`Workspace::lengths`] alone says how long each buffer is: the passes
//! reserve by it, and a device's memory is planned by it.

use super::linear::{LoraBuffers, Sizes};
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

/// Which rows have queries and an MLP in a layer: in the last one only those that are scored.
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
    /// Of an adapter.
    pub lora: LoraBuffers<T>,
}

impl<T> Workspace<T> {
    /// Which of `saved` a layer uses.
    pub(super) fn saved_index(&self, layer: usize) -> usize {
        layer.min(self.saved.len() - 1)
    }

    /// Whether another layer's forward pass has written over what was saved of this one.
    pub(super) fn is_gone(&self, layer: usize) -> bool {
        self.saved.len() == 1 && layer + 1 < self.inputs.len()
    }

    /// Buffers of the activations' type.
    pub(super) fn activations(&mut self) -> Vec<&mut T> {
        let mut all: Vec<&mut T> = Vec::new();
        for saved in &mut self.saved {
            let Saved { query, key_value, attn_out, lse: _, post_attn: _, gate_up } = saved;
            all.extend([query, key_value, attn_out, gate_up]);
        }
        all.extend([
            &mut self.normal,
            &mut self.gathered,
            &mut self.queries,
            &mut self.keys,
            &mut self.swiglu,
            &mut self.d_attn_out,
            &mut self.d_query,
            &mut self.d_key_value,
        ]);
        let LoraBuffers { factors: _, inner, d_inner } = &mut self.lora;
        all.extend([inner, d_inner]);
        all
    }

    /// Buffers that are always f32.
    pub(super) fn f32_buffers(&mut self) -> Vec<&mut T> {
        let mut all: Vec<&mut T> = self.inputs.iter_mut().collect();
        all.extend(self.saved.iter_mut().flat_map(|saved| [&mut saved.lse, &mut saved.post_attn]));
        let Workspace { output, d_stream, d_other, d_swiglu, d_queries, d_keys, .. } = self;
        all.extend([output, d_stream, d_other, d_swiglu, d_queries, d_keys]);
        all
    }

    /// Buffers that exist only where activations have fewer bits than f32, of their type.
    pub(super) fn copies(&mut self) -> Vec<&mut T> {
        vec![&mut self.d_stream_cast]
    }
}

impl Workspace<Option<usize>> {
    /// Values of each buffer for a micro-batch; `None` for those of the backward pass or of an adapter without one, and
    /// for an adapter's factors, which do not depend on it.
    pub(super) fn lengths(
        config: &Config,
        adapter: Option<Sizes>,
        counts: Counts,
        recompute: bool,
        backward: bool,
    ) -> Workspace<Option<usize>> {
        let (tokens, scored) = (counts.tokens, counts.scored);
        let (query, key) = (config.query_width(), config.key_width());
        let of_layer = |layer: usize| {
            let rows = counts.of(rows(config, layer));
            Saved {
                query: Some(rows * query),
                key_value: Some(tokens * 2 * key),
                attn_out: Some(rows * query),
                lse: Some(rows * config.num_heads),
                post_attn: Some(rows * config.hidden_size),
                gate_up: Some(rows * 2 * config.intermediate_size),
            }
        };
        // A shared one is as long as the first layer's: no other has more rows.
        let saved =
            if recompute { vec![of_layer(0)] } else { (0..config.num_layers).map(of_layer).collect() };
        let gradient = |width: usize| backward.then_some(tokens * width);
        Workspace {
            inputs: vec![Some(tokens * config.hidden_size); config.num_layers],
            saved,
            output: Some(tokens * config.hidden_size),
            normal: Some(tokens * config.hidden_size),
            gathered: Some(scored * config.hidden_size),
            queries: Some(tokens * query),
            keys: Some(tokens * key),
            swiglu: Some(tokens * config.intermediate_size),
            d_stream: gradient(config.hidden_size),
            d_stream_cast: gradient(config.hidden_size),
            d_other: gradient(config.hidden_size),
            d_swiglu: gradient(config.intermediate_size),
            d_attn_out: gradient(query),
            d_queries: gradient(query),
            d_keys: gradient(key),
            d_query: gradient(query),
            d_key_value: gradient(2 * key),
            lora: LoraBuffers {
                factors: None,
                inner: adapter.map(|sizes| tokens * sizes.inner),
                d_inner: adapter.and_then(|sizes| gradient(sizes.inner)),
            },
        }
    }
}

/// The empty buffers for a decoder of this config; `recompute` keeps nothing of a layer but its input.
pub(super) fn empty<B: Backend>(backend: &mut B, config: &Config, recompute: bool) -> Workspace<B::Buffer> {
    let saved = (0..if recompute { 1 } else { config.num_layers })
        .map(|_| Saved {
            query: backend.buffer(),
            key_value: backend.buffer(),
            attn_out: backend.buffer(),
            lse: backend.f32_buffer(),
            post_attn: backend.f32_buffer(),
            gate_up: backend.buffer(),
        })
        .collect();
    Workspace {
        inputs: (0..config.num_layers).map(|_| backend.f32_buffer()).collect(),
        saved,
        output: backend.f32_buffer(),
        normal: backend.buffer(),
        gathered: backend.buffer(),
        queries: backend.buffer(),
        keys: backend.buffer(),
        swiglu: backend.buffer(),
        d_stream: backend.f32_buffer(),
        d_stream_cast: backend.buffer(),
        d_other: backend.f32_buffer(),
        d_swiglu: backend.f32_buffer(),
        d_attn_out: backend.buffer(),
        d_queries: backend.f32_buffer(),
        d_keys: backend.f32_buffer(),
        d_query: backend.buffer(),
        d_key_value: backend.buffer(),
        lora: LoraBuffers { factors: backend.buffer(), inner: backend.buffer(), d_inner: backend.buffer() },
    }
}

/// Grows every buffer to what a micro-batch needs.
pub(super) fn reserve<B: Backend>(
    backend: &mut B,
    space: &mut Workspace<B::Buffer>,
    (config, adapter): (&Config, Option<Sizes>),
    counts: Counts,
    backward: bool,
) {
    let recompute = space.saved.len() < config.num_layers;
    let mut lengths = Workspace::lengths(config, adapter, counts, recompute, backward);
    let mut grow = |buffer: &mut B::Buffer, length: &mut Option<usize>| {
        if let Some(length) = *length {
            backend.reserve(buffer, length);
        }
    };
    for (buffer, length) in space.activations().into_iter().zip(lengths.activations()) {
        grow(buffer, length);
    }
    for (buffer, length) in space.f32_buffers().into_iter().zip(lengths.f32_buffers()) {
        grow(buffer, length);
    }
    if B::LOW_PRECISION {
        for (buffer, length) in space.copies().into_iter().zip(lengths.copies()) {
            grow(buffer, length);
        }
    }
}

/// Values kept for each token and layer, for sizing micro-batches.
pub(super) fn saved_values(config: &Config) -> usize {
    config.num_layers
        * (2 * config.hidden_size
            + 2 * config.query_width()
            + 2 * config.key_width()
            + config.num_heads
            + 2 * config.intermediate_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use policy::config::RopeScaling;
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
            window: None,
            dtype: ElementType::F32,
        };
        let mut backend = Cpu::new(&config.inverse_frequencies());
        let mut space = empty(&mut backend, &config, false);
        reserve(&mut backend, &mut space, (&config, None), Counts { tokens: 11, scored: 6 }, true);
        assert_eq!((space.saved[0].gate_up.len(), space.saved[1].gate_up.len()), (110, 60));
        assert_eq!((space.saved[0].lse.len(), space.saved[1].key_value.len()), (44, 88));
        assert_eq!((space.d_key_value.len(), space.output.len()), (88, 33));
        assert_eq!((space.gathered.len(), space.d_stream.len(), space.d_stream_cast.len()), (18, 33, 0));
    }
}
