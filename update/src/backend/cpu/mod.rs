//! The CPU backend: f32, optionally with the operands of linear layers, keys and values rounded to bf16.
//!
//! One value is one stream of micro-batches with its scratch memory. If memory allows only a few streams,
//! each has a [`thread_pool`] for products, attention and activations; the bits equal one thread's.
//!
//! A micro-batch's contribution to the gradient of a tensor is summed from zero and then added. So it does
//! not matter if it is added to the total directly or through a separate gradient.

mod attention;
mod attention_blocks;
mod attention_scratch;
mod elementwise;
mod experts;
mod held_rows;
mod lm_head;
mod prepared;
mod products;
mod thread_pool;
mod variants;

use super::rope::RopeCache;
use super::{
    Activation, Attention, AttentionGradients, AttentionOutput, Backend, Dense, Embedding, Linear, LmHead,
    MicroBatch, QkNormRope, RmsNorm, Rows, ScoreGradient, Variants,
};
use gemm::{Accumulate, Precision, View};
use held_rows::HeldRows;
use policy::config::Config;
use policy::rope::Rope;
use prepared::Prepared;
use products::Gemm;
use std::ops::Range;

pub(crate) use attention::values as attention_values;
pub(crate) use elementwise::add_and_clear;
pub(crate) use lm_head::{gradient_values as head_gradient_values, logits_values};

/// Weights, activations or gradients.
type Values = Vec<f32>;

/// CPU cores.
pub struct Cpu {
    gemm: Gemm,
    attention: attention::Contributions,
    lm_head: lm_head::Scratch,
    /// One for each kind of rotary positions.
    ropes: Vec<RopeCache>,
    /// Lengths of the windows that some layers have.
    windows: Vec<usize>,
    /// True if the LM head is the embedding.
    tied: bool,
    held: HeldRows,
    /// A micro-batch's gradient of a vector.
    vector: Values,
    /// A norm's weight, where it is stored minus 1.
    shifted: Values,
}

impl Cpu {
    /// A core for heads with these RoPE frequencies, radians a position.
    pub fn new(inverse_frequencies: &[f32]) -> Cpu {
        Cpu {
            gemm: Gemm::default(),
            attention: attention::Contributions::default(),
            lm_head: lm_head::Scratch::default(),
            ropes: vec![RopeCache::new(inverse_frequencies)],
            windows: Vec::new(),
            tied: false,
            held: HeldRows::default(),
            vector: Vec::new(),
            shifted: Vec::new(),
        }
    }

    /// A core for the layers of a decoder.
    pub fn of(config: &Config) -> Cpu {
        let mut windows: Vec<usize> = config.variant.windows.iter().flatten().copied().collect();
        windows.sort_unstable();
        windows.dedup();
        let cache = |rope: &Rope| RopeCache::new(&rope.frequencies).scaled(rope.attention_factor);
        let ropes = config.ropes().iter().map(cache).collect();
        Cpu { ropes, windows, tied: config.tie_word_embeddings, ..Cpu::new(&[]) }
    }

    /// Adds attention in windows of these lengths.
    pub fn with_windows(self, windows: Vec<usize>) -> Cpu {
        Cpu { windows, ..self }
    }

    /// Sets the precision of linear layers, keys and values.
    pub fn with_precision(mut self, precision: Precision) -> Cpu {
        self.gemm.precision = precision;
        self
    }

    /// Uses `threads` cores, which share the work of each operation.
    pub fn set_threads(&mut self, threads: usize) {
        self.gemm.set_threads(threads);
    }

    /// Returns true if the heads after the operation, and the values after them in a row, are rounded to
    /// bf16. Keys and values are, as rollout's engine stores them. The gradient treats rounding as the
    /// identity.
    fn rounds(&self, op: &QkNormRope<Values>) -> bool {
        self.gemm.precision == Precision::BFloat16 && op.stride > op.heads_width()
    }

