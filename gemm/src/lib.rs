//! Dense matrix products on one thread, near the core's peak.
//!
//! The scheme is that of BLIS (Van Zee and van de Geijn, 2015): operands are packed into panels that fit the
//! caches, and a register-tiled kernel multiplies panel by panel. Packing also absorbs every transposition,
//! so the three products of a linear layer are one routine, and the rounding of operands to bf16 where that is
//! asked for. The kernel is chosen at run time. A right operand that many products share can be [`Packed`] once.
//!
//! Each element of the result is one sum over the inner dimension in ascending order, cut into blocks whose
//! size depends on the inner dimension alone. A row's result therefore does not depend on how many rows are
//! multiplied or where it lies among them.
//!
//! Left out: threads (whole micro-batches are independent) and operands that are stored in other types than f32.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod instructions;
mod kernel;
mod pack;
mod packed;
mod portable;
mod precision;
mod rounded;
mod routines;

pub use instructions::Instructions;
pub use packed::{Packed, Packing};
pub use precision::Precision;
pub use rounded::round;

use blocks::Right;
use kernel::Word;
use routines::Routines;

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

/// Packing buffers, kept between products.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    a: Vec<Word>,
    b: Vec<Word>,
}

/// `c = onto + a · b` with `a` [rows, inner], `b` [inner, columns] and `c` row-major at `stride`.
///
/// # Panics
/// If a slice is shorter than its extent.
#[allow(clippy::too_many_arguments)]
pub fn multiply(
    precision: Precision,
    scratch: &mut Scratch,
    extent: [usize; 3],
    a: View,
    b: View,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    multiply_with(Instructions::best(), precision, scratch, extent, a, b, onto, c, stride);
}

/// [`multiply`] with a kernel named by the caller, who must have found it [available](Instructions::available).
#[allow(clippy::too_many_arguments)]
pub fn multiply_with(
    instructions: Instructions,
    precision: Precision,
    scratch: &mut Scratch,
    extent: [usize; 3],
    a: View,
    b: View,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    let [rows, columns, inner] = extent;
    b.check(inner, columns, "the right operand");
    check(extent, a, onto, c, stride);
    let routines = Routines::of(instructions, precision);
    (routines.multiply)(scratch, [rows, columns, inner], a, Right::Loose(b), onto, c, stride);
}

/// `c = onto + a · b` for `rows` rows of `a`, the rest as for [`multiply`]: the same values.
///
/// # Panics
/// If a slice is shorter than its extent.
pub fn multiply_packed(
    scratch: &mut Scratch,
    rows: usize,
    a: View,
    b: &Packed,
    onto: Onto,
    c: &mut [f32],
    stride: usize,
) {
    let extent = [rows, b.columns(), b.inner()];
    check(extent, a, onto, c, stride);
    (b.routines().multiply)(scratch, extent, a, Right::Packed(b.words()), onto, c, stride);
}

fn check([rows, columns, inner]: [usize; 3], a: View, onto: Onto, c: &[f32], stride: usize) {
    a.check(rows, inner, "the left operand");
    View::new(c, stride).check(rows, columns, "the result");
    if let Onto::Other(other) = onto {
        View::new(other, stride).check(rows, columns, "what the product is added to");
    }
}
