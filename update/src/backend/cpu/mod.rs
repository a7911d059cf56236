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
    Attention, AttentionGradients, AttentionOutput, Backend, Dense, Linear, LmHead, MicroBatch, QkNormRope,
    RmsNorm, Rows,
};
use gemm::{Onto, Precision, View, ViewMut};

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
    rope: RopeCache,
    /// Where gradients of frozen vectors go.
    discarded: Values,
}

impl Cpu {
    /// A core for heads with these RoPE frequencies, radians a position.
    pub fn new(inverse_frequencies: &[f32]) -> Cpu {
        Cpu {
            gemm: Gemm::default(),
            attention: attention::Scratch::default(),
            lm_head: lm_head::Scratch::default(),
            rope: RopeCache::new(inverse_frequencies),
            discarded: Vec::new(),
        }
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
        let positions = op.rope.then_some(&batch.batch.positions[..]);
        elementwise::RowAngles { cache: &self.rope, positions, nodes }
    }
}

/// A micro-batch and the blocks that attention takes it in.
#[derive(Clone, Debug)]
pub struct Prepared {
    batch: MicroBatch,
    all: attention::Blocks,
    scored: attention::Blocks,
}

impl Prepared {
    fn blocks(&self, rows: Rows) -> &attention::Blocks {
        match rows {
            Rows::All => &self.all,
            Rows::Scored => &self.scored,
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

fn norm_weight<'a>(op: &QkNormRope<'a, Values>) -> &'a [f32] {
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
        self.rope.extend_to(batch.positions.iter().max().map_or(0, |&last| last as usize + 1));
        let all = attention::Blocks::new(&batch, (0..batch.tokens() as u32).collect());
        let scored = attention::Blocks::new(&batch, batch.scored.clone());
        Prepared { batch, all, scored }
    }

    fn embed(&mut self, batch: &Prepared, weights: &Values, table: Dense, out: &mut Values) {
        for (&id, out) in batch.batch.ids.iter().zip(out.chunks_exact_mut(table.inputs)) {
            out.copy_from_slice(&weights[table.offset + id as usize * table.inputs..][..table.inputs]);
        }
    }

    fn embed_backward(&mut self, batch: &Prepared, d_out: &Values, gradients: &mut Values, table: Dense) {
        elementwise::add_rows(&batch.batch.ids, table.inputs, d_out, &mut gradients[table.offset..]);
    }

    fn rms_norm(&mut self, norm: &RmsNorm<Values>, out: &mut Values) {
        let length = norm.rows * norm.width;
        let weight = &norm.weights[norm.offset..norm.offset + norm.width];
        elementwise::rms_norm(&norm.x[..length], weight, norm.epsilon, &mut out[..length]);
    }

    fn rms_norm_backward(
        &mut self,
        norm: &RmsNorm<Values>,
        d_out: &Values,
        d_x: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        let RmsNorm { width, x, weights, offset, epsilon, .. } = *norm;
        let length = norm.rows * width;
        let weight = &weights[offset..offset + width];
        let d_weight = gradient_of(gradients, offset, width, &mut self.discarded);
        let (x, d_out, d_x) = (&x[..length], &d_out[..length], &mut d_x[..length]);
        elementwise::rms_norm_backward(x, weight, epsilon, d_out, d_x, d_weight);
    }

    fn linear(&mut self, linear: &Linear<Values>, x: &Values, residual: Option<&Values>, out: &mut Values) {
        let onto = residual.map_or(Onto::Zero, |residual| Onto::Other(residual));
        self.linear_onto(linear, x, onto, out);
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
        elementwise::qk_norm_rope(self.angles(batch, op), op, norm_weight(op), projection, out);
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
        let angles = self.angles(batch, op);
        let (projection, d_projection) = (&projection[..length], &mut d_projection[..length]);
        elementwise::qk_norm_rope_backward(
            angles,
            op,
            norm_weight(op),
            projection,
            d_out,
            d_projection,
            d_norm,
        );
        self.discarded = discarded;
        if let (Some(offset), Some(gradients)) = (op.bias, gradients) {
            elementwise::add_column_sums(d_projection, &mut gradients[offset..offset + op.stride]);
        }
    }

    fn attention(&mut self, batch: &Prepared, op: &Attention<Values>, out: &mut Values, lse: &mut Values) {
        let blocks = batch.blocks(op.rows);
        attention::forward(&mut self.attention, &mut self.gemm, &batch.batch, blocks, op, out, lse);
    }

    fn attention_backward(
        &mut self,
        batch: &Prepared,
        op: &Attention<Values>,
        output: AttentionOutput<Values>,
        gradients: AttentionGradients<Values>,
    ) {
        let blocks = batch.blocks(op.rows);
        attention::backward(&mut self.attention, &mut self.gemm, &batch.batch, blocks, op, output, gradients);
    }

    fn swiglu(&mut self, rows: usize, width: usize, gate_up: &Values, out: &mut Values) {
        elementwise::swiglu(width, &gate_up[..2 * rows * width], &mut out[..rows * width]);
    }

    fn swiglu_backward(
        &mut self,
        rows: usize,
        width: usize,
        gate_up: &mut Values,
        d_out: &Values,
        out: &mut Values,
    ) {
        let length = rows * width;
        elementwise::swiglu_backward(width, &mut gate_up[..2 * length], &d_out[..length], &mut out[..length]);
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
