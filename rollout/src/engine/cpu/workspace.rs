//! Scratch memory of the attention kernels, and the list of memory to prefetch.

use super::lanes::Lanes;

/// Query rows per kernel call, at most; larger groups are split.
pub const MAX_ROWS: usize = 64;
/// Sixteen numbers in one cache line, so that no vector load crosses two lines.
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

    /// Makes room for `floats` numbers.
    fn reserve(&mut self, floats: usize) {
        let lines = floats.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
    }

    /// The first `count` numbers.
    fn numbers(&mut self, count: usize) -> &mut [f32] {
        assert!(count <= 16 * self.0.len(), "scratch memory is too short");
        // SAFETY: a line is 16 numbers, and enough lines were reserved for `count`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), count) }
    }
}

/// Scratch of one thread's attention. Rows are query rows: branches or tokens, times query heads per key/value head.
pub struct Workspace {
    /// Values of a head.
    pub width: usize,
    /// Values from one row of scores to the next.
    pub stride: usize,
    /// `[MAX_ROWS][width]`: rotated queries, times the scale of attention.
    pub queries: Aligned,
    /// `[MAX_ROWS][width]`: sums of values, each weighted by exp(score - largest).
    pub sums: Aligned,
    /// `[MAX_ROWS][stride]`: scores, then their exponentials.
    pub scores: Aligned,
    /// The largest score of each row.
    pub largest: [f32; MAX_ROWS],
    /// The sum of exponentials of each row.
    pub totals: [f32; MAX_ROWS],
    /// Memory to prefetch.
    pub prefetcher: Prefetcher,
}

impl Workspace {
    /// Scratch for heads of this size.
    pub fn new(width: usize) -> Self {
        Workspace {
            width,
            stride: 0,
            queries: Aligned::new(MAX_ROWS * width),
            sums: Aligned::new(MAX_ROWS * width),
            scores: Aligned::new(0),
            largest: [0.0; MAX_ROWS],
            totals: [0.0; MAX_ROWS],
            prefetcher: Prefetcher::default(),
        }
    }

    /// Prepares `rows` rows of `stride` scores and one sum per row, all zero.
    pub fn begin(&mut self, rows: usize, stride: usize) {
        self.stride = stride;
        self.scores.reserve(rows * stride);
        self.sums.numbers(rows * self.width).fill(0.0);
    }

    /// Where the queries of a row go.
    pub fn query(&mut self, row: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.queries.numbers((row + 1) * width)[row * width..]
    }

    pub fn scores_of(&mut self, row: usize) -> &mut [f32] {
        let stride = self.stride;
        &mut self.scores.numbers((row + 1) * stride)[row * stride..]
    }

    /// [`functional::softmax`] of the first rows.
    pub fn softmax(&mut self, rows: usize) {
        let (stride, scores) = (self.stride, self.scores.numbers(rows * self.stride));
        functional::softmax(stride, stride, scores, &mut self.largest[..rows], &mut self.totals[..rows]);
    }

    /// A row's attention: its sums, divided by its total.
    pub fn finish(&mut self, row: usize, output: &mut [f32]) {
        let (width, factor) = (self.width, 1.0 / self.totals[row]);
        let sums = &self.sums.numbers((row + 1) * width)[row * width..];
        output.iter_mut().zip(sums).for_each(|(output, sum)| *output = sum * factor);
    }
}

/// Memory that will be read soon. Each step of a kernel prefetches a few of its cache lines, which hides most
/// of the latency of main memory, since the KV cache of a busy runner exceeds the processor's caches.
#[derive(Default)]
pub struct Prefetcher {
    ranges: Vec<(*const f32, usize)>,
    next: usize,
    at: *const f32,
    left: usize,
}

// SAFETY: the addresses are only ever given to prefetch instructions, which read nothing.
unsafe impl Send for Prefetcher {}

impl Prefetcher {
    /// Prefetching more than this would evict lines that are needed sooner.
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
    /// See [`Lanes`]; the addresses may be anything.
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
