//! GEMM descriptions.

use record::failure::{Failure, Result};

use crate::arena::{Raw, Slice};
use crate::element::{Element, Scalar};

/// A row-major matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub(crate) values: Raw<'a>,
    /// Values from one row to the next.
    pub stride: usize,
    /// Whether the GEMM takes its transpose.
    pub transposed: bool,
    /// Values from one matrix of a batch to the next.
    pub batch_stride: usize,
}

impl<'a> Operand<'a> {
    /// The matrix whose rows begin every `stride` values of `values`.
    pub fn new<T: Element>(values: impl Into<Slice<'a, T>>, stride: usize) -> Self {
        Operand { values: values.into().raw(), stride, transposed: false, batch_stride: 0 }
    }

    /// Its transpose.
    #[must_use]
    pub fn transposed(self) -> Self {
        Operand { transposed: !self.transposed, ..self }
    }

    /// The first of a batch, `values` apart.
    #[must_use]
    pub fn batched(self, values: usize) -> Self {
        Operand { batch_stride: values, ..self }
    }

    /// Row width and length that a `rows` x `columns` operand must have.
    fn extent(&self, rows: usize, columns: usize, batch: usize) -> (usize, usize) {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        let matrix = if rows == 0 || columns == 0 { 0 } else { (rows - 1) * self.stride + columns };
        (columns, (batch - 1) * self.batch_stride + matrix)
    }
}

/// `out = alpha * left · right + beta * out`, with `left` `[rows, depth]` and `right` `[depth, columns]` (after
/// transposition). Inputs are bf16 or f32, both the same; sums are f32 (f32 inputs are not shortened to TF32); `out`
/// is bf16 (rounded to nearest even) or f32. With `beta` 0, `out` is not read.
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
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the previous `out`.
    pub beta: f32,
    /// Number of GEMMs in the batch, at least 1.
    pub batch: usize,
}

impl<'a> Gemm<'a> {
    /// `out = left · right`.
    pub fn new(
        left: Operand<'a>,
        right: Operand<'a>,
        out: Operand<'a>,
        [rows, columns, depth]: [usize; 3],
    ) -> Self {
        Gemm { left, right, out, rows, columns, depth, alpha: 1.0, beta: 0.0, batch: 1 }
    }

    /// `out += left · right` where `add`.
    #[must_use]
    pub fn adding(self, add: bool) -> Self {
        Gemm { beta: if add { 1.0 } else { 0.0 }, ..self }
    }

    /// A batch of GEMMs, [`Operand::batched`] apart.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Gemm { batch, ..self }
    }

    /// Checks types, strides and lengths.
    ///
    /// # Errors
    /// 1, naming the operand.
    pub(crate) fn check(&self) -> Result<()> {
        let [m, n, k] = [self.rows, self.columns, self.depth];
        let wrong = |cause: String| Err(Failure::work(format!("GEMM [{m}, {k}] x [{k}, {n}]: {cause}")));
        let float = |scalar| matches!(scalar, Scalar::Bf16 | Scalar::F32);
        let (left, right, out) = (self.left.values.scalar, self.right.values.scalar, self.out.values.scalar);
        if left != right || !float(left) || !float(out) || (left == Scalar::F32 && out == Scalar::Bf16) {
            return wrong(format!("{left} x {right} -> {out} is not supported"));
        }
        if self.out.transposed || self.batch == 0 {
            return wrong("the result is transposed or the batch empty".to_owned());
        }
        for (name, operand, rows, columns) in
            [("left", self.left, m, k), ("right", self.right, k, n), ("out", self.out, m, n)]
        {
            let (width, needed) = operand.extent(rows, columns, self.batch);
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
