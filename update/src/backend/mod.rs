//! The operations of a decoder's forward and backward pass, as a trait that the CPU and the GPU implement.
//!
//! [`crate::model`] is written once above it. Activations are row-major `[rows, width]`; weights and their
//! gradients are flat arrays in which a tensor is named by its offset (see [`crate::model::Layout`]).
//! Gradients of weights are accumulated and gradients of activations overwritten, unless said otherwise. A
//! gradient of weights is optional if they may be frozen (under an adapter); without one nothing is computed
//! for it.
//!
//! Buffers are f32 or, on a device, bf16 or f16. The residual stream and the gradients that no GEMM reads (of the
//! stream, of a norm's output, of the SwiGLU's output, of queries and keys after RoPE) are always f32:
//! [`Backend::f32_buffer`].

pub(crate) mod cpu;
mod gpu;
mod micro_batch;
mod operations;
mod rope;
mod variants;

pub use cpu::Cpu;
pub(crate) use cpu::add_and_clear;
pub(crate) use gpu::unsupported;
pub use gpu::{Gpu, Half, MaxBatch, Values, Windows, WorkspaceSizes};
pub use micro_batch::MicroBatch;
pub use operations::{
    Activation, Attention, AttentionGradients, AttentionOutput, Dense, Embedding, Experts, Heads, Linear,
    LmHead, QkNormRope, RmsNorm, RowScores, Rows, ScoreGradient,
};
pub use variants::Variants;
pub(crate) use variants::variants;

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

    /// The operations that only some families of decoders need, if this hardware has them.
    fn variants(&mut self) -> Option<&mut dyn Variants<Buffer = Self::Buffer>> {
        None
    }

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
