//! A policy in training, on the CPU or on a device, behind one trait.

use std::ops::Range;
use std::time::Instant;

use device::{Device, SharedMemory};
use record::failure::{Failure, Result};

use crate::backend::Half;
use crate::checkpoint::{Checkpoint, OptimizerState};
use crate::loss_scale::{LossScale, Scaled};
use crate::model::{DeviceModel, Gradients, Layout, MemoryPlan, Model, RowLoss, Scores};
use crate::optimizer::on_device::DeviceOptimizer;
use crate::optimizer::shares::{Shares, norm_of_slices};
use crate::optimizer::{self, Optimizer, Settings, StateKind, StepScale};
use crate::ranks::{self, PartSum, Ranks};
use crate::timing::Timing;
use crate::tree::Tree;
use crate::weights::Weights;

/// Trees that the CPU's threads share at once.
pub const TREES_AT_ONCE: usize = 32;
/// Trees of the first call, which starts early with little work ([`crate::overlap`]).
const FIRST_TREES_AT_ONCE: usize = 8;

/// A policy in training. A method fails if the device does.
pub trait Learner {
    /// Trees of the next [`Learner::accumulate`] after `before` trees: enough to keep the hardware busy, few
    /// enough to notice an interruption.
    fn trees_at_once(&self, before: usize) -> usize;

    /// Sets the gradients to zero.
    fn zero_grad(&mut self) -> Result<()>;

    /// Adds the gradient of `loss` over all trees, and returns the scores of the forward pass.
    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>>;

    /// The dynamic loss scale; `None` where gradients are not scaled.
    fn loss_scale(&mut self) -> Option<&mut LossScale> {
        None
    }

    /// Multiplies the gradients of a minibatch from now on, and returns the factor. `mean` makes its loss a mean.
    fn scale_loss(&mut self, _mean: f64) -> f64 {
        1.0
    }

    /// [`Learner::accumulate`] of trees that are a whole part. May add regions of its gradient to `sum` as soon as they are
    /// computed.
    fn accumulate_part(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
        _sum: &mut PartSum,
    ) -> Result<Vec<Scores>> {
        self.accumulate(trees, temperature, loss)
    }

    /// The values that each of `ranks` processes sums and steps.
    fn shares(&self, ranks: usize) -> Shares;

    /// Adds the gradient of a part, as far as that is not done yet. After the last part this rank's share of the sum is in the
    /// place of the gradients. Nothing may be accumulated after it before [`Learner::zero_grad`].
    fn add_part(&mut self, sum: &mut PartSum) -> Result<()>;

    /// The global L2 norm of the gradients, of which each rank has its share.
    fn grad_norm(&mut self, ranks: &dyn Ranks) -> Result<f64>;

    /// One optimizer step. Each of the ranks steps its share, and all receive the weights.
    fn optimizer_step(&mut self, ranks: &dyn Ranks, scale: StepScale) -> Result<()>;

    /// Optimizer steps taken since the optimizer's state was initialized.
    fn optimizer_steps(&self) -> u64;

    /// Time in the passes and in the optimizer since the last call.
    fn take_timing(&mut self) -> Timing;

    /// Peak device memory in use, bytes; `None` on the CPU.
    fn device_bytes(&mut self) -> Option<u64> {
        None
    }

    /// How gradients pass between the ranks' devices; `None` on the CPU and with one rank.
    fn transport(&mut self) -> Option<&'static str> {
        None
    }

    /// Copies state of the layout's tensor number `tensor` to `values`, from its value `from` on: [`StateKind::Weight`], or of
    /// this rank's share.
    fn read(&mut self, kind: StateKind, tensor: usize, from: usize, values: &mut [f32]) -> Result<()>;

    /// A checksum of all weights that a device computes, to compare ranks; `None` where the host does.
    fn device_checksum(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns true if [`Learner::read_bf16`] gives the weights as bf16 files have them.
    fn has_bf16(&self) -> bool {
        false
    }

    /// Copies the bits of bf16 weights of the layout's tensor number `tensor`, from its value `from` on.
    fn read_bf16(&mut self, _tensor: usize, _from: usize, _bits: &mut [u16]) -> Result<()> {
        Err(Failure::work("no weights in bf16 are there"))
    }

    /// Frees all memory of a device but the weights', in the layout's order, which other processes may open; all of it if no
    /// whole weights are trained there.
    fn share_weights(self: Box<Self>) -> Result<Option<SharedMemory>> {
        Ok(None)
    }
}

