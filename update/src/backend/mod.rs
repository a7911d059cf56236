//! The operations of a decoder's forward and backward pass, as a trait that the CPU and the GPU implement.
//!
//! [`crate::model`] is written once above it. Activations are row-major `[rows, width]`; weights and their
//! gradients are flat arrays in which a tensor is named by its offset (see [`crate::model::Layout`]).
//! Gradients of weights are accumulated and gradients of activations overwritten, unless said otherwise. A
//! gradient of weights is optional if they may be frozen (under an adapter); without one nothing is computed
//! for it.
//!
//! Buffers are f32 or, on a device, bf16. The residual stream and the gradients that no GEMM reads (of the
//! stream, of a norm's output, of the SwiGLU's output, of queries and keys after RoPE) are always f32:
//! [`Backend::f32_buffer`].

pub(crate) mod cpu;
mod gpu;
mod micro_batch;
mod rope;

pub use cpu::Cpu;
pub(crate) use cpu::add_and_clear;
pub(crate) use gpu::unsupported;
pub use gpu::{Gpu, MaxBatch, Values, WorkspaceSizes};
pub use micro_batch::MicroBatch;

/// A matrix `[outputs, inputs]` in a flat array of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Offset of its first value.
    pub offset: usize,
    /// Output features.
    pub outputs: usize,
    /// Input features.
    pub inputs: usize,
}

impl Dense {
    /// Where its values are.
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.outputs * self.inputs
    }
}

/// Attention heads of one decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads.
    pub keys: usize,
    /// Width of a head.
    pub width: usize,
}

/// The nodes of a micro-batch that an operation's rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every node.
    All,
    /// The nodes that carry a loss row.
    Scored,
}

/// An RMS norm over rows of the residual stream.
#[derive(Debug)]
pub struct RmsNorm<'a, T> {
    /// Number of rows.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// Input `[rows, width]`, f32.
    pub x: &'a T,
    /// The model's weights.
    pub weights: &'a T,
    /// Offset of the norm's weight, `[width]`.
    pub offset: usize,
    /// Added to the mean square.
    pub epsilon: f32,
    /// True if the weight is stored minus 1 (Gemma). On the CPU only.
    pub minus_one: bool,
}

/// The embedding table, or the rows that are read.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub table: Dense,
    /// Factor of the rows; another than 1 on the CPU only.
    pub scale: f32,
}

/// How the gate of an MLP is bent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`: SwiGLU (arXiv 2002.05202).
    Silu,
    /// GELU by its tanh formula (arXiv 1606.08415): GEGLU. On the CPU only.
    Gelu,
}

/// A linear layer without bias: `y = x · weightᵀ` for some rows.
#[derive(Debug)]
pub struct Linear<'a, T> {
    /// Number of rows.
    pub rows: usize,
    /// The model's weights.
    pub weights: &'a T,
    /// The weight matrix.
    pub weight: Dense,
}

/// What follows a query or key projection: bias (Qwen2), RMS norm of each head (Qwen3), RoPE. Each is optional. On a GPU
/// there is one kind of RoPE, of whole heads, and no weight is stored minus 1.
#[derive(Debug)]
pub struct QkNormRope<'a, T> {
    /// The nodes that have a row.
    pub rows: Rows,
    /// The model's weights.
    pub weights: &'a T,
    /// Number of heads; the row may go on after them (keys are followed by values).
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Width of a row of the projection.
    pub stride: usize,
    /// Offset of a bias over the whole row.
    pub bias: Option<usize>,
    /// Offset of the weight of the norm, `[width]`, shared by the heads.
    pub norm: Option<usize>,
    /// Added to the mean square in that norm.
    pub epsilon: f32,
    /// True if the norm's weight is stored minus 1.
    pub minus_one: bool,
    /// Index of the backend's rotary positions to apply; `None` in a layer without them (NoPE).
    pub rope: Option<usize>,
}

impl<T> QkNormRope<'_, T> {
    /// This operation for a projection that already has its bias, as after the forward pass.
    pub fn recompute(&self) -> QkNormRope<'_, T> {
        QkNormRope { bias: None, weights: self.weights, ..*self }
    }

    /// Values of a row after the operation.
    pub(crate) fn heads_width(&self) -> usize {
        self.heads * self.width
    }
}