    fn linear_onto(
        &mut self,
        &Linear { rows, weights, weight }: &Linear<Values>,
        x: &[f32],
        onto: Accumulate,
        out: &mut [f32],
    ) {
        let mnk = [rows, weight.outputs, weight.inputs];
        let (x, w) = (View::new(x, weight.inputs), view(weights, weight).transposed());
        self.gemm.linear(mnk, x, w, onto, out, weight.outputs);
    }

    fn angles<'a>(&'a self, batch: &'a Prepared, op: &QkNormRope<Values>) -> elementwise::RowAngles<'a> {
        let nodes = match op.rows {
            Rows::All => None,
            Rows::Scored => Some(&batch.batch.scored[..]),
        };
        let cache = op.rope.map(|rope| &self.ropes[rope]);
        elementwise::RowAngles { cache, positions: &batch.batch.positions, nodes }
    }
}

fn view(weights: &[f32], weight: Dense) -> View<'_> {
    View::new(&weights[weight.range()], weight.inputs)
}

/// Zeros for the gradient of a vector.
fn zeros(vector: &mut Values, width: usize) -> &mut [f32] {
    vector.clear();
    vector.resize(width, 0.0);
    vector
}

/// Adds a micro-batch's gradient of the vector at `range`, unless it is frozen.
fn add_vector(vector: &[f32], gradients: Option<&mut Values>, range: Range<usize>) {
    if let Some(gradients) = gradients {
        elementwise::add(vector, &mut gradients[range]);
    }
}

/// The factor of a norm.
fn norm_weight<'a>(weight: &'a [f32], minus_one: bool, shifted: &'a mut Values) -> &'a [f32] {
    if !minus_one {
        return weight;
    }
    shifted.clear();
    shifted.extend(weight.iter().map(|weight| weight + 1.0));
    shifted
}

/// The stored weight of the norm of heads; empty without one.
fn head_norm<'a>(op: &QkNormRope<'a, Values>) -> &'a [f32] {
    op.norm.map_or(&[], |offset| &op.weights[offset..offset + op.width])
}

impl Backend for Cpu {
    type Buffer = Values;
    type Batch = Prepared;

    fn variants(&mut self) -> Option<&mut dyn Variants<Buffer = Values>> {
        Some(self)
    }

    fn buffer(&mut self) -> Values {
        Values::new()
    }

    fn reserve(&mut self, buffer: &mut Values, length: usize) {
        if buffer.len() < length {
            buffer.resize(length, 0.0);
        }
    }

    fn prepare(&mut self, batch: MicroBatch) -> Prepared {
        let positions = batch.positions.iter().max().map_or(0, |&last| last as usize + 1);
        self.ropes.iter_mut().for_each(|rope| rope.extend_to(positions));
        let shorter = self.windows.iter().copied().filter(|&window| window < positions);
        Prepared::new(batch, shorter)
    }

