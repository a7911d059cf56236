//! What the device backend takes beside the model's own buffers, for the largest micro-batch it will see: planned before
//! anything is allocated, then allocated at once, so that the plan is what is taken.

use super::sums::{COLUMN_PARTS, PARTS};
use super::{batch, rotary, score};

/// The largest micro-batch, and the decoder as the backend sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Nodes, of which all may be scored.
    pub tokens: usize,
    /// Loss rows.
    pub rows: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads, and key heads.
    pub heads: (usize, usize),
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Whether projections have biases.
    pub bias: bool,
    /// Whether there is a backward pass.
    pub backward: bool,
}

/// Lengths of the backend's own buffers, in values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Tables of a micro-batch, i32.
    pub integers: usize,
    /// Partial sums, f32.
    pub partials: usize,
    /// One value a row and head for attention's backward pass, f32.
    pub deltas: usize,
    /// Cosines, and as many sines, f32.
    pub angles: usize,
    /// Logits of a chunk, f32.
    pub logits: usize,
    /// Their gradient, bf16.
    pub d_logits: usize,
    /// Log-sum-exps of the logits, f32.
    pub normalizers: usize,
    /// Log-probabilities and entropies, f32.
    pub rows: usize,
}

impl Room {
    /// What an extent takes.
    pub fn of(extent: &Extent) -> Room {
        let (tokens, (queries, keys), width) = (extent.tokens, extent.heads, extent.head_dim);
        let norms = tokens.min(PARTS) * extent.hidden;
        let rotations = (tokens * queries.max(keys)).div_ceil(rotary::WARPS).min(PARTS) * width;
        let widest = queries.max(2 * keys) * width;
        let columns = if extent.bias { tokens.min(COLUMN_PARTS) * widest } else { 0 };
        let logits = score::chunk(tokens, extent.vocabulary) * score::stride(extent.vocabulary);
        let backward = |length: usize| if extent.backward { length } else { 0 };
        Room {
            integers: batch::integers(tokens, extent.rows.max(1)),
            partials: backward(norms.max(rotations).max(columns)),
            deltas: backward(tokens * queries),
            angles: rotary::table(extent.positions, width / 2),
            logits,
            d_logits: backward(logits),
            normalizers: tokens,
            rows: 2 * extent.rows.max(1),
        }
    }

    /// Bytes of each buffer that has any: those of the logits and their gradient, and the others.
    pub fn bytes(&self) -> (Vec<u64>, Vec<u64>) {
        let single = |length: usize| (length * size_of::<f32>()) as u64;
        let others = [
            self.integers,
            self.partials,
            self.deltas,
            self.angles,
            self.angles,
            self.normalizers,
            self.rows,
        ];
        let logits = [single(self.logits), single(self.d_logits) / 2];
        let some = |bytes: &u64| *bytes > 0;
        (logits.into_iter().filter(some).collect(), others.map(single).into_iter().filter(some).collect())
    }
}
