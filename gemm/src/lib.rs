//! Dense GEMM on one thread, near the core's peak, after BLIS (Van Zee and van de Geijn, 2015): operands are packed into
//! panels that fit the caches, and a micro-kernel multiplies panel by panel. Packing absorbs transpositions and the
//! rounding to bf16. The micro-kernel is chosen at run time. A right operand used many times can be [`Packed`] once.
//!
//! Each element is one sum over the inner dimension in ascending order, in blocks that depend on the inner dimension
//! alone, so a row's result does not depend on the other rows. Left out: threads (micro-batches are independent) and
//! operands stored in other types than f32.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
mod blocking;
mod dispatch;
mod isa;
mod micro_kernel;
mod pack;
mod packed;
mod portable;
mod precision;

pub use bf16::round;
pub use isa::Isa;
pub use packed::{Packed, Packing};
pub use precision::Precision;

use blocking::Right;
use dispatch::Dispatch;
use micro_kernel::Word;

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

    /// Panics if the matrix is too short.
    fn check(&self, rows: usize, columns: usize, what: &str) {
        if rows > 0 && columns > 0 {
            let last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride;
            assert!(last < self.data.len(), "GEMM: {what} is too short");
        }
    }
}

/// The addend of a product.
#[derive(Clone, Copy, Debug)]
pub enum Onto<'a> {
    /// None: the result is the product.
    Zero,
    /// The previous content of the result.
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
    multiply_with(Isa::best(), precision, scratch, extent, a, b, onto, c, stride);
}

/// [`multiply`] with a given instruction set, which must be [available](Isa::available).
#[allow(clippy::too_many_arguments)]
pub fn multiply_with(
    isa: Isa,
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
    let dispatch = Dispatch::of(isa, precision);
    (dispatch.multiply)(scratch, [rows, columns, inner], a, Right::Strided(b), onto, c, stride);
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
    (b.dispatch().multiply)(scratch, extent, a, Right::Packed(b.words()), onto, c, stride);
}

fn check([rows, columns, inner]: [usize; 3], a: View, onto: Onto, c: &[f32], stride: usize) {
    a.check(rows, inner, "the left operand");
    View::new(c, stride).check(rows, columns, "the result");
    if let Onto::Other(other) = onto {
        View::new(other, stride).check(rows, columns, "the addend");
    }
}