    fn embed(&mut self, batch: &Prepared, weights: &Values, embedding: Embedding, out: &mut Values) {
        let Embedding { table, scale } = embedding;
        for (&id, out) in batch.batch.ids.iter().zip(out.chunks_exact_mut(table.inputs)) {
            out.copy_from_slice(&weights[table.offset + id as usize * table.inputs..][..table.inputs]);
            if scale != 1.0 {
                out.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }

    fn embed_backward(
        &mut self,
        batch: &Prepared,
        d_out: &Values,
        gradients: &mut Values,
        embedding: Embedding,
    ) {
        let Embedding { table, scale } = embedding;
        let (ids, gradients) = (&batch.batch.ids, &mut gradients[table.offset..]);
        if scale == 1.0 {
            return self.held.add(ids, table.inputs, d_out, gradients);
        }
        let scaled: Values = d_out[..ids.len() * table.inputs].iter().map(|value| value * scale).collect();
        self.held.add(ids, table.inputs, &scaled, gradients);
    }

    fn rms_norm(&mut self, norm: &RmsNorm<Values>, out: &mut Values) {
        let length = norm.rows * norm.width;
        let weight = &norm.weights[norm.offset..norm.offset + norm.width];
        let weight = norm_weight(weight, norm.minus_one, &mut self.shifted);
        functional::rms_norm(&norm.x[..length], weight, norm.epsilon, &mut out[..length]);
    }

    fn rms_norm_backward(
        &mut self,
        norm: &RmsNorm<Values>,
        d_out: &Values,
        d_x: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        let RmsNorm { width, x, weights, offset, epsilon, minus_one, .. } = *norm;
        let length = norm.rows * width;
        let weight = norm_weight(&weights[offset..offset + width], minus_one, &mut self.shifted);
        let d_weight = zeros(&mut self.vector, width);
        let (x, d_out, d_x) = (&x[..length], &d_out[..length], &mut d_x[..length]);
        elementwise::rms_norm_backward(x, weight, epsilon, d_out, d_x, d_weight);
        add_vector(d_weight, gradients, offset..offset + width);
    }

    fn linear(&mut self, linear: &Linear<Values>, x: &Values, residual: Option<&Values>, out: &mut Values) {
        let onto = residual.map_or(Accumulate::Zero, |residual| Accumulate::Other(residual));
        self.linear_onto(linear, x, onto, out);
    }

    fn linear_add(&mut self, linear: &Linear<Values>, x: &Values, out: &mut Values) {
        self.linear_onto(linear, x, Accumulate::Result, out);
    }

    fn linear_backward_input(
        &mut self,
        &Linear { rows, weights, weight }: &Linear<Values>,
        d_out: &Values,
        add: bool,
        d_x: &mut Values,
    ) {
        let mnk = [rows, weight.inputs, weight.outputs];
        let onto = if add { Accumulate::Result } else { Accumulate::Zero };
        let (d_out, w) = (View::new(d_out, weight.outputs), view(weights, weight));
        self.gemm.linear(mnk, d_out, w, onto, d_x, weight.inputs);
    }

    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Values,
        x: &Values,
        gradients: &mut Values,
        weight: Dense,
    ) {
        let mnk = [weight.outputs, weight.inputs, rows];
        let (d_out, x) = (View::new(d_out, weight.outputs).transposed(), View::new(x, weight.inputs));
        self.gemm.linear_gradient(mnk, d_out, x, &mut gradients[weight.range()]);
    }

    fn qk_norm_rope(
        &mut self,
        batch: &Prepared,
        op: &QkNormRope<Values>,
        projection: &mut Values,
        out: &mut Values,
    ) {
        let rows = batch.rows(op.rows);
        let projection = &mut projection[..rows * op.stride];
        if let Some(offset) = op.bias {
            functional::add_bias(&op.weights[offset..offset + op.stride], projection);
        }
        if self.rounds(op) {
            let rows = projection.chunks_exact_mut(op.stride);
            rows.for_each(|row| elementwise::round(&mut row[op.heads_width()..]));
        }
        let mut shifted = std::mem::take(&mut self.shifted);
        let norm = norm_weight(head_norm(op), op.minus_one, &mut shifted);
        elementwise::qk_norm_rope(self.angles(batch, op), op, norm, projection, out);
        self.shifted = shifted;
        if self.rounds(op) {
            elementwise::round(&mut out[..rows * op.heads_width()]);
        }
    }

    fn qk_norm_rope_backward(
        &mut self,
        batch: &Prepared,
        op: &QkNormRope<Values>,
        projection: &Values,
        d_out: &Values,
        d_projection: &mut Values,
        mut gradients: Option<&mut Values>,
    ) {
        let length = batch.rows(op.rows) * op.stride;
        let (mut vector, mut shifted) = (std::mem::take(&mut self.vector), std::mem::take(&mut self.shifted));
        let d_norm = zeros(&mut vector, op.norm.map_or(0, |_| op.width));
        let norm = norm_weight(head_norm(op), op.minus_one, &mut shifted);
        let angles = self.angles(batch, op);
        let (projection, d_projection) = (&projection[..length], &mut d_projection[..length]);
        elementwise::qk_norm_rope_backward(angles, op, norm, projection, d_out, d_projection, d_norm);
        if let Some(offset) = op.norm {
            add_vector(d_norm, gradients.as_deref_mut(), offset..offset + op.width);
        }
        if let Some(offset) = op.bias.filter(|_| gradients.is_some()) {
            let d_bias = zeros(&mut vector, op.stride);
            elementwise::add_column_sums(d_projection, d_bias);
            add_vector(d_bias, gradients, offset..offset + op.stride);
        }
        (self.vector, self.shifted) = (vector, shifted);
    }

    fn attention(&mut self, batch: &Prepared, op: &Attention<Values>, out: &mut Values, lse: &mut Values) {
        let blocks = batch.blocks(op.rows, op.window);
        attention::forward(&mut self.gemm, &batch.batch, blocks, op, out, lse);
    }

    fn attention_backward(
        &mut self,
        batch: &Prepared,
        op: &Attention<Values>,
        output: AttentionOutput<Values>,
        gradients: AttentionGradients<Values>,
    ) {
        let blocks = batch.blocks(op.rows, op.window);
        attention::backward(&mut self.attention, &mut self.gemm, &batch.batch, blocks, op, output, gradients);
    }

    fn swiglu(
        &mut self,
        activation: Activation,
        rows: usize,
        width: usize,
        gate_up: &Values,
        out: &mut Values,
    ) {
        let share = self.gemm.share(rows) * width;
        let gate_up = gate_up[..2 * rows * width].chunks(2 * share);
        let pieces = gate_up.zip(out[..rows * width].chunks_mut(share)).collect();
        self.gemm.each(pieces, |_, (gate_up, out)| match activation {
            Activation::Silu => functional::swiglu(width, gate_up, out),
            Activation::Gelu => functional::geglu(width, gate_up, out),
        });
    }

    fn swiglu_backward(
        &mut self,
        activation: Activation,
        rows: usize,
        width: usize,
        gate_up: &mut Values,
        d_out: &Values,
        out: &mut Values,
    ) {
        let (length, share) = (rows * width, self.gemm.share(rows) * width);
        let gate_up = gate_up[..2 * length].chunks_mut(2 * share);
        let others = d_out[..length].chunks(share).zip(out[..length].chunks_mut(share));
        let pieces = gate_up.zip(others).collect();
        self.gemm.each(pieces, |_, (gate_up, (d_out, out))| match activation {
            Activation::Silu => elementwise::swiglu_backward(width, gate_up, d_out, out),
            Activation::Gelu => elementwise::geglu_backward(width, gate_up, d_out, out),
        });
    }

    fn gather(&mut self, batch: &Prepared, width: usize, x: &Values, out: &mut Values) {
        for (&node, out) in batch.batch.scored.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[node as usize * width..][..width]);
        }
    }

    fn scatter_add(&mut self, batch: &Prepared, width: usize, rows: &Values, x: &mut Values) {
        elementwise::add_rows(&batch.batch.scored, width, rows, x);
    }

    fn zero(&mut self, length: usize, buffer: &mut Values) {
        buffer[..length].fill(0.0);
    }

    fn score(
        &mut self,
        batch: &Prepared,
        head: &LmHead<Values>,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        self.lm_head.score(&mut self.gemm, &batch.batch, head, logprobs, entropies);
    }

    fn score_backward(
        &mut self,
        batch: &Prepared,
        head: &LmHead<Values>,
        gradient: ScoreGradient<'_>,
        d_hidden: &mut Values,
        mut gradients: Option<&mut Values>,
    ) {
        let Cpu { gemm, lm_head, held, tied, .. } = self;
        if *tied && gradients.is_some() {
            held.start(&batch.batch.ids, head.weight.inputs);
        }
        let mut hold = |gradients: Option<&mut Values>| {
            if let Some(gradients) = gradients.filter(|_| *tied) {
                held.swap(&mut gradients[head.weight.range()], head.weight.inputs);
            }
        };
        // Zeros receive the head's part in place of these rows, and are exchanged for them again.
        hold(gradients.as_deref_mut());
        lm_head.score_backward(gemm, &batch.batch, head, gradient, d_hidden, gradients.as_deref_mut());
        hold(gradients);
    }
}
