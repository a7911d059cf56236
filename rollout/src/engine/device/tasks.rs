//! The tasks of attention in decoding (`kernels/decode_attention.cuh`): blocks of the KV cache and the rows that read them.
//!
//! Neighboring rows with the same block at the same place are one task, which reads it once: the branches of a prompt, and
//! groups with a common beginning. Sharing changes the speed and nothing else.

use crate::engine::batch::Batch;

/// A block, its rows (the first one plus 65,536 times their number), its place in their sequences, and the keys to read.
pub type BlockTask = [i32; 4];

/// Most pairs of a row and a query head in a task, for each key head: four times the rows of a tensor core's product. Larger
/// tasks would leave multiprocessors idle.
const MOST: usize = 64;

/// Sequences that have one new token each.
pub trait Sequences {
    fn count(&self) -> usize;

    /// Tokens of a sequence with the new one.
    fn length(&self, sequence: usize) -> usize;

    fn blocks(&self, sequence: usize) -> &[u32];
}

impl Sequences for Batch {
    fn count(&self) -> usize {
        self.sequences()
    }

    fn length(&self, sequence: usize) -> usize {
        self.past[sequence] as usize + 1
    }

    fn blocks(&self, sequence: usize) -> &[u32] {
        Batch::blocks(self, sequence)
    }
}

/// The tasks of a run that is padded to `rows` rows, with `share` query heads for each key head. Padding rows read the first key of
/// block 0.
pub fn tasks(sequences: &impl Sequences, rows: usize, block_size: usize, share: usize) -> Vec<BlockTask> {
    let most = (MOST / share).max(1);
    let count = sequences.count();
    let block = |row: usize, at: usize| match row < count {
        true => (at * block_size < sequences.length(row)).then(|| sequences.blocks(row)[at]),
        false => (at == 0).then_some(0),
    };
    let length = |row: usize| if row < count { sequences.length(row) } else { 1 };
    let longest = (0..rows).map(length).max().unwrap_or(0);
    let mut tasks = Vec::new();
    for at in 0..longest.div_ceil(block_size) {
        let mut first = 0;
        while first < rows {
            let Some(own) = block(first, at) else {
                first += 1;
                continue;
            };
            let alike =
                (first..rows.min(first + most)).take_while(|&row| block(row, at) == Some(own)).count();
            let end = (first..first + alike).map(length).max().unwrap_or(0);
            let valid = (end - at * block_size).min(block_size);
            tasks.push([own as i32, (first | alike << 16) as i32, at as i32, valid as i32]);
            first += alike;
        }
    }
    tasks
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The length of each sequence, and its blocks.
    #[derive(Clone, Default)]
    pub struct Cached(pub Vec<(usize, Vec<u32>)>);

    impl Sequences for Cached {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn length(&self, sequence: usize) -> usize {
            self.0[sequence].0
        }

        fn blocks(&self, sequence: usize) -> &[u32] {
            &self.0[sequence].1
        }
    }

    #[test]
    fn rows_that_share_a_block_are_one_task_and_no_larger_than_is_good() {
        let all = Cached(vec![(33, vec![5, 6, 7]), (40, vec![5, 6, 8]), (20, vec![5, 9]), (3, vec![4])]);
        let rows = |first: i32, count: i32| first | count << 16;
        assert_eq!(
            tasks(&all, 6, 16, 2),
            [
                [5, rows(0, 3), 0, 16],
                [4, rows(3, 1), 0, 3],
                [0, rows(4, 2), 0, 1],
                [6, rows(0, 2), 1, 16],
                [9, rows(2, 1), 1, 4],
                [7, rows(0, 1), 2, 1],
                [8, rows(1, 1), 2, 8],
            ]
        );
        let same = Cached(vec![(16, vec![3]); 70]);
        let counts: Vec<i32> = tasks(&same, 70, 16, 2).iter().map(|task| task[1] >> 16).collect();
        assert_eq!(counts, [32, 32, 6]);
    }
}
