//! Launches of the SwiGLU's kernels, two neighbouring values a thread.

use device::{Device, Shape};
use record::failure::Result;

use super::values::Values;
use crate::kernels;

/// See [`crate::backend::Backend::swiglu`].
pub(super) fn forward<D: Device>(
    device: &mut D,
    rows: usize,
    width: usize,
    gate_up: &Values,
    out: &Values,
) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    let pairs = (rows * width / 2) as u64;
    let arguments = [out.half()?.into(), gate_up.half()?.into(), pairs.into(), (width as i32).into()];
    device.launch(&kernels::SWIGLU, Shape::values(pairs), &arguments)
}

/// See [`crate::backend::Backend::swiglu_backward`].
pub(super) fn backward<D: Device>(
    device: &mut D,
    rows: usize,
    width: usize,
    gate_up: &Values,
    d_out: &Values,
    out: &Values,
) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    let pairs = (rows * width / 2) as u64;
    let arguments = [
        gate_up.half()?.into(),
        out.half()?.into(),
        d_out.single()?.into(),
        pairs.into(),
        (width as i32).into(),
    ];
    device.launch(&kernels::SWIGLU_BACKWARD, Shape::values(pairs), &arguments)
}
