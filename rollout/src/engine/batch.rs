//! The rows of one model run.

use super::request::SamplingParams;
use super::sequence::{BlockCopy, Sequence};
use record::philox::Stream;
use std::ops::Range;

/// One run: rows of tokens, the sequences that they belong to, and the tokens to be sampled afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    /// Block copies that come before the run, in order.
    pub copies: Vec<BlockCopy>,
    /// The token of each row.
    pub ids: Vec<i64>,
    /// Slot mapping: where each row's key and value go, block times block size plus offset.
    pub slots: Vec<i32>,
    /// Where each sequence's rows begin, and the number of rows.
    pub cumulative: Vec<i32>,
    /// Each sequence's tokens in the cache before this run.
    pub past: Vec<i32>,
    /// Each row's adapter, counted from 1; 0 means no adapter.
    pub adapters: Vec<i32>,
    /// Sequences by group, in order and without gaps.
    pub groups: Vec<GroupRows>,
    /// The rows whose logits are needed, ascending.
    pub logit_rows: Vec<i64>,
    /// The tokens to be sampled, by logits row.
    pub requests: Vec<SampleRequest>,
    /// True if it has rows of prompts.
    pub prompts: bool,
    /// The most rows of any one sequence.
    pub longest_new: usize,
    /// The most tokens of any one sequence after the run.
    pub longest: usize,
    /// The block tables of all sequences, and where each ends.
    tables: Vec<u32>,
    table_ends: Vec<usize>,
}

/// Consecutive sequences of one group: one that is being prefilled, or branches with one new token each.
#[derive(Debug, Clone)]
pub struct GroupRows {
    pub sequences: Range<usize>,
    /// With [`Fork::NewBlock`](super::block_pool::Fork::NewBlock), tokens of the prompt that branches share; else 0.
    pub prefix: usize,
    /// True if the last row's logits are needed; always true of branches.
    pub sampled: bool,
}

/// A token to be sampled.
#[derive(Debug, Clone, Copy)]
pub struct SampleRequest {
    /// Its row of logits: an index into [`Batch::logit_rows`].
    pub row: usize,
    /// How it is sampled.
    pub sampling: SamplingParams,
    /// Sampled or given.
    pub next: NextToken,
}

/// Where the next token comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextToken {
    /// Sampled with the random number at this position of the stream; the likeliest under greedy sampling.
    Sample(Stream, u64),
    /// Given: only its log-probability is asked for.
    Given(u32),
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.copies.clear();
        self.ids.clear();
        self.slots.clear();
        self.cumulative.clear();
        self.cumulative.push(0);
        self.past.clear();
        self.adapters.clear();
        self.groups.clear();
        self.logit_rows.clear();
        self.requests.clear();
        self.tables.clear();
        self.table_ends.clear();
        (self.prompts, self.longest_new, self.longest) = (false, 0, 0);
    }

    /// Sequences in the run.
    pub fn sequences(&self) -> usize {
        self.past.len()
    }

    pub fn rows(&self, sequence: usize) -> Range<usize> {
        self.cumulative[sequence] as usize..self.cumulative[sequence + 1] as usize
    }

    pub fn blocks(&self, sequence: usize) -> &[u32] {
        let begin = sequence.checked_sub(1).map_or(0, |before| self.table_ends[before]);
        &self.tables[begin..self.table_ends[sequence]]
    }

    /// Completes a sequence of an adapter: its last `count` tokens are the newest rows.
    pub fn end_sequence(&mut self, sequence: &Sequence, count: usize, adapter: Option<u32>) {
        self.adapters.resize(self.ids.len(), adapter.map_or(0, |adapter| adapter as i32 + 1));
        self.cumulative.push(self.ids.len() as i32);
        self.past.push((sequence.tokens() - count) as i32);
        self.tables.extend_from_slice(sequence.blocks());
        self.table_ends.push(self.tables.len());
        self.longest_new = self.longest_new.max(count);
        self.longest = self.longest.max(sequence.tokens());
    }

    /// Completes a group that begins with sequence `first`.
    pub fn end_group(&mut self, first: usize, prefix: usize, sampled: bool) {
        self.groups.push(GroupRows { sequences: first..self.sequences(), prefix, sampled });
    }

    /// Requests the logits of the newest row; the index of their row.
    pub fn need_logits(&mut self) -> usize {
        self.logit_rows.push(self.ids.len() as i64 - 1);
        self.logit_rows.len() - 1
    }

    /// The most blocks of any one sequence.
    pub fn most_blocks(&self) -> usize {
        (0..self.sequences()).map(|sequence| self.blocks(sequence).len()).max().unwrap_or(0)
    }

    /// `[sequences, width]`: each sequence's blocks, padded with block 0.
    pub fn block_table(&self, width: usize) -> impl Iterator<Item = i32> {
        (0..self.sequences()).flat_map(move |sequence| {
            let blocks = self.blocks(sequence);
            (0..width).map(move |at| blocks.get(at).map_or(0, |&block| block as i32))
        })
    }
}
