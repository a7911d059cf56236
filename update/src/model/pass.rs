//! One micro-batch through the decoder, forward and back.
//!
//! Kept from the forward pass are, for each layer, the residual stream before and between its two halves, the
//! raw projections, the attention's output and its log-sum-exp; norms, rotations and the SwiGLU's output are
//! cheap and computed again. In the last layer only the scored nodes have queries, attention and an MLP: the
//! others serve as keys and values alone, exactly as their results would never be read.

use super::adapter::{LowRank, Sites};
use super::workspace::{Counts, Workspace, make_room, rows};
use super::{Layout, Shape};
use crate::backend::{
    Attention, AttentionGradients, AttentionOutput, Backend, Dense, Heads, Linear, LmHead, MicroBatch,
    QkNormRope, RmsNorm, Rows,
};

/// The decoder as the passes see it.
pub(super) struct Decoder<'a> {
    shape: &'a Shape,
    layout: &'a Layout,
    temperature: f32,
    adapter: Option<&'a LowRank>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(shape: &'a Shape, layout: &'a Layout, temperature: f32) -> Decoder<'a> {
        Decoder { shape, layout, temperature, adapter: None }
    }

    /// The same with an adapter, whose factors are in the workspace. The weights are then frozen.
    pub(super) fn adapted(self, adapter: Option<&'a LowRank>) -> Decoder<'a> {
        Decoder { adapter, ..self }
    }

    fn sites(&self, layer: usize) -> Sites {
        self.adapter.map_or_else(Sites::default, |adapter| adapter.sites(layer))
    }

    /// A gradient as that of the weights, or of an adapter's factors.
    fn divided<'g, T>(&self, gradients: &'g mut T) -> (Option<&'g mut T>, Option<&'g mut T>) {
        if self.adapter.is_some() { (None, Some(gradients)) } else { (Some(gradients), None) }
    }

    fn heads(&self) -> Heads {
        Heads { queries: self.shape.heads, keys: self.shape.kv_heads, width: self.shape.head_dim }
    }

    fn lm_head<'b, T>(&self, hidden: &'b T, weights: &'b T) -> LmHead<'b, T> {
        let (outputs, inputs) = (self.shape.vocabulary, self.shape.hidden);
        let weight = Dense { offset: self.layout.head, outputs, inputs };
        LmHead { hidden, weights, weight, temperature: self.temperature }
    }

    fn norm<'b, T>(&self, rows: usize, x: &'b T, weights: &'b T, offset: usize) -> RmsNorm<'b, T> {
        RmsNorm { rows, width: self.shape.hidden, x, weights, offset, epsilon: self.shape.epsilon }
    }

    fn table(&self) -> Dense {
        Dense { offset: self.layout.embedding, outputs: self.shape.vocabulary, inputs: self.shape.hidden }
    }

    fn query<'b, T>(&self, layer: usize, weights: &'b T) -> (Dense, QkNormRope<'b, T>) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let stride = shape.query_width();
        let op = QkNormRope {
            rows: rows(shape, layer),
            weights,
            heads: shape.heads,
            width: shape.head_dim,
            stride,
            bias: shape.attention_bias.then_some(places.qkv_bias),
            norm: shape.qk_norm.then_some(places.query_norm),
            epsilon: shape.epsilon,
            rope: true,
        };
        (Dense { offset: places.qkv, outputs: stride, inputs: shape.hidden }, op)
    }

    fn key_value<'b, T>(&self, layer: usize, weights: &'b T) -> (Dense, QkNormRope<'b, T>) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let (queries, stride) = (shape.query_width(), 2 * shape.key_width());
        let op = QkNormRope {
            rows: Rows::All,
            weights,
            heads: shape.kv_heads,
            width: shape.head_dim,
            stride,
            bias: shape.attention_bias.then_some(places.qkv_bias + queries),
            norm: shape.qk_norm.then_some(places.key_norm),
            epsilon: shape.epsilon,
            rope: true,
        };
        let offset = places.qkv + queries * shape.hidden;
        (Dense { offset, outputs: stride, inputs: shape.hidden }, op)
    }

    fn output(&self, layer: usize) -> Dense {
        let offset = self.layout.layers[layer].output;
        Dense { offset, outputs: self.shape.hidden, inputs: self.shape.query_width() }
    }

    fn gate_up(&self, layer: usize) -> Dense {
        let offset = self.layout.layers[layer].gate_up;
        Dense { offset, outputs: 2 * self.shape.intermediate, inputs: self.shape.hidden }
    }

    fn down(&self, layer: usize) -> Dense {
        let offset = self.layout.layers[layer].down;
        Dense { offset, outputs: self.shape.hidden, inputs: self.shape.intermediate }
    }

    /// Scores the loss rows of a micro-batch. Returns it, prepared, for [`Decoder::backward`].
    pub(super) fn forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        batch: MicroBatch,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) -> Prepared<B> {
        let shape = self.shape;
        let counts = Counts { tokens: batch.tokens(), scored: batch.scored.len() };
        let prepared = Prepared { batch: backend.prepare(batch), counts };
        make_room(backend, space, (shape, self.adapter.map(LowRank::sizes)), counts, false);
        backend.embed(&prepared.batch, weights, self.table(), &mut space.inputs[0]);
        for layer in 0..shape.layers {
            self.layer_forward(backend, space, weights, &prepared, layer);
            let count = counts.of(rows(shape, layer));
            let saved = &space.saved[space.place(layer)];
            backend.swiglu(count, shape.intermediate, &saved.gate_up, &mut space.swiglu);
            let next = space.inputs.get_mut(layer + 1).unwrap_or(&mut space.output);
            let (site, adapted) = (self.sites(layer).down, &mut space.adapted);
            let (weight, residual) = (self.down(layer), Some(&saved.post_attn));
            adapted.linear(
                backend,
                site,
                &Linear { rows: count, weights, weight },
                &space.swiglu,
                residual,
                next,
            );
        }
        let norm = self.layout.final_norm;
        let norm = self.norm(counts.scored, &space.output, weights, norm);
        backend.rms_norm(&norm, &mut space.gathered);
        backend.score(&prepared.batch, &self.lm_head(&space.gathered, weights), logprobs, entropies);
        prepared
    }

    /// From a layer's input to what the backward pass needs of the layer.
    fn layer_forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        layer: usize,
    ) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let hidden = shape.hidden;
        let Prepared { batch, counts } = prepared;
        let (tokens, rows) = (counts.tokens, rows(shape, layer));
        let count = counts.of(rows);
        let place = space.place(layer);
        let (input, saved) = (&space.inputs[layer], &mut space.saved[place]);
        let (sites, adapted) = (self.sites(layer), &mut space.adapted);
        let norm = self.norm(tokens, input, weights, places.input_norm);
        backend.rms_norm(&norm, &mut space.normal);
        let (weight, op) = self.key_value(layer, weights);
        let out = &mut saved.key_value;
        adapted.linear(
            backend,
            sites.key_value,
            &Linear { rows: tokens, weights, weight },
            &space.normal,
            None,
            out,
        );
        backend.qk_norm_rope(batch, &op, &mut saved.key_value, &mut space.keys);
        let (weight, op) = self.query(layer, weights);
        let x = match rows {
            Rows::All => &space.normal,
            Rows::Scored => {
                backend.gather(batch, hidden, &space.normal, &mut space.gathered);
                &space.gathered
            }
        };
        adapted.linear(
            backend,
            sites.query,
            &Linear { rows: count, weights, weight },
            x,
            None,
            &mut saved.query,
        );
        backend.qk_norm_rope(batch, &op, &mut saved.query, &mut space.queries);
        let (queries, keys, key_value) = (&space.queries, &space.keys, &saved.key_value);
        let op = Attention { rows, heads: self.heads(), queries, keys, key_value };
        backend.attention(batch, &op, &mut saved.attn_out, &mut saved.lse);
        let residual = match rows {
            Rows::All => input,
            Rows::Scored => {
                backend.gather(batch, hidden, input, &mut space.output);
                &space.output
            }
        };
        let weight = self.output(layer);
        let (x, out) = (&saved.attn_out, &mut saved.post_attn);
        adapted.linear(
            backend,
            sites.output,
            &Linear { rows: count, weights, weight },
            x,
            Some(residual),
            out,
        );
        let norm = self.norm(count, &saved.post_attn, weights, places.post_norm);
        backend.rms_norm(&norm, &mut space.normal);
        let (weight, out) = (self.gate_up(layer), &mut saved.gate_up);
        adapted.linear(
            backend,
            sites.gate_up,
            &Linear { rows: count, weights, weight },
            &space.normal,
            None,
            out,
        );
    }

    /// Adds the gradient of the micro-batch that [`Decoder::forward`] saw last: that of the weights, or of the adapter's
    /// factors, and then nothing is computed for the weights.
    pub(super) fn backward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        d_logprobs: &[f32],
        all: &mut B::Buffer,
    ) {
        let shape = self.shape;
        let hidden = shape.hidden;
        let Prepared { batch, counts } = prepared;
        make_room(backend, space, (shape, self.adapter.map(LowRank::sizes)), *counts, true);
        let (mut gradients, _) = self.divided(&mut *all);
        let head = self.lm_head(&space.gathered, weights);
        backend.score_backward(batch, &head, d_logprobs, &mut space.d_other, gradients.as_deref_mut());
        backend.zero(counts.scored * hidden, &mut space.d_stream);
        let norm = self.norm(counts.scored, &space.output, weights, self.layout.final_norm);
        backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradients);
        for layer in (0..shape.layers).rev() {
            if space.is_gone(layer) {
                self.layer_forward(backend, space, weights, prepared, layer);
            }
            self.layer_backward(backend, space, weights, prepared, layer, all);
        }
        if let (Some(gradients), _) = self.divided(all) {
            backend.embed_backward(batch, &space.d_stream, gradients, self.table());
        }
    }

    /// Takes `d_stream` from the output of a layer to its input.
    fn layer_backward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        layer: usize,
        gradients: &mut B::Buffer,
    ) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let hidden = shape.hidden;
        let Prepared { batch, counts } = prepared;
        let (tokens, rows) = (counts.tokens, rows(shape, layer));
        let count = counts.of(rows);
        let place = space.place(layer);
        let (input, saved) = (&space.inputs[layer], &mut space.saved[place]);
        let (sites, adapted) = (self.sites(layer), &mut space.adapted);
        let (mut gradients, mut factors) = self.divided(gradients);

        // The MLP.
        let weight = self.down(layer);
        let d_stream = backend.cast_for_gemm(count * hidden, &space.d_stream, &mut space.d_rounded);
        let linear = Linear { rows: count, weights, weight };
        backend.linear_backward_input(&linear, d_stream, false, &mut space.d_swiglu);
        adapted.begin(backend, sites.down, count, d_stream);
        adapted.input(backend, sites.down, count, &mut space.d_swiglu);
        backend.swiglu_backward(
            count,
            shape.intermediate,
            &mut saved.gate_up,
            &space.d_swiglu,
            &mut space.swiglu,
        );
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(count, d_stream, &space.swiglu, gradients, weight);
        }
        let pair = (d_stream, &space.swiglu);
        adapted.weights(backend, sites.down, count, pair, factors.as_deref_mut());
        let weight = self.gate_up(layer);
        let norm = self.norm(count, &saved.post_attn, weights, places.post_norm);
        backend.rms_norm(&norm, &mut space.normal);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(count, &saved.gate_up, &space.normal, gradients, weight);
        }
        let linear = Linear { rows: count, weights, weight };
        backend.linear_backward_input(&linear, &saved.gate_up, false, &mut space.d_other);
        adapted.begin(backend, sites.gate_up, count, &saved.gate_up);
        let pair = (&saved.gate_up, &space.normal);
        adapted.weights(backend, sites.gate_up, count, pair, factors.as_deref_mut());
        adapted.input(backend, sites.gate_up, count, &mut space.d_other);
        backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradients.as_deref_mut());

        // Attention.
        let weight = self.output(layer);
        let d_stream = backend.cast_for_gemm(count * hidden, &space.d_stream, &mut space.d_rounded);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(count, d_stream, &saved.attn_out, gradients, weight);
        }
        let linear = Linear { rows: count, weights, weight };
        backend.linear_backward_input(&linear, d_stream, false, &mut space.d_attn_out);
        adapted.begin(backend, sites.output, count, d_stream);
        let pair = (d_stream, &saved.attn_out);
        adapted.weights(backend, sites.output, count, pair, factors.as_deref_mut());
        adapted.input(backend, sites.output, count, &mut space.d_attn_out);
        let (query, query_op) = self.query(layer, weights);
        let (key_value, key_op) = self.key_value(layer, weights);
        backend.qk_norm_rope(batch, &query_op.recompute(), &mut saved.query, &mut space.queries);
        backend.qk_norm_rope(batch, &key_op.recompute(), &mut saved.key_value, &mut space.keys);
        backend.attention_backward(
            batch,
            &Attention {
                rows,
                heads: self.heads(),
                queries: &space.queries,
                keys: &space.keys,
                key_value: &saved.key_value,
            },
            AttentionOutput { out: &saved.attn_out, lse: &saved.lse, d_out: &space.d_attn_out },
            AttentionGradients {
                d_queries: &mut space.d_queries,
                d_keys: &mut space.d_keys,
                d_key_value: &mut space.d_key_value,
            },
        );
        backend.qk_norm_rope_backward(
            batch,
            &query_op,
            &saved.query,
            &space.d_queries,
            &mut space.d_query,
            gradients.as_deref_mut(),
        );
        backend.qk_norm_rope_backward(
            batch,
            &key_op,
            &saved.key_value,
            &space.d_keys,
            &mut space.d_key_value,
            gradients.as_deref_mut(),
        );
        let norm = self.norm(tokens, input, weights, places.input_norm);
        backend.rms_norm(&norm, &mut space.normal);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(tokens, &space.d_key_value, &space.normal, gradients, key_value);
        }
        let linear = Linear { rows: tokens, weights, weight: key_value };
        backend.linear_backward_input(&linear, &space.d_key_value, false, &mut space.d_other);
        adapted.begin(backend, sites.key_value, tokens, &space.d_key_value);
        let pair = (&space.d_key_value, &space.normal);
        adapted.weights(backend, sites.key_value, tokens, pair, factors.as_deref_mut());
        adapted.input(backend, sites.key_value, tokens, &mut space.d_other);
        adapted.begin(backend, sites.query, count, &space.d_query);
        match rows {
            Rows::All => {
                if let Some(gradients) = gradients.as_deref_mut() {
                    backend.linear_backward_weight(tokens, &space.d_query, &space.normal, gradients, query);
                }
                let linear = Linear { rows: tokens, weights, weight: query };
                backend.linear_backward_input(&linear, &space.d_query, true, &mut space.d_other);
                let pair = (&space.d_query, &space.normal);
                adapted.weights(backend, sites.query, count, pair, factors.as_deref_mut());
                adapted.input(backend, sites.query, count, &mut space.d_other);
            }
            Rows::Scored => {
                backend.gather(batch, hidden, &space.normal, &mut space.gathered);
                if let Some(gradients) = gradients.as_deref_mut() {
                    backend.linear_backward_weight(count, &space.d_query, &space.gathered, gradients, query);
                }
                let pair = (&space.d_query, &space.gathered);
                adapted.weights(backend, sites.query, count, pair, factors);
                let d_gathered = &mut space.output;
                let linear = Linear { rows: count, weights, weight: query };
                backend.linear_backward_input(&linear, &space.d_query, false, d_gathered);
                adapted.input(backend, sites.query, count, d_gathered);
                backend.scatter_add(batch, hidden, d_gathered, &mut space.d_other);
                // The stream's gradient goes from the scored rows to all of them.
                backend.zero(tokens * hidden, &mut space.output);
                backend.scatter_add(batch, hidden, &space.d_stream, &mut space.output);
                std::mem::swap(&mut space.d_stream, &mut space.output);
            }
        }
        backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradients);
    }
}

/// A micro-batch between its forward and its backward pass.
pub(super) struct Prepared<B: Backend> {
    batch: B::Batch,
    counts: Counts,
}
