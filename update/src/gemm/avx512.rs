//! The AVX-512 kernel: tiles of 14 by 32, 28 of the 32 vector registers holding sums.

use super::{Kernel, Tile};
use std::arch::x86_64::*;

pub(super) struct Avx512;

type Run = unsafe fn(Tile, usize, *const f32, *const f32, *const f32, *mut f32);

/// Kernels by number of rows, for tiles of up to 16 and up to 32 columns.
#[rustfmt::skip]
const KERNELS: [[Run; 15]; 2] = [
    [
        tile::<1, 1>, tile::<1, 1>, tile::<2, 1>, tile::<3, 1>, tile::<4, 1>, tile::<5, 1>, tile::<6, 1>, tile::<7, 1>,
        tile::<8, 1>, tile::<9, 1>, tile::<10, 1>, tile::<11, 1>, tile::<12, 1>, tile::<13, 1>, tile::<14, 1>,
    ],
    [
        tile::<1, 2>, tile::<1, 2>, tile::<2, 2>, tile::<3, 2>, tile::<4, 2>, tile::<5, 2>, tile::<6, 2>, tile::<7, 2>,
        tile::<8, 2>, tile::<9, 2>, tile::<10, 2>, tile::<11, 2>, tile::<12, 2>, tile::<13, 2>, tile::<14, 2>,
    ],
];

impl Kernel for Avx512 {
    const ROW_TILE: usize = 14;
    const COLUMN_TILE: usize = 32;

    unsafe fn tile(tile: Tile, inner: usize, a: *const f32, b: *const f32, onto: *const f32, c: *mut f32) {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { KERNELS[usize::from(tile.columns > 16)][tile.rows](tile, inner, a, b, onto, c) }
    }

    unsafe fn transpose(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut f32,
        width: usize,
    ) {
        // SAFETY: the caller's promise is the function's.
        unsafe { transpose(rows, columns, source, stride, target, width) }
    }

    unsafe fn copy(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut f32,
        width: usize,
    ) {
        // SAFETY: the caller's promise is the function's.
        unsafe { copy(rows, columns, source, stride, target, width) }
    }
}

/// The lowest `count` of 16 lanes.
fn lanes(count: usize) -> __mmask16 {
    (((1u32 << count.min(16)) - 1) & 0xffff) as __mmask16
}

#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
    tile: Tile,
    inner: usize,
    mut a: *const f32,
    mut b: *const f32,
    onto: *const f32,
    c: *mut f32,
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller promises the extents of both panels.
    unsafe {
        for row in 0..ROWS {
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(row * tile.stride).cast());
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(row * tile.stride + tile.columns - 1).cast());
        }
        for _ in 0..inner {
            let mut right = [_mm512_setzero_ps(); VECTORS];
            for (vector, right) in right.iter_mut().enumerate() {
                *right = _mm512_loadu_ps(b.add(16 * vector));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm512_set1_ps(*a.add(row));
                for (sum, &right) in sums.iter_mut().zip(&right) {
                    *sum = _mm512_fmadd_ps(left, right, *sum);
                }
            }
            a = a.add(ROWS);
            b = b.add(32);
        }
    }
    let last = tile.columns - 16 * (VECTORS - 1);
    for (row, sums) in sums.iter().enumerate() {
        for (vector, &sum) in sums.iter().enumerate() {
            let mask = if vector + 1 == VECTORS { lanes(last) } else { 0xffff };
            let place = row * tile.stride + 16 * vector;
            // SAFETY: the mask keeps every access inside the tile, whose extent the caller promises.
            unsafe {
                let sum = match onto.is_null() {
                    true => sum,
                    false => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, onto.add(place)), sum),
                };
                _mm512_mask_storeu_ps(c.add(place), mask, sum);
            }
        }
    }
}

