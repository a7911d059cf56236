//! A sequence of tokens in the KV cache: the blocks that hold it.
//!
//! Branches of one prompt reference the same blocks up to where they part. With [`Fork::CopyOnWrite`] a partly filled last
//! block is shared until one of them writes to it: that one copies it first, and the last owner keeps the original.
//! With [`Fork::NewBlock`] each goes on in a new block and leaves a gap behind the prompt.

use super::block_pool::{BlockPool, CacheConfig, Fork};

/// A copy of a whole block, done before the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that is read.
    pub from: u32,
    /// The block that is written.
    pub to: u32,
}

/// Tokens in the KV cache, from the first position on.
#[derive(Debug, Default)]
pub struct Sequence {
    blocks: Vec<u32>,
    length: usize,
    /// Unused slots between the shared prompt and the sequence's private tokens.
    gap: usize,
}

impl Sequence {
    /// A sequence that begins with the tokens of full blocks, which it references.
    pub fn beginning(blocks: Vec<u32>, pool: &mut BlockPool) -> Sequence {
        blocks.iter().for_each(|&block| pool.share(block));
        Sequence { length: blocks.len() * pool.config().block_size, blocks, gap: 0 }
    }

    pub fn tokens(&self) -> usize {
        self.length
    }

    /// Its block table.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// A sequence that continues the same tokens.
    pub fn fork(&self, pool: &mut BlockPool) -> Sequence {
        let CacheConfig { block_size, fork, .. } = pool.config();
        self.blocks.iter().for_each(|&block| pool.share(block));
        let gap = match fork {
            Fork::CopyOnWrite => 0,
            Fork::NewBlock => self.blocks.len() * block_size - self.length,
        };
        Sequence { blocks: self.blocks.clone(), length: self.length, gap }
    }

    /// Appends `count` tokens, which are in the cache from the next run on. `slots` receives where each goes: block times
    /// block size plus offset. A block copy that must come first is added to `copies`.
    ///
    /// The scheduler admits no more than fits, so there is a block whenever one is needed.
    pub fn grow(
        &mut self,
        count: usize,
        pool: &mut BlockPool,
        slots: &mut impl Extend<i32>,
        copies: &mut Vec<BlockCopy>,
    ) {
        let size = pool.config().block_size;
        let used = self.length + self.gap;
        if let Some(last) = self.blocks.last_mut().filter(|_| count > 0 && !used.is_multiple_of(size)) {
            let from = *last;
            if pool.references(from) > 1 {
                *last = pool.alloc();
                pool.release(from);
                copies.push(BlockCopy { from, to: *last });
            }
        }
        while self.blocks.len() * size < used + count {
            self.blocks.push(pool.alloc());
        }
        let slot = |at: usize| (self.blocks[at / size] as usize * size + at % size) as i32;
        slots.extend((used..used + count).map(slot));
        self.length += count;
    }

    /// Gives up its blocks, the last one first: of cached blocks the ends of chains are then evicted first.
    pub fn release(&mut self, pool: &mut BlockPool) {
        self.blocks.drain(..).rev().for_each(|block| pool.release(block));
        (self.length, self.gap) = (0, 0);
    }
}
