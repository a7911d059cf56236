//! Host memory of the KV cache, owned by a runner and taken from the system as block numbers come into use.
//!
//! A block holds [`BLOCK_SIZE`] consecutive tokens of one sequence for every layer and key/value head. Within
//! a head's part the keys come first, dimension by dimension (`[head_size][BLOCK_SIZE]`), so that one vector
//! holds the same dimension of sixteen keys; then the values, token by token (`[BLOCK_SIZE][head_size]`).
//! Memory is counted in words of 32 bits, each an f32 or two neighboring bf16.

use gemm::Precision;
use memmap2::MmapMut;
use policy::config::Config;
use record::failure::{Failure, Result};
use std::ptr::NonNull;

/// Tokens per block.
pub const BLOCK_SIZE: usize = 16;
/// Memory is mapped in slabs of about this size, several huge pages. The unused part of a slab takes no
/// memory.
const SLAB_BYTES: usize = 8 << 20;

/// The sizes that decide a block's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Dimensions of a head, a multiple of 16.
    pub head_size: usize,
    /// The type in which keys and values are stored.
    pub precision: Precision,
}

impl KvLayout {
    /// The layout for a model.
    pub fn of(config: &Config, precision: Precision) -> KvLayout {
        let Config { num_layers, num_kv_heads, head_dim, .. } = *config;
        KvLayout { layers: num_layers, kv_heads: num_kv_heads, head_size: head_dim, precision }
    }

    /// Words of an even number of values.
    pub fn words(&self, values: usize) -> usize {
        match self.precision {
            Precision::Float32 => values,
            Precision::BFloat16 => values / 2,
        }
    }

    /// Words of one head's keys and values in a block.
    pub fn head_words(&self) -> usize {
        self.words(2 * BLOCK_SIZE * self.head_size)
    }

    pub fn block_words(&self) -> usize {
        self.layers * self.kv_heads * self.head_words()
    }

    /// Where the part of a layer and head begins within a block, in words.
    pub fn offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_words()
    }
}

/// Memory of the blocks.
pub struct KvCache {
    layout: KvLayout,
    slabs: Vec<MmapMut>,
    starts: Vec<NonNull<f32>>,
}

// SAFETY: it owns the memory behind its pointers.
unsafe impl Send for KvCache {}

impl KvCache {
    /// A cache without memory.
    pub fn new(layout: KvLayout) -> Self {
        KvCache { layout, slabs: Vec::new(), starts: Vec::new() }
    }

    /// How blocks are laid out.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// The first word of a block.
    pub fn start(&self, block: u32) -> *mut f32 {
        self.starts[block as usize].as_ptr()
    }

    /// The first word of every block.
    pub fn starts(&self) -> &[NonNull<f32>] {
        &self.starts
    }

    /// Provides memory for everything that a run stores, given its slots.
    ///
    /// # Errors
    /// Exit 69: the system gives no more memory.
    pub fn reserve(&mut self, slots: &[i32]) -> Result<()> {
        let most = slots.iter().max().map_or(0, |&slot| slot as usize / BLOCK_SIZE + 1);
        while self.starts.len() < most {
            self.grow()?;
        }
        if cfg!(test) {
            // Tests must notice reads of what nobody has written: a block whose first token comes now has no content.
            for &slot in slots.iter().filter(|&&slot| (slot as usize).is_multiple_of(BLOCK_SIZE)) {
                let block = self.start(slot as u32 / BLOCK_SIZE as u32);
                // SAFETY: the block has this many words and belongs to the sequence that writes it.
                unsafe { std::slice::from_raw_parts_mut(block, self.layout.block_words()) }
                    .fill(f32::from_bits(u32::MAX));
            }
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        let words = self.layout.block_words();
        let count = (SLAB_BYTES / (words * size_of::<f32>())).max(1);
        let mut slab = MmapMut::map_anon(count * words * size_of::<f32>())
            .map_err(|error| Failure::unavailable(format!("no memory for the KV cache: {error}")))?;
        // Attention reads all of the cache in each layer, one page per block and head: with small pages it would wait for
        // address translation. Where the system has no huge pages it does.
        #[cfg(target_os = "linux")]
        let _ = slab.advise(memmap2::Advice::HugePage);
        let start = NonNull::from(&mut slab[..]).cast::<f32>();
        // SAFETY: within the slab, which holds `count` blocks.
        self.starts.extend((0..count).map(|block| unsafe { start.add(block * words) }));
        self.slabs.push(slab);
        Ok(())
    }
}
