//! A decoder with weights and gradients in a device's memory.
//!
//! Master weights are f32 in two parts: the bf16 or f16 that the passes read, and a remainder that only the
//! optimizer sees (`kernels/masters.cu`). Under an adapter they are frozen; the gradient covers its packed factors, and the
//! adapter's few f32 values stay on the host. One stream of work takes the micro-batches in order, so the
//! gradient is summed in one order too.

use std::ops::Range;
use std::sync::Arc;

use device::{AnySlice, Buffer, Device, Shape as LaunchShape};
use policy::config::Config;
use policy::publish::PIECE;
use record::failure::{Failure, Result};
use record::stage;

use super::memory::{MemoryPlan, NORM_BLOCKS, STAGING};
use super::pass::Decoder;
use super::worker::{Spent, Worker};
use super::workspace::{self, Counts};
use super::{Layout, LoraAdapter, RowLoss, Scores, Source};
use crate::backend::{Backend, Gpu, Half, Values, unsupported};
use crate::kernels;
use crate::tree::Tree;

/// A decoder on a device. Every method fails if the device does, or did before.
pub struct DeviceModel<D: Device> {
    config: Config,
    layout: Arc<Layout>,
    /// Trained instead of the weights; `gradients` then belong to its packed factors.
    adapter: Option<LoraAdapter>,
    worker: Worker<Gpu<D>>,
    half: Half,
    weights: Values,
    /// For frozen weights only room for one piece, which is never read.
    remainders: Remainders,
    /// For each tensor of the layout, true if it is published in bf16.
    narrow: Vec<bool>,
    /// `None` if nothing is trained.
    gradients: Option<Values>,
    staging: Buffer<f32>,
    sums: Buffer<f32>,
    tokens: usize,
}

/// The remainders that complete the weights to their masters.
enum Remainders {
    Bf16(Buffer<i16>),
    F16(Buffer<f32>),
}

impl Remainders {
    fn allocate<D: Device>(device: &mut D, half: Half, length: usize) -> Result<Remainders> {
        Ok(match half {
            Half::BFloat16 => Remainders::Bf16(device.allocate(length)?),
            Half::Float16 => Remainders::F16(device.allocate(length)?),
        })
    }

    fn all(&self) -> AnySlice<'_> {
        match self {
            Remainders::Bf16(buffer) => buffer.into(),
            Remainders::F16(buffer) => buffer.into(),
        }
    }
}

/// Splits a range of weights where the published type changes; true marks bf16.
fn published_alike(layout: &Layout, narrow: &[bool], range: Range<usize>) -> Vec<(Range<usize>, bool)> {
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (entry, &narrow) in layout.entries.iter().zip(narrow) {
        let own = entry.range.start.max(range.start)..entry.range.end.min(range.end);
        match parts.last_mut() {
            _ if own.is_empty() => {}
            Some((last, same)) if *same == narrow && last.end == own.start => last.end = own.end,
            _ => parts.push((own, narrow)),
        }
    }
    parts
}

/// Fails for a value that has no number in the type that the passes compute in.
fn check_range(half: Half, name: &str, values: &[f32]) -> Result<()> {
    half.overflow(values).map_or(Ok(()), |value| {
        Err(Failure::work(format!("{name} has {value:.2e}, beyond float16, of which 65504 is the largest"))
            .hint("use --dtype bfloat16, for rollout too"))
    })
}

/// Consecutive trees of at most `limit` tokens; a larger tree is a separate micro-batch.
fn micro_batches(trees: &[Tree], limit: usize) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (index, tree) in trees.iter().enumerate() {
        match batches.last_mut() {
            Some(batch) if tokens + tree.len() <= limit => {
                batch.end = index + 1;
                tokens += tree.len();
            }
            _ => {
                batches.push(index..index + 1);
                tokens = tree.len();
            }
        }
    }
    batches
}

