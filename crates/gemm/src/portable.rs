//! The micro-kernel in plain Rust, for CPUs without a special kernel.

use crate::micro_kernel::{MicroKernel, Tile, Word};

pub(crate) struct Portable;

const ROWS: usize = 4;
const COLUMNS: usize = 16;

impl MicroKernel for Portable {
    const MR: usize = ROWS;
    const NR: usize = COLUMNS;
    const VALUES_PER_WORD: usize = 1;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller promises the extents of both panels.
        let (a, b) = unsafe {
            (std::slice::from_raw_parts(a, words * tile.rows), std::slice::from_raw_parts(b, words * COLUMNS))
        };
        // SAFETY: the caller promises the extent of the tile.
        let mut sums = unsafe { first_sums::<COLUMNS, ROWS>(tile, onto) };
        for (left, right) in a.chunks_exact(tile.rows).zip(b.chunks_exact(COLUMNS)) {
            for (&left, sums) in left.iter().zip(&mut sums) {
                for (sum, &right) in sums.iter_mut().zip(right) {
                    *sum += f32::from_bits(left) * f32::from_bits(right);
                }
            }
        }
        // SAFETY: the caller promises the extent of the tile.
        unsafe { store(tile, &sums, onto, c) };
    }
}

/// The initial sums of a tile: `onto` if they are chained, else zero.
///
/// # Safety
/// `onto` is null or valid for the tile's extent.
pub(crate) unsafe fn first_sums<const WIDE: usize, const HIGH: usize>(
    tile: Tile,
    onto: *const f32,
) -> [[f32; WIDE]; HIGH] {
    let mut sums = [[0.0f32; WIDE]; HIGH];
    if tile.chained && !onto.is_null() {
        for (row, sums) in sums.iter_mut().enumerate().take(tile.rows) {
            for (column, sum) in sums.iter_mut().enumerate().take(tile.columns) {
                // SAFETY: promised by the caller.
                *sum = unsafe { *onto.add(row * tile.stride + column) };
            }
        }
    }
    sums
}

/// Writes the part of `sums` inside the tile. Adds `onto`, unless it is null or the sums began with it.
///
/// # Safety
/// `c` and `onto` are valid for the tile's extent.
pub(crate) unsafe fn store<const WIDE: usize>(
    tile: Tile,
    sums: &[[f32; WIDE]],
    onto: *const f32,
    c: *mut f32,
) {
    for (row, sums) in sums.iter().enumerate().take(tile.rows) {
        for (column, &sum) in sums.iter().enumerate().take(tile.columns) {
            let index = row * tile.stride + column;
            // SAFETY: promised by the caller.
            unsafe {
                *c.add(index) = if onto.is_null() || tile.chained { sum } else { *onto.add(index) + sum }
            };
        }
    }
}
