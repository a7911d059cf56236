//! Where keys and values live: pages of sixteen tokens, owned by Rust, one arena a decoder.
//!
//! A page holds sixteen consecutive tokens of one sequence for every layer and every key/value head. Within a head's
//! part the keys come first, dimension by dimension (`[head_size][16 tokens]`), so that one vector holds the same
//! dimension of sixteen keys; then the values, token by token (`[16 tokens][head_size]`). Sequences are lists of
//! pages, so a finished branch gives its memory back at once and nothing is ever moved.
//! Memory is counted in words of 32 bits, each an f32 or two neighbours in bf16.
//! Left out: eviction. The scheduler admits only what fits.

use gemm::Precision;
use policy::config::Config;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Tokens a page.
pub const PAGE: usize = 16;
/// Memory is asked from the system in pieces of about this many bytes.
const SLAB_BYTES: usize = 1 << 20;
const ALIGNMENT: usize = 4096;

/// The sizes that decide what a page looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Dimensions of a head, a multiple of 16.
    pub head_size: usize,
    /// What keys and values are rounded to when they are stored.
    pub precision: Precision,
}

impl Shape {
    /// The sizes of a model.
    pub fn of(config: &Config, precision: Precision) -> Shape {
        let Config { num_layers, num_kv_heads, head_dim, .. } = *config;
        Shape { layers: num_layers, kv_heads: num_kv_heads, head_size: head_dim, precision }
    }

    /// Words of an even number of numbers.
    pub fn words(&self, numbers: usize) -> usize {
        match self.precision {
            Precision::Float32 => numbers,
            Precision::BFloat16 => numbers / 2,
        }
    }

    /// Words of one head's keys and values in a page.
    pub fn head_words(&self) -> usize {
        self.words(2 * PAGE * self.head_size)
    }

    /// Words of a page.
    pub fn page_words(&self) -> usize {
        self.layers * self.kv_heads * self.head_words()
    }

    /// Where the part of a layer and head begins within a page, in words.
    pub fn offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_words()
    }
}

struct Slab {
    start: NonNull<f32>,
    layout: Layout,
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated in `Arena::grow` with this layout and freed only here.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

/// All pages of one decoder.
pub struct Arena {
    shape: Shape,
    slabs: Vec<Slab>,
    starts: Vec<NonNull<f32>>,
    free: Vec<u32>,
}

// SAFETY: the arena owns the memory behind its pointers; they are not shared with anything that stays on a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// An arena without any memory yet.
    pub fn new(shape: Shape) -> Self {
        Arena { shape, slabs: Vec::new(), starts: Vec::new(), free: Vec::new() }
    }

    /// The sizes it was made for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A page that nobody uses. The most recently freed comes first, because it may still be in the cache.
    pub fn take(&mut self) -> u32 {
        if self.free.is_empty() {
            self.grow();
        }
        let page = self.free.pop().expect("growing adds pages");
        if cfg!(test) {
            // Tests must notice whoever reads what nobody has written: not a number, in either type.
            // SAFETY: the page has this many numbers and belongs to nobody.
            unsafe { std::slice::from_raw_parts_mut(self.start(page), self.shape.page_words()) }
                .fill(f32::from_bits(u32::MAX));
        }
        page
    }

    /// Takes pages back; the list is empty afterwards.
    pub fn give_back(&mut self, pages: &mut Vec<u32>) {
        self.free.extend(pages.drain(..).rev());
    }

    /// The first word of a page.
    pub fn start(&self, page: u32) -> *mut f32 {
        self.starts[page as usize].as_ptr()
    }

    /// The first word of every page.
    pub fn starts(&self) -> &[NonNull<f32>] {
        &self.starts
    }

    /// Pages handed out and not given back.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.starts.len() - self.free.len()
    }

    fn grow(&mut self) {
        let words = self.shape.page_words();
        let count = (SLAB_BYTES / (words * size_of::<f32>())).max(1);
        let layout = Layout::array::<f32>(count * words)
            .and_then(|layout| layout.align_to(ALIGNMENT))
            .expect("a slab is far smaller than the address space");
        // SAFETY: the layout is not empty: shapes have at least one layer, head and dimension.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start.cast::<f32>()) else { handle_alloc_error(layout) };
        let first = self.starts.len() as u32;
        for page in 0..count {
            // SAFETY: within the slab, which holds `count` pages.
            self.starts.push(unsafe { start.add(page * words) });
        }
        self.free.extend((first..first + count as u32).rev());
        self.slabs.push(Slab { start, layout });
    }
}
