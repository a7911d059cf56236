//! The GPU backend: bf16 or f16 weights and activations, f32 sums and residual stream, CUDA kernels and cuBLASLt.
//!
//! Work is enqueued in order and nothing waits for it. An operation that fails disables all that follow, and
//! [`Gpu::check`] returns its error: the model asks once a micro-batch instead of after every operation.
//!
//! The GEMM before a residual addition adds it as well; its gradient is added by the norm's backward kernel.
//! Left out: hidden, head and MLP widths that are not multiples of 8 (vector loads and tensor cores want 16 bytes),
//! and heads wider than 256.

mod attention;
mod device_batch;
mod linear;
mod lm_head;
mod qk_norm_rope;
mod rms_norm;
mod values;
mod workspace;

use device::{Argument, Buffer, Device, Kernel, Shape, Slice};
use policy::config::Config;
use record::failure::{Failure, Result};

use super::{
    Activation, Attention, AttentionGradients, AttentionOutput, Backend, Dense, Embedding, Linear, LmHead,
    MicroBatch, QkNormRope, RmsNorm, RowScores, Rows, ScoreGradient,
};
use crate::kernels;
use device_batch::{DeviceBatch, Table};
use qk_norm_rope::ProjectionGradient;

pub(crate) use values::reserve;
pub use values::{Half, Values, Windows};
pub use workspace::{MaxBatch, WorkspaceSizes};

/// Blocks that share the rows of column sums, each with a row of partial sums; a column of it is one thread's. Fixed, so that
/// sums do not depend on the GPU.
const COLUMN_PARTIALS: usize = 64;
/// Multiprocessors that kernels fill whose blocks share rows and leave partial sums. Fixed, so that sums do not depend on the
/// GPU. An A100 has 108 and an H100 132: all blocks run at once.
const MULTIPROCESSORS: usize = 96;
/// Columns of partial sums that a block adds up, and its threads: eight warps, as the kernel says.
const ADDED_COLUMNS: usize = 32;
const ADDING_THREADS: u32 = 256;

/// A device that a decoder runs on.
pub struct Gpu<D: Device> {
    pub device: D,
    /// The type of weights and activations.
    half: Half,
    rope: qk_norm_rope::DeviceRopeCache,
    partials: Option<Buffer<f32>>,
    deltas: Option<Buffer<f32>>,
    lm_head: lm_head::Workspace,
    /// Integers that a micro-batch's tables are given at least.
    integers: usize,
    failure: Option<Failure>,
}

/// Threads of a block for rows of `width` values, two a thread.
fn threads(width: usize) -> u32 {
    (width / 2).next_multiple_of(32).clamp(32, 256) as u32
}

/// Runs a kernel, unless its grid is empty.
fn launch<D: Device>(
    device: &mut D,
    kernel: &'static Kernel,
    shape: Shape,
    arguments: &[Argument],
) -> Result<()> {
    if shape.grid.contains(&0) { Ok(()) } else { device.launch(kernel, shape, arguments) }
}

impl<D: Device> Gpu<D> {
    /// A device for heads with these RoPE frequencies, radians a position. Its arena must be reserved before the first
    /// operation.
    pub fn new(device: D, inverse_frequencies: &[f32]) -> Gpu<D> {
        let rope = qk_norm_rope::DeviceRopeCache::new(inverse_frequencies);
        let half = Half::default();
        let lm_head = lm_head::Workspace::of(half);
        Gpu { device, half, rope, partials: None, deltas: None, lm_head, integers: 0, failure: None }
    }

    /// Computes in another 16-bit type than bf16.
    pub fn computing_in(self, half: Half) -> Gpu<D> {
        Gpu { half, lm_head: lm_head::Workspace::of(half), ..self }
    }

    /// Multiplies the cosines and sines of RoPE by a factor.
    pub fn scaling_rope(self, attention_factor: f32) -> Gpu<D> {
        Gpu { rope: self.rope.scaled(attention_factor), ..self }
    }

    /// Allocates the workspace for micro-batches up to `max`, so that nothing grows later.
    pub fn reserve_workspace(&mut self, max: &MaxBatch) -> Result<()> {
        let sizes = WorkspaceSizes::of(max);
        self.integers = sizes.integers;
        for (buffer, length) in [(&mut self.partials, sizes.partials), (&mut self.deltas, sizes.deltas)] {
            if length > 0 {
                reserve(&mut self.device, buffer, length)?;
            }
        }
        self.rope.extend_to(&mut self.device, max.positions)?;
        self.lm_head.reserve(&mut self.device, &sizes)
    }

