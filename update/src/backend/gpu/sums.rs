//! Sums over rows in a fixed order: blocks leave a row of partial sums each, which are added in turn.

use device::{Device, Shape, Slice};
use record::failure::Result;

use super::Gpu;
use super::values::{Values, reserve};
use crate::kernels;

/// Blocks that share the rows of a reduction. Fixed, so that sums do not depend on the device.
pub(super) const PARTS: usize = 256;
/// The same for column sums, each of which is one thread's.
pub(super) const COLUMN_PARTS: usize = 64;

impl<D: Device> Gpu<D> {
    /// Adds `parts` partial sums of `width` columns to `sums`, in order.
    pub(super) fn add_partials(&mut self, parts: usize, width: usize, sums: Slice<'_, f32>) -> Result<()> {
        let partials = reserve(&mut self.device, &mut self.partials, parts * width)?;
        let arguments = [sums.into(), partials.into(), (parts as i32).into(), (width as i32).into()];
        self.device.launch(&kernels::ADD_PARTIALS, Shape::values(width as u64), &arguments)
    }

    /// Adds the column sums of `x` to `sums`.
    pub(super) fn add_columns(
        &mut self,
        rows: usize,
        width: usize,
        x: &Values,
        sums: Slice<'_, f32>,
    ) -> Result<()> {
        let parts = rows.min(COLUMN_PARTS);
        let partials = reserve(&mut self.device, &mut self.partials, parts * width)?;
        let arguments = [partials.into(), x.half()?.into(), (rows as i32).into(), (width as i32).into()];
        let shape =
            Shape { grid: [width.div_ceil(256) as u32, parts as u32, 1], block: [256, 1, 1], shared: 0 };
        self.device.launch(&kernels::COLUMN_PARTIALS, shape, &arguments)?;
        self.add_partials(parts, width, sums)
    }
}
