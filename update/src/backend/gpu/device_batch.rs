//! A micro-batch on the device: one array of integers that holds all its tables.

use std::ops::Range;

use device::{Buffer, Device, Slice};
use record::failure::{Failure, Result};

use crate::backend::{MicroBatch, Rows};

/// Keys, or rows, of one of attention's tiles.
const TILE: usize = 64;

/// A micro-batch in device memory.
#[derive(Debug)]
pub struct DeviceBatch {
    integers: Option<Buffer<i32>>,
    /// Where each [`Table`] is among the integers.
    tables: [Range<usize>; 13],
    /// Number of nodes, of scored nodes and of loss rows.
    pub(super) tokens: usize,
    pub(super) scored: usize,
    pub(super) rows: usize,
    /// Distinct token ids.
    pub(super) distinct: usize,
    /// Order of the loss rows on the device: by node.
    pub(super) by_node: Vec<u32>,
    /// Where the loss rows of each scored node begin in that order, and where the last ones end.
    pub(super) row_starts: Vec<u32>,
    pub(super) last_position: usize,
}

/// A table of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Table {
    /// Token id of each node.
    Ids,
    /// Position of each node.
    Positions,
    /// End of each node's subtree.
    Ends,
    /// For tiles of keys: the largest end of each, the smallest of each, and the next with a larger largest
    /// end.
    Tiles,
    /// The first tile of keys that some node of each tile of nodes sees.
    FirstTiles,
    /// `Tiles` for tiles of scored nodes.
    FirstTilesScored,
    Nodes,
    /// Each scored node.
    Scored,
    /// Distinct token ids.
    Distinct,
    /// Where the nodes of each distinct id begin, and where the last ones end.
    DistinctStarts,
    /// Nodes ordered by token id, then by node.
    DistinctNodes,
    /// Where the loss rows of each scored node begin, and where the last ones end.
    RowStarts,
    /// Target of each loss row, by node.
    Targets,
}

/// Integers that the tables of a micro-batch hold at most: nine of a node, five of a tile, one of a loss row, two ends.
pub(super) fn integers(tokens: usize, rows: usize) -> usize {
    9 * tokens + 5 * tokens.div_ceil(TILE) + rows + 2
}

/// Index of the next larger value for each value; the length if there is none.
fn next_larger(values: &[u32]) -> Vec<u32> {
    let mut next = vec![values.len() as u32; values.len()];
    for at in (0..values.len()).rev() {
        let mut candidate = at + 1;
        while candidate < values.len() && values[candidate] <= values[at] {
            candidate = next[candidate] as usize;
        }
        next[at] = candidate as u32;
    }
    next
}

/// The first tile of keys with these largest ends that some row of each tile of rows sees; `nodes` ascend, so these do.
fn first_tiles(last: &[u32], nodes: &[u32]) -> Vec<u32> {
    let mut first = 0;
    let of = |tile: &[u32]| {
        while first < last.len() && last[first] <= tile[0] {
            first += 1;
        }
        first as u32
    };
    nodes.chunks(TILE).map(of).collect()
}

impl DeviceBatch {
    /// The tables of a batch, before they are on the device.
    pub(super) fn new(batch: &MicroBatch) -> (DeviceBatch, Vec<i32>) {
        let mut integers: Vec<i32> = Vec::new();
        let mut add = |values: &mut dyn Iterator<Item = u32>| {
            let start = integers.len();
            integers.extend(values.map(|value| value as i32));
            start..integers.len()
        };
        let tokens = batch.tokens();
        let tiles = tokens.div_ceil(TILE);
        // Keys beyond the last are seen by nobody.
        let end = |key: usize| batch.ends.get(key).copied().unwrap_or(0);
        let tile = |tile: usize| (tile * TILE..(tile + 1) * TILE).map(end);
        let last: Vec<u32> = (0..tiles).map(|at| tile(at).max().unwrap_or(0)).collect();
        let first = (0..tiles).map(|at| tile(at).min().unwrap_or(0));
        let nodes: Vec<u32> = (0..tokens as u32).collect();
        let mut order: Vec<u32> = (0..tokens as u32).collect();
        order.sort_by_key(|&node| batch.ids[node as usize]);
        let starts: Vec<u32> = (0..tokens as u32)
            .filter(|&at| {
                at == 0
                    || batch.ids[order[at as usize] as usize] != batch.ids[order[at as usize - 1] as usize]
            })
            .collect();
        let row_starts: Vec<u32> = (0..=batch.scored.len() as u32)
            .map(|node| batch.by_node.partition_point(|&row| batch.rows[row as usize].0 < node) as u32)
            .collect();
        // In the order of `Table`.
        let tables = [
            add(&mut batch.ids.iter().copied()),
            add(&mut batch.positions.iter().copied()),
            add(&mut batch.ends.iter().copied()),
            add(&mut last.iter().copied().chain(first).chain(next_larger(&last))),
            add(&mut first_tiles(&last, &nodes).into_iter()),
            add(&mut first_tiles(&last, &batch.scored).into_iter()),
            add(&mut nodes.iter().copied()),
            add(&mut batch.scored.iter().copied()),
            add(&mut starts.iter().map(|&at| batch.ids[order[at as usize] as usize])),
            add(&mut starts.iter().copied().chain([tokens as u32])),
            add(&mut order.iter().copied()),
            add(&mut row_starts.iter().copied()),
            add(&mut batch.by_node.iter().map(|&row| batch.rows[row as usize].1)),
        ];
        let prepared = DeviceBatch {
            integers: None,
            tables,
            tokens,
            scored: batch.scored.len(),
            rows: batch.rows.len(),
            distinct: starts.len(),
            by_node: batch.by_node.clone(),
            row_starts,
            last_position: batch.positions.iter().max().map_or(0, |&last| last as usize),
        };
        (prepared, integers)
    }

