//! Launches of the kernels that move whole rows: the embedding, the rows that carry a loss, and a copy for products.

use device::{Device, Shape};
use record::failure::Result;

use super::batch::Prepared;
use super::threads;
use super::values::Values;
use crate::backend::{Dense, Rows};
use crate::kernels;

/// See [`crate::backend::Backend::embed`].
pub(super) fn embed<D: Device>(
    device: &mut D,
    batch: &Prepared,
    weights: &Values,
    table: Dense,
    out: &Values,
) -> Result<()> {
    if batch.tokens == 0 {
        return Ok(());
    }
    let arguments = [
        out.single()?.into(),
        weights.half()?.slice(table.at..).into(),
        batch.ids()?.into(),
        (table.inputs as i32).into(),
    ];
    let shape = Shape::rows(batch.tokens as u32, threads(table.inputs));
    device.launch(&kernels::EMBED, shape, &arguments)
}

/// See [`crate::backend::Backend::embed_backward`].
pub(super) fn embed_backward<D: Device>(
    device: &mut D,
    batch: &Prepared,
    d_out: &Values,
    gradients: &Values,
    table: Dense,
) -> Result<()> {
    if batch.tokens == 0 {
        return Ok(());
    }
    let arguments = [
        gradients.single()?.slice(table.at..).into(),
        d_out.single()?.into(),
        batch.distinct()?.into(),
        batch.distinct_starts()?.into(),
        batch.distinct_nodes()?.into(),
        (table.inputs as i32).into(),
    ];
    let shape = Shape::rows(batch.distinct as u32, threads(table.inputs));
    device.launch(&kernels::EMBED_BACKWARD, shape, &arguments)
}

/// See [`crate::backend::Backend::gather`].
pub(super) fn gather<D: Device>(
    device: &mut D,
    batch: &Prepared,
    width: usize,
    x: &Values,
    out: &Values,
) -> Result<()> {
    if batch.scored == 0 {
        return Ok(());
    }
    let nodes = batch.nodes(Rows::Scored)?;
    let shape = Shape::rows(batch.scored as u32, threads(width));
    let tail = [nodes.into(), (width as i32).into()];
    if let Values::Single(_) = x {
        let arguments = [out.single()?.into(), x.single()?.into(), tail[0], tail[1]];
        return device.launch(&kernels::GATHER_STREAM, shape, &arguments);
    }
    let arguments = [out.half()?.into(), x.half()?.into(), tail[0], tail[1]];
    device.launch(&kernels::GATHER_ROWS, shape, &arguments)
}

/// See [`crate::backend::Backend::scatter_add`].
pub(super) fn scatter_add<D: Device>(
    device: &mut D,
    batch: &Prepared,
    width: usize,
    rows: &Values,
    x: &Values,
) -> Result<()> {
    if batch.scored == 0 {
        return Ok(());
    }
    let nodes = batch.nodes(Rows::Scored)?;
    let shape = Shape::rows(batch.scored as u32, threads(width));
    let tail = [nodes.into(), (width as i32).into()];
    if let Values::Single(_) = x {
        let arguments = [x.single()?.into(), rows.single()?.into(), tail[0], tail[1]];
        return device.launch(&kernels::SCATTER_ADD_STREAM, shape, &arguments);
    }
    let arguments = [x.half()?.into(), rows.half()?.into(), tail[0], tail[1]];
    device.launch(&kernels::SCATTER_ADD_ROWS, shape, &arguments)
}

/// The first `length` values of `from` in bf16.
pub(super) fn round<D: Device>(device: &mut D, length: usize, from: &Values, to: &Values) -> Result<()> {
    let pairs = (length / 2) as u64;
    if pairs == 0 {
        return Ok(());
    }
    let arguments = [to.half()?.into(), from.single()?.into(), pairs.into()];
    device.launch(&kernels::ROUND_VALUES, Shape::values(pairs), &arguments)
}