/// The processes and threads that share the steps.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    pub ranks: &'a dyn Ranks,
    /// Threads of each process.
    pub threads: usize,
}

/// Weights, gradients and an optimizer on the host.
struct HostState {
    weights: Weights,
    gradients: Gradients,
    optimizer: Optimizer,
    threads: usize,
}

impl HostState {
    fn new(
        weights: Weights,
        settings: Settings,
        state: Option<&OptimizerState<'_>>,
        workers: Workers,
    ) -> Result<HostState> {
        let Workers { ranks, threads } = workers;
        let layout = weights.forward().layout();
        let own = own_slice(settings, layout, ranks);
        let mut optimizer = Optimizer::of_slice(settings, layout, own);
        if let Some(state) = state {
            optimizer.restore(state.steps, |name, from, values| state.read(name, from, values))?;
        }
        Ok(HostState { gradients: Gradients::zeros(layout), weights, optimizer, threads })
    }

    fn step(&mut self, ranks: &dyn Ranks, scale: StepScale) -> Result<()> {
        let HostState { weights, gradients, optimizer, threads } = self;
        weights.step(|master| {
            optimizer.step(master, gradients, scale, *threads);
            if ranks.count() == 1 {
                return Ok(());
            }
            let shares = Shares::consecutive(optimizer.slices(ranks.count()));
            ranks::exchange(
                ranks,
                &shares,
                master,
                |master, range, values| {
                    values.copy_from_slice(&master.values[range]);
                    Ok(())
                },
                |master, range, values| {
                    master.values[range].copy_from_slice(values);
                    Ok(())
                },
            )
        })
    }

    fn shares(&self, ranks: usize) -> Shares {
        Shares::consecutive(self.optimizer.slices(ranks))
    }

    /// See [`Learner::add_part`].
    fn add_part(&mut self, sum: &mut PartSum) -> Result<()> {
        let read = |gradient: &mut Vec<f32>, range: Range<usize>, values: &mut [f32]| {
            values.copy_from_slice(&gradient[range]);
            Ok(())
        };
        let write = |gradient: &mut Vec<f32>, range: Range<usize>, _: usize, values: &[f32]| {
            gradient[range].copy_from_slice(values);
            Ok(())
        };
        sum.add(&mut self.gradients.values, read, write)
    }

    fn grad_norm(&self, ranks: &dyn Ranks) -> f64 {
        match ranks.count() {
            1 => optimizer::norm(&self.gradients),
            _ => norm_of_slices(ranks, &self.optimizer.own(), &self.gradients.values),
        }
    }

    fn read(&self, kind: StateKind, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        match kind {
            StateKind::Weight | StateKind::MasterWeight => {
                self.weights.masters(tensor, from, values);
                Ok(())
            }
            StateKind::Moment(moment) => {
                let start = self.weights.forward().layout().entries[tensor].range.start;
                let before = self.optimizer.own().start.saturating_sub(start);
                let kept = &self.optimizer.moment(moment, tensor)[from - before..];
                values.copy_from_slice(&kept[..values.len()]);
                Ok(())
            }
        }
    }
}

/// The values that this of the ranks steps.
fn own_slice(settings: Settings, layout: &Layout, ranks: &dyn Ranks) -> Range<usize> {
    optimizer::slices(settings.method, layout, ranks.count()).swap_remove(ranks.rank())
}

/// Training on the CPU.
pub struct CpuLearner {
    model: Model,
    host: HostState,
    timing: Timing,
}

/// Runs `work` and adds its time to `seconds`.
fn timed<T>(seconds: &mut f64, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let outcome = work();
    *seconds += started.elapsed().as_secs_f64();
    outcome
}

impl CpuLearner {
    /// Trains these weights, from the optimizer's state if given.
    ///
    /// # Errors
    /// The files'.
    pub fn new(
        model: Model,
        weights: Weights,
        settings: Settings,
        state: Option<&OptimizerState<'_>>,
        workers: Workers,
    ) -> Result<CpuLearner> {
        let host = HostState::new(weights, settings, state, workers)?;
        Ok(CpuLearner { model, host, timing: Timing::default() })
    }
}

impl Learner for CpuLearner {
    fn trees_at_once(&self, before: usize) -> usize {
        if before < TREES_AT_ONCE { FIRST_TREES_AT_ONCE } else { TREES_AT_ONCE }
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.host.gradients.values.fill(0.0);
        Ok(())
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let HostState { weights, gradients, threads, .. } = &mut self.host;
        let scores = self.model.accumulate(weights.forward(), trees, temperature, *threads, gradients, loss);
        self.timing.add_passes(started, self.model.take_spent());
        Ok(scores)
    }

