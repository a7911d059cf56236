//! What the model asks of hardware: the operations of a decoder's forward and backward pass.
//!
//! [`crate::model`] is written once above this trait; a processor or a device implements it. All activations
//! are row-major `[rows, width]`; weights and their gradients are flat arrays in which an operation finds its
//! tensor by offset (see [`crate::model::Layout`]). Gradients of weights are added, those of activations
//! written, unless said otherwise; the residual stream and gradients that no product reads (the stream's, a norm's result's, the SwiGLU's,
//! rotated queries' and keys') are buffers of [`Backend::statistics`]; where an operation takes none for the weights, these are frozen (an adapter is
//! trained over them) and nothing is computed for them.

mod angles;
mod batch;
mod cpu;
mod gpu;

pub use batch::Batch;
pub use cpu::Cpu;
pub(crate) use cpu::add_and_clear;
pub use cpu::held as cpu_logits;
pub use gpu::{Extent, Gpu, Room, Values, refusal};

/// A matrix `[outputs, inputs]` in a flat array of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Offset of its first value.
    pub at: usize,
    /// Rows: width of what it produces.
    pub outputs: usize,
    /// Columns: width of what it reads.
    pub inputs: usize,
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

/// One projection that becomes rotated heads: Qwen2's bias, Qwen3's norm, then rotary positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotated {
    /// Number of heads to rotate; the row may go on after them (keys are followed by values).
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Width of a row of the projection.
    pub stride: usize,
    /// Offset of a bias over the whole row.
    pub bias: Option<usize>,
    /// Offset of the weight of an RMS norm over each head.
    pub norm: Option<usize>,
    /// Added to the mean square in that norm.
    pub epsilon: f32,
}

/// Which nodes of a micro-batch an operation's rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every node.
    All,
    /// The nodes that carry a loss row.
    Scored,
}

/// The output head over the scored nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Its weight, `[vocabulary, hidden]`.
    pub weight: Dense,
    /// Logits are divided by it.
    pub temperature: f32,
}

/// Hardware on which a decoder runs. One value serves one stream of work and owns its scratch memory.
pub trait Backend {
    /// An array in the hardware's memory: f32, or for weights and activations what the hardware computes in.
    type Buffer;
    /// A micro-batch in the hardware's memory.
    type Batch;
    /// Whether activations are stored in fewer bits than f32.
    const NARROW: bool = false;

    /// An empty buffer.
    fn buffer(&mut self) -> Self::Buffer;

    /// An empty buffer for values that are f32 wherever activations are stored in fewer bits.
    fn statistics(&mut self) -> Self::Buffer {
        self.buffer()
    }

