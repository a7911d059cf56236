//! The interface of a micro-kernel: a register tile of the product, and packing for it.

/// 32 bits of a packed operand: one f32, or two bf16, the first in the lower half. The two are adjacent in
/// the inner dimension, or columns that are half a panel apart.
pub(crate) type Word = u32;

/// A micro-kernel computes tiles of `MR` by `NR` sums, which stay in registers, and packs its operands.
pub(crate) trait MicroKernel {
    const MR: usize;
    const NR: usize;
    /// Values of the inner dimension in a word.
    const VALUES_PER_WORD: usize;
    /// Words of a right panel for each word of the inner dimension.
    const RIGHT: usize = Self::NR;
    /// The inner dimension is divided in units of this many values. A block holds whole units, and the same
    /// number of units for every kernel.
    const UNIT: usize = Self::VALUES_PER_WORD;

    /// True if [`MicroKernel::tile`] also accepts an unpacked left operand.
    const READS_IN_PLACE: bool = false;

    /// `c[i][j] = onto[i][j] + sum_p a[p][i] * b[p][j]` over `tile.rows` by `tile.columns` elements. If
    /// `tile.chained`, the sums begin with `onto`; else it is added at the end.
    ///
    /// # Safety
    /// The CPU has the kernel's instructions. `a` holds `words * tile.rows` words, or is valid for `words`
    /// steps at the strides of `tile.in_place`; `b` holds `words * RIGHT`. `c` and, unless null, `onto` are
    /// valid for `tile.rows` rows of `tile.columns` values at `stride`.
    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32);

    /// Packs rows along the inner dimension: word `place * width + row` of the target holds the source values
    /// `row * stride + column` whose columns belong to word `place`. Unused parts of a word are zero. May
    /// write up to 16 words past the last.
    ///
    /// # Safety
    /// The CPU has the kernel's instructions, `rows <= width`, and both pointers are valid for these ranges.
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

    /// Packs rows across the inner dimension: word `place * width + column` of the target holds the source
    /// values `row * stride + column` whose rows belong to word `place`, for `columns <= width <= 32`, in
    /// ascending order of rows. Words between the rows are unspecified; unused parts of a word are zero.
    ///
    /// # Safety
    /// See [`MicroKernel::transpose`].
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
    /// See [`MicroKernel::transpose`]; up to `NR` rows.
    unsafe fn transpose_right(block: PackBlock) {
        // SAFETY: the caller's promise.
        unsafe { Self::transpose(block) }
    }

    /// [`MicroKernel::copy`] of a right panel, `RIGHT` words wide.
    ///
    /// # Safety
    /// See [`MicroKernel::copy`]; up to `NR` columns.
    unsafe fn copy_right(block: PackBlock) {
        // SAFETY: the caller's promise.
        unsafe { Self::copy(block) }
    }
}

/// A block of `rows` rows of `columns` values to pack, and its target. The default methods above
/// pack one value per word.
#[derive(Clone, Copy)]
pub(crate) struct PackBlock {
    pub rows: usize,
    pub columns: usize,
    pub source: *const f32,
    /// Values from one row of the source to the next.
    pub stride: usize,
    pub target: *mut Word,
    /// Words from one step of the inner dimension to the next in the target.
    pub width: usize,
}

/// The extent of a tile of the result.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
    /// Strides of rows and of the inner dimension, if the left operand is not packed.
    pub in_place: Option<[usize; 2]>,
    /// True if the sums continue from the previous contents.
    pub chained: bool,
}

/// Words that packing may write past a panel; see [`MicroKernel::transpose`].
pub(crate) const MARGIN: usize = 32;
