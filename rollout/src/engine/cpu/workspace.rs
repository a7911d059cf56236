//! Scratch memory of the attention kernels, and the list of memory to prefetch.

use super::lanes::Lanes;

/// The most query rows that one call of the kernels handles; larger groups are split.
pub const MAX_ROWS: usize = 64;
/// Keys whose scores are held at a time. Each chunk is merged into the running softmax of its row.
pub const CHUNK: usize = 256;

/// Sixteen numbers that begin a cache line, so that no vector load is split over two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A buffer that begins at a cache line.
pub struct Aligned(Vec<Line>);

impl Aligned {
    /// A buffer of `floats` numbers, all 0.
    pub fn new(floats: usize) -> Self {
        Aligned(vec![Line([0.0; 16]); floats.div_ceil(16)])
    }

    /// The first number.
    pub fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Scratch of one thread's attention. Rows are query rows: branches or tokens, times query heads per key/value head.
pub struct Workspace {
    /// `[MAX_ROWS][head_size]`: rotated queries, scaled by 1/sqrt(head_size).
    pub queries: Aligned,
    /// `[MAX_ROWS][head_size]`: sums of values, each weighted by exp(score - largest).
    pub sums: Aligned,
    /// `[MAX_ROWS][CHUNK]`: scores, then their exponentials.
    pub scores: Aligned,
    /// The largest score of each row so far.
    pub largest: [f32; MAX_ROWS],
    /// The sum of exponentials of each row so far.
    pub total: [f32; MAX_ROWS],
    /// Memory to prefetch.
    pub ahead: Ahead,
}

impl Workspace {
    /// Scratch for heads of this size.
    pub fn new(head_size: usize) -> Self {
        Workspace {
            queries: Aligned::new(MAX_ROWS * head_size),
            sums: Aligned::new(MAX_ROWS * head_size),
            scores: Aligned::new(MAX_ROWS * CHUNK),
            largest: [0.0; MAX_ROWS],
            total: [0.0; MAX_ROWS],
            ahead: Ahead::default(),
        }
    }
}

/// Memory that will be read soon. The kernels prefetch a few of its cache lines in each step of their arithmetic, which
/// hides most of the latency of main memory: the KV cache of a busy runner is larger than the caches.
#[derive(Default)]
pub struct Ahead {
    ranges: Vec<(*const f32, usize)>,
    next: usize,
    at: *const f32,
    left: usize,
}

// SAFETY: the addresses are only ever given to prefetch instructions, which read nothing.
unsafe impl Send for Ahead {}

impl Ahead {
    /// More than this would push out of the cache what is needed sooner.
    const MOST: usize = 64;

    /// Empties the list.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.next = 0;
        self.left = 0;
    }

    /// Lists `floats` numbers from `start`.
    pub fn add(&mut self, start: *const f32, floats: usize) {
        if self.ranges.len() < Self::MOST {
            self.ranges.push((start, floats.div_ceil(16)));
        }
    }

    /// Prefetches the next cache line, if any.
    ///
    /// # Safety
    ///
    /// As for every method of [`Lanes`]; the addresses may be anything.
    #[inline(always)]
    pub unsafe fn step<S: Lanes>(&mut self) {
        if self.left == 0 {
            let Some(&(start, lines)) = self.ranges.get(self.next) else { return };
            self.next += 1;
            self.at = start;
            self.left = lines;
        }
        // SAFETY: prefetching is allowed at any address.
        unsafe { S::prefetch(self.at) };
        self.at = self.at.wrapping_add(16);
        self.left = self.left.saturating_sub(1);
    }
}
