//! Blocks of the cache of keys and values: which are free, and how many hold each of the others.
//!
//! A block is a number; its memory is the runner's. Whoever writes to a block must be its only holder.

/// The blocks of one cache.
#[derive(Debug)]
pub struct Pool {
    /// Tokens of a block.
    size: usize,
    /// How many hold each block; 0: free.
    holders: Vec<u32>,
    /// The free ones, the next at the end.
    free: Vec<u32>,
}

impl Pool {
    /// `count` free blocks of `size` tokens.
    pub fn new(count: usize, size: usize) -> Pool {
        Pool { size, holders: vec![0; count], free: (0..count as u32).rev().collect() }
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.size
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All blocks.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// How many hold `block`.
    pub fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }

    /// A free block, now held once; `None` when there is none.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// One more holder for a block that is held.
    pub fn share(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        assert!(*holders > 0, "block {block} is free and cannot be shared");
        *holders += 1;
    }

    /// One holder less; without any the block is free.
    pub fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        assert!(*holders > 0, "block {block} is free and cannot be released");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(block);
        }
    }
}
