//! Dense matrix products in f32 on one thread, near the core's peak.
//!
//! The scheme is that of BLIS (Van Zee and van de Geijn, 2015): operands are packed into panels that fit the
//! caches, and a register-tiled kernel multiplies panel by panel. Packing also absorbs every transposition,
//! so the three products of a linear layer are one routine. The kernel is chosen at run time.
//!
//! Each element of the result is one sum over the inner dimension in ascending order, cut into blocks whose
//! size depends on the inner dimension alone. A row's result therefore does not depend on how many rows are
//! multiplied or where it lies among them.
//!
//! Left out: threads (whole micro-batches are independent) and any other element type.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::sync::OnceLock;

/// Instructions that a kernel is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// Whatever the compiler makes of plain Rust.
    Portable,
}

impl Instructions {
    /// Every variant this processor runs, the fastest first.
    pub fn available() -> Vec<Instructions> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fused && is_x86_feature_detected!("avx512f") {
                found.push(Instructions::Avx512);
            }
            if fused {
                found.push(Instructions::Avx2);
            }
        }
        found.push(Instructions::Portable);
        found
    }

    /// The fastest variant this processor runs.
    pub fn best() -> Instructions {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| Instructions::available()[0])
    }
}

/// A matrix in memory: element (row, column) lies at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Row-major, `stride` values from one row to the next.
    pub fn new(data: &'a [f32], stride: usize) -> View<'a> {
        View { data, row_stride: stride, column_stride: 1 }
    }

    /// The same values with rows and columns exchanged.
    pub fn transposed(self) -> View<'a> {
        View { data: self.data, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// Panics unless the matrix reaches so far.
    fn check(&self, rows: usize, columns: usize, what: &str) {
        if rows > 0 && columns > 0 {
            let last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride;
            assert!(last < self.data.len(), "matrix product: {what} is too short");
        }
    }
}

/// What the product is added to.
#[derive(Clone, Copy, Debug)]
pub enum Onto<'a> {
    /// Nothing: the result is the product.
    Zero,
    /// What the result already holds.
    Result,
    /// Another matrix with the result's stride.
    Other(&'a [f32]),
}

/// Rows of A packed at once: their block stays in the second-level cache.
const ROWS: usize = 336;
/// Inner dimension of a block.
const INNER: usize = 384;
/// Columns of B packed at once.
const COLUMNS: usize = 2048;

/// The tile a kernel computes and how it packs. `ROW_TILE * COLUMN_TILE` sums live in registers.
trait Kernel {
    const ROW_TILE: usize;
    const COLUMN_TILE: usize;

    /// `c[i][j] = onto[i][j] + sum_p a[p][i] * b[p][j]` over `tile.rows` by `tile.columns` elements.
    ///
    /// # Safety
    /// The processor has the kernel's instructions; `a` holds `inner * tile.rows` values, `b` holds
    /// `inner * COLUMN_TILE`; `c` and, unless null, `onto` are valid for `tile.rows` rows of `tile.columns`
    /// values at `stride`.
    unsafe fn tile(tile: Tile, inner: usize, a: *const f32, b: *const f32, onto: *const f32, c: *mut f32);

    /// Writes the transpose: `target[column * width + row] = source[row * stride + column]` for `rows` rows
    /// of `columns` values. May write up to 16 values past the last.
    ///
    /// # Safety
    /// The processor has the kernel's instructions, `rows <= width`, and both pointers are valid for what
    /// is said above.
    unsafe fn transpose(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut f32,
        width: usize,
    );

    /// Writes rows at another stride: `target[row * width + column] = source[row * stride + column]` for
    /// `columns <= width <= 32`, in ascending order of rows. What lies between the rows is unspecified.
    ///
    /// # Safety
    /// As for [`Kernel::transpose`], but for the extents said here.
    unsafe fn copy(
        rows: usize,
        columns: usize,
        source: *const f32,
        stride: usize,
        target: *mut f32,
        width: usize,
    );
}

/// Extent of one tile of the result.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    columns: usize,
    stride: usize,
}

