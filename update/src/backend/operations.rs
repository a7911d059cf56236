//! The operands of each operation of a decoder.

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
    /// True if the weight is stored minus 1 (Gemma), which needs [`Variants`](super::Variants).
    pub minus_one: bool,
}

/// The embedding table, or the rows that are read.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub table: Dense,
    /// Factor of the rows; another than 1 only for a backend with [`Variants`](super::Variants).
    pub scale: f32,
}

/// Activation of the MLP gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`: SwiGLU (arXiv 2002.05202).
    Silu,
    /// GELU by its tanh formula (arXiv 1606.08415): GEGLU, which needs [`Variants`](super::Variants).
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

/// The operations after a query or key projection: bias (Qwen2), RMS norm of each head (Qwen3), RoPE. Each is optional. On a GPU
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

/// The inputs of attention's backward pass: results of the forward pass, and the gradient of its output.
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

/// The results of scoring, in the order of the loss rows.
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
    /// By the entropies, and these as scoring found them. None if the loss has no such term.
    pub entropies: Option<(&'a [f32], &'a [f32])>,
}

impl<'a> ScoreGradient<'a> {
    /// Of a loss of log-probabilities alone.
    pub fn of_logprobs(logprobs: &'a [f32]) -> Self {
        ScoreGradient { logprobs, entropies: None }
    }
}
