//! The kernel in plain Rust, for processors without one of their own.

use crate::kernel::{Kernel, Tile, Word};

pub(crate) struct Portable;

const ROWS: usize = 4;
const COLUMNS: usize = 16;

impl Kernel for Portable {
    const ROW_TILE: usize = ROWS;
    const COLUMN_TILE: usize = COLUMNS;
    const IN_WORD: usize = 1;

    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller promises the extents of both panels.
        let (a, b) = unsafe {
            (std::slice::from_raw_parts(a, words * tile.rows), std::slice::from_raw_parts(b, words * COLUMNS))
        };
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
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

    unsafe fn transpose(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    ) {
        // Blocks of 8 columns keep the lines being written in the first-level cache.
        for first in (0..columns).step_by(8) {
            for row in 0..rows {
                for column in first..columns.min(first + 8) {
                    // SAFETY: the caller promises both extents.
                    unsafe {
                        *target.add(column * width + row) = (*source.add(row * stride + column)).to_bits()
                    };
                }
            }
        }
    }

    unsafe fn copy(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    ) {
        for row in 0..rows {
            for column in 0..columns {
                // SAFETY: the caller promises both extents.
                unsafe { *target.add(row * width + column) = (*source.add(row * stride + column)).to_bits() };
            }
        }
    }
}

/// Writes the part of `sums` that lies in the tile, added to `onto` unless that is null.
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
            let place = row * tile.stride + column;
            // SAFETY: promised by the caller.
            unsafe { *c.add(place) = if onto.is_null() { sum } else { *onto.add(place) + sum } };
        }
    }
}
