//! The CPU backend: f32, optionally with the operands of linear layers, keys and values rounded to bf16.
//!
//! One value is one thread with its scratch memory; independent micro-batches run on threads with a backend each, and
//! nothing here synchronizes.

mod attention;
mod elementwise;
mod lm_head;
mod vector;

use super::rope::RopeCache;
use super::{
    Activation, Attention, AttentionGradients, AttentionOutput, Backend, Dense, Embedding, Linear, LmHead,
    MicroBatch, QkNormRope, RmsNorm, Rows,
};
use gemm::{Onto, Precision, View, ViewMut};
use policy::config::{Config, Rope};

pub(crate) use elementwise::add_and_clear;
pub use lm_head::logits_values;

/// GEMMs with their packing buffers.
///
/// Those of linear layers and of the LM head, forward and backward, are nearly all of the work and take the backend's
/// precision. Attention's stay in f32, as in rollout's engine: rounded there, the two would agree less. The keys and
/// values that it reads are rounded, because the engine stores them in bf16.
#[derive(Clone, Debug, Default)]
struct Gemm {
    precision: Precision,
    scratch: gemm::Scratch,
}

impl Gemm {
    /// `c = onto + a · b` of a linear layer: `[m, n, k]`, and the stride of `c`.
    fn linear(&mut self, mnk: [usize; 3], a: View, b: View, onto: Onto, c: &mut [f32], stride: usize) {
        gemm::multiply(&mut self.scratch, self.precision, mnk, a, b, onto, ViewMut::new(c, stride));
    }

    /// The same in f32 whatever the precision.
    fn exact(&mut self, mnk: [usize; 3], a: View, b: View, onto: Onto, c: &mut [f32], stride: usize) {
        gemm::multiply(&mut self.scratch, Precision::Float32, mnk, a, b, onto, ViewMut::new(c, stride));
    }
}

/// Weights, activations or gradients.
type Values = Vec<f32>;

/// A CPU core.
#[derive(Clone, Debug)]
pub struct Cpu {
    gemm: Gemm,
    attention: attention::Scratch,
    lm_head: lm_head::Scratch,
    /// One for each kind of rotary positions.
    ropes: Vec<RopeCache>,
    /// Lengths of the windows that some layers have.
    windows: Vec<usize>,
    /// Where gradients of frozen vectors go.
    discarded: Values,
    /// A norm's weight, where it is stored minus 1.
    shifted: Values,
}

impl Cpu {
    /// A core for heads with these RoPE frequencies, radians a position.
    pub fn new(inverse_frequencies: &[f32]) -> Cpu {
        Cpu {
            gemm: Gemm::default(),
            attention: attention::Scratch::default(),
            lm_head: lm_head::Scratch::default(),
            ropes: vec![RopeCache::new(inverse_frequencies)],
            windows: Vec::new(),
            discarded: Vec::new(),
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
        Cpu { ropes, windows, ..Cpu::new(&[]) }
    }

    /// The same core for attention in windows of these lengths, too.
    pub fn with_windows(self, windows: Vec<usize>) -> Cpu {
        Cpu { windows, ..self }
    }

    /// The same core with another precision of linear layers, keys and values.
    pub fn with_precision(mut self, precision: Precision) -> Cpu {
        self.gemm.precision = precision;
        self
    }

    /// Whether the heads after the operation, and what follows them in a row, are rounded to bf16: keys and values are,
    /// as rollout's engine stores them. The gradient takes the rounding for the identity.
    fn rounds(&self, op: &QkNormRope<Values>) -> bool {
        self.gemm.precision == Precision::BFloat16 && op.stride > op.heads_width()
    }

    fn linear_onto(
        &mut self,
        &Linear { rows, weights, weight }: &Linear<Values>,
        x: &[f32],
        onto: Onto,
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

/// A micro-batch and the blocks that attention takes it in.
#[derive(Clone, Debug)]
pub struct Prepared {
    batch: MicroBatch,
    all: attention::Blocks,
    scored: attention::Blocks,
    /// The same under each window that is shorter than the sequences.
    windowed: Vec<(usize, [attention::Blocks; 2])>,
}

impl Prepared {
    /// The blocks of some rows, and the window if it hides anything from them.
    fn blocks(&self, rows: Rows, window: Option<usize>) -> (&attention::Blocks, Option<usize>) {
        match (self.windowed.iter().find(|(length, _)| Some(*length) == window), rows) {
            (Some((_, [all, _])), Rows::All) => (all, window),
            (Some((_, [_, scored])), Rows::Scored) => (scored, window),
            (None, Rows::All) => (&self.all, None),
            (None, Rows::Scored) => (&self.scored, None),
        }
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.batch.tokens(),
            Rows::Scored => self.batch.scored.len(),
        }
    }
}

fn view(weights: &[f32], weight: Dense) -> View<'_> {
    View::new(&weights[weight.range()], weight.inputs)
}

/// Where the gradient of a vector goes. It falls out of the activations' gradients, so without `gradients` it is computed
/// all the same and discarded.
fn gradient_of<'a>(
    gradients: Option<&'a mut Values>,
    offset: usize,
    width: usize,
    discarded: &'a mut Values,
) -> &'a mut [f32] {
    match gradients {
        Some(gradients) => &mut gradients[offset..offset + width],
        None => {
            discarded.resize(discarded.len().max(width), 0.0);
            &mut discarded[..width]
        }
    }
}