    fn shares(&self, ranks: usize) -> Shares {
        self.host.shares(ranks)
    }

    fn add_part(&mut self, sum: &mut PartSum) -> Result<()> {
        self.host.add_part(sum)
    }

    fn grad_norm(&mut self, ranks: &dyn Ranks) -> Result<f64> {
        Ok(timed(&mut self.timing.optimizer, || self.host.grad_norm(ranks)))
    }

    fn optimizer_step(&mut self, ranks: &dyn Ranks, scale: StepScale) -> Result<()> {
        timed(&mut self.timing.optimizer, || self.host.step(ranks, scale))
    }

    fn optimizer_steps(&self) -> u64 {
        self.host.optimizer.steps()
    }

    fn take_timing(&mut self) -> Timing {
        std::mem::take(&mut self.timing)
    }

    fn read(&mut self, kind: StateKind, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        self.host.read(kind, tensor, from, values)
    }
}

/// Training on a device.
pub struct DeviceLearner<D: Device> {
    model: DeviceModel<D>,
    trained: Trained,
    /// With float16, and the factor of gradients that it comes to.
    loss_scale: Option<(LossScale, f64)>,
    /// True if an adapter's gradients are already on the host.
    downloaded: bool,
    timing: Timing,
}

/// The trained parameters on a device, and the place of their state.
enum Trained {
    /// All weights; their state is on the device.
    Full(DeviceOptimizer),
    /// An adapter. Its values and optimizer are small and stay on the host; its factors are uploaded after each step.
    Adapter(Box<HostState>),
}

impl<D: Device> DeviceLearner<D> {
    /// Uploads a checkpoint, and the optimizer's state if given, to a device that has no memory reserved yet.
    /// The host holds only one piece of full weights at a time.
    ///
    /// # Errors
    /// Unsupported on devices (2), memory (69), the device's, or the files'.
    pub fn new(
        device: D,
        plan: &MemoryPlan,
        checkpoint: &Checkpoint,
        settings: Settings,
        state: Option<&OptimizerState<'_>>,
        workers: Workers,
    ) -> Result<DeviceLearner<D>> {
        let timing = Timing::default();
        let config = &checkpoint.config;
        let scale = state.and_then(|state| state.loss_scale).unwrap_or_default();
        let loss_scale = (plan.request.half == Half::Float16).then_some((scale, 1.0));
        if let Some((adapter, base)) = checkpoint.adapter() {
            let host = HostState::new(checkpoint.weights()?, settings, state, workers)?;
            let adapter = (adapter, &host.weights.forward().values[..]);
            let model = DeviceModel::new(device, config, Some(adapter), base, plan)?;
            return Ok(DeviceLearner {
                model,
                trained: Trained::Adapter(Box::new(host)),
                loss_scale,
                downloaded: false,
                timing,
            });
        }
        let rank = workers.ranks.rank();
        let mut model = DeviceModel::of_rank(device, config, None, &checkpoint.masters()?, plan, rank)?;
        if workers.ranks.count() > 1 {
            let transport = ranks::connect(workers.ranks, model.device())?;
            if let Some(parts) = model.parts() {
                parts.set_transport(transport);
            }
        }
        let mut optimizer = DeviceOptimizer::new(settings, &mut model)?;
        if let Some(state) = state {
            optimizer
                .restore(&mut model, state.steps, |name, from, values| state.read(name, from, values))?;
        }
        Ok(DeviceLearner { model, trained: Trained::Full(optimizer), loss_scale, downloaded: false, timing })
    }

    /// Adds the gradient of the loss times the loss scale; with `sum` the trees are a whole part.
    fn differentiate(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
        sum: Option<&mut PartSum>,
    ) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let scaled = self.loss_scale.map(|(_, factor)| Scaled { loss, factor: factor as f32 });
        let loss = scaled.as_ref().map_or(loss, |scaled| scaled as &dyn RowLoss);
        let scores = match sum {
            Some(sum) => self.model.accumulate_part(trees, temperature, loss, sum)?,
            None => self.model.accumulate(trees, temperature, loss)?,
        };
        self.timing.add_passes(started, self.model.take_spent());
        Ok(scores)
    }
}

impl<D: Device> Learner for DeviceLearner<D> {
    /// All trees: a device cuts micro-batches itself, and looks for an interruption between them.
    fn trees_at_once(&self, _: usize) -> usize {
        usize::MAX
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.downloaded = false;
        self.model.clear_gradients()
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        self.differentiate(trees, temperature, loss, None)
    }

