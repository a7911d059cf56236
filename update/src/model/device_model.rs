//! A decoder with weights and gradients in a device's memory.
//!
//! Master weights are f32 in two parts: the bf16 or f16 that the passes read, and a remainder that only the
//! optimizer sees (`kernels/masters.cu`). Under an adapter they are frozen; the gradient covers its packed factors, and the
//! adapter's few f32 values stay on the host. With several ranks each has all rounded weights, and remainders, summed
//! gradient and moments of its share; a part's gradient may be there two regions at a time, and leave as it is
//! computed. One stream of work takes the micro-batches in order, so the gradient is summed in one order too.

mod gradient;

use std::ops::Range;
use std::sync::Arc;

use device::{AnySlice, Buffer, Device, Shape as LaunchShape, Slice};
use policy::config::Config;
use policy::publish::PIECE;
use record::failure::{Failure, Result};

use super::memory::{MemoryPlan, STAGING, window_lengths};
use super::worker::{Spent, Worker};
use super::workspace::{self, Counts};
use super::{Layout, LoraAdapter, Scores, Source};
use crate::backend::{Backend, Gpu, Half, Values, Windows, unsupported};
use crate::kernels;
use crate::optimizer::shares::{RankShare, Shares};
use crate::ranks::DeviceSum;
use crate::tree::Tree;
pub(super) use gradient::window;
use gradient::{PartState, summed_gradient};

/// A decoder on a device. Every method fails if the device does, or did before.
pub struct DeviceModel<D: Device> {
    config: Config,
    layout: Arc<Layout>,
    /// Trained instead of the weights; `gradients` then belong to its packed factors.
    adapter: Option<LoraAdapter>,
    /// Sums the gradients of parts; `None` unless all weights are trained. Dropped before the device, in which its transport may work.
    parts: Option<DeviceSum<D>>,
    worker: Worker<Gpu<D>>,
    half: Half,
    weights: Values,
    /// The weights that this rank steps. None if they are frozen.
    share: RankShare,
    /// The remainders of the share.
    remainders: Remainders,
    /// Where others are written that no one reads.
    unread: Option<Remainders>,
    /// For each tensor of the layout, true if it is published in bf16.
    narrow: Vec<bool>,
    /// `None` if nothing is trained.
    gradients: Option<Values>,
    /// With windows the share of the sum of all parts; else it is in its place among the gradients.
    summed: Option<Buffer<f32>>,
    /// With windows, of a part of several micro-batches the gradient so far.
    part: Vec<f32>,
    state: PartState,
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
    /// [`DeviceModel::of_rank`] for rank 0.
    pub fn new(
        device: D,
        config: &Config,
        adapter: Option<(&LoraAdapter, &[f32])>,
        masters: &dyn Source,
        plan: &MemoryPlan,
    ) -> Result<DeviceModel<D>> {
        DeviceModel::of_rank(device, config, adapter, masters, plan, 0)
    }

