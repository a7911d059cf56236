//! A micro-batch on the device: one array of integers that holds all its tables.

use std::ops::Range;

use device::{Buffer, Device, Slice};
use record::failure::{Failure, Result};

use crate::backend::{MicroBatch, Rows};

/// Keys of a tile, of which attention reads the smallest and largest end.
const TILE: usize = 64;

/// A micro-batch in device memory.
#[derive(Debug)]
pub struct DeviceBatch {
    integers: Option<Buffer<i32>>,
    /// Where each [`Table`] is among the integers.
    tables: [Range<usize>; 12],
    /// Number of nodes, of scored nodes and of loss rows.
    pub(super) tokens: usize,
    pub(super) scored: usize,
    pub(super) rows: usize,
    /// Distinct token ids.
    pub(super) distinct: usize,
    /// Order of the loss rows on the device: by node.
    pub(super) by_node: Vec<u32>,
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
    /// Largest end of each tile of keys.
    TileLast,
    /// Smallest end of each tile of keys.
    TileFirst,
    /// Each node.
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

/// Integers that the tables of a micro-batch hold at most: nine of a node, two of a tile, one of a loss row, two ends.
pub(super) fn integers(tokens: usize, rows: usize) -> usize {
    9 * tokens + 2 * tokens.div_ceil(TILE) + rows + 2
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
        let mut order: Vec<u32> = (0..tokens as u32).collect();
        order.sort_by_key(|&node| batch.ids[node as usize]);
        let starts: Vec<u32> = (0..tokens as u32)
            .filter(|&at| {
                at == 0
                    || batch.ids[order[at as usize] as usize] != batch.ids[order[at as usize - 1] as usize]
            })
            .collect();
        let row_starts = (0..=batch.scored.len() as u32)
            .map(|node| batch.by_node.partition_point(|&row| batch.rows[row as usize].0 < node) as u32);
        // In the order of `Table`.
        let tables = [
            add(&mut batch.ids.iter().copied()),
            add(&mut batch.positions.iter().copied()),
            add(&mut batch.ends.iter().copied()),
            add(&mut (0..tiles).map(|at| tile(at).max().unwrap_or(0))),
            add(&mut (0..tiles).map(|at| tile(at).min().unwrap_or(0))),
            add(&mut (0..tokens as u32)),
            add(&mut batch.scored.iter().copied()),
            add(&mut starts.iter().map(|&at| batch.ids[order[at as usize] as usize])),
            add(&mut starts.iter().copied().chain([tokens as u32])),
            add(&mut order.iter().copied()),
            add(&mut row_starts.into_iter()),
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

    /// One of the tables.
    pub(super) fn table(&self, table: Table) -> Result<Slice<'_, i32>> {
        let missing = || Failure::work("device: a micro-batch that was not prepared");
        Ok(self.integers.as_ref().ok_or_else(missing)?.slice(self.tables[table as usize].clone()))
    }

    /// Node of each row of an operation, ascending.
    pub(super) fn nodes(&self, rows: Rows) -> Result<Slice<'_, i32>> {
        self.table(match rows {
            Rows::All => Table::Nodes,
            Rows::Scored => Table::Scored,
        })
    }
}
