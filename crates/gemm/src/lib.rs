//! Dense single-threaded GEMM near the core's peak, after BLIS (Van Zee and van de Geijn, 2015). Operands are
//! packed into panels that fit the caches, and a micro-kernel multiplies panel by panel. Packing handles
//! transposition and rounding to bf16. The micro-kernel is chosen at run time. A right operand used many
//! times can be [`Packed`] once.
//!
//! Each element is one sum over the inner dimension in ascending order, in blocks that depend only on the
//! inner dimension. A row's result therefore does not depend on the other rows, and a product can be
//! [`mod@cut`] into smaller ones, for several threads, without changing a bit. Left out: the threads, and
//! operands in types other than f32, except [`Packing::of_halves`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
mod blocking;
mod cut;
mod dispatch;
mod micro_kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod packed;
mod portable;

pub use bf16::round;
pub use cut::{Product, cut};
pub use dispatch::{Isa, Precision};
pub use packed::{Packed, Packing};

use blocking::Right;
use dispatch::Dispatch;
use micro_kernel::Word;
use std::marker::PhantomData;

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

    /// This matrix with rows and columns exchanged; no values move.
    pub fn transposed(self) -> View<'a> {
        View { data: self.data, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// The matrix from this row and column on.
    fn from(self, row: usize, column: usize) -> View<'a> {
        let offset = row * self.row_stride + column * self.column_stride;
        View { data: &self.data[offset.min(self.data.len())..], ..self }
    }

    /// Panics if the matrix is too short.
    fn check(&self, rows: usize, columns: usize, what: &str) {
        if rows > 0 && columns > 0 {
            let last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride;
            assert!(last < self.data.len(), "GEMM: {what} is too short");
        }
    }
}

/// The result of a product: rows in memory, `stride` values from one to the next.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Start of `length` values, some of which may belong to other columns.
    data: *mut f32,
    length: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a unique borrow of its elements, which are plain numbers.
unsafe impl Send for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// Row-major, like [`View::new`].
    pub fn new(data: &'a mut [f32], stride: usize) -> ViewMut<'a> {
        ViewMut { data: data.as_mut_ptr(), length: data.len(), stride, borrowed: PhantomData }
    }

    /// Panics if `rows` rows of `columns` columns do not fit.
    fn check(&self, rows: usize, columns: usize) {
        let wide = columns <= self.stride || rows <= 1;
        assert!(wide && reaches(self.length, rows, columns, self.stride), "GEMM: the result is too short");
    }
}

/// Returns true if `length` values hold rows of `columns` values, `stride` apart.
fn reaches(length: usize, rows: usize, columns: usize, stride: usize) -> bool {
    rows == 0 || columns == 0 || (rows - 1) * stride + columns <= length
}

/// The addend of a product.
#[derive(Clone, Copy, Debug)]
pub enum Accumulate<'a> {
    /// None: the result is the product.
    Zero,
    /// The previous content of the result.
    Result,
    /// Another matrix with the result's stride.
    Other(&'a [f32]),
}

/// An addend, and how it enters a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addend<'a> {
    onto: Accumulate<'a>,
    /// True if an element's sum goes on from the addend, and from one block of the inner dimension to the next, in one chain.
    chained: bool,
}

impl<'a> Accumulate<'a> {
    /// Added after the sum of each block.
    pub(crate) fn after(self) -> Addend<'a> {
        Addend { onto: self, chained: false }
    }
}

/// An instruction set, and packing buffers that products reuse.
#[derive(Clone, Debug)]
pub struct Scratch {
    isa: Isa,
    a: Vec<Word>,
    b: Vec<Word>,
    /// Buffer for sums that are added to the result at the end.
    sums: Vec<f32>,
}

/// The size that a [`Scratch`] grows to at most, in bytes.
pub const SCRATCH_BYTES: usize = size_of::<f32>() * (blocking::SCRATCH_WORDS + cut::APART);

impl Scratch {
    /// Empty buffers for an [available](Isa::available) instruction set.
    pub fn new(isa: Isa) -> Scratch {
        Scratch { isa, a: Vec::new(), b: Vec::new(), sums: Vec::new() }
    }
}

impl Default for Scratch {
    /// Empty buffers for the fastest instruction set of this CPU.
    fn default() -> Scratch {
        Scratch::new(Isa::best())
    }
}

/// `c = onto + a · b` with `a` [rows, inner] and `b` [inner, columns]; `extent` is [rows, columns, inner].
///
/// # Panics
/// If a slice is shorter than its extent.
pub fn multiply(
    scratch: &mut Scratch,
    precision: Precision,
    extent: [usize; 3],
    a: View,
    b: View,
    onto: Accumulate,
    c: ViewMut,
) {
    b.check(extent[2], extent[1], "the right operand");
    let dispatch = Dispatch::of(scratch.isa, precision);
    run(dispatch, scratch, extent, a, Right::Strided(b), onto.after(), c);
}

/// `c = a · b` in f32, each element as one chain of fused multiply-adds in ascending order of the inner
/// dimension, without blocks. Zero terms therefore change nothing, wherever they stand.
///
/// # Panics
/// If a slice is shorter than its extent.
pub fn multiply_chained(scratch: &mut Scratch, extent: [usize; 3], a: View, b: View, c: ViewMut) {
    b.check(extent[2], extent[1], "the right operand");
    let dispatch = Dispatch::of(scratch.isa, Precision::Float32);
    run(dispatch, scratch, extent, a, Right::Strided(b), Addend { onto: Accumulate::Zero, chained: true }, c);
}

/// `c = onto + a · b` for `rows` rows of `a`: the values of [`multiply`] with the instruction set of `b`.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_packed(
    scratch: &mut Scratch,
    rows: usize,
    a: View,
    b: &Packed,
    onto: Accumulate,
    c: ViewMut,
) {
    let extent = [rows, b.columns(), b.inner()];
    run(b.dispatch(), scratch, extent, a, Right::Packed(b.words()), onto.after(), c);
}

fn run(
    dispatch: Dispatch,
    scratch: &mut Scratch,
    extent: [usize; 3],
    a: View,
    b: Right,
    addend: Addend,
    c: ViewMut,
) {
    let [rows, columns, inner] = extent;
    a.check(rows, inner, "the left operand");
    c.check(rows, columns);
    if let Accumulate::Other(other) = addend.onto {
        assert!(reaches(other.len(), rows, columns, c.stride), "GEMM: the addend is too short");
    }
    (dispatch.multiply)(scratch, extent, a, b, addend, c);
}