    /// What products read of `length` values of a buffer of [`Backend::statistics`]: the values themselves, or where
    /// activations are stored in fewer bits their rounding, in `copy`.
    fn as_activations<'a>(
        &mut self,
        length: usize,
        values: &'a Self::Buffer,
        copy: &'a mut Self::Buffer,
    ) -> &'a Self::Buffer {
        let _ = (length, copy);
        values
    }

    /// Makes room for `length` values, whose content is then unspecified. Never shrinks.
    fn reserve(&mut self, buffer: &mut Self::Buffer, length: usize);

    /// Waits until everything asked for is done, where hardware works beside the caller: so that times can be told.
    fn wait(&mut self) {}

    /// Takes a micro-batch over.
    fn prepare(&mut self, batch: Batch) -> Self::Batch;

    /// `out[i] = table[ids[i]]`, the table `[vocabulary, hidden]`, into the residual stream.
    fn embed(&mut self, batch: &Self::Batch, weights: &Self::Buffer, table: Dense, out: &mut Self::Buffer);

    /// `gradients.table[ids[i]] += d_out[i]`.
    fn embed_backward(
        &mut self,
        batch: &Self::Batch,
        d_out: &Self::Buffer,
        gradients: &mut Self::Buffer,
        table: Dense,
    );

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight` for each row of the residual stream.
    #[allow(clippy::too_many_arguments)]
    fn rms_norm(
        &mut self,
        rows: usize,
        width: usize,
        x: &Self::Buffer,
        weights: &Self::Buffer,
        at: usize,
        epsilon: f32,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::rms_norm`]; `d_x` is added to (the residual stream's gradient passes by).
    #[allow(clippy::too_many_arguments)]
    fn rms_norm_backward(
        &mut self,
        rows: usize,
        width: usize,
        x: &Self::Buffer,
        weights: &Self::Buffer,
        at: usize,
        epsilon: f32,
        d_out: &Self::Buffer,
        d_x: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );

    /// `out = residual + x · weightᵀ`; with a residual, both are of the residual stream.
    fn linear(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        weights: &Self::Buffer,
        weight: Dense,
        residual: Option<&Self::Buffer>,
        out: &mut Self::Buffer,
    );

    /// `out += x · weightᵀ`.
    fn linear_add(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        weights: &Self::Buffer,
        weight: Dense,
        out: &mut Self::Buffer,
    );

    /// `d_x = d_out · weight`, or `d_x += …` if `add`.
    fn linear_backward_input(
        &mut self,
        rows: usize,
        d_out: &Self::Buffer,
        weights: &Self::Buffer,
        weight: Dense,
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

    /// Adds the bias to the whole projection in place, then writes its heads, normalised and rotated, to
    /// `out` `[rows, heads * width]`.
    fn rotate(
        &mut self,
        batch: &Self::Batch,
        rows: Rows,
        rotated: Rotated,
        weights: &Self::Buffer,
        projection: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// [`Backend::rotate`] again, from a projection that has its bias.
    fn rotate_again(
        &mut self,
        batch: &Self::Batch,
        rows: Rows,
        rotated: Rotated,
        weights: &Self::Buffer,
        projection: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::rotate`]: `d_out` becomes that of the heads in `d_projection`, whose other
    /// columns are complete already; then the bias receives the column sums.
    #[allow(clippy::too_many_arguments)]
    fn rotate_backward(
        &mut self,
        batch: &Self::Batch,
        rows: Rows,
        rotated: Rotated,
        weights: &Self::Buffer,
        projection: &Self::Buffer,
        d_out: &Self::Buffer,
        d_projection: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );

    /// Attention under the tree mask, scaled by `1 / sqrt(width)`.
    ///
    /// `queries` and `out` `[rows, queries * width]`; `keys` `[tokens, keys * width]`; values are the second
    /// half of each row of `projection` `[tokens, 2 * keys * width]`; `normalizers` `[rows, queries]`
    /// receives the log-sum-exp of each row's scores.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &mut self,
        batch: &Self::Batch,
        rows: Rows,
        heads: Heads,
        queries: &Self::Buffer,
        keys: &Self::Buffer,
        projection: &Self::Buffer,
        out: &mut Self::Buffer,
        normalizers: &mut Self::Buffer,
    );

    /// Gradient of [`Backend::attention`]. Values' gradients go to the second half of each row of
    /// `d_projection`.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &mut self,
        batch: &Self::Batch,
        rows: Rows,
        heads: Heads,
        queries: &Self::Buffer,
        keys: &Self::Buffer,
        projection: &Self::Buffer,
        out: &Self::Buffer,
        normalizers: &Self::Buffer,
        d_out: &Self::Buffer,
        d_queries: &mut Self::Buffer,
        d_keys: &mut Self::Buffer,
        d_projection: &mut Self::Buffer,
    );

    /// `out = silu(gate) * up`, each row of `gate_up` being `[gate, up]` of `width` each.
    fn swiglu(&mut self, rows: usize, width: usize, gate_up: &Self::Buffer, out: &mut Self::Buffer);

    /// Gradient of [`Backend::swiglu`] in place of `gate_up`; `out` is computed again on the way.
    fn swiglu_backward(
        &mut self,
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
    fn clear(&mut self, length: usize, buffer: &mut Self::Buffer);

    /// Log-probabilities of the loss rows, and the entropy of their distributions, from the hidden states of
    /// the scored nodes. The vocabulary is taken in chunks; `[tokens, vocabulary]` never exists.
    fn score(
        &mut self,
        batch: &Self::Batch,
        hidden: &Self::Buffer,
        weights: &Self::Buffer,
        head: Head,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    );

    /// Gradient of the last [`Backend::score`], which must have been of the same arguments.
    #[allow(clippy::too_many_arguments)]
    fn score_backward(
        &mut self,
        batch: &Self::Batch,
        hidden: &Self::Buffer,
        weights: &Self::Buffer,
        head: Head,
        d_logprobs: &[f32],
        d_hidden: &mut Self::Buffer,
        gradients: Option<&mut Self::Buffer>,
    );
}