    /// Uploads the tables, to a buffer of at least `capacity` integers.
    pub(super) fn upload<D: Device>(
        &mut self,
        device: &mut D,
        integers: &[i32],
        capacity: usize,
    ) -> Result<()> {
        let buffer = device.allocate::<i32>(integers.len().max(capacity).max(1))?;
        device.upload(integers, buffer.slice(..integers.len()))?;
        self.integers = Some(buffer);
        Ok(())
    }

    /// Number of rows that an operation has.
    pub(super) fn count(&self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.tokens,
            Rows::Scored => self.scored,
        }
    }

    pub(super) fn table(&self, table: Table) -> Result<Slice<'_, i32>> {
        let missing = || Failure::work("device: a micro-batch that was not prepared");
        Ok(self.integers.as_ref().ok_or_else(missing)?.slice(self.tables[table as usize].clone()))
    }

    /// The first tile of keys that some row of each tile of rows of an operation sees.
    pub(super) fn first_tiles(&self, rows: Rows) -> Result<Slice<'_, i32>> {
        self.table(match rows {
            Rows::All => Table::FirstTiles,
            Rows::Scored => Table::FirstTilesScored,
        })
    }

    /// Node of each row of an operation, ascending.
    pub(super) fn nodes(&self, rows: Rows) -> Result<Slice<'_, i32>> {
        self.table(match rows {
            Rows::All => Table::Nodes,
            Rows::Scored => Table::Scored,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forest: for each tree a prompt and branches of these lengths.
    fn forest(trees: &[(usize, &[usize])]) -> MicroBatch {
        let mut batch = MicroBatch::default();
        for &(prompt, branches) in trees {
            let start = batch.ends.len();
            let end = start + prompt + branches.iter().sum::<usize>();
            batch.ends.extend(vec![end as u32; prompt]);
            for &branch in branches {
                let end = batch.ends.len() + branch;
                batch.scored.extend((batch.ends.len()..end).map(|node| node as u32));
                batch.ends.extend(vec![end as u32; branch]);
            }
        }
        batch.ids = vec![0; batch.ends.len()];
        batch.positions = vec![0; batch.ends.len()];
        batch
    }

    /// The tiles that the kernels load for the rows of a batch, by the tables, and the largest ends that they read to find
    /// them; the same by looking at every tile.
    fn walks(batch: &MicroBatch, scored: bool) -> [(Vec<Vec<usize>>, usize); 2] {
        let (prepared, integers) = DeviceBatch::new(batch);
        let table = |table: Table| -> Vec<usize> {
            integers[prepared.tables[table as usize].clone()].iter().map(|&value| value as usize).collect()
        };
        let tiles = batch.tokens().div_ceil(TILE);
        let known = table(Table::Tiles);
        let (last, next) = (&known[..tiles], &known[2 * tiles..]);
        let (nodes, first) = match scored {
            false => (table(Table::Nodes), table(Table::FirstTiles)),
            true => (table(Table::Scored), table(Table::FirstTilesScored)),
        };
        let (mut loads, mut jumped, mut walked) = ([0, 0], Vec::new(), Vec::new());
        for (rows, &first) in nodes.chunks(TILE).zip(&first) {
            let (node, end) = (rows[0], rows[rows.len() - 1] / TILE + 1);
            let (mut seen, mut tile) = (vec![first], first + 1);
            while tile < end {
                loads[0] += 1;
                if last[tile] > node {
                    seen.push(tile);
                    tile += 1;
                } else {
                    tile = next[tile];
                }
            }
            jumped.push(seen);
            loads[1] += end;
            walked.push((0..end).filter(|&tile| last[tile] > node).collect());
        }
        [(jumped, loads[0]), (walked, loads[1])]
    }

    #[test]
    fn the_tables_lead_to_the_visible_tiles() {
        for trees in [
            &[(10, &[5, 7][..])][..],
            &[(64, &[64, 64]), (1, &[]), (200, &[30, 300, 1]), (63, &[65])],
            &[(500, &[]), (300, &[20; 40])],
        ] {
            let batch = forest(trees);
            for scored in [false, true] {
                let [jumped, walked] = walks(&batch, scored);
                assert_eq!(jumped.0, walked.0, "{trees:?}");
            }
        }
    }

    #[test]
    fn a_block_skips_trees_and_branches_whole() {
        // 32,768 tokens: four groups of eight answers of 512 tokens to prompts of 4,096, and short trees.
        let groups = forest(&[(4096, &[512; 8][..]); 4]);
        let short = forest(&[(256, &[128, 128][..]); 64]);
        let figures = |batch| walks(batch, false).map(|(seen, loads)| (seen.concat().len(), loads));
        println!("groups {:?}, short {:?}", figures(&groups), figures(&short));
        let [(visible, loads), (_, before)] = figures(&groups);
        assert!(loads - visible < before / 8, "{loads} for {visible}, {before} before");
        let [(visible, loads), (_, before)] = figures(&short);
        assert!(loads <= visible && before > 50 * loads, "{loads} for {visible}, {before} before");
    }
}
