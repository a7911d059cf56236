//! One micro-batch through the decoder, forward and backward.
//!
//! Saved for the backward pass are, for each layer, the residual stream before and between its two halves, the
//! raw projections, attention's output and its log-sum-exp; norms, RoPE and the SwiGLU's output are cheap and computed
//! again. In the last layer only the scored nodes have queries, attention and an MLP: the others are keys and
//! values alone, since nothing else of them would be read.

use super::Layout;
use super::linear::{Accumulator, Fused, Linear, LoraAdapter, Operands};
use super::workspace::{Batch, Counts, Workspace, rows};
use crate::backend::{
    Activation, Attention, AttentionGradients, AttentionOutput, Backend, Dense, Embedding, Experts, Heads,
    LmHead, MicroBatch, QkNormRope, RmsNorm, RowScores, Rows, ScoreGradient, variants,
};
use policy::adapter::Target;
use policy::config::Config;

/// The decoder as the passes see it.
pub(super) struct Decoder<'a> {
    pub config: &'a Config,
    pub layout: &'a Layout,
    /// Its packed factors are in the workspace, and the weights are then frozen.
    pub adapter: Option<&'a LoraAdapter>,
    pub temperature: f32,
}

impl Decoder<'_> {
    fn batch(&self, counts: Counts, backward: bool) -> Batch<'_> {
        Batch { config: self.config, adapter: self.adapter, counts, recompute: false, backward }
    }

    fn linear(&self, layer: usize, fused: Fused) -> Linear {
        Linear::new(self.config, self.layout, self.adapter, layer, fused)
    }

    fn accumulator<'g, T>(&self, gradients: &'g mut T) -> Accumulator<'g, T> {
        Accumulator { gradients, lora: self.adapter.is_some() }
    }

    fn heads(&self) -> Heads {
        let config = self.config;
        Heads { queries: config.num_heads, keys: config.num_kv_heads, width: config.head_dim }
    }

    fn lm_head<'b, T>(&self, hidden: &'b T, weights: &'b T) -> LmHead<'b, T> {
        let weight = self.table(self.layout.head);
        LmHead { hidden, weights, weight, temperature: self.temperature }
    }

    fn norm<'b, T>(&self, rows: usize, x: &'b T, weights: &'b T, offset: usize) -> RmsNorm<'b, T> {
        let Config { hidden_size, rms_norm_eps, .. } = *self.config;
        let minus_one = self.config.variant.norms_minus_one;
        RmsNorm { rows, width: hidden_size, x, weights, offset, epsilon: rms_norm_eps, minus_one }
    }

    fn embedding(&self) -> Embedding {
        let scale = self.config.variant.embedding_scale.unwrap_or(1.0);
        Embedding { table: self.table(self.layout.embedding), scale }
    }

    /// A layer's experts, if it has them.
    fn experts<'b, T>(&'b self, layer: usize, rows: usize, weights: &'b T) -> Option<Experts<'b, T>> {
        let (offset, settings) = (self.layout.layers[layer].experts?, self.config.experts(layer)?);
        let router = Dense { offset, outputs: settings.count, inputs: self.config.hidden_size };
        Some(Experts { rows, weights, router, settings })
    }

    fn activation(&self) -> Activation {
        if self.config.variant.gelu { Activation::Gelu } else { Activation::Silu }
    }

    fn attention<'b, T>(
        &self,
        layer: usize,
        queries: &'b T,
        keys: &'b T,
        key_value: &'b T,
    ) -> Attention<'b, T> {
        let config = self.config;
        let (rows, scale) = (rows(config, layer), config.attention_scale());
        let window = config.window(layer);
        Attention { rows, heads: self.heads(), scale, window, queries, keys, key_value }
    }

    /// The embedding or the head.
    fn table(&self, offset: usize) -> Dense {
        Dense { offset, outputs: self.config.vocab_size, inputs: self.config.hidden_size }
    }

    /// The steps after the projection of queries or of keys and values.
    fn qk_norm_rope<'b, T>(&self, layer: usize, target: Target, weights: &'b T) -> QkNormRope<'b, T> {
        let (config, offsets) = (self.config, &self.layout.layers[layer]);
        let (rows, heads, stride) = match target {
            Target::Query => (rows(config, layer), config.num_heads, config.query_width()),
            _ => (Rows::All, config.num_kv_heads, 2 * config.key_width()),
        };
        QkNormRope {
            rows,
            weights,
            heads,
            width: config.head_dim,
            stride,
            bias: offsets.biases[target as usize],
            norm: offsets.qk_norm.map(|norms| norms[target as usize]),
            epsilon: config.rms_norm_eps,
            minus_one: config.variant.norms_minus_one,
            rope: config.rope(layer),
        }
    }

    /// Scores the loss rows of a micro-batch. Returns it, prepared, for [`Decoder::backward`]. With `gradient` the head's part of
    /// that may be done already.
    pub(super) fn forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        batch: MicroBatch,
        RowScores { logprobs, entropies }: RowScores<'_>,
        gradient: Option<RowGradient<'_, B::Buffer>>,
    ) -> Prepared<B> {
        let config = self.config;
        let counts = Counts { tokens: batch.tokens(), scored: batch.scored.len() };
        let mut prepared = Prepared { batch: backend.prepare(batch), counts, head_done: false };
        self.batch(counts, gradient.is_some()).reserve(backend, space);
        backend.embed(&prepared.batch, weights, self.embedding(), &mut space.inputs[0]);
        for layer in 0..config.num_layers {
            self.layer_forward(backend, space, weights, &prepared, layer);
            self.mlp_forward(backend, space, weights, counts, layer);
        }
        let norm = self.norm(counts.scored, &space.output, weights, self.layout.final_norm);
        backend.rms_norm(&norm, &mut space.gathered);
        let head = self.lm_head(&space.gathered, weights);
        if let Some(RowGradient { derivative, gradients }) = gradient {
            let scores = RowScores { logprobs: &mut *logprobs, entropies: &mut *entropies };
            let mut gradient = self.accumulator(gradients);
            let (d_hidden, weights) = (&mut space.d_other, gradient.weights());
            prepared.head_done =
                backend.score_with_gradient(&prepared.batch, &head, scores, derivative, d_hidden, weights);
        }
        if !prepared.head_done {
            backend.score(&prepared.batch, &head, logprobs, entropies);
        }
        prepared
    }

    /// From a layer's gate and up projections to its output.
    fn mlp_forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        counts: Counts,
        layer: usize,
    ) {
        let config = self.config;
        let count = counts.of(rows(config, layer));
        let index = space.saved_index(layer);
        let saved = &mut space.saved[index];
        let next = space.inputs.get_mut(layer + 1).unwrap_or(&mut space.output);
        if let Some(experts) = self.experts(layer, count, weights) {
            return variants(backend).experts(&experts, &space.normal, &saved.post_attn, next);
        }
        let (activation, width) = (self.activation(), config.intermediate_size);
        backend.swiglu(activation, count, width, &saved.gate_up, &mut space.swiglu);
        let down = self.linear(layer, Fused::Down);
        let operands = &mut Operands { backend, weights, lora: &mut space.lora };
        let Some([_, norm]) = self.layout.layers[layer].post_norms else {
            return down.forward(operands, count, &space.swiglu, Some(&saved.post_attn), next);
        };
        let [_, branch] = &mut saved.branches;
        down.forward(operands, count, &space.swiglu, None, branch);
        operands.backend.rms_norm(&self.norm(count, branch, weights, norm), &mut space.normal);
        variants(operands.backend).add(count * config.hidden_size, &saved.post_attn, &space.normal, next);
    }

    /// From a layer's input to its gate and up projections: all that the backward pass needs of it.
    fn layer_forward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        layer: usize,
    ) {
        let (config, offsets) = (self.config, &self.layout.layers[layer]);
        let hidden = config.hidden_size;
        let Prepared { batch, counts, .. } = prepared;
        let (tokens, rows) = (counts.tokens, rows(config, layer));
        let count = counts.of(rows);
        let index = space.saved_index(layer);
        let (input, saved) = (&space.inputs[layer], &mut space.saved[index]);
        let operands = &mut Operands { backend, weights, lora: &mut space.lora };
        let norm = self.norm(tokens, input, weights, offsets.input_norm);
        operands.backend.rms_norm(&norm, &mut space.normal);
        let key_value = self.linear(layer, Fused::KeyValue);
        key_value.forward(operands, tokens, &space.normal, None, &mut saved.key_value);
        let op = self.qk_norm_rope(layer, Target::Key, weights);
        operands.backend.qk_norm_rope(batch, &op, &mut saved.key_value, &mut space.keys);
        let x = match rows {
            Rows::All => &space.normal,
            Rows::Scored => {
                operands.backend.gather(batch, hidden, &space.normal, &mut space.gathered);
                &space.gathered
            }
        };
        self.linear(layer, Fused::Query).forward(operands, count, x, None, &mut saved.query);
        let op = self.qk_norm_rope(layer, Target::Query, weights);
        operands.backend.qk_norm_rope(batch, &op, &mut saved.query, &mut space.queries);
        let (queries, keys, key_value) = (&space.queries, &space.keys, &saved.key_value);
        let op = self.attention(layer, queries, keys, key_value);
        operands.backend.attention(batch, &op, &mut saved.attn_out, &mut saved.lse);
        let residual = match rows {
            Rows::All => input,
            Rows::Scored => {
                operands.backend.gather(batch, hidden, input, &mut space.output);
                &space.output
            }
        };
        let output = self.linear(layer, Fused::Output);
        if let Some([norm, _]) = offsets.post_norms {
            let [branch, _] = &mut saved.branches;
            output.forward(operands, count, &saved.attn_out, None, branch);
            operands.backend.rms_norm(&self.norm(count, branch, weights, norm), &mut space.normal);
            variants(operands.backend).add(count * hidden, residual, &space.normal, &mut saved.post_attn);
        } else {
            output.forward(operands, count, &saved.attn_out, Some(residual), &mut saved.post_attn);
        }
        let norm = self.norm(count, &saved.post_attn, weights, offsets.mlp_norm);
        operands.backend.rms_norm(&norm, &mut space.normal);
        if offsets.experts.is_some() {
            return;
        }
        let gate_up = self.linear(layer, Fused::GateUp);
        gate_up.forward(operands, count, &space.normal, None, &mut saved.gate_up);
    }

    /// Adds the gradient of the micro-batch that [`Decoder::forward`] saw last: of the weights, or of the adapter's packed
    /// factors. `sink.leave` is called as soon as the gradient of one of [`Layout::regions`] is complete.
    pub(super) fn backward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        d_scores: ScoreGradient<'_>,
        sink: Sink<'_, B>,
    ) {
        let Sink { gradients, leave } = sink;
        let config = self.config;
        let Prepared { batch, counts, head_done } = prepared;
        self.batch(*counts, true).reserve(backend, space);
        let gradient = &mut self.accumulator(gradients);
        if !head_done {
            let head = self.lm_head(&space.gathered, weights);
            backend.score_backward(batch, &head, d_scores, &mut space.d_other, gradient.weights());
        }
        backend.zero(counts.scored * config.hidden_size, &mut space.d_stream);
        let norm = self.norm(counts.scored, &space.output, weights, self.layout.final_norm);
        backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradient.weights());
        leave(backend, gradient.gradients, config.num_layers + 1);
        for layer in (0..config.num_layers).rev() {
            if space.is_gone(layer) {
                self.layer_forward(backend, space, weights, prepared, layer);
                if self.layout.layers[layer].post_norms.is_some() {
                    self.mlp_forward(backend, space, weights, *counts, layer);
                }
            }
            self.layer_backward(backend, space, weights, prepared, layer, gradient);
            leave(backend, gradient.gradients, layer + 1);
        }
        if let Some(gradients) = gradient.weights() {
            backend.embed_backward(batch, &space.d_stream, gradients, self.embedding());
        }
        leave(backend, gradient.gradients, 0);
    }

    /// Takes `d_stream` from the output of a layer to the middle of it.
    fn mlp_backward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        count: usize,
        layer: usize,
        gradient: &mut Accumulator<B::Buffer>,
    ) {
        let (hidden, intermediate) = (self.config.hidden_size, self.config.intermediate_size);
        let offsets = &self.layout.layers[layer];
        let index = space.saved_index(layer);
        let saved = &mut space.saved[index];
        if let Some(experts) = self.experts(layer, count, weights) {
            let norm = self.norm(count, &saved.post_attn, weights, offsets.mlp_norm);
            let (x, d_out, d_x) = (&mut space.normal, &mut space.d_stream, &mut space.d_other);
            backend.rms_norm(&norm, x);
            variants(backend).experts_backward(&experts, x, d_out, d_x, gradient.weights());
            return backend.rms_norm_backward(&norm, d_x, d_out, gradient.weights());
        }
        let operands = &mut Operands { backend, weights, lora: &mut space.lora };
        let norm = offsets.post_norms.map(|norms| self.norm(count, &saved.branches[1], weights, norms[1]));
        let (stream, branch, cast) = (&space.d_stream, &mut space.d_other, &mut space.d_stream_cast);
        let d_stream =
            branch_gradient(operands.backend, norm, count * hidden, stream, branch, cast, gradient);
        let down = self.linear(layer, Fused::Down);
        down.backward_input(operands, count, d_stream, false, &mut space.d_swiglu);
        let (gate_up, d_swiglu, swiglu) = (&mut saved.gate_up, &space.d_swiglu, &mut space.swiglu);
        operands.backend.swiglu_backward(self.activation(), count, intermediate, gate_up, d_swiglu, swiglu);
        down.backward_weight(operands, count, d_stream, swiglu, gradient);
        let norm = self.norm(count, &saved.post_attn, weights, offsets.mlp_norm);
        operands.backend.rms_norm(&norm, &mut space.normal);
        let linear = self.linear(layer, Fused::GateUp);
        linear.backward_input(operands, count, gate_up, false, &mut space.d_other);
        linear.backward_weight(operands, count, gate_up, &space.normal, gradient);
        operands.backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradient.weights());
    }

    /// Takes `d_stream` from the output of a layer to its input.
    fn layer_backward<B: Backend>(
        &self,
        backend: &mut B,
        space: &mut Workspace<B::Buffer>,
        weights: &B::Buffer,
        prepared: &Prepared<B>,
        layer: usize,
        gradient: &mut Accumulator<B::Buffer>,
    ) {
        let (config, offsets) = (self.config, &self.layout.layers[layer]);
        let hidden = config.hidden_size;
        let Prepared { batch, counts, .. } = prepared;
        let (tokens, rows) = (counts.tokens, rows(config, layer));
        let count = counts.of(rows);
        let index = space.saved_index(layer);
        self.mlp_backward(backend, space, weights, count, layer, gradient);

        let (input, saved) = (&space.inputs[layer], &mut space.saved[index]);
        let operands = &mut Operands { backend, weights, lora: &mut space.lora };
        let norm = offsets.post_norms.map(|norms| self.norm(count, &saved.branches[0], weights, norms[0]));
        let (stream, branch, cast) = (&space.d_stream, &mut space.d_other, &mut space.d_stream_cast);
        let d_stream =
            branch_gradient(operands.backend, norm, count * hidden, stream, branch, cast, gradient);
        let output = self.linear(layer, Fused::Output);
        output.backward_input(operands, count, d_stream, false, &mut space.d_attn_out);
        output.backward_weight(operands, count, d_stream, &saved.attn_out, gradient);
        let query_op = self.qk_norm_rope(layer, Target::Query, weights);
        let key_op = self.qk_norm_rope(layer, Target::Key, weights);
        let backend = &mut *operands.backend;
        backend.qk_norm_rope(batch, &query_op.recompute(), &mut saved.query, &mut space.queries);
        backend.qk_norm_rope(batch, &key_op.recompute(), &mut saved.key_value, &mut space.keys);
        let (queries, keys, key_value) = (&space.queries, &space.keys, &saved.key_value);
        backend.attention_backward(
            batch,
            &self.attention(layer, queries, keys, key_value),
            AttentionOutput { out: &saved.attn_out, lse: &saved.lse, d_out: &space.d_attn_out },
            AttentionGradients {
                d_queries: &mut space.d_queries,
                d_keys: &mut space.d_keys,
                d_key_value: &mut space.d_key_value,
            },
        );
        for (op, projection, d_out, d_projection) in [
            (&query_op, &saved.query, &space.d_queries, &mut space.d_query),
            (&key_op, &saved.key_value, &space.d_keys, &mut space.d_key_value),
        ] {
            backend.qk_norm_rope_backward(batch, op, projection, d_out, d_projection, gradient.weights());
        }
        let norm = self.norm(tokens, input, weights, offsets.input_norm);
        backend.rms_norm(&norm, &mut space.normal);
        let linear = self.linear(layer, Fused::KeyValue);
        linear.backward_input(operands, tokens, &space.d_key_value, false, &mut space.d_other);
        linear.backward_weight(operands, tokens, &space.d_key_value, &space.normal, gradient);
        let linear = self.linear(layer, Fused::Query);
        match rows {
            Rows::All => {
                linear.backward_input(operands, count, &space.d_query, true, &mut space.d_other);
                linear.backward_weight(operands, count, &space.d_query, &space.normal, gradient);
            }
            Rows::Scored => {
                operands.backend.gather(batch, hidden, &space.normal, &mut space.gathered);
                let d_gathered = &mut space.output;
                linear.backward_input(operands, count, &space.d_query, false, d_gathered);
                linear.backward_weight(operands, count, &space.d_query, &space.gathered, gradient);
                operands.backend.scatter_add(batch, hidden, d_gathered, &mut space.d_other);
                // The stream's gradient goes from the scored rows to all of them.
                operands.backend.zero(tokens * hidden, d_gathered);
                operands.backend.scatter_add(batch, hidden, &space.d_stream, d_gathered);
                std::mem::swap(&mut space.d_stream, d_gathered);
            }
        }
        operands.backend.rms_norm_backward(&norm, &space.d_other, &mut space.d_stream, gradient.weights());
    }
}

