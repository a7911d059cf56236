//! What a kernel for one set of instructions gives.

/// 32 bits of a packed operand: the bits of one f32, or two neighbors of the inner dimension in bf16, the first
/// in the lower half.
pub(crate) type Word = u32;

/// The tile a kernel computes and how it packs. `ROW_TILE * COLUMN_TILE` sums live in registers.
pub(crate) trait Kernel {
    const ROW_TILE: usize;
    const COLUMN_TILE: usize;
    /// Values of the inner dimension in a word.
    const IN_WORD: usize;

    /// `c[i][j] = onto[i][j] + sum_p a[p][i] * b[p][j]` over `tile.rows` by `tile.columns` elements.
    ///
    /// # Safety
    /// The processor has the kernel's instructions; `a` holds `words * tile.rows` words, `b` holds
    /// `words * COLUMN_TILE`; `c` and, unless null, `onto` are valid for `tile.rows` rows of `tile.columns`
    /// values at `stride`.
    unsafe fn tile(tile: Tile, words: usize, a: *const Word, b: *const Word, onto: *const f32, c: *mut f32);

    /// Packs rows along the inner dimension: word `place * width + row` of the target holds the values
    /// `row * stride + column` of the source whose column is in word `place`, for `rows` rows of `columns`
    /// values. Where the last word is not full its rest is zero. May write up to 16 words past the last.
    ///
    /// # Safety
    /// The processor has the kernel's instructions, `rows <= width`, and both pointers are valid for what
    /// is said above.
    unsafe fn transpose(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    );

    /// Packs rows across the inner dimension: word `place * width + column` of the target holds the values
    /// `row * stride + column` of the source whose row is in word `place`, for `columns <= width <= 32`, in
    /// ascending order of rows. What lies between the rows is unspecified; where the last word is not full its
    /// rest is zero.
    ///
    /// # Safety
    /// As for [`Kernel::transpose`], but for the extents said here.
    unsafe fn copy(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut Word,
        width: usize,
    );
}

/// Extent of one tile of the result.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
}

/// Words a packed panel may overrun, see [`Kernel::transpose`].
pub(crate) const MARGIN: usize = 32;
