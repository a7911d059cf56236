//! The interface of a micro-kernel: a register tile of the product, and packing for it.

/// 32 bits of a packed operand: the bits of one f32, or of two bf16, the first in the lower half: neighbors of the inner
/// dimension, or columns that are half a panel apart.
pub(crate) type Word = u32;

/// A micro-kernel computes tiles of `MR` by `NR` sums, which stay in registers, and packs its operands.
pub(crate) trait MicroKernel {
    const MR: usize;
    const NR: usize;
    /// Values of the inner dimension in a word.
    const VALUES_PER_WORD: usize;
    /// Words of a right panel for each word of the inner dimension.
    const RIGHT: usize = Self::NR;
    /// Values of the inner dimension that stay together. A block holds whole units, the same number for every
    /// kernel.
    const UNIT: usize = Self::VALUES_PER_WORD;

    /// True if [`MicroKernel::tile`] reads a left operand that is not packed, too.
    const READS_IN_PLACE: bool = false;

    /// `c[i][j] = onto[i][j] + sum_p a[p][i] * b[p][j]` over `tile.rows` by `tile.columns` elements; the sums begin at
    /// `onto` where `tile.chained`, else it is added to them at the end.
    ///
    /// # Safety
    /// The CPU has the kernel's instructions; `a` holds `words * tile.rows` words, or is valid for `words` at the strides
    /// of `tile.in_place`, `b` holds `words * RIGHT`; `c` and, unless null, `onto` are valid for `tile.rows` rows of
    /// `tile.columns` values at `stride`.
    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32);

    /// Packs rows along the inner dimension: word `place * width + row` of the target holds the values
    /// `row * stride + column` of the source whose column is in word `place`. The rest of a word that is not full is zero.
    /// May write up to 16 words past the last.
    ///
    /// # Safety
    /// The CPU has the kernel's instructions, `rows <= width`, and both pointers are valid for the ranges
    /// above.
    unsafe fn transpose(block: PackBlock) {
        let PackBlock { rows, columns, source, stride, target, width } = block;
        // Blocks of 8 columns keep the lines being written in the L1 cache.
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

    /// Packs rows across the inner dimension: word `place * width + column` of the target holds the values
    /// `row * stride + column` of the source whose row is in word `place`, for `columns <= width <= 32`, in ascending order
    /// of rows. Words between the rows are unspecified; the rest of a word that is not full is zero.
    ///
    /// # Safety
    /// As for [`MicroKernel::transpose`].
    unsafe fn copy(block: PackBlock) {
        let PackBlock { rows, columns, source, stride, target, width } = block;
        for row in 0..rows {
            for column in 0..columns {
                // SAFETY: the caller promises both extents.
                unsafe { *target.add(row * width + column) = (*source.add(row * stride + column)).to_bits() };
            }
        }
    }

    /// [`MicroKernel::transpose`] of a right panel, `RIGHT` words wide.
    ///
    /// # Safety
    /// As there, for up to `NR` rows.
    unsafe fn transpose_right(block: PackBlock) {
        // SAFETY: the caller's promise.
        unsafe { Self::transpose(block) }
    }

    /// [`MicroKernel::copy`] of a right panel, `RIGHT` words wide.
    ///
    /// # Safety
    /// As there, for up to `NR` columns.
    unsafe fn copy_right(block: PackBlock) {
        // SAFETY: the caller's promise.
        unsafe { Self::copy(block) }
    }
}

/// A block of `rows` rows of `columns` values to pack, and where to; the default methods above pack one value a word.
#[derive(Clone, Copy)]
pub(crate) struct PackBlock {
    pub rows: usize,
    pub columns: usize,
    pub source: *const f32,
    /// Values from one row of the source to the next.
    pub stride: usize,
    pub target: *mut Word,
    /// Words from one place of the target to the next.
    pub width: usize,
}

/// Extent of one tile of the result.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
    /// Strides of a row and of the inner dimension of a left operand that is not packed.
    pub in_place: Option<[usize; 2]>,
    /// True if the sums continue from the previous contents.
    pub chained: bool,
}

/// Words a packed panel may overrun, see [`MicroKernel::transpose`].
pub(crate) const MARGIN: usize = 32;