/// Checks that the kernels can run a decoder, and an adapter over it.
///
/// # Errors
/// A width that they do not take (2).
pub fn check(config: &Config, adapter: Option<&LoraAdapter>) -> Result<()> {
    if adapter.is_some_and(|adapter| !adapter.is_multiple(8)) {
        return Err(Failure::usage("this adapter cannot run on a device: its rank is not a multiple of 8")
            .hint("use --device cpu"));
    }
    unsupported(config).map_or(Ok(()), |cause| {
        Err(Failure::usage(format!("this policy cannot run on a device: {cause}")).hint("use --device cpu"))
    })
}

impl<D: Device> DeviceModel<D> {
    /// Loads a decoder onto a device that has no memory reserved yet. With an adapter and its values, only
    /// the adapter is trained.
    ///
    /// # Errors
    /// A width that the kernels do not take (2), memory (69), or errors of reading the master weights.
    pub fn new(
        mut device: D,
        config: &Config,
        adapter: Option<(&LoraAdapter, &[f32])>,
        masters: &dyn Source,
        plan: &MemoryPlan,
    ) -> Result<DeviceModel<D>> {
        let (adapter, values) = adapter.unzip();
        check(config, adapter)?;
        device.reserve(plan.bytes.total)?;
        let learns = plan.request.moments.is_some();
        let layout = masters.layout().clone();
        let length = layout.len();
        let piece = STAGING.min(length);
        let half = plan.request.half;
        let kept = if learns && adapter.is_none() { length } else { piece };
        let remainders = Remainders::allocate(&mut device, half, kept)?;
        let staging = device.allocate(piece)?;
        let sums = device.allocate(NORM_BLOCKS)?;
        let rope = &config.ropes()[0];
        let gpu = Gpu::new(device, &rope.frequencies).scaling_rope(rope.attention_factor);
        let mut gpu = gpu.computing_in(half);
        let mut weights = gpu.buffer();
        gpu.reserve(&mut weights, length);
        let gradients = learns.then(|| {
            let mut gradients = gpu.f32_buffer();
            gpu.reserve(&mut gradients, adapter.map_or(length, LoraAdapter::len));
            gradients
        });
        gpu.reserve_workspace(&plan.max_batch(config))?;
        let mut worker = Worker::new(gpu, config, plan.recompute);
        worker.reserve(workspace::Batch {
            config,
            adapter,
            counts: Counts { tokens: plan.tokens, scored: plan.tokens },
            recompute: plan.recompute,
            backward: learns,
        });
        worker.backend.check()?;
        let (tokens, config, adapter) = (plan.tokens, config.clone(), adapter.cloned());
        let narrow = layout.entries.iter().map(|entry| masters.is_bf16(entry)).collect();
        let mut model = DeviceModel {
            config,
            layout,
            adapter,
            worker,
            half,
            weights,
            remainders,
            narrow,
            gradients,
            staging,
            sums,
            tokens,
        };
        model.set_masters(masters)?;
        if let Some(values) = values {
            model.set_adapter(values)?;
        }
        if learns {
            model.clear_gradients()?;
        }
        Ok(model)
    }

    pub fn device(&mut self) -> &mut D {
        &mut self.worker.backend.device
    }

