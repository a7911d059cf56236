//! The loops around a micro-kernel, which decide which block of which operand is in which cache.

use crate::micro_kernel::{MARGIN, MicroKernel, Tile, Word};
use crate::pack::{self, part};
use crate::{Accumulate, Addend, Scratch, View, ViewMut};
use std::ops::Range;

/// MC: rows of A packed at once; the block stays in the L2 cache.
const MC: usize = 336;
/// KC: units of the inner dimension in a block ([`MicroKernel::UNIT`]).
pub(crate) const KC: usize = 384;
/// NC: columns of B packed at once.
const NC: usize = 2048;
/// Words of one block of A and one of B for the kernel with the deepest blocks, including alignment.
pub(crate) const SCRATCH_WORDS: usize = 2 * KC * (MC + NC) + 2 * (MARGIN + 16);

/// The right operand: strided and packed block by block, or already packed.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    Strided(View<'a>),
    Packed(&'a [Word]),
}

/// Grows `buffer` to hold `length` words at a 64-byte boundary and returns them.
fn aligned(buffer: &mut Vec<Word>, length: usize) -> &mut [Word] {
    let needed = length + MARGIN + 16;
    if buffer.len() < needed {
        buffer.resize(needed, 0);
    }
    let skip = buffer.as_ptr().align_offset(64);
    &mut buffer[skip..]
}

/// The blocks of the inner dimension, in values.
fn depths<K: MicroKernel>(inner: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let units = inner.div_ceil(K::UNIT);
    let parts = units.div_ceil(KC);
    (0..parts).map(move |index| {
        let part = part(units, parts, index);
        part.start * K::UNIT..inner.min(part.end * K::UNIT)
    })
}

fn widths(columns: usize) -> impl Iterator<Item = Range<usize>> {
    (0..columns).step_by(NC).map(move |first| band(first, columns))
}

/// Words of one packed block of B.
fn packed_words<K: MicroKernel>(depth: &Range<usize>, band: &Range<usize>) -> usize {
    band.len().div_ceil(K::NR) * K::RIGHT * depth.len().div_ceil(K::VALUES_PER_WORD)
}

/// A buffer for all packed blocks of a right operand `[inner, columns]`, and the 64-byte aligned offset of the first.
pub(crate) fn packed_buffer<K: MicroKernel>([inner, columns]: [usize; 2]) -> (Vec<Word>, usize) {
    let of_band = |band| depths::<K>(inner).map(move |depth| packed_words::<K>(&depth, &band));
    let mut words = Vec::new();
    aligned(&mut words, widths(columns).flat_map(of_band).sum());
    let start = words.as_ptr().align_offset(64);
    (words, start)
}

/// The columns that are packed together with `first`.
pub(crate) fn band(first: usize, columns: usize) -> Range<usize> {
    first..columns.min(first + NC)
}

/// Packs a band of columns, `b` `[inner, width]`, at `offset`, in the order in which [`multiply`] reads it.
/// Returns the next band's offset.
///
/// # Panics
/// The caller must have checked `b`, and `words` must come from [`packed_buffer`]. If the CPU lacks the
/// kernel's instructions the behavior is undefined, so the caller dispatches.
pub(crate) fn pack_band<K: MicroKernel>(
    [inner, width]: [usize; 2],
    b: View,
    words: &mut [Word],
    mut offset: usize,
) -> usize {
    for depth in depths::<K>(inner) {
        let block = packed_words::<K>(&depth, &(0..width));
        // SAFETY: the block lies in `words`, with a margin after it, and the caller has checked the length of
        // `b` and the instructions. Writes past the block are overwritten by the next block.
        unsafe { pack::columns::<K>(b, depth, 0..width, words.as_mut_ptr().add(offset)) };
        offset += block;
    }
    offset
}

/// `c = onto + a · b`, with checked extents.
pub(crate) fn multiply<K: MicroKernel>(
    scratch: &mut Scratch,
    [rows, columns, inner]: [usize; 3],
    a: View,
    b: Right,
    Addend { onto, chained }: Addend,
    ViewMut { data: c, stride, .. }: ViewMut,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    if inner == 0 {
        return addend_only(rows, columns, onto, c, stride);
    }
    let row_parts = rows.div_ceil(MC);
    let depth_words = (KC * K::UNIT).min(inner).div_ceil(K::VALUES_PER_WORD);
    let packed_a = aligned(&mut scratch.a, MC * depth_words).as_mut_ptr();
    let panels = NC.min(columns).div_ceil(K::NR);
    // Packing rows of A is not worth it if only one panel uses them.
    let in_place = (K::READS_IN_PLACE && panels == 1).then_some([a.row_stride, a.column_stride]);
    let mut packed_b = match b {
        Right::Strided(_) => aligned(&mut scratch.b, panels * K::NR * depth_words).as_ptr(),
        Right::Packed(words) => words.as_ptr(),
    };
    for band_b in widths(columns) {
        for depth in depths::<K>(inner) {
            let words = depth.len().div_ceil(K::VALUES_PER_WORD);
            if let Right::Strided(b) = b {
                // SAFETY: the buffer holds every panel of this block; the caller has checked the length of
                // `b` and the instructions.
                unsafe { pack::columns::<K>(b, depth.clone(), band_b.clone(), packed_b.cast_mut()) };
            }
            for row_part in 0..row_parts {
                let band = part(rows, row_parts, row_part);
                let tiles = band.len().div_ceil(K::MR);
                if in_place.is_none() {
                    // SAFETY: as above, for `packed_a` and `a`.
                    unsafe { pack::rows::<K>(a, depth.clone(), band.clone(), tiles, packed_a) };
                }
                for panel in 0..band_b.len().div_ceil(K::NR) {
                    let column = band_b.start + panel * K::NR;
                    let wide = K::NR.min(band_b.end - column);
                    for index in 0..tiles {
                        let span = part(band.len(), tiles, index);
                        let offset = (band.start + span.start) * stride + column;
                        // SAFETY: the tile lies in `c` (and in `other`), the panels hold all that the kernel
                        // reads, and the dispatch has checked the instructions.
                        unsafe {
                            let target = c.add(offset);
                            let base = match onto {
                                _ if depth.start > 0 => target.cast_const(),
                                Accumulate::Zero => std::ptr::null(),
                                Accumulate::Result => target.cast_const(),
                                Accumulate::Other(other) => other.as_ptr().add(offset),
                            };
                            let tile = Tile { rows: span.len(), columns: wide, stride, in_place, chained };
                            let left = match in_place {
                                None => packed_a.cast_const().add(span.start * words),
                                Some([row, inner]) => {
                                    let first = (band.start + span.start) * row + depth.start * inner;
                                    a.data.as_ptr().add(first).cast()
                                }
                            };
                            let right = packed_b.add(panel * K::RIGHT * words);
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

/// The result for an inner dimension of 0.
fn addend_only(rows: usize, columns: usize, onto: Accumulate, c: *mut f32, stride: usize) {
    for row in 0..rows {
        // SAFETY: the extents are checked, and the elements of a row are the product's alone.
        let target = unsafe { std::slice::from_raw_parts_mut(c.add(row * stride), columns) };
        match onto {
            Accumulate::Zero => target.fill(0.0),
            Accumulate::Result => {}
            Accumulate::Other(other) => target.copy_from_slice(&other[row * stride..][..columns]),
        }
    }
}