    /// The first failure since the last call.
    pub fn check(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Fills a buffer from the host, rounding where it holds 16 bits.
    pub fn write(&mut self, from: &[f32], to: &mut Values) {
        self.attempt(|gpu| to.write(&mut gpu.device, from));
    }

    /// Reads the first `to.len()` values of a buffer.
    pub fn read(&mut self, from: &Values, to: &mut [f32]) {
        self.attempt(|gpu| from.read(&mut gpu.device, to));
    }

    /// Does `work` unless something failed before.
    pub(crate) fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
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
        let shape = Shape::rows(width.div_ceil(ADDED_COLUMNS) as u32, ADDING_THREADS);
        launch(&mut self.device, &kernels::ADD_PARTIALS, shape, &arguments)
    }

    /// Adds the column sums of `x` to `sums`.
    fn add_columns(&mut self, rows: usize, width: usize, x: &Values, sums: Slice<'_, f32>) -> Result<()> {
        let parts = rows.min(COLUMN_PARTIALS);
        let partials = reserve(&mut self.device, &mut self.partials, parts * width)?;
        let arguments = [partials.into(), x.half()?.into(), (rows as i32).into(), (width as i32).into()];
        let shape =
            Shape { grid: [width.div_ceil(256) as u32, parts as u32, 1], block: [256, 1, 1], shared: 0 };
        launch(&mut self.device, &kernels::COLUMN_PARTIALS, shape, &arguments)?;
        self.add_partials(parts, width, sums)
    }
}

