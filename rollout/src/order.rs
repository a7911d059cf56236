//! Puts what the threads finish into the order of the tasks.

use std::collections::BTreeMap;

/// Holds back what came too early. The queue bounds how much that can be.
pub struct Reorder<T> {
    next: u64,
    held: BTreeMap<u64, T>,
}

impl<T> Default for Reorder<T> {
    fn default() -> Self {
        Reorder { next: 0, held: BTreeMap::new() }
    }
}

impl<T> Reorder<T> {
    /// Takes item number `sequence`; each number comes once.
    pub fn put(&mut self, sequence: u64, item: T) {
        self.held.insert(sequence, item);
    }

    /// The next item in order, if it is here.
    pub fn take(&mut self) -> Option<T> {
        let item = self.held.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// The number of the item that comes next.
    pub fn frontier(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_order_whatever_order_they_come_in() {
        let mut order = Reorder::default();
        let mut out = Vec::new();
        for sequence in [2, 0, 3, 1, 5, 4] {
            order.put(sequence, sequence);
            out.push(std::iter::from_fn(|| order.take()).collect::<Vec<u64>>());
        }
        assert_eq!(out, [vec![], vec![0], vec![], vec![1, 2, 3], vec![], vec![4, 5]]);
        assert_eq!(order.frontier(), 6);
    }
}
