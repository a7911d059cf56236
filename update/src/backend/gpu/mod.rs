//! The device backend: bf16 weights and activations, f32 sums, CUDA kernels and the device's matrix products.
//!
//! Operations are asked for in order and run in order; none waits. An operation that fails stops all that follow, and
//! [`Gpu::outcome`] says why: the model above asks once a micro-batch instead of after every operation.
//!
//! The addition of a residual is part of the product before it (f32, in its epilogue), that of the residual's
//! gradient part of the norm's backward kernel. Left out: head, residual and MLP widths that 8 does not divide (vector
//! loads and tensor cores want 16 bytes), and heads wider than 256.

mod attention;
mod batch;
mod room;
mod rotary;
mod score;
mod values;

use device::{Buffer, Device, Gemm, Operand, Shape, Slice};
use half::bf16;
use record::failure::{Failure, Result};

use super::{Backend, Batch, Dense, Head, Heads, Rotated, Rows};
use crate::kernels;

pub use batch::Prepared;
pub use room::{Extent, Room};
pub use values::Values;
pub(crate) use values::reserve;

/// Blocks that share the rows of a reduction. Fixed, so that sums do not depend on the device.
const PARTS: usize = 256;
/// The same for column sums, each of which is one thread's.
const COLUMN_PARTS: usize = 64;

/// A device that a decoder runs on.
pub struct Gpu<D: Device> {
    /// The device.
    pub device: D,
    rotary: rotary::Rotary,
    partials: Option<Buffer<f32>>,
    deltas: Option<Buffer<f32>>,
    scorer: score::Scorer,
    /// Integers that are taken for a micro-batch at least.
    integers: usize,
    failure: Option<Failure>,
}

/// Threads of a block for rows of `width` values, two a thread.
fn threads(width: usize) -> u32 {
    (width / 2).next_multiple_of(32).clamp(32, 256) as u32
}

fn tensor(values: &Values, weight: Dense) -> Result<Operand<'_>> {
    let range = weight.at..weight.at + weight.outputs * weight.inputs;
    Ok(Operand::new(values.half()?.slice(range), weight.inputs))
}

fn matrix(values: &Values, rows: usize, width: usize) -> Result<Operand<'_>> {
    Ok(Operand::new(values.half()?.slice(..rows * width), width))
}

impl<D: Device> Gpu<D> {
    /// A device that rotates by these angular frequencies, radians a position. Its arena must be reserved before the
    /// first operation.
    pub fn new(device: D, inverse_frequencies: &[f32]) -> Gpu<D> {
        let rotary = rotary::Rotary::new(inverse_frequencies);
        let scorer = score::Scorer::default();
        Gpu { device, rotary, partials: None, deltas: None, scorer, integers: 0, failure: None }
    }

    /// Takes what micro-batches up to an extent need, so that nothing grows later.
    ///
    /// # Errors
    /// Memory (69).
    pub fn make_room(&mut self, extent: &Extent) -> Result<()> {
        let room = Room::of(extent);
        self.integers = room.integers;
        for (buffer, length) in [(&mut self.partials, room.partials), (&mut self.deltas, room.deltas)] {
            if length > 0 {
                reserve(&mut self.device, buffer, length)?;
            }
        }
        self.rotary.cover(&mut self.device, extent.positions)?;
        self.scorer.make_room(&mut self.device, &room)
    }

    /// What went wrong since this was last asked.
    ///
    /// # Errors
    /// The first failure, if there was one.
    pub fn outcome(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Fills a buffer from the host, rounding where it holds bf16.
    pub fn write(&mut self, from: &[f32], to: &mut Values) {
        self.attempt(|gpu| {
            to.reserve(&mut gpu.device, from.len())?;
            match to {
                Values::Half(_) => {
                    let rounded: Vec<bf16> = from.iter().map(|&value| bf16::from_f32(value)).collect();
                    gpu.device.upload(&rounded, to.half()?.slice(..from.len()))
                }
                Values::Single(_) => gpu.device.upload(from, to.single()?.slice(..from.len())),
            }
        });
    }

    /// The first values of a buffer, as many as `to` has.
    pub fn read(&mut self, from: &Values, to: &mut [f32]) {
        self.attempt(|gpu| match from {
            Values::Half(_) => {
                let mut rounded = vec![bf16::ZERO; to.len()];
                gpu.device.download(from.half()?.slice(..to.len()), &mut rounded)?;
                to.iter_mut().zip(rounded).for_each(|(to, value)| *to = value.to_f32());
                Ok(())
            }
            Values::Single(_) => gpu.device.download(from.single()?.slice(..to.len()), to),
        });
    }

    /// Does `work` unless something failed before.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none()
            && let Err(failure) = work(self)
        {
            self.failure = Some(failure);
        }
    }

