//! The device backend: bf16 weights and activations, f32 sums and residual stream, CUDA kernels and the device's matrix
//! products.
//!
//! Operations are asked for in order and run in order; none waits. An operation that fails stops all that follow, and
//! [`Gpu::outcome`] says why: the model above asks once a micro-batch instead of after every operation.
//!
//! The addition to the residual stream is part of the product before it (in its epilogue), that to the stream's gradient
//! part of the norm's backward kernel. Left out: head, residual and MLP widths that 8 does not divide (vector
//! loads and tensor cores want 16 bytes), and heads wider than 256.

mod attention;
mod batch;
mod host;
mod products;
mod room;
mod rotary;
mod rows;
mod score;
mod sums;
mod swiglu;
mod values;

use device::{Buffer, Device, Shape};
use record::failure::{Failure, Result};

use sums::PARTS;

use super::{Backend, Batch, Dense, Head, Heads, Rotated, Rows};
use crate::kernels;

pub use batch::Prepared;
pub use room::{Extent, Room};
pub use values::Values;
pub(crate) use values::reserve;

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

    /// Does `work` unless something failed before.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none()
            && let Err(failure) = work(self)
        {
            self.failure = Some(failure);
        }
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
    const NARROW: bool = true;

    fn buffer(&mut self) -> Values {
        Values::Half(None)
    }

    fn statistics(&mut self) -> Values {
        Values::Single(None)
    }

    fn reserve(&mut self, buffer: &mut Values, length: usize) {
        self.attempt(|gpu| buffer.reserve(&mut gpu.device, length));
    }

    fn as_activations<'a>(&mut self, length: usize, values: &'a Values, copy: &'a mut Values) -> &'a Values {
        self.attempt(|gpu| rows::round(&mut gpu.device, length, values, copy));
        copy
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
        self.attempt(|gpu| rows::embed(&mut gpu.device, batch, weights, table, out));
    }

    fn embed_backward(&mut self, batch: &Prepared, d_out: &Values, gradients: &mut Values, table: Dense) {
        self.attempt(|gpu| rows::embed_backward(&mut gpu.device, batch, d_out, gradients, table));
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
                x.single()?.into(),
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
                d_x.single()?.into(),
                reserve(&mut gpu.device, &mut gpu.partials, parts * width)?.into(),
                d_out.single()?.into(),
                x.single()?.into(),
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
        self.attempt(|gpu| products::forward(&mut gpu.device, rows, x, (weights, weight), residual, out));
    }

    fn linear_add(&mut self, rows: usize, x: &Values, weights: &Values, weight: Dense, out: &mut Values) {
        self.attempt(|gpu| products::onto(&mut gpu.device, rows, x, (weights, weight), true, out));
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
        self.attempt(|gpu| products::by_input(&mut gpu.device, rows, d_out, (weights, weight), add, d_x));
    }

    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Values,
        x: &Values,
        gradients: &mut Values,
        weight: Dense,
    ) {
        self.attempt(|gpu| products::by_weight(&mut gpu.device, rows, d_out, x, gradients, weight));
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
            let gradients = (d_queries.single()?, d_keys.single()?, d_projection.half()?);
            attention::backward(&mut gpu.device, inputs, outputs, gradients)
        });
    }

    fn swiglu(&mut self, rows: usize, width: usize, gate_up: &Values, out: &mut Values) {
        self.attempt(|gpu| swiglu::forward(&mut gpu.device, rows, width, gate_up, out));
    }

    fn swiglu_backward(
        &mut self,
        rows: usize,
        width: usize,
        gate_up: &mut Values,
        d_out: &Values,
        out: &mut Values,
    ) {
        self.attempt(|gpu| swiglu::backward(&mut gpu.device, rows, width, gate_up, d_out, out));
    }

    fn gather(&mut self, batch: &Prepared, width: usize, x: &Values, out: &mut Values) {
        self.attempt(|gpu| rows::gather(&mut gpu.device, batch, width, x, out));
    }

    fn scatter_add(&mut self, batch: &Prepared, width: usize, rows: &Values, x: &mut Values) {
        self.attempt(|gpu| rows::scatter_add(&mut gpu.device, batch, width, rows, x));
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
            gpu.scorer.score_backward(&mut gpu.device, inputs, d_logprobs, d_hidden.single()?, gradients)
        });
    }
}
