//! The pool of blocks and what is remembered in it: the blocks of earlier prompts, for later ones that begin the same.
//!
//! Only whole blocks are remembered. A block is found by the remembered block before it and by its own tokens, so what
//! is found has exactly the tokens that were asked for; the first block of a chain also by the adapter that computed it,
//! since keys and values are an adapter's own. Remembered blocks that no sequence holds are given up when a
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

/// A block in its context: what is before it, and its tokens.
type Place = (Before, Box<[u32]>);

/// What is before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing: it begins what an adapter, or the base without one, has computed.
    Nothing(Option<u32>),
    /// Another block.
    Block(u32),
}

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

    /// The remembered blocks of an adapter that `tokens` begins with; never all of it, so that at least one token is left
    /// to run.
    pub fn find(&mut self, adapter: Option<u32>, tokens: &[u32]) -> Vec<u32> {
        self.clock += 1;
        let size = self.pool.block_size();
        let mut found: Vec<u32> = Vec::new();
        for part in tokens[..tokens.len().saturating_sub(1)].chunks_exact(size) {
            let before = found.last().map_or(Before::Nothing(adapter), |&block| Before::Block(block));
            let place = (before, part.into());
            let Some(entry) = self.remembered.get_mut(&place) else { break };
            entry.used = self.clock;
            found.push(entry.block);
        }
        found
    }

    /// Remembers the whole blocks of a sequence of an adapter, whose tokens are `tokens`.
    pub fn remember(&mut self, adapter: Option<u32>, sequence: &Sequence, tokens: impl Iterator<Item = u32>) {
        self.clock += 1;
        let size = self.pool.block_size();
        let tokens: Vec<u32> = tokens.take(sequence.tokens() / size * size).collect();
        let mut before = Before::Nothing(adapter);
        for (part, &block) in tokens.chunks_exact(size).zip(sequence.blocks()) {
            let place: Place = (before, part.into());
            if let Some(entry) = self.remembered.get_mut(&place) {
                // Another block with the same tokens: what follows ours must not stand on a block that we do not hold.
                if entry.block != block {
                    return;
                }
                entry.used = self.clock;
                before = Before::Block(block);
                continue;
            }
            if let Some(entry) = self.parent(before) {
                entry.followers += 1;
            }
            self.pool.share(block);
            self.places.insert(block, place.clone());
            self.remembered.insert(place, Remembered { block, used: self.clock, followers: 0 });
            before = Before::Block(block);
        }
    }

    /// The remembered block before another.
    fn parent(&mut self, before: Before) -> Option<&mut Remembered> {
        let Before::Block(block) = before else { return None };
        self.remembered.get_mut(self.places.get(&block)?)
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
        if let Some(entry) = self.parent(place.0) {
            entry.followers -= 1;
        }
    }
}