    /// Adds `parts` partial sums of `width` columns to `sums`, in order.
    fn add_partials(&mut self, parts: usize, width: usize, sums: Slice<'_, f32>) -> Result<()> {
        let partials = reserve(&mut self.device, &mut self.partials, parts * width)?;
        let arguments = [sums.into(), partials.into(), (parts as i32).into(), (width as i32).into()];
        self.device.launch(&kernels::ADD_PARTIALS, Shape::values(width as u64), &arguments)
    }

    /// Adds the column sums of `x` to `sums`.
    fn add_columns(&mut self, rows: usize, width: usize, x: &Values, sums: Slice<'_, f32>) -> Result<()> {
        let parts = rows.min(COLUMN_PARTS);
        let partials = reserve(&mut self.device, &mut self.partials, parts * width)?;
        let arguments = [partials.into(), x.half()?.into(), (rows as i32).into(), (width as i32).into()];
        let shape =
            Shape { grid: [width.div_ceil(256) as u32, parts as u32, 1], block: [256, 1, 1], shared: 0 };
        self.device.launch(&kernels::COLUMN_PARTIALS, shape, &arguments)?;
        self.add_partials(parts, width, sums)
    }
}

/// Why a decoder with these widths and heads cannot run on a device, if so.
pub fn refusal(widths: &[(&str, usize)], head: usize) -> Option<String> {
    match widths.iter().find(|(_, width)| !width.is_multiple_of(8)) {
        Some((name, width)) => Some(format!("{name} {width} is not a multiple of 8")),
        None if head > attention::WIDEST => {
            Some(format!("heads {head} wide are wider than {}", attention::WIDEST))
        }
        None => None,
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Buffer = Values;
    type Batch = Prepared;

    fn buffer(&mut self) -> Values {
        Values::Half(None)
    }

    fn statistics(&mut self) -> Values {
        Values::Single(None)
    }

    fn reserve(&mut self, buffer: &mut Values, length: usize) {
        self.attempt(|gpu| buffer.reserve(&mut gpu.device, length));
    }

    fn wait(&mut self) {
        self.attempt(|gpu| gpu.device.synchronize());
    }

    fn prepare(&mut self, batch: Batch) -> Prepared {
        let (mut prepared, integers) = Prepared::new(&batch);
        self.attempt(|gpu| {
            gpu.rotary.cover(&mut gpu.device, prepared.last_position + 1)?;
            prepared.upload(&mut gpu.device, &integers, gpu.integers)
        });
        prepared
    }

    fn embed(&mut self, batch: &Prepared, weights: &Values, table: Dense, out: &mut Values) {
        self.attempt(|gpu| {
            if batch.tokens == 0 {
                return Ok(());
            }
            let arguments = [
                out.half()?.into(),
                weights.half()?.slice(table.at..).into(),
                batch.ids()?.into(),
                (table.inputs as i32).into(),
            ];
            let shape = Shape::rows(batch.tokens as u32, threads(table.inputs));
            gpu.device.launch(&kernels::EMBED, shape, &arguments)
        });
    }

    fn embed_backward(&mut self, batch: &Prepared, d_out: &Values, gradients: &mut Values, table: Dense) {
        self.attempt(|gpu| {
            if batch.tokens == 0 {
                return Ok(());
            }
            let arguments = [
                gradients.single()?.slice(table.at..).into(),
                d_out.half()?.into(),
                batch.distinct()?.into(),
                batch.distinct_starts()?.into(),
                batch.distinct_nodes()?.into(),
                (table.inputs as i32).into(),
            ];
            let shape = Shape::rows(batch.distinct as u32, threads(table.inputs));
            gpu.device.launch(&kernels::EMBED_BACKWARD, shape, &arguments)
        });
    }

    fn rms_norm(
        &mut self,
        rows: usize,
        width: usize,
        x: &Values,
        weights: &Values,
        at: usize,
        epsilon: f32,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let arguments = [
                out.half()?.into(),
                x.half()?.into(),
                weights.half()?.slice(at..).into(),
                (width as i32).into(),
                epsilon.into(),
            ];
            gpu.device.launch(&kernels::RMS_NORM, Shape::rows(rows as u32, threads(width)), &arguments)
        });
    }

    fn rms_norm_backward(
        &mut self,
        rows: usize,
        width: usize,
        x: &Values,
        weights: &Values,
        at: usize,
        epsilon: f32,
        d_out: &Values,
        d_x: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let parts = rows.min(PARTS);
            let arguments = [
                d_x.half()?.into(),
                reserve(&mut gpu.device, &mut gpu.partials, parts * width)?.into(),
                d_out.half()?.into(),
                x.half()?.into(),
                weights.half()?.slice(at..).into(),
                (rows as i32).into(),
                (width as i32).into(),
                epsilon.into(),
            ];
            let shape = Shape::rows(parts as u32, threads(width)).shared((width * size_of::<f32>()) as u32);
            gpu.device.launch(&kernels::RMS_NORM_BACKWARD, shape, &arguments)?;
            match gradients {
                Some(gradients) => gpu.add_partials(parts, width, gradients.single()?.slice(at..at + width)),
                None => Ok(()),
            }
        });
    }

    fn linear(
        &mut self,
        rows: usize,
        x: &Values,
        weights: &Values,
        weight: Dense,
        residual: Option<&Values>,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let length = rows * weight.outputs;
            if let Some(residual) = residual {
                gpu.device.copy(residual.half()?.slice(..length), out.half()?.slice(..length))?;
            }
            let extent = [rows, weight.outputs, weight.inputs];
            let (x, out) = (matrix(x, rows, weight.inputs)?, matrix(out, rows, weight.outputs)?);
            let product = Gemm::new(x, tensor(weights, weight)?.transposed(), out, extent);
            gpu.device.gemm(&product.adding(residual.is_some()))
        });
    }

    fn linear_backward_input(
        &mut self,
        rows: usize,
        d_out: &Values,
        weights: &Values,
        weight: Dense,
        add: bool,
        d_x: &mut Values,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let extent = [rows, weight.inputs, weight.outputs];
            let (d_out, d_x) = (matrix(d_out, rows, weight.outputs)?, matrix(d_x, rows, weight.inputs)?);
            gpu.device.gemm(&Gemm::new(d_out, tensor(weights, weight)?, d_x, extent).adding(add))
        });
    }

    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Values,
        x: &Values,
        gradients: &mut Values,
        weight: Dense,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let extent = [weight.outputs, weight.inputs, rows];
            let (d_out, x) = (matrix(d_out, rows, weight.outputs)?, matrix(x, rows, weight.inputs)?);
            let range = weight.at..weight.at + weight.outputs * weight.inputs;
            let out = Operand::new(gradients.single()?.slice(range), weight.inputs);
            gpu.device.gemm(&Gemm::new(d_out.transposed(), x, out, extent).adding(true))
        });
    }

    fn rotate(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Values,
        projection: &mut Values,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            gpu.rotary.rotate(&mut gpu.device, (batch, rows), rotated, weights, projection, out)
        });
    }

    fn rotate_again(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Values,
        projection: &Values,
        out: &mut Values,
    ) {
        let rotated = Rotated { bias: None, ..rotated };
        self.attempt(|gpu| {
            gpu.rotary.rotate(&mut gpu.device, (batch, rows), rotated, weights, projection, out)
        });
    }

    fn rotate_backward(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Values,
        projection: &Values,
        d_out: &Values,
        d_projection: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            let count = batch.count(rows);
            if count == 0 {
                return Ok(());
            }
            let parts = (count * rotated.heads).div_ceil(rotary::WARPS).min(PARTS);
            let partials = reserve(&mut gpu.device, &mut gpu.partials, parts * rotated.width)?;
            let sources = [weights, projection, d_out];
            let device = &mut gpu.device;
            gpu.rotary.backward(device, (batch, rows), rotated, sources, d_projection, partials)?;
            let Some(gradients) = gradients else { return Ok(()) };
            let gradients = gradients.single()?;
            if let Some(at) = rotated.norm {
                gpu.add_partials(parts, rotated.width, gradients.slice(at..at + rotated.width))?;
            }
            if let Some(at) = rotated.bias {
                let sums = gradients.slice(at..at + rotated.stride);
                gpu.add_columns(count, rotated.stride, d_projection, sums)?;
            }
            Ok(())
        });
    }

    fn attention(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        heads: Heads,
        queries: &Values,
        keys: &Values,
        projection: &Values,
        out: &mut Values,
        normalizers: &mut Values,
    ) {
        self.attempt(|gpu| {
            if batch.count(rows) == 0 {
                return Ok(());
            }
            let (queries, keys, projection) = (queries.half()?, keys.half()?, projection.half()?);
            let inputs = attention::Inputs { batch, rows, heads, queries, keys, projection };
            attention::forward(&mut gpu.device, inputs, out.half()?, normalizers.single()?)
        });
    }

    fn attention_backward(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        heads: Heads,
        queries: &Values,
        keys: &Values,
        projection: &Values,
        out: &Values,
        normalizers: &Values,
        d_out: &Values,
        d_queries: &mut Values,
        d_keys: &mut Values,
        d_projection: &mut Values,
    ) {
        self.attempt(|gpu| {
            if batch.tokens == 0 {
                return Ok(());
            }
            let (queries, keys, projection) = (queries.half()?, keys.half()?, projection.half()?);
            let inputs = attention::Inputs { batch, rows, heads, queries, keys, projection };
            let count = batch.count(rows) * heads.queries;
            let outputs = attention::Outputs {
                out: out.half()?,
                normalizers: normalizers.single()?,
                d_out: d_out.half()?,
                deltas: reserve(&mut gpu.device, &mut gpu.deltas, count)?.into(),
            };
            let gradients = [d_queries.half()?, d_keys.half()?, d_projection.half()?];
            attention::backward(&mut gpu.device, inputs, outputs, gradients)
        });
    }

    fn swiglu(&mut self, rows: usize, width: usize, gate_up: &Values, out: &mut Values) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let pairs = (rows * width / 2) as u64;
            let arguments = [out.half()?.into(), gate_up.half()?.into(), pairs.into(), (width as i32).into()];
            gpu.device.launch(&kernels::SWIGLU, Shape::values(pairs), &arguments)
        });
    }

    fn swiglu_backward(
        &mut self,
        rows: usize,
        width: usize,
        gate_up: &mut Values,
        d_out: &Values,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            if rows == 0 {
                return Ok(());
            }
            let pairs = (rows * width / 2) as u64;
            let arguments = [
                gate_up.half()?.into(),
                out.half()?.into(),
                d_out.half()?.into(),
                pairs.into(),
                (width as i32).into(),
            ];
            gpu.device.launch(&kernels::SWIGLU_BACKWARD, Shape::values(pairs), &arguments)
        });
    }

    fn gather(&mut self, batch: &Prepared, width: usize, x: &Values, out: &mut Values) {
        self.attempt(|gpu| {
            if batch.scored == 0 {
                return Ok(());
            }
            let nodes = batch.nodes(Rows::Scored)?;
            let arguments = [out.half()?.into(), x.half()?.into(), nodes.into(), (width as i32).into()];
            let shape = Shape::rows(batch.scored as u32, threads(width));
            gpu.device.launch(&kernels::GATHER_ROWS, shape, &arguments)
        });
    }

    fn scatter_add(&mut self, batch: &Prepared, width: usize, rows: &Values, x: &mut Values) {
        self.attempt(|gpu| {
            if batch.scored == 0 {
                return Ok(());
            }
            let nodes = batch.nodes(Rows::Scored)?;
            let arguments = [x.half()?.into(), rows.half()?.into(), nodes.into(), (width as i32).into()];
            let shape = Shape::rows(batch.scored as u32, threads(width));
            gpu.device.launch(&kernels::SCATTER_ADD_ROWS, shape, &arguments)
        });
    }

    fn clear(&mut self, length: usize, buffer: &mut Values) {
        self.attempt(|gpu| match buffer {
            Values::Half(_) => gpu.device.clear(buffer.half()?.slice(..length)),
            Values::Single(_) => gpu.device.clear(buffer.single()?.slice(..length)),
        });
    }

    fn score(
        &mut self,
        batch: &Prepared,
        hidden: &Values,
        weights: &Values,
        head: Head,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        self.attempt(|gpu| {
            let inputs = score::Inputs { batch, hidden: hidden.half()?, weights: weights.half()?, head };
            gpu.scorer.score(&mut gpu.device, inputs, logprobs, entropies)
        });
    }

    fn score_backward(
        &mut self,
        batch: &Prepared,
        hidden: &Values,
        weights: &Values,
        head: Head,
        d_logprobs: &[f32],
        d_hidden: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            let inputs = score::Inputs { batch, hidden: hidden.half()?, weights: weights.half()?, head };
            let gradients = gradients.as_deref().map(Values::single).transpose()?;
            gpu.scorer.score_backward(&mut gpu.device, inputs, d_logprobs, d_hidden.half()?, gradients)
        });
    }
}
