//! What the rows of one model run are: which sequence each belongs to and where its keys and values go.
//!
//! Every tensor of the graph is `[rows, width]`; only the attention knows that rows belong to sequences, and it reads
//! that here. The scheduler writes a plan before each run.

use std::ops::Range;

/// The rows of one model run, in order and without gaps.
#[derive(Debug, Default)]
pub struct Plan {
    /// Runs of rows of one sequence or group, in row order.
    pub segments: Vec<Segment>,
    /// Branches that the segments point into.
    pub branches: Vec<Branch>,
    /// Pages that segments and branches point into.
    pub pages: Vec<u32>,
    /// Rows of all segments together.
    pub rows: usize,
    /// The rows whose logits are wanted, ascending.
    pub wanted: Vec<i64>,
    /// The adapter of each row, [`NONE`](super::adapters::NONE) for the base itself.
    pub adapters: Vec<u32>,
    /// The same of the wanted rows.
    pub wanted_adapters: Vec<u32>,
}

/// Consecutive rows that the attention handles together.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Consecutive tokens of a prompt.
    Prompt {
        /// The first row.
        row: usize,
        /// Tokens of the prompt that earlier runs stored.
        start: usize,
        /// Tokens in this run, one a row.
        count: usize,
        /// The prompt's pages, enough for `start + count` tokens.
        pages: Range<usize>,
        /// Whether the last row's logits are wanted.
        wanted: bool,
    },
    /// One new token for each of some branches of a group.
    Branches {
        /// The row of the first branch; the others follow.
        row: usize,
        /// Tokens of the shared prompt.
        prefix: usize,
        /// The prompt's pages.
        pages: Range<usize>,
        /// The branches, a row each.
        branches: Range<usize>,
    },
}

/// One branch's own tokens.
#[derive(Debug, Clone)]
pub struct Branch {
    /// Tokens stored before this run.
    pub length: usize,
    /// Pages, enough for `length + 1` tokens.
    pub pages: Range<usize>,
}

impl Plan {
    /// Forgets the last run, keeps the memory.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.branches.clear();
        self.pages.clear();
        self.wanted.clear();
        self.adapters.clear();
        self.wanted_adapters.clear();
        self.rows = 0;
    }

    /// Adds `count` tokens of a prompt after its first `start`.
    pub fn prompt(&mut self, start: usize, count: usize, pages: &[u32], wanted: bool) {
        let pages = self.list(pages);
        self.segments.push(Segment::Prompt { row: self.rows, start, count, pages, wanted });
        self.rows += count;
        if wanted {
            self.wanted.push(self.rows as i64 - 1);
        }
    }

    /// Adds one token for each branch of a group: `branches` gives (tokens stored before, pages).
    pub fn branches<'a>(
        &mut self,
        prefix: usize,
        pages: &[u32],
        branches: impl Iterator<Item = (usize, &'a [u32])>,
    ) {
        let (row, first) = (self.rows, self.branches.len());
        let pages = self.list(pages);
        for (length, pages) in branches {
            let pages = self.list(pages);
            self.branches.push(Branch { length, pages });
            self.wanted.push(self.rows as i64);
            self.rows += 1;
        }
        let branches = first..self.branches.len();
        self.segments.push(Segment::Branches { row, prefix, pages, branches });
    }

    /// Says that the rows added since the last call use this adapter.
    pub fn adapt(&mut self, adapter: u32) {
        self.adapters.resize(self.rows, adapter);
        self.wanted_adapters.resize(self.wanted.len(), adapter);
    }

    fn list(&mut self, pages: &[u32]) -> Range<usize> {
        let first = self.pages.len();
        self.pages.extend_from_slice(pages);
        first..self.pages.len()
    }
}