/// Packing buffers, kept between products.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
}

/// Room a packed panel may overrun, see [`Kernel::transpose`].
const MARGIN: usize = 32;

/// Grows `buffer` to hold `length` values at a 64-byte boundary and returns them.
fn aligned(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    let room = length + MARGIN + 16;
    if buffer.len() < room {
        buffer.resize(room, 0.0);
    }
    let skip = buffer.as_ptr().align_offset(64);
    &mut buffer[skip..]
}

/// `c = onto + a · b` with `a` [rows, inner], `b` [inner, columns] and `c` row-major at `stride`.
///
/// # Panics
/// If a slice is shorter than its extent.
#[allow(clippy::too_many_arguments)]
pub fn multiply(
    scratch: &mut Scratch,
    [rows, columns, inner]: [usize; 3],
    a: View,
    b: View,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    multiply_with(Instructions::best(), scratch, [rows, columns, inner], a, b, onto, c, stride);
}

/// [`multiply`] with a kernel named by the caller, who must have found it [available](Instructions::available).
#[allow(clippy::too_many_arguments)]
pub fn multiply_with(
    instructions: Instructions,
    scratch: &mut Scratch,
    extent: [usize; 3],
    a: View,
    b: View,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    let [rows, columns, inner] = extent;
    a.check(rows, inner, "the left operand");
    b.check(inner, columns, "the right operand");
    View::new(c, stride).check(rows, columns, "the result");
    if let Onto::Other(other) = onto {
        View::new(other, stride).check(rows, columns, "what the product is added to");
    }
    match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => blocks::<avx512::Avx512>(scratch, extent, a, b, onto, c, stride),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => blocks::<avx2::Avx2>(scratch, extent, a, b, onto, c, stride),
        _ => blocks::<portable::Portable>(scratch, extent, a, b, onto, c, stride),
    }
}

/// Splits `length` into the fewest parts of at most `most`, as even as can be: part `index` of them.
fn part(length: usize, parts: usize, index: usize) -> std::ops::Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

fn blocks<K: Kernel>(
    scratch: &mut Scratch,
    [rows, columns, inner]: [usize; 3],
    a: View,
    b: View,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    if inner == 0 {
        for row in 0..rows {
            let range = row * stride..row * stride + columns;
            match onto {
                Onto::Zero => c[range].fill(0.0),
                Onto::Result => {}
                Onto::Other(other) => c[range.clone()].copy_from_slice(&other[range]),
            }
        }
        return;
    }
    let inner_parts = inner.div_ceil(INNER);
    let row_parts = rows.div_ceil(ROWS);
    let packed_a = aligned(&mut scratch.a, ROWS * INNER.min(inner)).as_mut_ptr();
    let panels = COLUMNS.min(columns).div_ceil(K::COLUMN_TILE);
    let packed_b = aligned(&mut scratch.b, panels * K::COLUMN_TILE * INNER.min(inner)).as_mut_ptr();
    for first_column in (0..columns).step_by(COLUMNS) {
        let width = COLUMNS.min(columns - first_column);
        for inner_part in 0..inner_parts {
            let depth = part(inner, inner_parts, inner_part);
            // SAFETY: `packed_b` holds every panel of this block, and `check` has found `b` long enough.
            unsafe { pack_columns::<K>(b, depth.clone(), first_column, width, packed_b) };
            for row_part in 0..row_parts {
                let band = part(rows, row_parts, row_part);
                let tiles = band.len().div_ceil(K::ROW_TILE);
                // SAFETY: as above, for `packed_a` and `a`.
                unsafe { pack_rows::<K>(a, depth.clone(), band.clone(), tiles, packed_a) };
                for panel in 0..width.div_ceil(K::COLUMN_TILE) {
                    let column = first_column + panel * K::COLUMN_TILE;
                    let wide = K::COLUMN_TILE.min(first_column + width - column);
                    for index in 0..tiles {
                        let span = part(band.len(), tiles, index);
                        let place = (band.start + span.start) * stride + column;
                        // SAFETY: the tile lies in `c` (and in `other`), the panels hold what the kernel
                        // reads, and the dispatch has found the instructions.
                        unsafe {
                            let target = c.as_mut_ptr().add(place);
                            let base = match onto {
                                _ if inner_part > 0 => target.cast_const(),
                                Onto::Zero => std::ptr::null(),
                                Onto::Result => target.cast_const(),
                                Onto::Other(other) => other.as_ptr().add(place),
                            };
                            let tile = Tile { rows: span.len(), columns: wide, stride };
                            let left = packed_a.add(span.start * depth.len());
                            let right = packed_b.add(panel * K::COLUMN_TILE * depth.len());
                            K::tile(tile, depth.len(), left, right, base, target);
                        }
                    }
                }
            }
        }
    }
}

