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