/// Why the kernels cannot run a decoder, if so.
pub(crate) fn unsupported(config: &Config) -> Option<String> {
    let head = config.head_dim;
    let widths = [
        ("hidden size", config.hidden_size),
        ("intermediate size", config.intermediate_size),
        ("head size", head),
    ];
    if let Some(what) = policy::graph::unsupported_on_devices(config) {
        return Some(format!("{} has {what}", config.family));
    }
    match widths.iter().find(|(_, width)| !width.is_multiple_of(8)) {
        Some((name, width)) => Some(format!("{name} {width} is not a multiple of 8")),
        None => (head > attention::MAX_WIDTH)
            .then(|| format!("heads {head} wide are wider than {}", attention::MAX_WIDTH)),
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Buffer = Values;
    type Batch = DeviceBatch;
    const LOW_PRECISION: bool = true;
    const SCORES_WITH_GRADIENT: bool = true;

    fn buffer(&mut self) -> Values {
        Values::of(self.half)
    }

    fn f32_buffer(&mut self) -> Values {
        Values::Single(None)
    }

    fn reserve(&mut self, buffer: &mut Values, length: usize) {
        self.attempt(|gpu| buffer.reserve(&mut gpu.device, length));
    }

    fn cast_for_gemm<'a>(&mut self, length: usize, values: &'a Values, copy: &'a mut Values) -> &'a Values {
        self.attempt(|gpu| {
            let pairs = (length / 2) as u64;
            let arguments = [copy.half()?.into(), values.single()?.into(), pairs.into()];
            gpu.device.launch(&kernels::ROUND_VALUES, Shape::values(pairs), &arguments)
        });
        copy
    }

    fn synchronize(&mut self) {
        self.attempt(|gpu| gpu.device.synchronize());
    }

    fn prepare(&mut self, batch: MicroBatch) -> DeviceBatch {
        let (mut prepared, integers) = DeviceBatch::new(&batch);
        self.attempt(|gpu| {
            gpu.rope.extend_to(&mut gpu.device, prepared.last_position + 1)?;
            prepared.upload(&mut gpu.device, &integers, gpu.integers)
        });
        prepared
    }

    fn embed(
        &mut self,
        batch: &DeviceBatch,
        weights: &Values,
        Embedding { table, .. }: Embedding,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            let arguments = [
                out.single()?.into(),
                weights.half()?.slice(table.offset..).into(),
                batch.table(Table::Ids)?.into(),
                (table.inputs as i32).into(),
            ];
            let shape = Shape::rows(batch.tokens as u32, threads(table.inputs));
            launch(&mut gpu.device, &kernels::EMBED, shape, &arguments)
        });
    }

    fn embed_backward(
        &mut self,
        batch: &DeviceBatch,
        d_out: &Values,
        gradients: &mut Values,
        Embedding { table, .. }: Embedding,
    ) {
        self.attempt(|gpu| {
            let arguments = [
                gradients.gradient(table.range())?.into(),
                d_out.single()?.into(),
                batch.table(Table::Distinct)?.into(),
                batch.table(Table::DistinctStarts)?.into(),
                batch.table(Table::DistinctNodes)?.into(),
                (table.inputs as i32).into(),
            ];
            let shape = Shape::rows(batch.distinct as u32, threads(table.inputs));
            launch(&mut gpu.device, &kernels::EMBED_BACKWARD, shape, &arguments)
        });
    }

    fn rms_norm(&mut self, norm: &RmsNorm<Values>, out: &mut Values) {
        self.attempt(|gpu| rms_norm::forward(&mut gpu.device, norm, out));
    }

    fn rms_norm_backward(
        &mut self,
        norm: &RmsNorm<Values>,
        d_out: &Values,
        d_x: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            let RmsNorm { rows, width, offset, .. } = *norm;
            let parts = rms_norm::backward_blocks(rows, width);
            let partials = reserve(&mut gpu.device, &mut gpu.partials, parts * width)?;
            rms_norm::backward(&mut gpu.device, norm, d_out, d_x, partials)?;
            match gradients {
                Some(gradients) => {
                    gpu.add_partials(parts, width, gradients.gradient(offset..offset + width)?)
                }
                None => Ok(()),
            }
        });
    }

    fn linear(&mut self, op: &Linear<Values>, x: &Values, residual: Option<&Values>, out: &mut Values) {
        self.attempt(|gpu| linear::forward(&mut gpu.device, op, x, residual, out));
    }

    fn linear_add(&mut self, op: &Linear<Values>, x: &Values, out: &mut Values) {
        self.attempt(|gpu| linear::forward(&mut gpu.device, op, x, Some(out), out));
    }

    fn linear_backward_input(&mut self, op: &Linear<Values>, d_out: &Values, add: bool, d_x: &mut Values) {
        self.attempt(|gpu| linear::backward_input(&mut gpu.device, op, d_out, add, d_x));
    }

    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Values,
        x: &Values,
        gradients: &mut Values,
        weight: Dense,
    ) {
        self.attempt(|gpu| linear::backward_weight(&mut gpu.device, rows, d_out, x, gradients, weight));
    }

    fn qk_norm_rope(
        &mut self,
        batch: &DeviceBatch,
        op: &QkNormRope<Values>,
        projection: &mut Values,
        out: &mut Values,
    ) {
        self.attempt(|gpu| gpu.rope.forward(&mut gpu.device, batch, op, projection, out));
    }

    fn qk_norm_rope_backward(
        &mut self,
        batch: &DeviceBatch,
        op: &QkNormRope<Values>,
        projection: &Values,
        d_out: &Values,
        d_projection: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            let rows = batch.count(op.rows);
            let parts = qk_norm_rope::backward_blocks(rows, op.heads);
            let partials = reserve(&mut gpu.device, &mut gpu.partials, parts * op.width)?;
            let values = ProjectionGradient { projection, d_out, d_projection };
            gpu.rope.backward(&mut gpu.device, batch, op, values, partials)?;
            let Some(gradients) = gradients else { return Ok(()) };
            if let Some(offset) = op.norm {
                gpu.add_partials(parts, op.width, gradients.gradient(offset..offset + op.width)?)?;
            }
            if let Some(offset) = op.bias {
                let sums = gradients.gradient(offset..offset + op.stride)?;
                gpu.add_columns(rows, op.stride, d_projection, sums)?;
            }
            Ok(())
        });
    }

    fn attention(&mut self, batch: &DeviceBatch, op: &Attention<Values>, out: &mut Values, lse: &mut Values) {
        self.attempt(|gpu| attention::forward(&mut gpu.device, batch, op, out, lse));
    }

    fn attention_backward(
        &mut self,
        batch: &DeviceBatch,
        op: &Attention<Values>,
        output: AttentionOutput<Values>,
        gradients: AttentionGradients<Values>,
    ) {
        self.attempt(|gpu| {
            let count = batch.count(op.rows) * op.heads.queries;
            let deltas = reserve(&mut gpu.device, &mut gpu.deltas, count)?;
            attention::backward(&mut gpu.device, batch, op, output, gradients, deltas)
        });
    }

    fn swiglu(&mut self, _: Activation, rows: usize, width: usize, gate_up: &Values, out: &mut Values) {
        self.attempt(|gpu| {
            let arguments = [out.half()?.into(), gate_up.half()?.into(), (width as i32).into()];
            let shape = Shape::rows(rows as u32, threads(width / 4));
            launch(&mut gpu.device, &kernels::SWIGLU, shape, &arguments)
        });
    }

    fn swiglu_backward(
        &mut self,
        _: Activation,
        rows: usize,
        width: usize,
        gate_up: &mut Values,
        d_out: &Values,
        out: &mut Values,
    ) {
        self.attempt(|gpu| {
            let arguments =
                [gate_up.half()?.into(), out.half()?.into(), d_out.single()?.into(), (width as i32).into()];
            let shape = Shape::rows(rows as u32, threads(width / 4));
            launch(&mut gpu.device, &kernels::SWIGLU_BACKWARD, shape, &arguments)
        });
    }

    fn gather(&mut self, batch: &DeviceBatch, width: usize, x: &Values, out: &mut Values) {
        self.attempt(|gpu| {
            let (kernel, out, x) = match x {
                Values::Single(_) => (&kernels::GATHER_STREAM, out.single()?.into(), x.single()?.into()),
                _ => (&kernels::GATHER_ROWS, out.half()?.into(), x.half()?.into()),
            };
            let arguments = [out, x, batch.nodes(Rows::Scored)?.into(), (width as i32).into()];
            launch(&mut gpu.device, kernel, Shape::rows(batch.scored as u32, threads(width)), &arguments)
        });
    }

    fn scatter_add(&mut self, batch: &DeviceBatch, width: usize, rows: &Values, x: &mut Values) {
        self.attempt(|gpu| {
            let (kernel, x, rows) = match x {
                Values::Single(_) => {
                    (&kernels::SCATTER_ADD_STREAM, x.single()?.into(), rows.single()?.into())
                }
                _ => (&kernels::SCATTER_ADD_ROWS, x.half()?.into(), rows.half()?.into()),
            };
            let arguments = [x, rows, batch.nodes(Rows::Scored)?.into(), (width as i32).into()];
            launch(&mut gpu.device, kernel, Shape::rows(batch.scored as u32, threads(width)), &arguments)
        });
    }

    fn zero(&mut self, length: usize, buffer: &mut Values) {
        self.attempt(|gpu| buffer.clear(&mut gpu.device, length));
    }

    fn score(
        &mut self,
        batch: &DeviceBatch,
        head: &LmHead<Values>,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        self.attempt(|gpu| {
            let inputs = lm_head::Inputs::new(batch, head)?;
            gpu.lm_head.score(&mut gpu.device, inputs, logprobs, entropies)
        });
    }

    fn score_with_gradient(
        &mut self,
        batch: &DeviceBatch,
        head: &LmHead<Values>,
        scores: RowScores<'_>,
        derivative: &dyn Fn(usize, f32) -> f32,
        d_hidden: &mut Values,
        gradients: Option<&mut Values>,
    ) -> bool {
        let mut done = true;
        self.attempt(|gpu| {
            let inputs = lm_head::Inputs::new(batch, head)?;
            let (device, d_hidden) = (&mut gpu.device, d_hidden.single()?);
            let gradients = gradients.as_deref().map(|all| all.gradient(head.weight.range())).transpose()?;
            done =
                gpu.lm_head.score_with_gradient(device, inputs, scores, derivative, d_hidden, gradients)?;
            Ok(())
        });
        done
    }

    fn score_backward(
        &mut self,
        batch: &DeviceBatch,
        head: &LmHead<Values>,
        gradient: ScoreGradient<'_>,
        d_hidden: &mut Values,
        gradients: Option<&mut Values>,
    ) {
        self.attempt(|gpu| {
            let inputs = lm_head::Inputs::new(batch, head)?;
            let gradients = gradients.as_deref().map(|all| all.gradient(head.weight.range())).transpose()?;
            gpu.lm_head.score_backward(&mut gpu.device, inputs, gradient, d_hidden.single()?, gradients)
        });
    }
}
