//! Packing: bands of rows and of columns into panels that a kernel reads from first to last.

use crate::View;
use crate::kernel::{Kernel, Word};
use std::ops::Range;

/// Splits `length` into `parts` parts, as even as can be: part `index` of them.
pub(crate) fn part(length: usize, parts: usize, index: usize) -> Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

/// Rows of the source that are copied to all panels before the next: they are read in the order of memory.
const COPIED: usize = 32;

/// Packs rows of A into panels of even height, `[panel][word of the inner dimension][row]`.
///
/// # Safety
/// The processor has the kernel's instructions, `target` has room for the block and
/// [`MARGIN`](crate::kernel::MARGIN), and `a` reaches it.
pub(crate) unsafe fn rows<K: Kernel>(
    a: View,
    depth: Range<usize>,
    band: Range<usize>,
    tiles: usize,
    target: *mut Word,
) {
    let words = depth.len().div_ceil(K::IN_WORD);
    let spans = (0..tiles).map(|index| part(band.len(), tiles, index));
    let place = |row: usize, inner: usize| {
        (band.start + row) * a.row_stride + (depth.start + inner) * a.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if a.column_stride == 1 {
            for span in spans {
                let source = a.data.as_ptr().add(place(span.start, 0));
                let panel = target.add(span.start * words);
                K::transpose(span.len(), depth.len(), source, a.row_stride, panel, span.len());
            }
            return;
        }
        for first in (0..depth.len()).step_by(COPIED) {
            let count = COPIED.min(depth.len() - first);
            for span in spans.clone() {
                let source = a.data.as_ptr().add(place(span.start, first));
                let panel = target.add(span.start * words + first / K::IN_WORD * span.len());
                K::copy(count, span.len(), source, a.column_stride, panel, span.len());
            }
        }
    }
}

/// Packs columns of B into panels of the kernel's width, `[panel][word of the inner dimension][column]`, the last
/// padded with whatever was there: a tile stores no column of the padding.
///
/// # Safety
/// As for [`rows`].
pub(crate) unsafe fn columns<K: Kernel>(b: View, depth: Range<usize>, band: Range<usize>, target: *mut Word) {
    let words = depth.len().div_ceil(K::IN_WORD);
    let columns = (0..band.len()).step_by(K::COLUMN_TILE);
    let place = |inner: usize, column: usize| {
        (depth.start + inner) * b.row_stride + (band.start + column) * b.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if b.row_stride == 1 {
            for column in columns {
                let source = b.data.as_ptr().add(place(0, column));
                let wide = K::COLUMN_TILE.min(band.len() - column);
                let panel = target.add(column * words);
                K::transpose(wide, depth.len(), source, b.column_stride, panel, K::COLUMN_TILE);
            }
            return;
        }
        for first in (0..depth.len()).step_by(COPIED) {
            let count = COPIED.min(depth.len() - first);
            for column in columns.clone() {
                let source = b.data.as_ptr().add(place(first, column));
                let wide = K::COLUMN_TILE.min(band.len() - column);
                let panel = target.add(column * words + first / K::IN_WORD * K::COLUMN_TILE);
                K::copy(count, wide, source, b.row_stride, panel, K::COLUMN_TILE);
            }
        }
    }
}
