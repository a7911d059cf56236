//! Launches of the RMS norm kernels, four values of a row a thread and turn.

use device::{Buffer, Device, Shape};
use record::failure::Result;

use super::values::Values;
use super::{MULTIPROCESSORS, launch, threads};
use crate::backend::RmsNorm;
use crate::kernels;

/// Values of a row that a thread of the backward kernel holds.
const VALUES: usize = 8;
/// Threads of a block, at most.
const MAX_THREADS: usize = 1024;
/// Threads that a multiprocessor holds of a kernel with 64 registers.
const RESIDENT: usize = 1024;
/// Blocks on a multiprocessor, at most: each leaves a row of partial sums.
const MAX_RESIDENT_BLOCKS: usize = 8;

/// Threads of a block of the backward kernel.
fn backward_threads(width: usize) -> usize {
    width.div_ceil(VALUES).next_multiple_of(32).min(MAX_THREADS)
}

/// Blocks of the backward kernel, each of which writes a row of partial sums of the weight's gradient.
pub(super) fn backward_blocks(rows: usize, width: usize) -> usize {
    let resident = (RESIDENT / backward_threads(width)).min(MAX_RESIDENT_BLOCKS);
    rows.min(MULTIPROCESSORS * resident)
}

/// See [`crate::backend::Backend::rms_norm`].
pub(super) fn forward<D: Device>(device: &mut D, norm: &RmsNorm<Values>, out: &Values) -> Result<()> {
    let arguments = [
        out.half()?.into(),
        norm.x.single()?.into(),
        norm.weights.half()?.slice(norm.offset..).into(),
        (norm.width as i32).into(),
        norm.epsilon.into(),
    ];
    let shape = Shape::rows(norm.rows as u32, threads(norm.width / 2));
    launch(device, &kernels::RMS_NORM, shape, &arguments)
}

/// Adds the gradient by x to `d_x`, and writes one row of partial sums of the weight's gradient for each block.
pub(super) fn backward<D: Device>(
    device: &mut D,
    norm: &RmsNorm<Values>,
    d_out: &Values,
    d_x: &Values,
    partials: &Buffer<f32>,
) -> Result<()> {
    let RmsNorm { rows, width, .. } = *norm;
    let arguments = [
        d_x.single()?.into(),
        partials.into(),
        d_out.single()?.into(),
        norm.x.single()?.into(),
        norm.weights.half()?.slice(norm.offset..).into(),
        (rows as i32).into(),
        (width as i32).into(),
        norm.epsilon.into(),
    ];
    let kernel = if width <= VALUES * MAX_THREADS {
        &kernels::RMS_NORM_BACKWARD
    } else {
        &kernels::RMS_NORM_BACKWARD_WIDE
    };
    let shape = Shape::rows(backward_blocks(rows, width) as u32, backward_threads(width) as u32);
    launch(device, kernel, shape, &arguments)
}
