//! The shape of a batch: everything that a run's launches and addresses depend on, apart from its buffers' content.
//!
//! Two runs of one shape are the same work for the device. Decoding, where every sequence has one new token, is padded to
//! one of few buckets, so that one captured run can be replayed for the others ([`super::graphs`]). Padding rows are
//! sequences of one token whose key and value are not stored and whose result nobody reads.

use super::config::Capacity;
use crate::engine::batch::Batch;

/// Up to this many tokens in the longest sequence there is one bucket; beyond, one per power of two.
const SHORT: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Rows of tokens.
    pub rows: usize,
    /// Sequences that they belong to.
    pub sequences: usize,
    /// Rows whose logits are needed.
    pub logit_rows: usize,
    /// Tokens to be sampled.
    pub requests: usize,
    /// Columns of the block table.
    pub width: usize,
    /// The most new tokens of a sequence, the most tokens of one, and the least that the longest one has: the attention
    /// chooses its launches by them.
    pub bounds: [i32; 3],
    /// True if it is a padding bucket for decoding, which other runs share.
    pub bucket: bool,
}

impl BatchShape {
    /// The shape of a batch, padded where it only decodes, for a model with `positions` positions. Prompts of one token are decoded
    /// unless they are kept `apart`.
    pub fn of(batch: &Batch, capacity: &Capacity, positions: usize, apart: bool) -> BatchShape {
        let (rows, sequences) = (batch.ids.len(), batch.sequences());
        let (logit_rows, requests) = (batch.logit_rows.len(), batch.requests.len());
        let longest = batch.longest as i32;
        let one_each = [sequences, logit_rows, requests] == [rows; 3] && batch.longest_new == 1;
        if !one_each || rows > capacity.sequences || (apart && batch.prompts) {
            let (width, bounds) = (batch.most_blocks(), [batch.longest_new as i32, longest, longest]);
            return BatchShape { rows, sequences, logit_rows, requests, width, bounds, bucket: false };
        }
        // 1, 2, 3, 4, 6, 8, 12, 16, 24, …: padding of at most a half, and few shapes.
        let step = (rows.next_power_of_two() / 4).max(1);
        let rows = rows.next_multiple_of(step).min(capacity.sequences);
        let power = batch.longest.next_power_of_two();
        let (most, least) = if power <= SHORT { (SHORT, 1) } else { (power, power / 2) };
        let most = most.min(positions);
        let width = most.div_ceil(capacity.block_size);
        let bounds = [1, most as i32, least.min(most) as i32];
        BatchShape { rows, sequences: rows, logit_rows: rows, requests: rows, width, bounds, bucket: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::{NextToken, SampleRequest};
    use crate::engine::block_pool::{BlockPool, CacheConfig, Fork};
    use crate::engine::request::SamplingParams;
    use crate::engine::sequence::Sequence;

    const CAPACITY: Capacity = Capacity { rows: 1024 + 100, sequences: 100, blocks: 4096, block_size: 16 };

    /// A run of `sequences` sequences of `length` tokens, the last `new` of which are new.
    fn shape(sequences: usize, length: usize, new: usize) -> BatchShape {
        BatchShape::of(&batch(sequences, length, new), &CAPACITY, 3000, false)
    }

    fn batch(sequences: usize, length: usize, new: usize) -> Batch {
        let Capacity { blocks, block_size, .. } = CAPACITY;
        let mut pool =
            BlockPool::new(CacheConfig { blocks, block_size, fork: Fork::CopyOnWrite, lazy: false });
        let mut batch = Batch::default();
        batch.clear();
        for _ in 0..sequences {
            let mut sequence = Sequence::default();
            sequence.grow(length, &mut pool, &mut Vec::new(), &mut Vec::new());
            batch.ids.extend(vec![7; new]);
            batch.end_sequence(&sequence, new, None);
            let row = batch.need_logits();
            batch.requests.push(SampleRequest {
                row,
                sampling: SamplingParams::PLAIN,
                next: NextToken::Given(1),
            });
        }
        batch
    }

    #[test]
    fn prompts_of_one_new_token_are_decoded_unless_they_are_kept_apart() {
        let mut batch = batch(3, 20, 1);
        batch.prompts = true;
        let bucket = |batch: &Batch, apart| BatchShape::of(batch, &CAPACITY, 3000, apart).bucket;
        assert!(bucket(&batch, false) && !bucket(&batch, true));
        batch.prompts = false;
        assert!(bucket(&batch, true));
    }

    #[test]
    fn decoding_has_few_buckets() {
        let shapes = |sequences: usize| shape(sequences, 20, 1).rows;
        let filled: Vec<usize> = [1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 49, 65, 97, 100].map(shapes).to_vec();
        assert_eq!(filled, [1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64, 96, 100, 100]);
        let all: std::collections::HashSet<BatchShape> =
            (1..=100).map(|sequences| shape(sequences, 20, 1)).collect();
        assert_eq!(all.len(), 14);
        assert!(all.iter().all(|shape| shape.bucket && shape.bounds == [1, 512, 1] && shape.width == 32));
    }

    #[test]
    fn attention_lengths_hold_for_every_batch_of_a_bucket() {
        for length in [1, 2, 511, 512, 513, 1000, 1024, 1025, 2999, 3000] {
            let BatchShape { bounds: [new, most, least], width, .. } = shape(2, length, 1);
            assert!(
                new == 1 && most as usize >= length && least as usize <= length,
                "{length}: {most}, {least}"
            );
            assert!(width * CAPACITY.block_size >= length && most <= 3000, "{length}: {width}");
        }
        assert_eq!(shape(2, 513, 1), shape(2, 1024, 1));
        assert_ne!(shape(2, 512, 1), shape(2, 513, 1));
    }

    #[test]
    fn a_batch_with_prompts_is_not_padded() {
        let exact = BatchShape {
            rows: 6,
            sequences: 2,
            logit_rows: 2,
            requests: 2,
            width: 2,
            bounds: [3, 20, 20],
            bucket: false,
        };
        assert_eq!(shape(2, 20, 3), exact);
    }
}
