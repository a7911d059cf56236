//! The AVX2 kernel: tiles of 6 by 16, 12 of the 16 vector registers holding sums.

use crate::micro_kernel::{MicroKernel, Tile, Word};
use crate::portable;
use std::arch::x86_64::*;

pub(crate) struct Avx2;

type Run = unsafe fn(Tile, usize, *const f32, *const f32, *const f32, *mut f32);

/// Kernels by number of rows.
const KERNELS: [Run; 7] = [tile::<1>, tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>];

impl MicroKernel for Avx2 {
    const MR: usize = 6;
    const NR: usize = 16;
    const VALUES_PER_WORD: usize = 1;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller's promise is the kernel's; a word holds the bits of one f32.
        unsafe { KERNELS[tile.rows](tile, words, a.cast(), b.cast(), onto, c) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize>(
    tile: Tile,
    inner: usize,
    mut a: *const f32,
    mut b: *const f32,
    onto: *const f32,
    c: *mut f32,
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    if tile.chained && !onto.is_null() {
        // SAFETY: the caller promises the extent of the tile.
        let first = unsafe { portable::first_sums::<16, ROWS>(tile, onto) };
        for (sums, first) in sums.iter_mut().zip(&first) {
            // SAFETY: each row holds two vectors of 8.
            *sums = unsafe { [_mm256_loadu_ps(first.as_ptr()), _mm256_loadu_ps(first.as_ptr().add(8))] };
        }
    }
    for _ in 0..inner {
        // SAFETY: the caller promises the extents of both panels.
        unsafe {
            let right = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))];
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm256_set1_ps(*a.add(row));
                sums[0] = _mm256_fmadd_ps(left, right[0], sums[0]);
                sums[1] = _mm256_fmadd_ps(left, right[1], sums[1]);
            }
            a = a.add(ROWS);
            b = b.add(16);
        }
    }
    if tile.columns == 16 {
        for (row, sums) in sums.iter().enumerate() {
            for (half, &sum) in sums.iter().enumerate() {
                let place = row * tile.stride + 8 * half;
                // SAFETY: a tile of all 16 columns, whose extent the caller promises.
                unsafe {
                    let sum = match onto.is_null() || tile.chained {
                        true => sum,
                        false => _mm256_add_ps(_mm256_loadu_ps(onto.add(place)), sum),
                    };
                    _mm256_storeu_ps(c.add(place), sum);
                }
            }
        }
        return;
    }
    let mut values = [[0.0f32; 16]; ROWS];
    for (values, sums) in values.iter_mut().zip(&sums) {
        // SAFETY: each row holds two vectors of 8.
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), sums[1]);
        }
    }
    // SAFETY: the caller promises the extent of the tile.
    unsafe { portable::store(tile, &values, onto, c) };
}
