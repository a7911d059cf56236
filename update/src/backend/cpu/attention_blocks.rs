//! The blocks of queries that attention takes at a time, and the keys that they see.

use crate::backend::MicroBatch;
use std::ops::Range;

/// Queries of a block, at most.
pub(super) const QUERIES: usize = 64;
/// Queries after which a block ends at the end of a branch.
const ENOUGH: usize = 32;

/// A block of queries, and the keys that some of them see.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Rows of the operation.
    pub rows: Range<usize>,
    /// Visible keys: runs of nodes, ascending.
    pub runs: Vec<Range<u32>>,
    /// Number of keys in all runs.
    pub keys: usize,
    /// Leading keys that all queries of the block see.
    pub common: usize,
}

/// The blocks of one micro-batch for one choice of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// Node of each row, ascending.
    pub nodes: Vec<u32>,
    pub blocks: Vec<Block>,
    /// Tokens that a query sees at most, if that hides any from it.
    pub window: Option<usize>,
}

impl Blocks {
    /// The blocks of these nodes, without the keys that a window hides from all queries of a block.
    pub(super) fn new(batch: &MicroBatch, nodes: Vec<u32>, window: Option<usize>) -> Blocks {
        let mut blocks = Vec::new();
        let mut start = 0;
        // End of the block's tree. A block has queries of one tree, so that a tree's results do not depend on the others of
        // its micro-batch.
        let mut tree = 0;
        while start < nodes.len() {
            while tree <= nodes[start] {
                tree = batch.ends[tree as usize];
            }
            let mut end = start + 1;
            while end < nodes.len() && end - start < QUERIES {
                let leaves_branch = batch.ends[nodes[end - 1] as usize] <= nodes[end];
                if nodes[end] >= tree || leaves_branch && end - start >= ENOUGH {
                    break;
                }
                end += 1;
            }
            blocks.push(block(batch, &nodes, start..end, window));
            start = end;
        }
        Blocks { nodes, blocks, window }
    }
}

fn block(batch: &MicroBatch, nodes: &[u32], rows: Range<usize>, window: Option<usize>) -> Block {
    let (first, last) = (nodes[rows.start], nodes[rows.end - 1]);
    // Positions from the first on that some query sees, and that all see.
    let limits = window.map(|window| {
        let positions = nodes[rows.clone()].iter().map(|&node| batch.positions[node as usize] as usize + 1);
        let oldest = |position: Option<usize>| position.unwrap_or(0).saturating_sub(window) as u32;
        (oldest(positions.clone().min()), oldest(positions.max()))
    });
    let mut runs: Vec<Range<u32>> = Vec::new();
    let (mut keys, mut common, mut all_common) = (0, 0, true);
    let mut key = 0;
    while key <= last {
        let end = batch.ends[key as usize];
        if end <= first {
            key = end;
            continue;
        }
        if let Some((some, all)) = limits {
            let position = batch.positions[key as usize];
            if position < some {
                key += 1;
                continue;
            }
            all_common &= position >= all;
        }
        match runs.last_mut() {
            Some(run) if run.end == key => run.end += 1,
            _ => runs.push(key..key + 1),
        }
        all_common &= key <= first && end > last;
        keys += 1;
        common += usize::from(all_common);
        key += 1;
    }
    Block { rows, runs, keys, common }
}