/// What a norm multiplies by.
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
        let blocks = |window| {
            [(0..batch.tokens() as u32).collect(), batch.scored.clone()]
                .map(|nodes| attention::Blocks::new(&batch, nodes, window))
        };
        let [all, scored] = blocks(None);
        let shorter = self.windows.iter().filter(|&&window| window < positions);
        let windowed = shorter.map(|&window| (window, blocks(Some(window)))).collect();
        Prepared { batch, all, scored, windowed }
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
        let ids = &batch.batch.ids;
        if scale == 1.0 {
            return elementwise::add_rows(ids, table.inputs, d_out, &mut gradients[table.offset..]);
        }
        let scaled: Values = d_out[..ids.len() * table.inputs].iter().map(|value| value * scale).collect();
        elementwise::add_rows(ids, table.inputs, &scaled, &mut gradients[table.offset..]);
    }

    fn rms_norm(&mut self, norm: &RmsNorm<Values>, out: &mut Values) {
        let length = norm.rows * norm.width;
        let weight = &norm.weights[norm.offset..norm.offset + norm.width];
        let weight = norm_weight(weight, norm.minus_one, &mut self.shifted);
        elementwise::rms_norm(&norm.x[..length], weight, norm.epsilon, &mut out[..length]);
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
        let d_weight = gradient_of(gradients, offset, width, &mut self.discarded);
        let (x, d_out, d_x) = (&x[..length], &d_out[..length], &mut d_x[..length]);
        elementwise::rms_norm_backward(x, weight, epsilon, d_out, d_x, d_weight);
    }

    fn linear(&mut self, linear: &Linear<Values>, x: &Values, residual: Option<&Values>, out: &mut Values) {
        let onto = residual.map_or(Onto::Zero, |residual| Onto::Other(residual));
        self.linear_onto(linear, x, onto, out);
    }

    fn add_bias(&mut self, rows: usize, width: usize, weights: &Values, offset: usize, x: &mut Values) {
        elementwise::add_bias(&weights[offset..offset + width], &mut x[..rows * width]);
    }

    fn bias_backward(
        &mut self,
        rows: usize,
        width: usize,
        d_out: &Values,
        gradients: &mut Values,
        offset: usize,
    ) {
        elementwise::add_column_sums(&d_out[..rows * width], &mut gradients[offset..offset + width]);
    }

    fn add(&mut self, length: usize, left: &Values, right: &Values, sum: &mut Values) {
        for ((sum, left), right) in sum[..length].iter_mut().zip(left).zip(right) {
            *sum = left + right;
        }
    }

    fn linear_add(&mut self, linear: &Linear<Values>, x: &Values, out: &mut Values) {
        self.linear_onto(linear, x, Onto::Result, out);
    }

    fn linear_backward_input(
        &mut self,
        &Linear { rows, weights, weight }: &Linear<Values>,
        d_out: &Values,
        add: bool,
        d_x: &mut Values,
    ) {
        let mnk = [rows, weight.inputs, weight.outputs];
        let onto = if add { Onto::Result } else { Onto::Zero };
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
        let gradient = &mut gradients[weight.offset..];
        self.gemm.linear(mnk, d_out, x, Onto::Result, gradient, weight.inputs);
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
            elementwise::add_bias(&op.weights[offset..offset + op.stride], projection);
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
        let mut discarded = std::mem::take(&mut self.discarded);
        let d_norm = match op.norm {
            Some(offset) => gradient_of(gradients.as_deref_mut(), offset, op.width, &mut discarded),
            None => &mut [],
        };
        let mut shifted = std::mem::take(&mut self.shifted);
        let norm = norm_weight(head_norm(op), op.minus_one, &mut shifted);
        let angles = self.angles(batch, op);
        let (projection, d_projection) = (&projection[..length], &mut d_projection[..length]);
        elementwise::qk_norm_rope_backward(angles, op, norm, projection, d_out, d_projection, d_norm);
        self.discarded = discarded;
        self.shifted = shifted;
        if let (Some(offset), Some(gradients)) = (op.bias, gradients) {
            elementwise::add_column_sums(d_projection, &mut gradients[offset..offset + op.stride]);
        }
    }

    fn attention(&mut self, batch: &Prepared, op: &Attention<Values>, out: &mut Values, lse: &mut Values) {
        let blocks = batch.blocks(op.rows, op.window);
        attention::forward(&mut self.attention, &mut self.gemm, &batch.batch, blocks, op, out, lse);
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
        let (gate_up, out) = (&gate_up[..2 * rows * width], &mut out[..rows * width]);
        match activation {
            Activation::Silu => elementwise::swiglu(width, gate_up, out),
            Activation::Gelu => elementwise::geglu(width, gate_up, out),
        }
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
        let length = rows * width;
        let (gate_up, d_out, out) = (&mut gate_up[..2 * length], &d_out[..length], &mut out[..length]);
        match activation {
            Activation::Silu => elementwise::swiglu_backward(width, gate_up, d_out, out),
            Activation::Gelu => elementwise::geglu_backward(width, gate_up, d_out, out),
        }
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
        d_logprobs: &[f32],
        d_hidden: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.lm_head.score_backward(&mut self.gemm, &batch.batch, head, d_logprobs, d_hidden, gradients);
    }
}
