//! Packing: bands of rows and of columns into panels that a kernel reads from first to last.

use crate::View;
use crate::micro_kernel::{MicroKernel, PackBlock, Word};
use std::ops::Range;

/// Part `index` of a range of `length`, split into `parts` parts as evenly as possible.
pub(crate) fn part(length: usize, parts: usize, index: usize) -> Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

/// Rows of the source to copy to all panels before the next rows, so that memory is read in order.
const ROWS_AT_ONCE: usize = 32;

/// Packs rows of A into panels of even height, `[panel][word of the inner dimension][row]`.
///
/// # Safety
/// The CPU has the kernel's instructions, `target` holds the block and
/// [`MARGIN`](crate::micro_kernel::MARGIN), and `a` reaches it.
pub(crate) unsafe fn rows<K: MicroKernel>(
    a: View,
    depth: Range<usize>,
    band: Range<usize>,
    tiles: usize,
    target: *mut Word,
) {
    let words = depth.len().div_ceil(K::VALUES_PER_WORD);
    let spans = (0..tiles).map(|index| part(band.len(), tiles, index));
    let offset = |row: usize, inner: usize| {
        (band.start + row) * a.row_stride + (depth.start + inner) * a.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if a.column_stride == 1 {
            for span in spans {
                let source = a.data.as_ptr().add(offset(span.start, 0));
                let panel = target.add(span.start * words);
                let (rows, columns, stride) = (span.len(), depth.len(), a.row_stride);
                K::transpose(PackBlock { rows, columns, source, stride, target: panel, width: rows });
            }
            return;
        }
        for first in (0..depth.len()).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(depth.len() - first);
            for span in spans.clone() {
                let source = a.data.as_ptr().add(offset(span.start, first));
                let panel = target.add(span.start * words + first / K::VALUES_PER_WORD * span.len());
                let (columns, stride) = (span.len(), a.column_stride);
                K::copy(PackBlock { rows, columns, source, stride, target: panel, width: columns });
            }
        }
    }
}

/// Packs columns of B into panels of the kernel's width, `[panel][word of the inner dimension][column]`.
/// Padding in the last panel is unspecified, because tiles do not store its columns.
///
/// # Safety
/// See [`rows`].
pub(crate) unsafe fn columns<K: MicroKernel>(
    b: View,
    depth: Range<usize>,
    band: Range<usize>,
    target: *mut Word,
) {
    let words = depth.len().div_ceil(K::VALUES_PER_WORD);
    let columns = (0..band.len()).step_by(K::NR);
    let panel_of = |column: usize| column / K::NR * K::RIGHT * words;
    let offset = |inner: usize, column: usize| {
        (depth.start + inner) * b.row_stride + (band.start + column) * b.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if b.row_stride == 1 {
            for column in columns {
                let source = b.data.as_ptr().add(offset(0, column));
                let wide = K::NR.min(band.len() - column);
                let panel = target.add(panel_of(column));
                let (columns, stride) = (depth.len(), b.column_stride);
                K::transpose_right(PackBlock {
                    rows: wide,
                    columns,
                    source,
                    stride,
                    target: panel,
                    width: K::RIGHT,
                });
            }
            return;
        }
        for first in (0..depth.len()).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(depth.len() - first);
            for column in columns.clone() {
                let source = b.data.as_ptr().add(offset(first, column));
                let wide = K::NR.min(band.len() - column);
                let panel = target.add(panel_of(column) + first / K::VALUES_PER_WORD * K::RIGHT);
                let stride = b.row_stride;
                K::copy_right(PackBlock {
                    rows,
                    columns: wide,
                    source,
                    stride,
                    target: panel,
                    width: K::RIGHT,
                });
            }
        }
    }
}
