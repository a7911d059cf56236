//! Sizes of the GPU backend's workspace for the largest micro-batch it will see, so that memory can be planned before
//! anything is allocated.

use half::bf16;
use policy::config::Config;

use super::{COLUMN_PARTIALS, device_batch, qk_norm_rope, rms_norm};

/// Target size of a chunk's logits and their gradient, bytes.
const CHUNK_BYTES: usize = 1 << 30;
/// Nodes of a chunk, at least and at most: enough for the GEMMs to run at full speed.
const CHUNK_NODES: (usize, usize) = (64, 2048);
/// Rows of a GEMM's tile: a chunk is whole tiles if it has one at all.
const GEMM_TILE: usize = 128;
/// Values from one row of logits to the next: rows begin at multiples of 16 bytes for both types.
pub(super) fn logits_stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(8)
}

pub(super) fn logits_chunk(nodes: usize, vocabulary: usize) -> usize {
    let fitting = CHUNK_BYTES / (logits_stride(vocabulary) * (size_of::<f32>() + size_of::<bf16>()));
    let whole = if fitting < GEMM_TILE { fitting } else { fitting / GEMM_TILE * GEMM_TILE };
    whole.clamp(CHUNK_NODES.0, CHUNK_NODES.1).min(nodes).max(1)
}

/// The largest micro-batch of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct MaxBatch<'a> {
    /// Nodes, of which all may be scored.
    pub tokens: usize,
    /// Loss rows.
    pub rows: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// The decoder.
    pub config: &'a Config,
    /// True if there is a backward pass.
    pub backward: bool,
}

/// Lengths of the backend's buffers, in values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceSizes {
    /// Tables of a micro-batch, i32.
    pub integers: usize,
    /// Partial sums, f32.
    pub partials: usize,
    /// `sum(out * d_out)` of each row and head, for attention's backward pass, f32.
    pub deltas: usize,
    /// Number of cosines in the RoPE cache, f32; the number of sines is equal.
    pub rope: usize,
    /// Logits of a chunk, f32.
    pub logits: usize,
    /// Their gradient, 16 bits.
    pub d_logits: usize,
    /// Log-sum-exps of the logits, f32.
    pub lse: usize,
    /// Log-probabilities and entropies, f32.
    pub rows: usize,
    /// Weights and entropies of the scored nodes for an entropy term, f32.
    pub spreads: usize,
}

impl WorkspaceSizes {
    /// Sizes for this largest micro-batch.
    pub fn of(max: &MaxBatch) -> WorkspaceSizes {
        let (tokens, config) = (max.tokens, max.config);
        let (queries, keys, width) = (config.num_heads, config.num_kv_heads, config.head_dim);
        let norms = rms_norm::backward_blocks(tokens, config.hidden_size) * config.hidden_size;
        let head_norms = qk_norm_rope::backward_blocks(tokens, queries.max(keys)) * width;
        let widest = queries.max(2 * keys) * width;
        let columns = if config.attention_bias { tokens.min(COLUMN_PARTIALS) * widest } else { 0 };
        let logits = logits_chunk(tokens, config.vocab_size) * logits_stride(config.vocab_size);
        let backward = |length: usize| if max.backward { length } else { 0 };
        WorkspaceSizes {
            integers: device_batch::integers(tokens, max.rows.max(1)),
            partials: backward(norms.max(head_norms).max(columns)),
            deltas: backward(tokens * queries),
            rope: qk_norm_rope::table_values(max.positions, width / 2),
            logits,
            d_logits: backward(logits),
            lse: tokens,
            rows: 2 * max.rows.max(1),
            spreads: backward(2 * tokens.min(max.rows.max(1))),
        }
    }

    /// Bytes of each nonempty buffer: first logits and their gradient, then the others.
    pub fn bytes(&self) -> (Vec<u64>, Vec<u64>) {
        let single = |length: usize| (length * size_of::<f32>()) as u64;
        let others = [
            self.integers,
            self.partials,
            self.deltas,
            self.rope,
            self.rope,
            self.lse,
            self.rows,
            self.spreads,
        ];
        let logits = [single(self.logits), single(self.d_logits) / 2];
        let some = |bytes: &u64| *bytes > 0;
        (logits.into_iter().filter(some).collect(), others.map(single).into_iter().filter(some).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_whole_tiles_of_a_gemm() {
        // Qwen3's vocabulary: 1,177 nodes would fit.
        assert_eq!(logits_chunk(32_768, 151_936), 1_152);
        assert_eq!(logits_chunk(32_768, 32_000), 2_048);
        assert_eq!(logits_chunk(700, 151_936), 700, "no more than there are");
        assert_eq!(logits_chunk(32_768, 1 << 21), 85, "less than a tile fits");
    }
}
