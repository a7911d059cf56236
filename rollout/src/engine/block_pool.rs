//! Blocks of the KV cache: reference counts, free blocks, and the prefix cache.
//!
//! A block is a number; its memory belongs to the model runner. Only a block's sole owner may write to it.
//! Full blocks can be inserted into the prefix cache, keyed by the cached block before them and by their
//! tokens. The first block of a chain is also keyed by the adapter, because an adapter changes keys and
//! values. Lookups compare tokens, not hashes. A cached block without references keeps its content until its
//! memory is needed; then the least recently used goes first, the end of a chain before its beginning.

use std::collections::{BTreeMap, HashMap};

/// Size of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// How a branch continues its prompt.
    pub fork: Fork,
    /// True if a block takes memory only once it is used. Idle cached blocks are then limited to a third of
    /// the used blocks, because clearing new memory costs more than most cached prompts save.
    pub lazy: bool,
}

/// How a branch continues the prompt that it shares with its siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// In the prompt's last block, copied before the first write: a sequence is one contiguous block table.
    CopyOnWrite,
    /// In a new block, even if the prompt's last block has room: nothing is copied and the whole prompt is
    /// shared.
    NewBlock,
}

/// All blocks of one engine.
#[derive(Debug)]
pub struct BlockPool {
    config: CacheConfig,
    /// References per block, by sequences.
    references: Vec<u32>,
    /// Unreferenced blocks without cached content; the next one to use is last.
    free: Vec<u32>,
    /// Blocks below this number have been used at least once.
    used: usize,
    /// Prefix cache.
    cached: HashMap<Key, Node>,
    /// Each cached block's place in the prefix cache, and the time since when it is unreferenced.
    entries: HashMap<u32, Entry>,
    /// Cached blocks without references, in the order in which they lost the last one.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

/// A block in its context: its predecessor and its tokens.
type Key = (Parent, Box<[u32]>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Parent {
    /// The root: the block begins a prompt, under an adapter or the base model.
    Root(Option<u32>),
    /// A cached block. Node ids, unlike blocks, are never reused, so the children of an
    /// evicted block cannot be found.
    Node(u64),
}

#[derive(Debug, Clone, Copy)]
struct Node {
    id: u64,
    block: u32,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    idle_since: u64,
}

impl BlockPool {
    /// A pool whose blocks are all free.
    pub fn new(config: CacheConfig) -> BlockPool {
        let mut pool = BlockPool {
            config: CacheConfig { blocks: 0, ..config },
            references: Vec::new(),
            free: Vec::new(),
            used: 0,
            cached: HashMap::new(),
            entries: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
        };
        pool.add_blocks(config.blocks);
        pool
    }

    pub fn config(&self) -> CacheConfig {
        self.config
    }

    /// Blocks that [`BlockPool::alloc`] can hand out: those without references.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// References to `block`.
    pub fn references(&self, block: u32) -> u32 {
        self.references[block as usize]
    }

    /// Adds `count` free blocks.
    pub fn add_blocks(&mut self, count: usize) {
        let first = self.config.blocks;
        self.config.blocks += count;
        self.references.resize(self.config.blocks, 0);
        self.free.splice(0..0, (first as u32..self.config.blocks as u32).rev());
    }

    /// Allocates a block with one reference. Prefers the most recently freed block, which may still be in the
    /// processor's caches. If no block is free, or instead of using new memory, it evicts cached content.
    ///
    /// # Panics
    /// If none is available; the scheduler admits only what fits.
    pub fn alloc(&mut self) -> u32 {
        let new = self.free.last().is_some_and(|&block| block as usize == self.used);
        let full = self.config.lazy && new && self.idle.len() * 3 > self.used;
        let evicted = if full { self.evict() } else { None };
        let block = evicted.or_else(|| self.free.pop()).or_else(|| self.evict());
        let block = block.expect("the scheduler admits no more than fits");
        self.used = self.used.max(block as usize + 1);
        self.references[block as usize] = 1;
        block
    }

    /// Adds a reference to a block that is referenced or cached.
    pub fn share(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        *references += 1;
        if *references == 1 {
            let entry = self.entries.get(&block);
            let idle = entry.and_then(|entry| self.idle.remove(&entry.idle_since));
            assert!(idle.is_some(), "block {block} is free and cannot be shared");
        }
    }

    /// Drops a reference. A block without references becomes free, or idle if it is cached.
    pub fn release(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        assert!(*references > 0, "block {block} is free and cannot be released");
        *references -= 1;
        if *references > 0 {
            return;
        }
        match self.entries.get_mut(&block) {
            Some(entry) => {
                self.clock += 1;
                entry.idle_since = self.clock;
                self.idle.insert(self.clock, block);
            }
            None => self.free.push(block),
        }
    }

    /// The cached blocks that hold a prefix of `tokens` under an adapter; never all tokens, so that at
    /// least one is left to compute.
    pub fn lookup(&self, adapter: Option<u32>, tokens: &[u32]) -> Vec<u32> {
        let mut found = Vec::new();
        let mut parent = Parent::Root(adapter);
        for part in tokens[..tokens.len().saturating_sub(1)].chunks_exact(self.config.block_size) {
            let Some(node) = self.cached.get(&(parent, part.into())) else { break };
            found.push(node.block);
            parent = Parent::Node(node.id);
        }
        found
    }

    /// Caches the full blocks of a sequence whose tokens are `tokens`, computed under an adapter.
    pub fn insert(&mut self, adapter: Option<u32>, blocks: &[u32], tokens: &[u32]) {
        let mut parent = Parent::Root(adapter);
        for (part, &block) in tokens.chunks_exact(self.config.block_size).zip(blocks) {
            let key: Key = (parent, part.into());
            let node = match self.cached.get(&key) {
                // Another block caches the same tokens. Later blocks of this sequence must not depend on a
                // block that we do not reference.
                Some(node) if node.block != block => return,
                Some(node) => *node,
                None => {
                    self.clock += 1;
                    let node = Node { id: self.clock, block };
                    self.entries.insert(block, Entry { key: key.clone(), idle_since: 0 });
                    self.cached.insert(key, node);
                    node
                }
            };
            parent = Parent::Node(node.id);
        }
    }

    /// Evicts the block that has been idle longest.
    fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.idle.pop_first()?;
        if let Some(entry) = self.entries.remove(&block) {
            self.cached.remove(&entry.key);
        }
        Some(block)
    }
}