/// Rows of the source that are copied to all panels before the next: they are read in the order of memory.
const COPIED: usize = 32;

/// Packs rows of A into panels of even height, `[panel][inner][row]`.
///
/// # Safety
/// `target` has room for the block and [`MARGIN`], and `a` reaches it.
unsafe fn pack_rows<K: Kernel>(
    a: View,
    depth: std::ops::Range<usize>,
    band: std::ops::Range<usize>,
    tiles: usize,
    target: *mut f32,
) {
    let spans = (0..tiles).map(|index| part(band.len(), tiles, index));
    let place = |row: usize, inner: usize| {
        (band.start + row) * a.row_stride + (depth.start + inner) * a.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if a.column_stride == 1 {
            for span in spans {
                let source = a.data.as_ptr().add(place(span.start, 0));
                let panel = target.add(span.start * depth.len());
                K::transpose(span.len(), depth.len(), source, a.row_stride, panel, span.len());
            }
            return;
        }
        for first in (0..depth.len()).step_by(COPIED) {
            for span in spans.clone() {
                let source = a.data.as_ptr().add(place(span.start, first));
                let panel = target.add(span.start * depth.len() + first * span.len());
                K::copy(
                    COPIED.min(depth.len() - first),
                    span.len(),
                    source,
                    a.column_stride,
                    panel,
                    span.len(),
                );
            }
        }
    }
}

/// Packs columns of B into panels of the kernel's width, `[panel][inner][column]`, the last padded with
/// whatever was there: a tile stores no column of the padding.
///
/// # Safety
/// As for [`pack_rows`].
unsafe fn pack_columns<K: Kernel>(
    b: View,
    depth: std::ops::Range<usize>,
    first_column: usize,
    width: usize,
    target: *mut f32,
) {
    let columns = (0..width).step_by(K::COLUMN_TILE);
    let place = |inner: usize, column: usize| {
        (depth.start + inner) * b.row_stride + (first_column + column) * b.column_stride
    };
    // SAFETY: promised by the caller, for every pointer below.
    unsafe {
        if b.row_stride == 1 {
            for column in columns {
                let source = b.data.as_ptr().add(place(0, column));
                let wide = K::COLUMN_TILE.min(width - column);
                let panel = target.add(column * depth.len());
                K::transpose(wide, depth.len(), source, b.column_stride, panel, K::COLUMN_TILE);
            }
            return;
        }
        for first in (0..depth.len()).step_by(COPIED) {
            for column in columns.clone() {
                let source = b.data.as_ptr().add(place(first, column));
                let wide = K::COLUMN_TILE.min(width - column);
                let panel = target.add(column * depth.len() + first * K::COLUMN_TILE);
                K::copy(COPIED.min(depth.len() - first), wide, source, b.row_stride, panel, K::COLUMN_TILE);
            }
        }
    }
}
