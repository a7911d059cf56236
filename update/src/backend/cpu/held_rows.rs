//! Rows of the embedding's gradient for the tokens of a micro-batch. If the LM head is the embedding, such a
//! row gets two contributions and is added to the gradient only after both.

use super::elementwise;

#[derive(Default)]
pub(super) struct HeldRows {
    /// Their tokens, ascending; empty without a contribution from the LM head.
    ids: Vec<u32>,
    rows: Vec<f32>,
}

impl HeldRows {
    /// Zeros for the tokens of a micro-batch.
    pub(super) fn start(&mut self, ids: &[u32], width: usize) {
        self.ids.clear();
        self.ids.extend_from_slice(ids);
        self.ids.sort_unstable();
        self.ids.dedup();
        self.rows.clear();
        self.rows.resize(self.ids.len() * width, 0.0);
    }

    /// Exchanges these rows with the table's.
    pub(super) fn swap(&mut self, table: &mut [f32], width: usize) {
        for (&id, row) in self.ids.iter().zip(self.rows.chunks_exact_mut(width)) {
            row.swap_with_slice(&mut table[id as usize * width..][..width]);
        }
    }

    /// Adds `d_out[i]` to the row of `ids[i]`, then all rows to a table.
    pub(super) fn add(&mut self, ids: &[u32], width: usize, d_out: &[f32], table: &mut [f32]) {
        if self.ids.is_empty() {
            self.start(ids, width);
        }
        let HeldRows { ids: held, rows } = self;
        let index = |id: &u32| held.binary_search(id).unwrap_or_default() as u32;
        elementwise::add_rows(&ids.iter().map(index).collect::<Vec<u32>>(), width, d_out, rows);
        for (&id, row) in held.iter().zip(rows.chunks_exact(width)) {
            elementwise::add(row, &mut table[id as usize * width..][..width]);
        }
        held.clear();
    }
}
