//! A sequence of tokens in the cache: the blocks that it lies in.
//!
//! Sequences that grew from one beginning hold the same blocks up to where they part. The block in which they part is
//! shared until one of them writes to it: that one copies it first, and the last holder keeps the original.

use super::cache::Cache;

/// What is to be copied before the next run: the first tokens of one block to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that stays as it is.
    pub from: u32,
    /// The block that is written.
    pub to: u32,
}

/// Tokens in the cache, from the first position on.
#[derive(Debug, Default)]
pub struct Sequence {
    blocks: Vec<u32>,
    length: usize,
}

impl Sequence {
    /// A sequence that begins with the tokens of whole blocks, of each of which it becomes a holder.
    pub fn beginning(blocks: &[u32], cache: &mut Cache) -> Sequence {
        blocks.iter().for_each(|&block| cache.pool.share(block));
        Sequence { length: blocks.len() * cache.pool.block_size(), blocks: blocks.to_vec() }
    }

    /// Tokens in it.
    pub fn tokens(&self) -> usize {
        self.length
    }

    /// Its blocks in order.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// A sequence with the same tokens in the same blocks.
    pub fn fork(&self, cache: &mut Cache) -> Sequence {
        self.blocks.iter().for_each(|&block| cache.pool.share(block));
        Sequence { blocks: self.blocks.clone(), length: self.length }
    }

    /// Makes room for `count` more tokens and counts them as its own from the next run on. `slots` receives where each
    /// goes: block times block size plus offset. A copy that has to come first is added to `copies`.
    ///
    /// The scheduler admits no more than fits, so there is a block whenever one is needed.
    pub fn grow(
        &mut self,
        count: usize,
        cache: &mut Cache,
        slots: &mut impl Extend<i32>,
        copies: &mut Vec<BlockCopy>,
    ) {
        let size = cache.pool.block_size();
        if count > 0 && !self.length.is_multiple_of(size) {
            let last = self.blocks.len() - 1;
            let from = self.blocks[last];
            if cache.pool.holders(from) > 1 {
                let to = cache.take();
                cache.pool.release(from);
                copies.push(BlockCopy { from, to });
                self.blocks[last] = to;
            }
        }
        while self.blocks.len() * size < self.length + count {
            self.blocks.push(cache.take());
        }
        let positions = self.length..self.length + count;
        slots.extend(positions.map(|at| (self.blocks[at / size] as usize * size + at % size) as i32));
        self.length += count;
    }

    /// Gives up its blocks.
    pub fn release(&mut self, cache: &mut Cache) {
        self.blocks.drain(..).for_each(|block| cache.pool.release(block));
        self.length = 0;
    }
}