/// Experts in place of a layer's MLP: `sum of probability · down(silu(gate(x)) * up(x))` over the likeliest ones of a token.
#[derive(Debug)]
pub struct Experts<'a, T> {
    /// Number of rows.
    pub rows: usize,
    /// The model's weights.
    pub weights: &'a T,
    /// The router, `[experts, hidden]`. The experts follow: gate and up `[width, hidden]` and down `[hidden, width]` of each.
    pub router: Dense,
    /// How wide they are, and how many a row takes.
    pub settings: &'a policy::experts::Experts,
}

impl<T> Experts<'_, T> {
    /// Gate and up, and down, of an expert.
    pub(crate) fn matrices(&self, expert: usize) -> [Dense; 2] {
        let (width, hidden) = (self.settings.width, self.router.inputs);
        let offset = self.router.range().end + expert * 3 * width * hidden;
        let down = Dense { offset: offset + 2 * width * hidden, outputs: hidden, inputs: width };
        [Dense { offset, outputs: 2 * width, inputs: hidden }, down]
    }
}

/// Attention under the tree mask.
#[derive(Debug)]
pub struct Attention<'a, T> {
    /// The nodes that have a query.
    pub rows: Rows,
    /// Heads.
    pub heads: Heads,
    /// Factor of the scores; on a GPU `1 / sqrt(heads.width)`.
    pub scale: f32,
    /// Tokens that a query may attend to, itself included, where a window limits them. A GPU ignores it: sequences are not
    /// longer there.
    pub window: Option<usize>,
    /// Queries after RoPE, `[rows, queries * width]`.
    pub queries: &'a T,
    /// Keys after RoPE, `[tokens, keys * width]`.
    pub keys: &'a T,
    /// The key and value projection, `[tokens, 2 * keys * width]`, of which the second half is read.
    pub key_value: &'a T,
}

/// What the backward pass of attention reads of the forward pass, and the gradient of its output.
#[derive(Debug)]
pub struct AttentionOutput<'a, T> {
    /// Output, `[rows, queries * width]`.
    pub out: &'a T,
    /// Log-sum-exp of each row's scores, `[rows, queries]`, f32.
    pub lse: &'a T,
    /// Gradient of the output, `[rows, queries * width]`.
    pub d_out: &'a T,
}

/// Where the backward pass of attention writes.
#[derive(Debug)]
pub struct AttentionGradients<'a, T> {
    /// `[rows, queries * width]`, f32.
    pub d_queries: &'a mut T,
    /// `[tokens, keys * width]`, f32.
    pub d_keys: &'a mut T,
    /// `[tokens, 2 * keys * width]`; values' gradients are the second half of each row, the first is left alone.
    pub d_key_value: &'a mut T,
}

/// The LM head over the scored nodes, and the log-softmax after it.
#[derive(Debug)]
pub struct LmHead<'a, T> {
    /// Hidden states of the scored nodes, `[scored, hidden]`.
    pub hidden: &'a T,
    /// The model's weights.
    pub weights: &'a T,
    /// The head's weight, `[vocabulary, hidden]`.
    pub weight: Dense,
    /// Logits are divided by it.
    pub temperature: f32,
}

/// What scoring finds, in the order of the loss rows.
#[derive(Debug)]
pub struct RowScores<'a> {
    /// Log-probabilities of the targets, nats.
    pub logprobs: &'a mut [f32],
    /// Entropies of the distributions, nats.
    pub entropies: &'a mut [f32],
}

/// The gradient of a loss by what scoring finds, in the order of the loss rows.
#[derive(Clone, Copy, Debug)]
pub struct ScoreGradient<'a> {
    /// By the log-probabilities.
    pub logprobs: &'a [f32],
    /// By the entropies, and these as scoring found them; none where the loss has no such term.
    pub entropies: Option<(&'a [f32], &'a [f32])>,
}

