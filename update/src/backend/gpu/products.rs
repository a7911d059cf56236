//! Products with a weight and their gradients: which factor is turned, and what is added to.
//!
//! With `y = x wᵀ` row-major, `w` `[outputs, inputs]`: `d_x = d_y w` and `d_w += d_yᵀ x`. Factors are bf16, sums f32; what
//! is added to the residual stream stays f32.

use device::{Device, Gemm, Operand};
use record::failure::Result;

use super::values::Values;
use crate::backend::Dense;

fn tensor((weights, weight): (&Values, Dense)) -> Result<Operand<'_>> {
    let range = weight.at..weight.at + weight.outputs * weight.inputs;
    Ok(Operand::new(weights.half()?.slice(range), weight.inputs))
}

fn matrix(values: &Values, rows: usize, width: usize) -> Result<Operand<'_>> {
    Ok(Operand::new(values.half()?.slice(..rows * width), width))
}

/// What a product is computed into: bf16, or f32 where no product reads it.
fn result(values: &Values, rows: usize, width: usize) -> Result<Operand<'_>> {
    match values {
        Values::Half(_) => matrix(values, rows, width),
        Values::Single(_) => Ok(Operand::new(values.single()?.slice(..rows * width), width)),
    }
}

/// `out = residual + x wᵀ`.
pub(super) fn forward<D: Device>(
    device: &mut D,
    rows: usize,
    x: &Values,
    weight: (&Values, Dense),
    residual: Option<&Values>,
    out: &Values,
) -> Result<()> {
    let length = rows * weight.1.outputs;
    if let Some(residual) = residual.filter(|_| rows > 0) {
        device.copy(residual.single()?.slice(..length), out.single()?.slice(..length))?;
    }
    onto(device, rows, x, weight, residual.is_some(), out)
}

/// `out = x wᵀ`, or added where `add`.
pub(super) fn onto<D: Device>(
    device: &mut D,
    rows: usize,
    x: &Values,
    weight: (&Values, Dense),
    add: bool,
    out: &Values,
) -> Result<()> {
    let Dense { outputs, inputs, .. } = weight.1;
    if rows == 0 {
        return Ok(());
    }
    let (x, out) = (matrix(x, rows, inputs)?, result(out, rows, outputs)?);
    device.gemm(&Gemm::new(x, tensor(weight)?.transposed(), out, [rows, outputs, inputs]).adding(add))
}

/// `d_x = d_out w`, or added where `add`.
pub(super) fn by_input<D: Device>(
    device: &mut D,
    rows: usize,
    d_out: &Values,
    weight: (&Values, Dense),
    add: bool,
    d_x: &Values,
) -> Result<()> {
    let Dense { outputs, inputs, .. } = weight.1;
    if rows == 0 {
        return Ok(());
    }
    let (d_out, d_x) = (matrix(d_out, rows, outputs)?, result(d_x, rows, inputs)?);
    device.gemm(&Gemm::new(d_out, tensor(weight)?, d_x, [rows, inputs, outputs]).adding(add))
}

/// `gradients.weight += d_outᵀ x`.
pub(super) fn by_weight<D: Device>(
    device: &mut D,
    rows: usize,
    d_out: &Values,
    x: &Values,
    gradients: &Values,
    weight: Dense,
) -> Result<()> {
    let Dense { at, outputs, inputs } = weight;
    if rows == 0 {
        return Ok(());
    }
    let (d_out, x) = (matrix(d_out, rows, outputs)?, matrix(x, rows, inputs)?);
    let out = Operand::new(gradients.single()?.slice(at..at + outputs * inputs), inputs);
    device.gemm(&Gemm::new(d_out.transposed(), x, out, [outputs, inputs, rows]).adding(true))
}