/// Where a backward pass adds the gradient.
pub(super) struct Sink<'a, B: Backend> {
    pub gradients: &'a mut B::Buffer,
    /// Takes the gradient of a region, by its number in [`Layout::regions`].
    pub leave: &'a mut dyn FnMut(&mut B, &mut B::Buffer, usize),
}

/// A micro-batch between its forward and its backward pass.
pub(super) struct Prepared<B: Backend> {
    batch: B::Batch,
    counts: Counts,
    /// True if the gradients of the head and of its input are already there.
    head_done: bool,
}

/// The gradient at a loss row from its index and log-probability, and the buffer for the gradient of the
/// weights.
pub(super) struct RowGradient<'a, T> {
    pub derivative: &'a dyn Fn(usize, f32) -> f32,
    pub gradients: &'a mut T,
}

/// The gradient of a branch (attention or the MLP), `elements` values: passed through the norm of the
/// branch's output into `d_branch` if it has one, else the stream's gradient unchanged, rounded into `cast` where
/// GEMMs need that.
fn branch_gradient<'a, B: Backend>(
    backend: &mut B,
    norm: Option<RmsNorm<'_, B::Buffer>>,
    elements: usize,
    d_stream: &'a B::Buffer,
    d_branch: &'a mut B::Buffer,
    cast: &'a mut B::Buffer,
    gradient: &mut Accumulator<B::Buffer>,
) -> &'a B::Buffer {
    let Some(norm) = norm else { return backend.cast_for_gemm(elements, d_stream, cast) };
    backend.zero(elements, d_branch);
    backend.rms_norm_backward(&norm, d_stream, d_branch, gradient.weights());
    d_branch
}
