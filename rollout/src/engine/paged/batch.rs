//! The rows of one run in the form that the graph takes them (`policy::graph`, the paged kind).

use super::sequence::{BlockCopy, Sequence};
use crate::engine::branch::NextToken;
use crate::engine::request::SamplingParams;

/// One run: rows of tokens, the sequences that they belong to, and the tokens to be chosen afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    /// Copies between blocks that come before the run, in order.
    pub copies: Vec<BlockCopy>,
    /// The token of each row.
    pub ids: Vec<i64>,
    /// Where each row's key and value go: block times block size plus offset.
    pub slots: Vec<i32>,
    /// Where each sequence's rows begin, and the number of rows.
    pub cumulative: Vec<i32>,
    /// Each sequence's tokens in the cache before this run.
    pub past: Vec<i32>,
    /// Each row's adapter, counted from 1; 0: none.
    pub adapters: Vec<i32>,
    /// Each sequence's blocks.
    blocks: Vec<Vec<u32>>,
    /// The rows whose next token is wanted, ascending.
    pub wanted: Vec<i64>,
    /// The tokens to be chosen, by place among the wanted rows.
    pub requests: Vec<SampleRequest>,
    /// The most rows of any one sequence.
    pub longest_new: usize,
    /// The most tokens of any one sequence after the run.
    pub longest: usize,
}

/// A token to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct SampleRequest {
    /// Its place among the wanted rows.
    pub row: usize,
    /// How it is chosen.
    pub sampling: SamplingParams,
    /// Drawn or given.
    pub want: NextToken,
}

impl Batch {
    /// Forgets the last run, keeps the memory.
    pub fn clear(&mut self) {
        self.copies.clear();
        self.ids.clear();
        self.slots.clear();
        self.cumulative.clear();
        self.cumulative.push(0);
        self.past.clear();
        self.adapters.clear();
        self.blocks.clear();
        self.wanted.clear();
        self.requests.clear();
        (self.longest_new, self.longest) = (0, 0);
    }

    /// Sequences in the run.
    pub fn sequences(&self) -> usize {
        self.past.len()
    }

    /// Closes a sequence of an adapter, whose last `count` tokens are the newest rows.
    pub fn close(&mut self, sequence: &Sequence, count: usize, adapter: Option<u32>) {
        self.adapters.resize(self.ids.len(), adapter.map_or(0, |adapter| adapter as i32 + 1));
        self.cumulative.push(self.ids.len() as i32);
        self.past.push((sequence.tokens() - count) as i32);
        self.blocks.push(sequence.blocks().to_vec());
        self.longest_new = self.longest_new.max(count);
        self.longest = self.longest.max(sequence.tokens());
    }

    /// Asks for what follows the newest row; its place among the wanted ones.
    pub fn want(&mut self) -> usize {
        self.wanted.push(self.ids.len() as i64 - 1);
        self.wanted.len() - 1
    }

    /// The most blocks of any one sequence.
    pub fn most_blocks(&self) -> usize {
        self.blocks.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// `[sequences, width]`: each sequence's blocks, filled up with block 0.
    pub fn block_table(&self, width: usize) -> impl Iterator<Item = i32> {
        let rows = self.blocks.iter();
        rows.flat_map(move |blocks| (0..width).map(move |at| blocks.get(at).map_or(0, |&block| block as i32)))
    }
}
