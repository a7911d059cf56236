//! One micro-batch through the decoder, forward and back.
//!
//! Kept from the forward pass are, for each layer, the residual stream before and between its two halves, the
//! raw projections, the attention's output and its log-sum-exp; norms, rotations and the SwiGLU's output are
//! cheap and computed again. In the last layer only the scored nodes have queries, attention and an MLP: the
//! others serve as keys and values alone, exactly as their results would never be read.

use super::adapter::{LowRank, Sites};
use super::workspace::{Counts, Workspace, make_room, rows};
use super::{Layout, Shape};
use crate::backend::{Backend, Batch, Dense, Head, Heads, Rotated, Rows};

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

    fn head(&self) -> Head {
        let (outputs, inputs) = (self.shape.vocabulary, self.shape.hidden);
        Head { weight: Dense { at: self.layout.head, outputs, inputs }, temperature: self.temperature }
    }

    fn table(&self) -> Dense {
        Dense { at: self.layout.embedding, outputs: self.shape.vocabulary, inputs: self.shape.hidden }
    }

    fn query(&self, layer: usize) -> (Dense, Rotated) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let stride = shape.query_width();
        let rotated = Rotated {
            heads: shape.heads,
            width: shape.head_dim,
            stride,
            bias: shape.attention_bias.then_some(places.qkv_bias),
            norm: shape.qk_norm.then_some(places.query_norm),
            epsilon: shape.epsilon,
        };
        (Dense { at: places.qkv, outputs: stride, inputs: shape.hidden }, rotated)
    }

    fn key_value(&self, layer: usize) -> (Dense, Rotated) {
        let (shape, places) = (self.shape, &self.layout.layers[layer]);
        let (queries, stride) = (shape.query_width(), 2 * shape.key_width());
        let rotated = Rotated {
            heads: shape.kv_heads,
            width: shape.head_dim,
            stride,
            bias: shape.attention_bias.then_some(places.qkv_bias + queries),
            norm: shape.qk_norm.then_some(places.key_norm),
            epsilon: shape.epsilon,
        };
        let at = places.qkv + queries * shape.hidden;
        (Dense { at, outputs: stride, inputs: shape.hidden }, rotated)
    }

    fn output(&self, layer: usize) -> Dense {
        let at = self.layout.layers[layer].output;
        Dense { at, outputs: self.shape.hidden, inputs: self.shape.query_width() }
    }

    fn gate_up(&self, layer: usize) -> Dense {
        let at = self.layout.layers[layer].gate_up;
        Dense { at, outputs: 2 * self.shape.intermediate, inputs: self.shape.hidden }
    }

    fn down(&self, layer: usize) -> Dense {
        let at = self.layout.layers[layer].down;
        Dense { at, outputs: self.shape.hidden, inputs: self.shape.intermediate }
    }

    /// Scores the loss rows of a micro-batch. Returns it, prepared, for [`Decoder::backward`].
    pub(super) fn forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        batch: Batch,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) -> Prepared<B> {
        let shape = self.shape;
        let (hidden, epsilon) = (shape.hidden, shape.epsilon);
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
            let (weight, residual) = (self.down(layer), Some(&saved.middle));
            adapted.linear(backend, site, count, &space.swiglu, weights, weight, residual, next);
        }
        let norm = self.layout.final_norm;
        backend.rms_norm(counts.scored, hidden, &space.output, weights, norm, epsilon, &mut space.picked);
        backend.score(&prepared.batch, &space.picked, weights, self.head(), logprobs, entropies);
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
        let (hidden, epsilon) = (shape.hidden, shape.epsilon);
        let Prepared { batch, counts } = prepared;
        let (tokens, rows) = (counts.tokens, rows(shape, layer));
        let count = counts.of(rows);
        let place = space.place(layer);
        let (input, saved) = (&space.inputs[layer], &mut space.saved[place]);
        let (sites, adapted) = (self.sites(layer), &mut space.adapted);
        backend.rms_norm(tokens, hidden, input, weights, places.input_norm, epsilon, &mut space.normal);
        let (weight, rotated) = self.key_value(layer);
        let out = &mut saved.key_value;
        adapted.linear(backend, sites.key_value, tokens, &space.normal, weights, weight, None, out);
        backend.rotate(batch, Rows::All, rotated, weights, &mut saved.key_value, &mut space.keys);
        let (weight, rotated) = self.query(layer);
        let x = match rows {
            Rows::All => &space.normal,
            Rows::Scored => {
                backend.gather(batch, hidden, &space.normal, &mut space.picked);
                &space.picked
            }
        };
        adapted.linear(backend, sites.query, count, x, weights, weight, None, &mut saved.query);
        backend.rotate(batch, rows, rotated, weights, &mut saved.query, &mut space.queries);
        backend.attention(
            batch,
            rows,
            self.heads(),
            &space.queries,
            &space.keys,
            &saved.key_value,
            &mut saved.mixed,
            &mut saved.normalizers,
        );
        let residual = match rows {
            Rows::All => input,
            Rows::Scored => {
                backend.gather(batch, hidden, input, &mut space.output);
                &space.output
            }
        };
        let weight = self.output(layer);
        let (x, out) = (&saved.mixed, &mut saved.middle);
        adapted.linear(backend, sites.output, count, x, weights, weight, Some(residual), out);
        backend.rms_norm(count, hidden, &saved.middle, weights, places.post_norm, epsilon, &mut space.normal);
        let (weight, out) = (self.gate_up(layer), &mut saved.gate_up);
        adapted.linear(backend, sites.gate_up, count, &space.normal, weights, weight, None, out);
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
        let (hidden, epsilon) = (shape.hidden, shape.epsilon);
        let Prepared { batch, counts } = prepared;
        make_room(backend, space, (shape, self.adapter.map(LowRank::sizes)), *counts, true);
        let (mut gradients, _) = self.divided(&mut *all);
        backend.score_backward(
            batch,
            &space.picked,
            weights,
            self.head(),
            d_logprobs,
            &mut space.d_other,
            gradients.as_deref_mut(),
        );
        backend.clear(counts.scored * hidden, &mut space.d_stream);
        backend.rms_norm_backward(
            counts.scored,
            hidden,
            &space.output,
            weights,
            self.layout.final_norm,
            epsilon,
            &space.d_other,
            &mut space.d_stream,
            gradients,
        );
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
        let (hidden, epsilon) = (shape.hidden, shape.epsilon);
        let Prepared { batch, counts } = prepared;
        let (tokens, rows) = (counts.tokens, rows(shape, layer));
        let count = counts.of(rows);
        let place = space.place(layer);
        let (input, saved) = (&space.inputs[layer], &mut space.saved[place]);
        let (sites, adapted) = (self.sites(layer), &mut space.adapted);
        let (mut gradients, mut factors) = self.divided(gradients);

        // The MLP.
        let weight = self.down(layer);
        let d_stream = backend.as_activations(count * hidden, &space.d_stream, &mut space.d_rounded);
        backend.linear_backward_input(count, d_stream, weights, weight, false, &mut space.d_swiglu);
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
        backend.rms_norm(count, hidden, &saved.middle, weights, places.post_norm, epsilon, &mut space.normal);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(count, &saved.gate_up, &space.normal, gradients, weight);
        }
        backend.linear_backward_input(count, &saved.gate_up, weights, weight, false, &mut space.d_other);
        adapted.begin(backend, sites.gate_up, count, &saved.gate_up);
        let pair = (&saved.gate_up, &space.normal);
        adapted.weights(backend, sites.gate_up, count, pair, factors.as_deref_mut());
        adapted.input(backend, sites.gate_up, count, &mut space.d_other);
        backend.rms_norm_backward(
            count,
            hidden,
            &saved.middle,
            weights,
            places.post_norm,
            epsilon,
            &space.d_other,
            &mut space.d_stream,
            gradients.as_deref_mut(),
        );

        // Attention.
        let weight = self.output(layer);
        let d_stream = backend.as_activations(count * hidden, &space.d_stream, &mut space.d_rounded);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(count, d_stream, &saved.mixed, gradients, weight);
        }
        backend.linear_backward_input(count, d_stream, weights, weight, false, &mut space.d_mixed);
        adapted.begin(backend, sites.output, count, d_stream);
        let pair = (d_stream, &saved.mixed);
        adapted.weights(backend, sites.output, count, pair, factors.as_deref_mut());
        adapted.input(backend, sites.output, count, &mut space.d_mixed);
        let (query, query_rotated) = self.query(layer);
        let (key_value, key_rotated) = self.key_value(layer);
        backend.rotate_again(batch, rows, query_rotated, weights, &saved.query, &mut space.queries);
        backend.rotate_again(batch, Rows::All, key_rotated, weights, &saved.key_value, &mut space.keys);
        backend.attention_backward(
            batch,
            rows,
            self.heads(),
            &space.queries,
            &space.keys,
            &saved.key_value,
            &saved.mixed,
            &saved.normalizers,
            &space.d_mixed,
            &mut space.d_queries,
            &mut space.d_keys,
            &mut space.d_key_value,
        );
        backend.rotate_backward(
            batch,
            rows,
            query_rotated,
            weights,
            &saved.query,
            &space.d_queries,
            &mut space.d_query,
            gradients.as_deref_mut(),
        );
        backend.rotate_backward(
            batch,
            Rows::All,
            key_rotated,
            weights,
            &saved.key_value,
            &space.d_keys,
            &mut space.d_key_value,
            gradients.as_deref_mut(),
        );
        backend.rms_norm(tokens, hidden, input, weights, places.input_norm, epsilon, &mut space.normal);
        if let Some(gradients) = gradients.as_deref_mut() {
            backend.linear_backward_weight(tokens, &space.d_key_value, &space.normal, gradients, key_value);
        }
        backend.linear_backward_input(
            tokens,
            &space.d_key_value,
            weights,
            key_value,
            false,
            &mut space.d_other,
        );
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
                backend.linear_backward_input(
                    tokens,
                    &space.d_query,
                    weights,
                    query,
                    true,
                    &mut space.d_other,
                );
                let pair = (&space.d_query, &space.normal);
                adapted.weights(backend, sites.query, count, pair, factors.as_deref_mut());
                adapted.input(backend, sites.query, count, &mut space.d_other);
            }
            Rows::Scored => {
                backend.gather(batch, hidden, &space.normal, &mut space.picked);
                if let Some(gradients) = gradients.as_deref_mut() {
                    backend.linear_backward_weight(count, &space.d_query, &space.picked, gradients, query);
                }
                let pair = (&space.d_query, &space.picked);
                adapted.weights(backend, sites.query, count, pair, factors);
                let d_picked = &mut space.output;
                backend.linear_backward_input(count, &space.d_query, weights, query, false, d_picked);
                adapted.input(backend, sites.query, count, d_picked);
                backend.scatter_add(batch, hidden, d_picked, &mut space.d_other);
                // The stream's gradient goes from the scored rows to all of them.
                backend.clear(tokens * hidden, &mut space.output);
                backend.scatter_add(batch, hidden, &space.d_stream, &mut space.output);
                std::mem::swap(&mut space.d_stream, &mut space.output);
            }
        }
        backend.rms_norm_backward(
            tokens,
            hidden,
            input,
            weights,
            places.input_norm,
            epsilon,
            &space.d_other,
            &mut space.d_stream,
            gradients,
        );
    }
}

/// A micro-batch between its forward and its backward pass.
pub(super) struct Prepared<B: Backend> {
    batch: B::Batch,
    counts: Counts,
}
