//! Launches of the rotary kernels, and the angles they read.

use device::{Argument, Buffer, Device, Shape};
use record::failure::{Failure, Result};

use super::batch::Prepared;
use super::values::{Values, reserve};
use crate::backend::angles::Angles;
use crate::backend::{Rotated, Rows};
use crate::kernels;

/// Warps of a block of the backward kernel.
pub(super) const WARPS: usize = 8;
/// What kernels take for the offset of a tensor that is not there.
const NO_TENSOR: u64 = u64::MAX;

/// Cosines and sines of every position seen so far, on the host and on the device.
#[derive(Debug)]
pub(super) struct Rotary {
    angles: Angles,
    half: usize,
    cosines: Option<Buffer<f32>>,
    sines: Option<Buffer<f32>>,
}

fn offset(at: Option<usize>) -> u64 {
    at.map_or(NO_TENSOR, |at| at as u64)
}

/// Values of a table of positions below `count`. Each table is sent whole, so it grows in large steps.
pub(super) fn table(count: usize, half: usize) -> usize {
    count.next_power_of_two() * half
}

impl Rotary {
    pub(super) fn new(inverse_frequencies: &[f32]) -> Rotary {
        let angles = Angles::new(inverse_frequencies);
        Rotary { angles, half: inverse_frequencies.len(), cosines: None, sines: None }
    }

    /// Extends both tables to positions below `count`.
    pub(super) fn cover<D: Device>(&mut self, device: &mut D, count: usize) -> Result<()> {
        if self.sines.as_ref().is_some_and(|buffer| buffer.len() >= count * self.half) {
            return Ok(());
        }
        let length = table(count, self.half);
        self.angles.cover(length / self.half);
        let cosines = reserve(device, &mut self.cosines, length)?;
        device.upload(&self.angles.cosines[..length], cosines.into())?;
        let sines = reserve(device, &mut self.sines, length)?;
        device.upload(&self.angles.sines[..length], sines.into())
    }

    /// The arguments of both kernels from the angles on.
    fn tail<'a>(&'a self, batch: &'a Prepared, rows: Rows, rotated: Rotated) -> Result<[Argument<'a>; 9]> {
        let missing = || Failure::work("device: a rotation before its angles");
        Ok([
            self.cosines.as_ref().ok_or_else(missing)?.into(),
            self.sines.as_ref().ok_or_else(missing)?.into(),
            batch.positions()?.into(),
            batch.nodes(rows)?.into(),
            (batch.count(rows) as i32).into(),
            (rotated.heads as i32).into(),
            (rotated.width as i32).into(),
            (rotated.stride as i32).into(),
            rotated.epsilon.into(),
        ])
    }

    /// Bias where there is one, norm where there is one, and rotation.
    pub(super) fn rotate<D: Device>(
        &self,
        device: &mut D,
        (batch, rows): (&Prepared, Rows),
        rotated: Rotated,
        weights: &Values,
        projection: &Values,
        out: &Values,
    ) -> Result<()> {
        let parts = if rotated.bias.is_some() { rotated.stride / rotated.width } else { rotated.heads };
        let tasks = batch.count(rows) * parts;
        if tasks == 0 {
            return Ok(());
        }
        let mut arguments: Vec<Argument<'_>> = vec![
            out.half()?.into(),
            projection.half()?.into(),
            weights.half()?.into(),
            offset(rotated.bias).into(),
            offset(rotated.norm).into(),
        ];
        arguments.extend(self.tail(batch, rows, rotated)?);
        device.launch(&kernels::ROTATE, Shape::values((tasks * 32) as u64), &arguments)
    }

    /// The gradient by the projection's heads from `[weights, projection, d_out]`, and one row of partial sums of the
    /// gradient by the norm's weight for each block.
    pub(super) fn backward<D: Device>(
        &self,
        device: &mut D,
        (batch, rows): (&Prepared, Rows),
        rotated: Rotated,
        [weights, projection, d_out]: [&Values; 3],
        d_projection: &Values,
        partials: &Buffer<f32>,
    ) -> Result<()> {
        let mut arguments: Vec<Argument<'_>> = vec![
            d_projection.half()?.into(),
            partials.into(),
            d_out.single()?.into(),
            projection.half()?.into(),
            weights.half()?.into(),
            offset(rotated.norm).into(),
        ];
        arguments.extend(self.tail(batch, rows, rotated)?);
        let blocks = partials.len() / rotated.width;
        let blocks = (batch.count(rows) * rotated.heads).div_ceil(WARPS).min(super::sums::PARTS).min(blocks);
        let shared = (WARPS * rotated.width * size_of::<f32>()) as u32;
        let shape = Shape::rows(blocks as u32, (WARPS * 32) as u32).shared(shared);
        device.launch(&kernels::ROTATE_BACKWARD, shape, &arguments)
    }
}
