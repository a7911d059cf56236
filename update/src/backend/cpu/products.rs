//! Matrix products on the threads of a pool.

use super::attention_scratch;
use super::thread_pool::ThreadPool;
use gemm::{Accumulate, Precision, View, ViewMut};

/// Memory of each thread of a pool.
#[derive(Debug, Default)]
pub(super) struct ThreadScratch {
    pub gemm: gemm::Scratch,
    pub attention: attention_scratch::Scratch,
}

/// A pool and its products.
///
/// Products of linear layers and of the LM head, forward and backward, are nearly all of the work and take
/// the backend's precision. Attention's products stay in f32, as in rollout's engine; rounding them would
/// increase the difference. The keys and values that attention reads are rounded, because the engine stores
/// them in bf16.
pub(super) struct Gemm {
    pub precision: Precision,
    pool: ThreadPool,
    scratch: Vec<ThreadScratch>,
}

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            precision: Precision::default(),
            pool: ThreadPool::default(),
            scratch: vec![ThreadScratch::default()],
        }
    }
}

impl Gemm {
    /// Operations of a product below which a pool does not share it: waking the others takes as long.
    const SHARED: usize = 4 << 20;

    /// Makes it a pool of `threads` threads.
    pub(super) fn set_threads(&mut self, threads: usize) {
        if self.pool.size() != threads {
            self.pool = ThreadPool::new(threads);
            self.scratch.resize_with(self.pool.size(), ThreadScratch::default);
        }
    }

    /// Its threads.
    pub(super) fn size(&self) -> usize {
        self.pool.size()
    }

    /// Memory in which the calling thread packs operands.
    pub(super) fn scratch(&mut self) -> &mut gemm::Scratch {
        &mut self.scratch[0].gemm
    }

    /// Calls `work` with every piece, on some thread.
    pub(super) fn each<P: Send>(&mut self, pieces: Vec<P>, work: impl Fn(&mut ThreadScratch, P) + Sync) {
        self.pool.each(&mut self.scratch, pieces, work);
    }

    /// Threads that share a product.
    fn threads(&self, [m, n, k]: [usize; 3]) -> usize {
        self.pool.size().min(1 + 2 * m * n * k / Gemm::SHARED)
    }

    /// `c = onto + a · b` of a linear layer: `[m, n, k]`, and the stride of `c`.
    pub(super) fn linear(
        &mut self,
        mnk: [usize; 3],
        a: View,
        b: View,
        onto: Accumulate,
        c: &mut [f32],
        stride: usize,
    ) {
        let (precision, c) = (self.precision, ViewMut::new(c, stride));
        let products = gemm::cut(mnk, a, b, onto, c, self.threads(mnk));
        self.each(products, |scratch, product| {
            product.run(&mut scratch.gemm, precision);
        });
    }

    /// Adds `a · b` of a linear layer to a gradient, summed from zero first.
    pub(super) fn linear_gradient(&mut self, mnk: [usize; 3], a: View, b: View, gradient: &mut [f32]) {
        let (precision, c) = (self.precision, ViewMut::new(gradient, mnk[1]));
        let products = gemm::cut(mnk, a, b, Accumulate::Result, c, self.threads(mnk));
        self.each(products, |scratch, product| {
            product.add(&mut scratch.gemm, precision);
        });
    }

    /// Rows of one thread's share of `rows`, if each thread works alone.
    pub(super) fn share(&self, rows: usize) -> usize {
        rows.div_ceil(self.pool.size()).max(1)
    }
}

/// `c = onto + a · b` in f32, whatever the precision, on one thread.
pub(super) fn exact(
    scratch: &mut gemm::Scratch,
    mnk: [usize; 3],
    a: View,
    b: View,
    onto: Accumulate,
    c: &mut [f32],
    stride: usize,
) {
    gemm::multiply(scratch, Precision::Float32, mnk, a, b, onto, ViewMut::new(c, stride));
}