    /// Where each tensor lies.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Time spent in the passes since this was last asked.
    pub fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.worker.spent)
    }

    /// Weights, remainders and gradients, for the optimizer.
    pub(crate) fn optimizer_tensors(&mut self) -> Result<OptimizerTensors<'_, D>> {
        Ok(OptimizerTensors {
            device: &mut self.worker.backend.device,
            weights: self.weights.half()?,
            remainders: self.remainders.all(),
            layout: &self.layout,
            narrow: &self.narrow,
            gradients: self.gradients.as_ref().ok_or_else(frozen)?.single()?,
        })
    }

    /// Loads the f32 master weights, a piece at a time.
    fn set_masters(&mut self, masters: &dyn Source) -> Result<()> {
        let largest = PIECE.min(self.staging.len());
        let mut values = vec![0.0; largest];
        for entry in &self.layout.clone().entries {
            for (place, start) in entry.range.clone().step_by(largest).enumerate() {
                let piece = &mut values[..largest.min(entry.range.end - start)];
                masters.read(entry, place * largest, piece)?;
                check_range(self.half, &entry.name, piece)?;
                self.replace_masters(start, piece)?;
            }
        }
        Ok(())
    }

    /// Replaces f32 master weights, from index `from` of the flat array on.
    pub fn replace_masters(&mut self, from: usize, masters: &[f32]) -> Result<()> {
        let device = &mut self.worker.backend.device;
        let (weights, remainders) = (self.weights.half()?, self.remainders.all());
        let moving = self.gradients.is_some() && self.adapter.is_none();
        for (index, piece) in masters.chunks(self.staging.len()).enumerate() {
            let start = from + index * self.staging.len();
            device.upload(piece, self.staging.slice(..piece.len()))?;
            for (range, narrow) in published_alike(&self.layout, &self.narrow, start..start + piece.len()) {
                let place = range.start - start..range.end - start;
                let arguments = [
                    weights.slice(range.clone()).into(),
                    remainders.slice(if moving { range } else { place.clone() }).into(),
                    self.staging.slice(place.clone()).into(),
                    (place.len() as u64).into(),
                    i32::from(narrow).into(),
                ];
                device.launch(&kernels::SPLIT_MASTERS, passing(place.len()), &arguments)?;
            }
        }
        Ok(())
    }

    /// Copies `masters.len()` f32 master weights to the host, from index `from` of the flat array on.
    pub fn masters(&mut self, from: usize, masters: &mut [f32]) -> Result<()> {
        self.gradients.as_ref().filter(|_| self.adapter.is_none()).ok_or_else(frozen)?;
        let device = &mut self.worker.backend.device;
        let (weights, remainders) = (self.weights.half()?, self.remainders.all());
        for (index, piece) in masters.chunks_mut(self.staging.len()).enumerate() {
            let start = from + index * self.staging.len();
            let range = start..start + piece.len();
            let arguments = [
                (&self.staging).into(),
                weights.slice(range.clone()).into(),
                remainders.slice(range).into(),
                (piece.len() as u64).into(),
            ];
            device.launch(&kernels::MERGE_MASTERS, passing(piece.len()), &arguments)?;
            device.download(self.staging.slice(..piece.len()), piece)?;
            let entry = self.layout.entries.iter().find(|entry| entry.range.contains(&start));
            check_range(self.half, entry.map_or("a weight", |entry| &entry.name), piece)?;
        }
        Ok(())
    }

    /// Replaces the adapter's values.
    pub fn set_adapter(&mut self, trained: &[f32]) -> Result<()> {
        if let Some(adapter) = &self.adapter {
            for entry in &adapter.layout().entries {
                check_range(self.half, &entry.name, &trained[entry.range.clone()])?;
            }
            let factors = adapter.packed(trained);
            self.worker.set_factors(|gpu, place| gpu.write(&factors, place));
        }
        self.worker.backend.check()
    }

    /// Copies the gradient to the host.
    pub fn gradients(&mut self, gradients: &mut [f32]) -> Result<()> {
        let on_device = self.gradients.as_ref().ok_or_else(frozen)?;
        let Some(adapter) = &self.adapter else {
            self.worker.backend.read(on_device, gradients);
            return self.worker.backend.check();
        };
        let mut factors = vec![0.0; adapter.len()];
        self.worker.backend.read(on_device, &mut factors);
        gradients.fill(0.0);
        adapter.unpack_gradient(&factors, gradients);
        self.worker.backend.check()
    }

    /// Replaces the gradient of all weights.
    pub fn set_gradients(&mut self, gradients: &[f32]) -> Result<()> {
        self.worker.backend.write(gradients, self.gradients.as_mut().ok_or_else(frozen)?);
        self.worker.backend.check()
    }

    /// Sets the gradients to zero.
    pub fn clear_gradients(&mut self) -> Result<()> {
        let length = self.adapter.as_ref().map_or(self.layout.len(), LoraAdapter::len);
        self.worker.backend.zero(length, self.gradients.as_mut().ok_or_else(frozen)?);
        self.worker.backend.check()
    }

    /// The global L2 norm of the gradients; not finite if one of them is not.
    pub fn gradient_norm(&mut self) -> Result<f64> {
        let device = &mut self.worker.backend.device;
        let length = self.layout.len() as u64;
        let gradients = self.gradients.as_ref().ok_or_else(frozen)?.single()?;
        let arguments = [(&self.sums).into(), gradients.into(), length.into()];
        device.launch(&kernels::SQUARE_SUMS, LaunchShape::rows(NORM_BLOCKS as u32, 256), &arguments)?;
        let mut sums = vec![0.0f32; NORM_BLOCKS];
        device.download(self.sums.all(), &mut sums)?;
        Ok(sums.iter().map(|&sum| f64::from(sum)).sum::<f64>().sqrt())
    }

    /// Log-probabilities and entropies of every tree's loss rows, without a gradient.
    pub fn logprobs(&mut self, trees: &[Tree], temperature: f32) -> Result<Vec<Scores>> {
        self.each_micro_batch(trees, temperature, None)
    }

    /// Adds the gradient of `loss` over all trees, and returns the scores of the forward pass.
    pub fn accumulate(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
    ) -> Result<Vec<Scores>> {
        self.each_micro_batch(trees, temperature, Some(loss))
    }

    fn each_micro_batch(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: Option<&dyn RowLoss>,
    ) -> Result<Vec<Scores>> {
        let (config, layout, adapter) = (&self.config, &self.layout, self.adapter.as_ref());
        let decoder = Decoder { config, layout, adapter, temperature };
        let mut found = Vec::with_capacity(trees.len());
        for range in micro_batches(trees, self.tokens) {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let (first, trees) = (range.start, &trees[range]);
            found.extend(match loss {
                None => self.worker.score(&decoder, &self.weights, trees, None).0,
                Some(loss) => {
                    let gradients = self.gradients.as_mut().ok_or_else(frozen)?;
                    self.worker.differentiate(&decoder, &self.weights, first, trees, gradients, loss)
                }
            });
            self.worker.backend.check()?;
        }
        Ok(found)
    }
}