/// Transposes blocks of 16 by 16 in registers. Lanes beyond `rows` receive values of row 0, which the next
/// store or the next panel overwrites.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(
    rows: usize,
    columns: usize,
    source: *const f32,
    stride: usize,
    target: *mut f32,
    width: usize,
) {
    for first in (0..rows).step_by(16) {
        let count = 16.min(rows - first);
        let mut column = 0;
        while column < columns {
            let wide = 16.min(columns - column);
            let mask = lanes(wide);
            let mut block = [_mm512_setzero_ps(); 16];
            // SAFETY: rows below `count` and columns under the mask lie in the source; the caller grants
            // 16 values past the last in the target.
            unsafe {
                for (row, lanes) in block.iter_mut().enumerate() {
                    let row = if row < count { first + row } else { first };
                    *lanes = _mm512_maskz_loadu_ps(mask, source.add(row * stride + column));
                }
                transpose_block(&mut block);
                for (place, lanes) in block.iter().enumerate().take(wide) {
                    _mm512_storeu_ps(target.add((column + place) * width + first), *lanes);
                }
            }
            column += wide;
        }
    }
}

/// Whole vectors are stored, as what goes beyond a row is overwritten by the next; the last row keeps to itself.
#[target_feature(enable = "avx512f")]
unsafe fn copy(
    rows: usize,
    columns: usize,
    source: *const f32,
    stride: usize,
    target: *mut f32,
    width: usize,
) {
    let (low, high) = (lanes(columns), lanes(columns.saturating_sub(16)));
    let whole = if width >= 8 { rows.saturating_sub(1) } else { 0 };
    for row in 0..whole {
        // SAFETY: the masks keep reads inside the row; what is written beyond it, at most 16 values from its
        // start where `width` is less, lies in the next row.
        unsafe {
            let (source, target) = (source.add(row * stride), target.add(row * width));
            _mm512_storeu_ps(target, _mm512_maskz_loadu_ps(low, source));
            if columns > 16 {
                _mm512_storeu_ps(target.add(16), _mm512_maskz_loadu_ps(high, source.add(16)));
            }
        }
    }
    for row in whole..rows {
        // SAFETY: the masks keep reads and writes inside the row.
        unsafe {
            let (source, target) = (source.add(row * stride), target.add(row * width));
            _mm512_mask_storeu_ps(target, low, _mm512_maskz_loadu_ps(low, source));
            _mm512_mask_storeu_ps(
                target.wrapping_add(16),
                high,
                _mm512_maskz_loadu_ps(high, source.wrapping_add(16)),
            );
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn transpose_block(block: &mut [__m512; 16]) {
    let mut pairs = [_mm512_setzero_ps(); 16];
    for index in 0..8 {
        pairs[2 * index] = _mm512_unpacklo_ps(block[2 * index], block[2 * index + 1]);
        pairs[2 * index + 1] = _mm512_unpackhi_ps(block[2 * index], block[2 * index + 1]);
    }
    let mut quads = [_mm512_setzero_ps(); 16];
    for index in 0..4 {
        let at = 4 * index;
        quads[at] = _mm512_shuffle_ps::<0x44>(pairs[at], pairs[at + 2]);
        quads[at + 1] = _mm512_shuffle_ps::<0xee>(pairs[at], pairs[at + 2]);
        quads[at + 2] = _mm512_shuffle_ps::<0x44>(pairs[at + 1], pairs[at + 3]);
        quads[at + 3] = _mm512_shuffle_ps::<0xee>(pairs[at + 1], pairs[at + 3]);
    }
    // quads[4g + c] holds, in its 128-bit lane l, column 4l + c of rows 4g..4g+4.
    for column in 0..4 {
        let (q0, q1, q2, q3) = (quads[column], quads[4 + column], quads[8 + column], quads[12 + column]);
        let low01 = _mm512_shuffle_f32x4::<0x44>(q0, q1);
        let high01 = _mm512_shuffle_f32x4::<0xee>(q0, q1);
        let low23 = _mm512_shuffle_f32x4::<0x44>(q2, q3);
        let high23 = _mm512_shuffle_f32x4::<0xee>(q2, q3);
        block[column] = _mm512_shuffle_f32x4::<0x88>(low01, low23);
        block[4 + column] = _mm512_shuffle_f32x4::<0xdd>(low01, low23);
        block[8 + column] = _mm512_shuffle_f32x4::<0x88>(high01, high23);
        block[12 + column] = _mm512_shuffle_f32x4::<0xdd>(high01, high23);
    }
}
