//! Linear layers: one GEMM each, which also adds the residual stream or the previous contents.

use device::{Device, Gemm, Operand};
use record::failure::Result;

use super::values::Values;
use crate::backend::{Dense, Linear};

/// Runs a GEMM over `rows` rows, unless there are none.
fn gemm<D: Device>(device: &mut D, rows: usize, gemm: Gemm<'_>) -> Result<()> {
    if rows == 0 { Ok(()) } else { device.gemm(&gemm) }
}

fn weight_matrix(weights: &Values, weight: Dense) -> Result<Operand<'_>> {
    Ok(Operand::new(weights.half()?.slice(weight.range()), weight.inputs))
}

fn activations(values: &Values, rows: usize, width: usize) -> Result<Operand<'_>> {
    Ok(Operand::new(values.half()?.slice(..rows * width), width))
}

/// A GEMM's result: 16 bits, or f32 where no GEMM reads it.
fn result(values: &Values, rows: usize, width: usize) -> Result<Operand<'_>> {
    match values {
        Values::Bf16(_) | Values::F16(_) => activations(values, rows, width),
        _ => Ok(Operand::new(values.single()?.slice(..rows * width), width)),
    }
}

/// `out = addend + x · weightᵀ`; the addend may be `out`.
pub(super) fn forward<D: Device>(
    device: &mut D,
    &Linear { rows, weights, weight }: &Linear<Values>,
    x: &Values,
    addend: Option<&Values>,
    out: &Values,
) -> Result<()> {
    let Dense { outputs, inputs, .. } = weight;
    let (x, out) = (activations(x, rows, inputs)?, result(out, rows, outputs)?);
    let product = Gemm::new(x, weight_matrix(weights, weight)?.transposed(), out, [rows, outputs, inputs]);
    let addend = addend.map(|addend| result(addend, rows, outputs)).transpose()?;
    gemm(device, rows, addend.map_or(product, |addend| product.plus(addend)))
}

/// `d_x = d_out · weight`, or added where `add`.
pub(super) fn backward_input<D: Device>(
    device: &mut D,
    &Linear { rows, weights, weight }: &Linear<Values>,
    d_out: &Values,
    add: bool,
    d_x: &Values,
) -> Result<()> {
    let Dense { outputs, inputs, .. } = weight;
    let (d_out, d_x) = (activations(d_out, rows, outputs)?, result(d_x, rows, inputs)?);
    let product = Gemm::new(d_out, weight_matrix(weights, weight)?, d_x, [rows, inputs, outputs]);
    gemm(device, rows, product.adding(add))
}

/// Adds `d_outᵀ · x` to the gradient of a weight.
pub(super) fn backward_weight<D: Device>(
    device: &mut D,
    rows: usize,
    d_out: &Values,
    x: &Values,
    gradients: &Values,
    weight: Dense,
) -> Result<()> {
    let Dense { outputs, inputs, .. } = weight;
    let (d_out, x) = (activations(d_out, rows, outputs)?, activations(x, rows, inputs)?);
    let out = Operand::new(gradients.gradient(weight.range())?, inputs);
    let product = Gemm::new(d_out.transposed(), x, out, [outputs, inputs, rows]);
    gemm(device, rows, product.adding(true))
}