/// What an optimizer updates, and from what.
pub(crate) struct OptimizerTensors<'a, D: Device> {
    pub device: &'a mut D,
    /// The master weights, rounded.
    pub weights: AnySlice<'a>,
    /// The remainders that complete them.
    pub remainders: AnySlice<'a>,
    layout: &'a Layout,
    narrow: &'a [bool],
    /// Gradient of each weight.
    pub gradients: device::Slice<'a, f32>,
}

impl<D: Device> OptimizerTensors<'_, D> {
    /// Splits a range of weights where the published type changes; true marks bf16.
    pub fn published_alike(&self, range: Range<usize>) -> Vec<(Range<usize>, bool)> {
        published_alike(self.layout, self.narrow, range)
    }
}

/// Launch shape of an elementwise kernel with a grid-stride loop.
pub(crate) fn elementwise(length: usize) -> LaunchShape {
    LaunchShape::rows(length.div_ceil(256).clamp(1, 8192) as u32, 256)
}

/// Launch shape for values on the way from or to the host, eight per thread: the transfer takes longer than
/// any kernel, and the simulator's cost is per thread.
fn passing(length: usize) -> LaunchShape {
    elementwise(length.div_ceil(8))
}

fn frozen() -> Failure {
    Failure::work("device: the weights are frozen")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_hold_every_tree_and_no_more_tokens_than_allowed() {
        let sizes = [5, 3, 0, 9, 1, 1, 1, 4, 0];
        let trees: Vec<Tree> =
            sizes.iter().map(|&size| Tree { ids: vec![0; size], ..Tree::default() }).collect();
        let batches = micro_batches(&trees, 8);
        let flat: Vec<usize> = batches.iter().cloned().flatten().collect();
        assert_eq!(flat, (0..trees.len()).collect::<Vec<_>>());
        for batch in &batches {
            let tokens: usize = sizes[batch.clone()].iter().sum();
            assert!(tokens <= 8 || batch.len() == 1, "{batch:?}");
        }
        assert_eq!(batches.len(), 3);
        assert!(micro_batches(&[], 8).is_empty());
    }
}