    /// Loads a decoder onto a device that has no memory reserved yet, for one of the ranks that share its training. With an
    /// adapter and its values, only the adapter is trained.
    ///
    /// # Errors
    /// A width that the kernels do not take (2), memory (69), or errors of reading the master weights.
    pub fn of_rank(
        mut device: D,
        config: &Config,
        adapter: Option<(&LoraAdapter, &[f32])>,
        masters: &dyn Source,
        plan: &MemoryPlan,
        rank: usize,
    ) -> Result<DeviceModel<D>> {
        let (adapter, values) = adapter.unzip();
        check(config, adapter)?;
        device.reserve(plan.bytes.total)?;
        let learns = plan.request.moments.is_some();
        let layout = masters.layout().clone();
        let length = layout.len();
        let piece = STAGING.min(length);
        let (half, ranks) = (plan.request.half, plan.request.ranks);
        let share = match learns && adapter.is_none() {
            true => Shares::by_layer(&layout, ranks).of_rank(rank),
            false => RankShare::default(),
        };
        let remainders = Remainders::allocate(&mut device, half, share.len().max(1))?;
        let is_part = share.len() < length;
        let unread = is_part.then(|| Remainders::allocate(&mut device, half, piece)).transpose()?;
        let staging = device.allocate(piece)?;
        let sums = device.allocate(share.pieces().max(1))?;
        let rope = &config.ropes()[0];
        let gpu = Gpu::new(device, &rope.frequencies).scaling_rope(rope.attention_factor);
        let mut gpu = gpu.computing_in(half);
        let mut weights = gpu.buffer();
        gpu.reserve(&mut weights, length);
        let parts = match learns && adapter.is_none() {
            true => Some(DeviceSum::new(
                &mut gpu.device,
                &Shares::by_layer(&layout, ranks),
                ranks,
                plan.waiting_on_device() * share.len(),
            )?),
            false => None,
        };
        let windows = plan.windows;
        let summed = if windows { Some(gpu.device.allocate(share.len())?) } else { None };
        let gradients = if windows {
            Some(Values::Windows(Windows::new(&mut gpu.device, window_lengths(&layout))?))
        } else {
            learns.then(|| {
                let mut gradients = gpu.f32_buffer();
                gpu.reserve(&mut gradients, adapter.map_or(length, LoraAdapter::len));
                gradients
            })
        };
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
            share,
            remainders,
            unread,
            narrow,
            gradients,
            summed,
            parts,
            part: Vec::new(),
            state: PartState::Zero,
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

    /// Sums the gradients of parts; `None` unless all weights are trained.
    pub fn parts(&mut self) -> Option<&mut DeviceSum<D>> {
        self.parts.as_mut()
    }

    /// Where each tensor lies.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The weights that this rank steps.
    pub fn share(&self) -> &RankShare {
        &self.share
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
            gradients: summed_gradient(&self.summed, &self.gradients)?,
            has_share: self.summed.is_some(),
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

    /// Replaces f32 master weights, from index `from` of the flat array on. Outside the share only the rounded weights are
    /// kept.
    fn replace_masters(&mut self, from: usize, masters: &[f32]) -> Result<()> {
        let device = &mut self.worker.backend.device;
        let (weights, remainders) = (self.weights.half()?, self.remainders.all());
        for (index, piece) in masters.chunks(self.staging.len()).enumerate() {
            let start = from + index * self.staging.len();
            let range = start..start + piece.len();
            device.upload(piece, self.staging.slice(..piece.len()))?;
            let mut split = |range: Range<usize>, remainders: AnySlice| {
                for (alike, narrow) in published_alike(&self.layout, &self.narrow, range.clone()) {
                    let arguments = [
                        weights.slice(alike.clone()).into(),
                        remainders.slice(alike.start - range.start..alike.end - range.start).into(),
                        self.staging.slice(alike.start - start..alike.end - start).into(),
                        (alike.len() as u64).into(),
                        i32::from(narrow).into(),
                    ];
                    device.launch(&kernels::SPLIT_MASTERS, passing(alike.len()), &arguments)?;
                }
                Ok::<(), Failure>(())
            };
            let own = self.share.within(&range);
            if let Some(unread) = &self.unread {
                let starts = std::iter::once(start).chain(own.iter().map(|(own, _)| own.end));
                let ends = own.iter().map(|(own, _)| own.start).chain([range.end]);
                for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
                    split(start..end, unread.all())?;
                }
            }
            for (own, place) in own {
                split(own, remainders.slice(place..))?;
            }
        }
        Ok(())
    }

    /// Copies `masters.len()` f32 master weights of the share to the host, from index `from` of the flat array on.
    pub fn masters(&mut self, from: usize, masters: &mut [f32]) -> Result<()> {
        let own = self.share.within(&(from..from + masters.len()));
        if own.iter().map(|(own, _)| own.len()).sum::<usize>() < masters.len() {
            return Err(frozen());
        }
        let device = &mut self.worker.backend.device;
        let (weights, remainders) = (self.weights.half()?, self.remainders.all());
        for (own, place) in own {
            let values = &mut masters[own.start - from..own.end - from];
            for (index, piece) in values.chunks_mut(self.staging.len()).enumerate() {
                let before = index * self.staging.len();
                let of = |start: usize| start + before..start + before + piece.len();
                let arguments = [
                    (&self.staging).into(),
                    weights.slice(of(own.start)).into(),
                    remainders.slice(of(place)).into(),
                    (piece.len() as u64).into(),
                ];
                device.launch(&kernels::MERGE_MASTERS, passing(piece.len()), &arguments)?;
                device.download(self.staging.slice(..piece.len()), piece)?;
                let start = own.start + before;
                let entry = self.layout.entries.iter().find(|entry| entry.range.contains(&start));
                check_range(self.half, entry.map_or("a weight", |entry| &entry.name), piece)?;
            }
        }
        Ok(())
    }

    /// Copies a range of the weights, as the passes read them, to the host.
    pub fn weights(&mut self, range: Range<usize>, weights: &mut [f32]) -> Result<()> {
        let mut bits = vec![0; weights.len()];
        self.weight_bits(range, &mut bits)?;
        weights.iter_mut().zip(bits).for_each(|(weight, bits)| *weight = self.half.widened(bits));
        Ok(())
    }

    /// Copies the bits of a range of the weights, as the passes read them, to the host.
    pub fn weight_bits(&mut self, range: Range<usize>, bits: &mut [u16]) -> Result<()> {
        self.weights.read_bits(&mut self.worker.backend.device, range, bits)
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

    /// Log-probabilities and entropies of every tree's loss rows, without a gradient.
    pub fn logprobs(&mut self, trees: &[Tree], temperature: f32) -> Result<Vec<Scores>> {
        self.each_micro_batch(trees, temperature, None, None)
    }
}

/// The tensors that an optimizer reads and updates.
pub(crate) struct OptimizerTensors<'a, D: Device> {
    pub device: &'a mut D,
    /// The master weights, rounded.
    pub weights: AnySlice<'a>,
    /// The remainders of this rank's share of the weights.
    pub remainders: AnySlice<'a>,
    layout: &'a Layout,
    narrow: &'a [bool],
    gradients: Slice<'a, f32>,
    /// True if these are of the share only.
    has_share: bool,
}

impl<'a, D: Device> OptimizerTensors<'a, D> {
    /// The gradient of a range of weights, which begins at `place` in the share.
    pub fn gradient(&self, range: &Range<usize>, place: usize) -> Slice<'a, f32> {
        self.gradients.slice(if self.has_share { place..place + range.len() } else { range.clone() })
    }

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
