//! Precomputed facts about a micro-batch for the CPU.

use super::attention_blocks::Blocks;
use crate::backend::{MicroBatch, Rows};

/// A micro-batch and the blocks that attention takes it in.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) batch: MicroBatch,
    all: Blocks,
    scored: Blocks,
    /// The blocks under each window that is shorter than the sequences.
    windowed: Vec<(usize, [Blocks; 2])>,
}

impl Prepared {
    /// With blocks for windows of these lengths, too.
    pub(super) fn new(batch: MicroBatch, windows: impl Iterator<Item = usize>) -> Prepared {
        let blocks = |window| {
            [(0..batch.tokens() as u32).collect(), batch.scored.clone()]
                .map(|nodes| Blocks::new(&batch, nodes, window))
        };
        let [all, scored] = blocks(None);
        let windowed = windows.map(|window| (window, blocks(Some(window)))).collect();
        Prepared { batch, all, scored, windowed }
    }

    /// The blocks of some rows under a window.
    pub(super) fn blocks(&self, rows: Rows, window: Option<usize>) -> &Blocks {
        match (self.windowed.iter().find(|(length, _)| Some(*length) == window), rows) {
            (Some((_, [all, _])), Rows::All) => all,
            (Some((_, [_, scored])), Rows::Scored) => scored,
            (None, Rows::All) => &self.all,
            (None, Rows::Scored) => &self.scored,
        }
    }

    pub(super) fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.batch.tokens(),
            Rows::Scored => self.batch.scored.len(),
        }
    }
}
