//! Launches of the qk-norm + RoPE kernels, and the cos/sin cache they read.

use device::{Argument, Buffer, Device, Shape};
use record::failure::{Failure, Result};

use super::device_batch::{DeviceBatch, Table};
use super::values::{Values, reserve};
use super::{MULTIPROCESSORS, launch};
use crate::backend::QkNormRope;
use crate::backend::rope::RopeCache;
use crate::kernels;

/// Warps of a block of the backward kernel.
const WARPS: usize = 8;
/// Its blocks, at most: four on each multiprocessor.
const MAX_BLOCKS: usize = 4 * MULTIPROCESSORS;
/// The offset of a tensor that does not exist, as the kernels take it.
const NO_TENSOR: u64 = u64::MAX;

/// Cosines and sines of every position seen so far, on the host and on the device.
#[derive(Debug)]
pub(super) struct DeviceRopeCache {
    host: RopeCache,
    half: usize,
    cos: Option<Buffer<f32>>,
    sin: Option<Buffer<f32>>,
}

fn offset(tensor: Option<usize>) -> u64 {
    tensor.map_or(NO_TENSOR, |offset| offset as u64)
}

/// Values of a table of positions below `count`. A table is uploaded whole, so it grows in large steps.
pub(super) fn table_values(count: usize, half: usize) -> usize {
    count.next_power_of_two() * half
}

/// Blocks of the backward kernel, each of which writes a row of partial sums of the norm's gradient.
pub(super) fn backward_blocks(rows: usize, heads: usize) -> usize {
    (rows * heads).div_ceil(WARPS).min(MAX_BLOCKS)
}

/// A projection, the gradient of its heads after norm and rotation, and the gradient of the projection.
#[derive(Clone, Copy)]
pub(super) struct ProjectionGradient<'a> {
    pub projection: &'a Values,
    pub d_out: &'a Values,
    /// Written.
    pub d_projection: &'a Values,
}

impl DeviceRopeCache {
    pub(super) fn new(inverse_frequencies: &[f32]) -> DeviceRopeCache {
        let host = RopeCache::new(inverse_frequencies);
        DeviceRopeCache { host, half: inverse_frequencies.len(), cos: None, sin: None }
    }

    /// Multiplies cosines and sines by a factor.
    pub(super) fn scaled(mut self, attention_factor: f32) -> DeviceRopeCache {
        self.host = self.host.scaled(attention_factor);
        self
    }

    /// Extends both tables to positions below `count`.
    pub(super) fn extend_to<D: Device>(&mut self, device: &mut D, count: usize) -> Result<()> {
        if self.sin.as_ref().is_some_and(|buffer| buffer.len() >= count * self.half) {
            return Ok(());
        }
        let length = table_values(count, self.half);
        self.host.extend_to(length / self.half);
        let cos = reserve(device, &mut self.cos, length)?;
        device.upload(&self.host.cos[..length], cos.into())?;
        let sin = reserve(device, &mut self.sin, length)?;
        device.upload(&self.host.sin[..length], sin.into())
    }

    /// The last arguments of both kernels.
    fn tail<'a>(&'a self, batch: &'a DeviceBatch, op: &QkNormRope<'_, Values>) -> Result<[Argument<'a>; 10]> {
        let missing = || Failure::work("device: RoPE before its cos/sin cache");
        Ok([
            self.cos.as_ref().ok_or_else(missing)?.into(),
            self.sin.as_ref().ok_or_else(missing)?.into(),
            batch.table(Table::Positions)?.into(),
            batch.nodes(op.rows)?.into(),
            (batch.count(op.rows) as i32).into(),
            (op.heads as i32).into(),
            (op.width as i32).into(),
            (op.stride as i32).into(),
            op.epsilon.into(),
            i32::from(op.rope.is_some()).into(),
        ])
    }

    /// See [`crate::backend::Backend::qk_norm_rope`].
    pub(super) fn forward<D: Device>(
        &self,
        device: &mut D,
        batch: &DeviceBatch,
        op: &QkNormRope<Values>,
        projection: &Values,
        out: &Values,
    ) -> Result<()> {
        let parts = if op.bias.is_some() { op.stride / op.width } else { op.heads };
        let warps = batch.count(op.rows) * parts;
        let mut arguments: Vec<Argument> = vec![
            out.half()?.into(),
            projection.half()?.into(),
            op.weights.half()?.into(),
            offset(op.bias).into(),
            offset(op.norm).into(),
        ];
        arguments.extend(self.tail(batch, op)?);
        device.launch(&kernels::QK_NORM_ROPE, Shape::values((warps * 32) as u64), &arguments)
    }

    /// Turns `d_out` into the gradient of the projection's heads, and writes one row of partial sums of the norm's
    /// gradient for each block.
    pub(super) fn backward<D: Device>(
        &self,
        device: &mut D,
        batch: &DeviceBatch,
        op: &QkNormRope<Values>,
        values: ProjectionGradient,
        partials: &Buffer<f32>,
    ) -> Result<()> {
        let ProjectionGradient { projection, d_out, d_projection } = values;
        let mut arguments: Vec<Argument> = vec![
            d_projection.half()?.into(),
            partials.into(),
            d_out.single()?.into(),
            projection.half()?.into(),
            op.weights.half()?.into(),
            offset(op.norm).into(),
        ];
        arguments.extend(self.tail(batch, op)?);
        let blocks = backward_blocks(batch.count(op.rows), op.heads) as u32;
        let shared = (WARPS * op.width * size_of::<f32>()) as u32;
        let shape = Shape::rows(blocks, (WARPS * 32) as u32).shared(shared);
        launch(device, &kernels::QK_NORM_ROPE_BACKWARD, shape, &arguments)
    }
}