impl<'a> ScoreGradient<'a> {
    /// For a loss of log-probabilities alone.
    pub fn of_logprobs(logprobs: &'a [f32]) -> Self {
        ScoreGradient { logprobs, entropies: None }
    }
}

/// Hardware on which a decoder runs. One value serves one stream of work and owns its scratch memory.
pub trait Backend {
    /// An array in the hardware's memory: f32, or for weights and activations the type it computes in.
    type Buffer;
    /// A micro-batch in the hardware's memory.
    type Batch;
    /// True if activations are stored in fewer bits than f32.
    const LOW_PRECISION: bool = false;
    /// True if [`Backend::score_with_gradient`] may do something.
    const SCORES_WITH_GRADIENT: bool = false;

    /// An empty buffer for weights or activations.
    fn buffer(&mut self) -> Self::Buffer;

    /// An empty buffer of f32 values, whatever activations are.
    fn f32_buffer(&mut self) -> Self::Buffer {
        self.buffer()
    }

    /// The first `length` values of an f32 buffer as a GEMM operand: the values themselves, or where activations have
    /// fewer bits, their rounding in `copy`.
    fn cast_for_gemm<'a>(
        &mut self,
        length: usize,
        values: &'a Self::Buffer,
        copy: &'a mut Self::Buffer,
    ) -> &'a Self::Buffer {
        let _ = (length, copy);
        values
    }

    /// Grows a buffer to `length` values, whose content is then unspecified. Never shrinks.
    fn reserve(&mut self, buffer: &mut Self::Buffer, length: usize);

    /// Waits until all work is done, where the hardware runs asynchronously; for timing.
    fn synchronize(&mut self) {}

    /// Moves a micro-batch to the hardware.
    fn prepare(&mut self, batch: MicroBatch) -> Self::Batch;

    /// `out[i] = scale * table[ids[i]]` into the residual stream.
    fn embed(
        &mut self,
        batch: &Self::Batch,
        weights: &Self::Buffer,
        embedding: Embedding,
        out: &mut Self::Buffer,
    );

    /// `gradients.table[ids[i]] += scale * d_out[i]`.
    fn embed_backward(
        &mut self,
        batch: &Self::Batch,
        d_out: &Self::Buffer,
        gradients: &mut Self::Buffer,
        embedding: Embedding,
    );

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight` for each row.
    fn rms_norm(&mut self, norm: &RmsNorm<Self::Buffer>, out: &mut Self::Buffer);

    /// Gradient of [`Backend::rms_norm`]; `d_x` is added to (the residual stream's gradient passes by).
    fn rms_norm_backward(
        &mut self,
        norm: &RmsNorm<Self::Buffer>,
        d_out: &Self::Buffer,
        d_x: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );

    /// `out = residual + x · weightᵀ`; with a residual, both are of the residual stream.
    fn linear(
        &mut self,
        linear: &Linear<Self::Buffer>,
        x: &Self::Buffer,
        residual: Option<&Self::Buffer>,
        out: &mut Self::Buffer,
    );

    /// Adds the bias at `offset` to rows of `width` values. On the CPU only.
    fn add_bias(
        &mut self,
        rows: usize,
        width: usize,
        weights: &Self::Buffer,
        offset: usize,
        x: &mut Self::Buffer,
    );

    /// `gradients[offset..] += ` the column sums of `d_out`. On the CPU only.
    fn bias_backward(
        &mut self,
        rows: usize,
        width: usize,
        d_out: &Self::Buffer,
        gradients: &mut Self::Buffer,
        offset: usize,
    );

    /// `sum = left + right` of `length` values. On the CPU only.
    fn add(&mut self, length: usize, left: &Self::Buffer, right: &Self::Buffer, sum: &mut Self::Buffer);

    /// `out += x · weightᵀ`.
    fn linear_add(&mut self, linear: &Linear<Self::Buffer>, x: &Self::Buffer, out: &mut Self::Buffer);

    /// `d_x = d_out · weight`, or `d_x += …` if `add`.
    fn linear_backward_input(
        &mut self,
        linear: &Linear<Self::Buffer>,
        d_out: &Self::Buffer,
        add: bool,
        d_x: &mut Self::Buffer,
    );

    /// `gradients.weight += d_outᵀ · x`.
    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Self::Buffer,
        x: &Self::Buffer,
        gradients: &mut Self::Buffer,
        weight: Dense,
    );

    /// Adds the bias to the whole projection in place, then writes its heads, normalized and rotated, to `out`
    /// `[rows, heads * width]`.
    fn qk_norm_rope(
        &mut self,
        batch: &Self::Batch,
        op: &QkNormRope<Self::Buffer>,
        projection: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::qk_norm_rope`]: `d_out` becomes the gradient of the heads in `d_projection`,
    /// whose other columns are complete already; then the bias receives the column sums.
    fn qk_norm_rope_backward(
        &mut self,
        batch: &Self::Batch,
        op: &QkNormRope<Self::Buffer>,
        projection: &Self::Buffer,
        d_out: &Self::Buffer,
        d_projection: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );

    /// Writes attention's output `[rows, queries * width]`, and the log-sum-exp of each row's scores `[rows, queries]`.
    fn attention(
        &mut self,
        batch: &Self::Batch,
        op: &Attention<Self::Buffer>,
        out: &mut Self::Buffer,
        lse: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::attention`].
    fn attention_backward(
        &mut self,
        batch: &Self::Batch,
        op: &Attention<Self::Buffer>,
        output: AttentionOutput<Self::Buffer>,
        gradients: AttentionGradients<Self::Buffer>,
    );

    /// `out = activation(gate) * up`, each row of `gate_up` being `[gate, up]` of `width` each.
    fn swiglu(
        &mut self,
        activation: Activation,
        rows: usize,
        width: usize,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::swiglu`] in place of `gate_up`; `out` is recomputed.
    fn swiglu_backward(
        &mut self,
        activation: Activation,
        rows: usize,
        width: usize,
        gate_up: &mut Self::Buffer,
        d_out: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// `out = residual + experts(x)`. On the CPU only.
    fn experts(
        &mut self,
        op: &Experts<Self::Buffer>,
        x: &Self::Buffer,
        residual: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::experts`], of which everything is computed again.
    fn experts_backward(
        &mut self,
        op: &Experts<Self::Buffer>,
        x: &Self::Buffer,
        d_out: &Self::Buffer,
        d_x: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );

    /// The scored rows of `x`.
    fn gather(&mut self, batch: &Self::Batch, width: usize, x: &Self::Buffer, out: &mut Self::Buffer);

    /// `x[scored[i]] += rows[i]`.
    fn scatter_add(&mut self, batch: &Self::Batch, width: usize, rows: &Self::Buffer, x: &mut Self::Buffer);

    /// Sets the first `length` values to zero.
    fn zero(&mut self, length: usize, buffer: &mut Self::Buffer);

    /// Log-probabilities of the loss rows and the entropy of their distributions, nats. The vocabulary is taken in
    /// chunks; `[tokens, vocabulary]` never exists.
    fn score(
        &mut self,
        batch: &Self::Batch,
        head: &LmHead<Self::Buffer>,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    );

    /// [`Backend::score`] and [`Backend::score_backward`] at once: `derivative` gives the gradient at a loss row, by its index,
    /// from its log-probability. False, and nothing is done, where two passes cost the same.
    fn score_with_gradient(
        &mut self,
        _batch: &Self::Batch,
        _head: &LmHead<Self::Buffer>,
        _scores: RowScores<'_>,
        _derivative: &dyn Fn(usize, f32) -> f32,
        _d_hidden: &mut Self::Buffer,
        _gradients: Option<&mut Self::Buffer>,
    ) -> bool {
        false
    }

    /// Gradient of the last [`Backend::score`], which must have had the same arguments. With p the probabilities of a row's
    /// distribution, T the temperature and H its entropy, logit k gets, of the log-probability of target t,
    /// `(1[k = t] − p_k) / T`, and of the entropy `−p_k (log p_k + H) / T`.
    fn score_backward(
        &mut self,
        batch: &Self::Batch,
        head: &LmHead<Self::Buffer>,
        gradient: ScoreGradient<'_>,
        d_hidden: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );
}
