//! The kernel for 64-bit ARM: tiles of 6 by 16, 24 of the 32 vector registers holding sums.
//!
//! Every such processor has these instructions. Products are fused into sums, as on AVX2, so both give the same bits.

use crate::micro_kernel::{MicroKernel, Tile, Word};
use crate::portable;
use std::arch::aarch64::*;

pub(crate) struct Neon;

type Run = unsafe fn(Tile, usize, *const f32, *const f32, *const f32, *mut f32);

/// Kernels by number of rows.
const KERNELS: [Run; 7] = [tile::<1>, tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>];

impl MicroKernel for Neon {
    const MR: usize = 6;
    const NR: usize = 16;
    const VALUES_PER_WORD: usize = 1;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller's promise is the kernel's; a word holds the bits of one f32.
        unsafe { KERNELS[tile.rows](tile, words, a.cast(), b.cast(), onto, c) }
    }
}

unsafe fn tile<const ROWS: usize>(
    tile: Tile,
    inner: usize,
    mut a: *const f32,
    mut b: *const f32,
    onto: *const f32,
    c: *mut f32,
) {
    // SAFETY: every processor that this is compiled for has the instruction.
    let mut sums = [[unsafe { vdupq_n_f32(0.0) }; 4]; ROWS];
    // SAFETY: the caller promises the extent of the tile.
    let first = unsafe { portable::first_sums::<16, ROWS>(tile, onto) };
    for (sums, first) in sums.iter_mut().zip(&first) {
        for (place, sum) in sums.iter_mut().enumerate() {
            // SAFETY: each row holds four vectors of 4.
            *sum = unsafe { vld1q_f32(first.as_ptr().add(4 * place)) };
        }
    }
    for _ in 0..inner {
        // SAFETY: the caller promises the extents of both panels.
        unsafe {
            let right = [vld1q_f32(b), vld1q_f32(b.add(4)), vld1q_f32(b.add(8)), vld1q_f32(b.add(12))];
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = vdupq_n_f32(*a.add(row));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = vfmaq_f32(*sum, left, right);
                }
            }
            a = a.add(ROWS);
            b = b.add(16);
        }
    }
    let mut values = [[0.0f32; 16]; ROWS];
    for (values, sums) in values.iter_mut().zip(&sums) {
        for (place, sum) in sums.iter().enumerate() {
            // SAFETY: each row holds four vectors of 4.
            unsafe { vst1q_f32(values.as_mut_ptr().add(4 * place), *sum) };
        }
    }
    // SAFETY: the caller promises the extent of the tile.
    unsafe { portable::store(tile, &values, onto, c) };
}
