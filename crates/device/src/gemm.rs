//! GEMM descriptions.

use record::failure::{Failure, Result};

use crate::arena::{AnySlice, Arena};
use crate::element::Scalar;

/// A row-major matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub(crate) values: AnySlice<'a>,
    /// Values from one row to the next.
    pub stride: usize,
    /// True if the GEMM uses its transpose.
    pub transposed: bool,
}

impl<'a> Operand<'a> {
    /// A matrix with a row every `stride` values.
    pub fn new(values: impl Into<AnySlice<'a>>, stride: usize) -> Self {
        Operand { values: values.into(), stride, transposed: false }
    }

    #[must_use]
    pub fn transposed(self) -> Self {
        Operand { transposed: !self.transposed, ..self }
    }

    /// The stored rows and columns of a `rows` x `columns` operand.
    pub(crate) fn stored(&self, rows: usize, columns: usize) -> (usize, usize) {
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }
}

/// `out = left · right`, or `out = addend + …`, with `left` `[rows, depth]` and `right` `[depth, columns]`
/// (after transposition). Inputs are both bf16, both f16 or both f32, sums are f32 (f32 inputs are not rounded
/// to TF32), and `out` is f32 or the 16-bit type of the inputs (rounded to nearest even).
#[derive(Clone, Copy, Debug)]
pub struct Gemm<'a> {
    /// First factor.
    pub left: Operand<'a>,
    /// Second factor.
    pub right: Operand<'a>,
    /// Result; never transposed.
    pub out: Operand<'a>,
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Inner dimension.
    pub depth: usize,
    /// Added to the product: `out` itself, or a matrix of the same type and stride that
    /// shares no memory with it.
    pub addend: Option<Operand<'a>>,
    /// Index among a library's proposed algorithms; `None` measures and uses the fastest.
    pub choice: Option<usize>,
}

impl<'a> Gemm<'a> {
    /// `out = left · right`.
    pub fn new(
        left: Operand<'a>,
        right: Operand<'a>,
        out: Operand<'a>,
        [rows, columns, depth]: [usize; 3],
    ) -> Self {
        Gemm { left, right, out, rows, columns, depth, addend: None, choice: None }
    }

    /// With `add`, computes `out += left · right`.
    #[must_use]
    pub fn adding(self, add: bool) -> Self {
        Gemm { addend: add.then_some(self.out), ..self }
    }

    /// Computes `out = addend + left · right` without copying `addend` into `out` first.
    #[must_use]
    pub fn plus(self, addend: Operand<'a>) -> Self {
        Gemm { addend: Some(addend), ..self }
    }

    /// Checks types, strides, lengths, and that the operands lie in this arena.
    pub(crate) fn check(&self, arena: &Arena) -> Result<()> {
        let [m, n, k] = [self.rows, self.columns, self.depth];
        let wrong = |cause: String| Err(Failure::work(format!("GEMM [{m}, {k}] x [{k}, {n}]: {cause}")));
        let float = |scalar| matches!(scalar, Scalar::Bf16 | Scalar::F16 | Scalar::F32);
        let (left, right, out) = (self.left.values.scalar, self.right.values.scalar, self.out.values.scalar);
        if left != right || !float(left) || (out != left && out != Scalar::F32) {
            return wrong(format!("{left} x {right} -> {out} is not supported"));
        }
        if self.out.transposed {
            return wrong("the result is transposed".to_owned());
        }
        let addend = self.addend.unwrap_or(self.out);
        let likes = |operand: Operand<'_>| (operand.values.scalar, operand.stride, operand.transposed);
        if likes(addend) != likes(self.out) {
            return wrong("the addend differs from the result in type or layout".to_owned());
        }
        if addend.values.address != self.out.values.address && addend.values.overlaps(&self.out.values) {
            return wrong("the addend overlaps the result".to_owned());
        }
        for (name, operand, rows, columns) in [
            ("left", self.left, m, k),
            ("right", self.right, k, n),
            ("out", self.out, m, n),
            ("addend", addend, m, n),
        ] {
            operand.values.check(arena)?;
            let (rows, width) = operand.stored(rows, columns);
            let needed = if rows == 0 || width == 0 { 0 } else { (rows - 1) * operand.stride + width };
            if operand.stride < width {
                return wrong(format!("{name} has rows of {width} every {} values", operand.stride));
            }
            if operand.values.length < needed {
                return wrong(format!(
                    "{name} has {} values where {needed} are needed",
                    operand.values.length
                ));
            }
        }
        Ok(())
    }
}
