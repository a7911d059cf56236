//! The loops around a kernel: which block of which operand is in which cache.

use crate::kernel::{Kernel, MARGIN, Tile, Word};
use crate::pack::{self, part};
use crate::{Onto, Scratch, View};
use std::ops::Range;

/// Rows of A packed at once: their block stays in the second-level cache.
const ROWS: usize = 336;
/// Words of the inner dimension in a block.
const INNER: usize = 384;
/// Columns of B packed at once.
const COLUMNS: usize = 2048;

/// The right operand: to be packed block by block, or packed before.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    Loose(View<'a>),
    /// As [`pack_band`] leaves it.
    Packed(&'a [Word]),
}

/// Grows `buffer` to hold `length` words at a 64-byte boundary and returns them.
fn aligned(buffer: &mut Vec<Word>, length: usize) -> &mut [Word] {
    let room = length + MARGIN + 16;
    if buffer.len() < room {
        buffer.resize(room, 0);
    }
    let skip = buffer.as_ptr().align_offset(64);
    &mut buffer[skip..]
}

/// The blocks of the inner dimension, in values.
fn depths<K: Kernel>(inner: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let words = inner.div_ceil(K::IN_WORD);
    let parts = words.div_ceil(INNER);
    (0..parts).map(move |index| {
        let part = part(words, parts, index);
        part.start * K::IN_WORD..inner.min(part.end * K::IN_WORD)
    })
}

/// The blocks of columns.
fn widths(columns: usize) -> impl Iterator<Item = Range<usize>> {
    (0..columns).step_by(COLUMNS).map(move |first| band(first, columns))
}

/// Words of one packed block of B.
fn packed_words<K: Kernel>(depth: &Range<usize>, band: &Range<usize>) -> usize {
    band.len().div_ceil(K::COLUMN_TILE) * K::COLUMN_TILE * depth.len().div_ceil(K::IN_WORD)
}

/// Room for every packed block of a right operand `[inner, columns]`, at a 64-byte boundary: the words and where in
/// them the first block begins.
pub(crate) fn room<K: Kernel>([inner, columns]: [usize; 2]) -> (Vec<Word>, usize) {
    let of_band = |band| depths::<K>(inner).map(move |depth| packed_words::<K>(&depth, &band));
    let mut words = Vec::new();
    aligned(&mut words, widths(columns).flat_map(of_band).sum());
    let start = words.as_ptr().align_offset(64);
    (words, start)
}

/// The columns that are packed together with `first`.
pub(crate) fn band(first: usize, columns: usize) -> Range<usize> {
    first..columns.min(first + COLUMNS)
}

/// Writes the blocks of one band of columns in the order in which [`multiply`] reads them, from `place` on; where the next
/// band's begin. `b` is the band, `[inner, width]`.
///
/// # Panics
/// If the processor lacks the kernel's instructions the behavior is undefined: the caller dispatches. `b` must
/// have been checked, and `words` have the [`room`].
pub(crate) fn pack_band<K: Kernel>(
    [inner, width]: [usize; 2],
    b: View,
    words: &mut [Word],
    mut place: usize,
) -> usize {
    for depth in depths::<K>(inner) {
        let block = packed_words::<K>(&depth, &(0..width));
        // SAFETY: the block lies in `words`, with a margin after it, and the caller has found `b` long enough and
        // the instructions. What is written past the block is overwritten by the next.
        unsafe { pack::columns::<K>(b, depth, 0..width, words.as_mut_ptr().add(place)) };
        place += block;
    }
    place
}

/// `c = onto + a · b`, the extents checked.
pub(crate) fn multiply<K: Kernel>(
    scratch: &mut Scratch,
    [rows, columns, inner]: [usize; 3],
    a: View,
    b: Right,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    if inner == 0 {
        return base(rows, columns, onto, c, stride);
    }
    let row_parts = rows.div_ceil(ROWS);
    let depth_words = INNER.min(inner.div_ceil(K::IN_WORD));
    let packed_a = aligned(&mut scratch.a, ROWS * depth_words).as_mut_ptr();
    let panels = COLUMNS.min(columns).div_ceil(K::COLUMN_TILE);
    let mut packed_b = match b {
        Right::Loose(_) => aligned(&mut scratch.b, panels * K::COLUMN_TILE * depth_words).as_ptr(),
        Right::Packed(words) => words.as_ptr(),
    };
    for band_b in widths(columns) {
        for depth in depths::<K>(inner) {
            let words = depth.len().div_ceil(K::IN_WORD);
            if let Right::Loose(b) = b {
                // SAFETY: the buffer holds every panel of this block, and the caller has found `b` long enough
                // and the instructions.
                unsafe { pack::columns::<K>(b, depth.clone(), band_b.clone(), packed_b.cast_mut()) };
            }
            for row_part in 0..row_parts {
                let band = part(rows, row_parts, row_part);
                let tiles = band.len().div_ceil(K::ROW_TILE);
                // SAFETY: as above, for `packed_a` and `a`.
                unsafe { pack::rows::<K>(a, depth.clone(), band.clone(), tiles, packed_a) };
                for panel in 0..band_b.len().div_ceil(K::COLUMN_TILE) {
                    let column = band_b.start + panel * K::COLUMN_TILE;
                    let wide = K::COLUMN_TILE.min(band_b.end - column);
                    for index in 0..tiles {
                        let span = part(band.len(), tiles, index);
                        let place = (band.start + span.start) * stride + column;
                        // SAFETY: the tile lies in `c` (and in `other`), the panels hold what the kernel
                        // reads, and the dispatch has found the instructions.
                        unsafe {
                            let target = c.as_mut_ptr().add(place);
                            let base = match onto {
                                _ if depth.start > 0 => target.cast_const(),
                                Onto::Zero => std::ptr::null(),
                                Onto::Result => target.cast_const(),
                                Onto::Other(other) => other.as_ptr().add(place),
                            };
                            let tile = Tile { rows: span.len(), columns: wide, stride };
                            let left = packed_a.add(span.start * words);
                            let right = packed_b.add(panel * K::COLUMN_TILE * words);
                            K::tile(tile, words, left, right, base, target);
                        }
                    }
                }
            }
            if let Right::Packed(_) = b {
                // SAFETY: the next block begins where this one ends, at most one past the last.
                packed_b = unsafe { packed_b.add(packed_words::<K>(&depth, &band_b)) };
            }
        }
    }
}

/// The result of a product over nothing.
fn base(rows: usize, columns: usize, onto: Onto, c: &mut [f32], stride: usize) {
    for row in 0..rows {
        let range = row * stride..row * stride + columns;
        match onto {
            Onto::Zero => c[range].fill(0.0),
            Onto::Result => {}
            Onto::Other(other) => c[range.clone()].copy_from_slice(&other[range]),
        }
    }
}
