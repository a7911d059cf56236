//! A micro-batch: several trees packed side by side as one forest.
//!
//! Small trees share a forward pass so that GEMMs have enough rows; the tree mask keeps them apart.

use crate::tree::Tree;

/// Tokens and loss rows of a micro-batch, on the host.
#[derive(Clone, Debug, Default)]
pub struct MicroBatch {
    /// Token id of each node.
    pub ids: Vec<u32>,
    /// Position of each node in its sequences.
    pub positions: Vec<u32>,
    /// One past the last node of each node's subtree: key `j` is visible to query `i` if `j <= i < ends[j]`.
    pub ends: Vec<u32>,
    /// Nodes that carry at least one loss row, ascending.
    pub scored: Vec<u32>,
    /// For each loss row, in the order of the trees and of their rows: the index into `scored` and the target.
    pub rows: Vec<(u32, u32)>,
    /// Order in which `rows` ascend by index into `scored`.
    pub by_node: Vec<u32>,
}

impl MicroBatch {
    /// Packs trees side by side.
    pub fn new<'a>(trees: impl IntoIterator<Item = &'a Tree>) -> MicroBatch {
        let mut batch = MicroBatch::default();
        for tree in trees {
            let base = batch.ids.len() as u32;
            batch.ids.extend_from_slice(&tree.ids);
            batch.positions.extend_from_slice(&tree.positions);
            batch.ends.extend(tree.ends.iter().map(|end| end + base));
            batch.rows.extend(tree.rows.iter().map(|row| (row.node + base, row.target)));
        }
        let mut index = vec![u32::MAX; batch.ids.len()];
        for &(node, _) in &batch.rows {
            index[node as usize] = 0;
        }
        for (node, index) in index.iter_mut().enumerate().filter(|(_, index)| **index == 0) {
            *index = batch.scored.len() as u32;
            batch.scored.push(node as u32);
        }
        for row in &mut batch.rows {
            row.0 = index[row.0 as usize];
        }
        batch.by_node = (0..batch.rows.len() as u32).collect();
        batch.by_node.sort_by_key(|&row| batch.rows[row as usize].0);
        batch
    }

    /// Number of nodes.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }
}
