//! The pool of blocks and what is remembered in it: the blocks of earlier prompts, for later ones that begin the same.
//!
//! Only whole blocks are remembered. A block is found by the remembered block before it and by its own tokens, so what
//! is found has exactly the tokens that were asked for. Remembered blocks that no sequence holds are given up when a
//! free block is needed, those not used for longest first, ends of chains before what they stand on.

use super::pool::Pool;
use super::sequence::Sequence;
use std::collections::HashMap;

/// Blocks, free, in use and remembered.
#[derive(Debug)]
pub struct Cache {
    /// Who holds what; this cache is a holder of what it remembers.
    pub pool: Pool,
    remembered: HashMap<Place, Remembered>,
    places: HashMap<u32, Place>,
    clock: u64,
}

/// A block in its context: the block before it, `None` at the beginning, and its tokens.
type Place = (Option<u32>, Box<[u32]>);

#[derive(Debug)]
struct Remembered {
    block: u32,
    used: u64,
    /// Remembered blocks that follow it.
    followers: u32,
}

impl Cache {
    /// `count` blocks of `size` tokens.
    pub fn new(count: usize, size: usize) -> Cache {
        Cache { pool: Pool::new(count, size), remembered: HashMap::new(), places: HashMap::new(), clock: 0 }
    }

    /// Blocks that a sequence could have: free ones and those that are only remembered.
    pub fn available(&self) -> usize {
        let idle = self.places.keys().filter(|&&block| self.pool.holders(block) == 1).count();
        self.pool.free() + idle
    }

    /// A block for a sequence.
    ///
    /// # Panics
    /// None is available; the scheduler admits no more than fits.
    pub fn take(&mut self) -> u32 {
        if self.pool.free() == 0 {
            self.forget_one();
        }
        self.pool.take().expect("the scheduler admits no more than fits")
    }

    /// The remembered blocks that `tokens` begins with; never all of it, so that at least one token is left to run.
    pub fn find(&mut self, tokens: &[u32]) -> Vec<u32> {
        self.clock += 1;
        let size = self.pool.block_size();
        let mut found: Vec<u32> = Vec::new();
        for part in tokens[..tokens.len().saturating_sub(1)].chunks_exact(size) {
            let place = (found.last().copied(), part.into());
            let Some(entry) = self.remembered.get_mut(&place) else { break };
            entry.used = self.clock;
            found.push(entry.block);
        }
        found
    }

    /// Remembers the whole blocks of a sequence whose tokens are `tokens`.
    pub fn remember(&mut self, sequence: &Sequence, tokens: impl Iterator<Item = u32>) {
        self.clock += 1;
        let size = self.pool.block_size();
        let tokens: Vec<u32> = tokens.take(sequence.tokens() / size * size).collect();
        let mut before = None;
        for (part, &block) in tokens.chunks_exact(size).zip(sequence.blocks()) {
            let place: Place = (before, part.into());
            if let Some(entry) = self.remembered.get_mut(&place) {
                // Another block with the same tokens: what follows ours must not stand on a block that we do not hold.
                if entry.block != block {
                    return;
                }
                entry.used = self.clock;
                before = Some(block);
                continue;
            }
            if let Some(parent) = before.and_then(|parent| self.places.get(&parent)).cloned()
                && let Some(entry) = self.remembered.get_mut(&parent)
            {
                entry.followers += 1;
            }
            self.pool.share(block);
            self.places.insert(block, place.clone());
            self.remembered.insert(place, Remembered { block, used: self.clock, followers: 0 });
            before = Some(block);
        }
    }

    /// Gives up the remembered block that was not used for longest among those that nothing stands on.
    fn forget_one(&mut self) {
        let idle = self
            .remembered
            .iter()
            .filter(|(_, entry)| entry.followers == 0 && self.pool.holders(entry.block) == 1)
            .min_by_key(|(_, entry)| (entry.used, entry.block));
        let Some(place) = idle.map(|(place, _)| place.clone()) else { return };
        if let Some(entry) = self.remembered.remove(&place) {
            self.places.remove(&entry.block);
            self.pool.release(entry.block);
        }
        if let Some(parent) = place.0.and_then(|parent| self.places.get(&parent)).cloned()
            && let Some(entry) = self.remembered.get_mut(&parent)
        {
            entry.followers -= 1;
        }
    }
}
