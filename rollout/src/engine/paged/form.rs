//! How a run is laid out: everything that its launches and addresses depend on, beside what its buffers hold.
//!
//! Two runs of one form ask the device for the same work. Runs in which every sequence has one new token, which decoding
//! consists of, are filled up to one of few forms, so that the work of one can be recorded and repeated for the others
//! ([`super::recordings`]): rows that nobody reads, of sequences of one token whose key and value go nowhere.

use super::batch::Batch;
use super::runner::Room;

/// Tokens of the longest sequence, up to which forms do not differ. Longer ones differ by powers of two.
const SHORT: usize = 512;

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    /// Rows of tokens.
    pub rows: usize,
    /// Sequences that they belong to.
    pub sequences: usize,
    /// Rows whose next token is wanted.
    pub wanted: usize,
    /// Tokens to be chosen.
    pub requests: usize,
    /// Columns of the table of blocks.
    pub width: usize,
    /// The most new tokens of a sequence, the most tokens, and tokens that the longest sequence has at least: what the
    /// attention chooses its launches by.
    pub bounds: [i32; 3],
    /// Whether other runs will have it: one new token for every sequence, and one chosen after it.
    pub common: bool,
}

impl Form {
    /// The form of a run of a model with so many positions.
    pub fn of(batch: &Batch, room: &Room, positions: usize) -> Form {
        let (rows, sequences) = (batch.ids.len(), batch.sequences());
        let (wanted, requests) = (batch.wanted.len(), batch.requests.len());
        let longest = batch.longest as i32;
        let one_each = [sequences, wanted, requests] == [rows; 3] && batch.longest_new == 1;
        if !one_each || rows > room.sequences {
            let (width, bounds) = (batch.most_blocks(), [batch.longest_new as i32, longest, longest]);
            return Form { rows, sequences, wanted, requests, width, bounds, common: false };
        }
        // 1, 2, 3, 4, 6, 8, 12, 16, 24, …: at most half as many again, and few of them.
        let step = (rows.next_power_of_two() / 4).max(1);
        let rows = rows.next_multiple_of(step).min(room.sequences);
        let power = batch.longest.next_power_of_two();
        let (most, least) = if power <= SHORT { (SHORT, 1) } else { (power, power / 2) };
        let most = most.min(positions);
        let width = most.div_ceil(room.block_size);
        let bounds = [1, most as i32, least.min(most) as i32];
        Form { rows, sequences: rows, wanted: rows, requests: rows, width, bounds, common: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::branch::NextToken;
    use crate::engine::paged::batch::SampleRequest;
    use crate::engine::paged::cache::Cache;
    use crate::engine::paged::sequence::Sequence;
    use crate::engine::request::SamplingParams;

    const ROOM: Room = Room { rows: 1024 + 100, sequences: 100, blocks: 4096, block_size: 16 };

    /// A run of `sequences` sequences of `length` tokens, the last `new` of which are new.
    fn form(sequences: usize, length: usize, new: usize) -> Form {
        let (mut cache, mut batch) = (Cache::new(ROOM.blocks, ROOM.block_size), Batch::default());
        batch.clear();
        for _ in 0..sequences {
            let mut sequence = Sequence::default();
            sequence.grow(length, &mut cache, &mut Vec::new(), &mut Vec::new());
            batch.ids.extend(vec![7; new]);
            batch.close(&sequence, new, None);
            let row = batch.want();
            batch.requests.push(SampleRequest {
                row,
                sampling: SamplingParams::PLAIN,
                want: NextToken::Given(1),
            });
        }
        Form::of(&batch, &ROOM, 3000)
    }

    #[test]
    fn decoding_has_few_forms() {
        let forms = |sequences: usize| form(sequences, 20, 1).rows;
        let filled: Vec<usize> = [1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 49, 65, 97, 100].map(forms).to_vec();
        assert_eq!(filled, [1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64, 96, 100, 100]);
        let all: std::collections::HashSet<Form> =
            (1..=100).map(|sequences| form(sequences, 20, 1)).collect();
        assert_eq!(all.len(), 14);
        assert!(all.iter().all(|form| form.common && form.bounds == [1, 512, 1] && form.width == 32));
    }

    #[test]
    fn what_attention_is_told_of_lengths_is_true_of_every_run_of_a_form() {
        for length in [1, 2, 511, 512, 513, 1000, 1024, 1025, 2999, 3000] {
            let Form { bounds: [new, most, least], width, .. } = form(2, length, 1);
            assert!(
                new == 1 && most as usize >= length && least as usize <= length,
                "{length}: {most}, {least}"
            );
            assert!(width * ROOM.block_size >= length && most <= 3000, "{length}: {width}");
        }
        assert_eq!(form(2, 513, 1), form(2, 1024, 1));
        assert_ne!(form(2, 512, 1), form(2, 513, 1));
    }

    #[test]
    fn a_run_with_prompts_is_as_it_is() {
        let exact = Form {
            rows: 6,
            sequences: 2,
            wanted: 2,
            requests: 2,
            width: 2,
            bounds: [3, 20, 20],
            common: false,
        };
        assert_eq!(form(2, 20, 3), exact);
    }
}