    fn accumulate_part(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
        sum: &mut PartSum,
    ) -> Result<Vec<Scores>> {
        let sum = Some(sum).filter(|_| matches!(self.trained, Trained::Full(_)));
        self.differentiate(trees, temperature, loss, sum)
    }

    fn loss_scale(&mut self) -> Option<&mut LossScale> {
        self.loss_scale.as_mut().map(|(scale, _)| scale)
    }

    fn scale_loss(&mut self, mean: f64) -> f64 {
        self.loss_scale.as_mut().map_or(1.0, |(scale, factor)| {
            *factor = scale.factor(mean);
            *factor
        })
    }

    fn shares(&self, ranks: usize) -> Shares {
        match &self.trained {
            Trained::Full(_) => Shares::by_layer(self.model.layout(), ranks),
            Trained::Adapter(host) => host.shares(ranks),
        }
    }

    fn add_part(&mut self, sum: &mut PartSum) -> Result<()> {
        match &mut self.trained {
            Trained::Full(_) => self.model.add_part(sum),
            Trained::Adapter(host) => {
                self.model.gradients(&mut host.gradients.values)?;
                self.downloaded = true;
                host.add_part(sum)
            }
        }
    }

    fn grad_norm(&mut self, ranks: &dyn Ranks) -> Result<f64> {
        timed(&mut self.timing.optimizer, || match &mut self.trained {
            Trained::Full(_) => self.model.norm_of_all(ranks),
            Trained::Adapter(host) => {
                if !self.downloaded {
                    self.model.gradients(&mut host.gradients.values)?;
                }
                Ok(host.grad_norm(ranks))
            }
        })
    }

    fn optimizer_step(&mut self, ranks: &dyn Ranks, scale: StepScale) -> Result<()> {
        timed(&mut self.timing.optimizer, || match &mut self.trained {
            Trained::Full(optimizer) => {
                optimizer.step(&mut self.model, scale)?;
                self.model.gather_weights(ranks)?;
                // Kernels run asynchronously; the time is known when they are done.
                self.model.device().synchronize()
            }
            Trained::Adapter(host) => {
                host.step(ranks, scale)?;
                self.model.set_adapter(&host.weights.forward().values)
            }
        })
    }

    fn optimizer_steps(&self) -> u64 {
        match &self.trained {
            Trained::Full(optimizer) => optimizer.steps(),
            Trained::Adapter(host) => host.optimizer.steps(),
        }
    }

    fn take_timing(&mut self) -> Timing {
        std::mem::take(&mut self.timing)
    }

    fn device_bytes(&mut self) -> Option<u64> {
        self.model.peak_bytes().ok()
    }

    fn device_checksum(&mut self) -> Result<Option<u64>> {
        match &self.trained {
            Trained::Full(_) => self.model.weight_checksum(),
            Trained::Adapter(_) => Ok(None),
        }
    }

    /// `kernels/masters.cu` rounds as publishing does.
    fn has_bf16(&self) -> bool {
        self.loss_scale.is_none() && matches!(self.trained, Trained::Full(_))
    }

    fn read_bf16(&mut self, tensor: usize, from: usize, bits: &mut [u16]) -> Result<()> {
        let start = self.model.layout().entries[tensor].range.start + from;
        self.model.weight_bits(start..start + bits.len(), bits)
    }

    fn share_weights(self: Box<Self>) -> Result<Option<SharedMemory>> {
        let DeviceLearner { model, trained, .. } = *self;
        match trained {
            Trained::Full(optimizer) => {
                drop(optimizer);
                model.share_weights().map(Some)
            }
            Trained::Adapter(_) => Ok(None),
        }
    }

    fn transport(&mut self) -> Option<&'static str> {
        Some(self.model.parts()?.transport()?.name())
    }

    fn read(&mut self, kind: StateKind, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        match (&self.trained, kind) {
            (Trained::Adapter(host), _) => host.read(kind, tensor, from, values),
            (Trained::Full(_), StateKind::Weight) => {
                let start = self.model.layout().entries[tensor].range.start + from;
                self.model.weights(start..start + values.len(), values)
            }
            (Trained::Full(_), StateKind::MasterWeight) => {
                let start = self.model.layout().entries[tensor].range.start;
                self.model.masters(start + from, values)
            }
            (Trained::Full(optimizer), StateKind::Moment(moment)) => {
                optimizer.moment(&mut self.model, moment, tensor, from, values)
            }
        }
    }
}
