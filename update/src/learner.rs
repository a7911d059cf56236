//! A policy in training, on the CPU or on a device, behind one trait.

mod on_device;

use std::ops::Range;
use std::time::Instant;

use record::failure::{Failure, Result};

use crate::checkpoint::OptimizerState;
use crate::loss_scale::LossScale;
use crate::model::{Gradients, Layout, Model, RowLoss, Scores};
use crate::optimizer::shares::{Shares, norm_of_slices};
use crate::optimizer::{self, Optimizer, Settings, StateKind, StepScale};
use crate::ranks::{self, Communicator, PartSum};
use crate::timing::Timing;
use crate::tree::Tree;
use crate::weights::Weights;
pub use on_device::DeviceLearner;

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
    fn grad_norm(&mut self, ranks: &dyn Communicator) -> Result<f64>;

    /// One optimizer step. Each of the ranks steps its share, and all receive the weights.
    fn optimizer_step(&mut self, ranks: &dyn Communicator, scale: StepScale) -> Result<()>;

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
}

/// The processes and threads that share the steps.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    pub ranks: &'a dyn Communicator,
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

    fn step(&mut self, ranks: &dyn Communicator, scale: StepScale) -> Result<()> {
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

    fn grad_norm(&self, ranks: &dyn Communicator) -> f64 {
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
fn own_slice(settings: Settings, layout: &Layout, ranks: &dyn Communicator) -> Range<usize> {
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

    fn grad_norm(&mut self, ranks: &dyn Communicator) -> Result<f64> {
        Ok(timed(&mut self.timing.optimizer, || self.host.grad_norm(ranks)))
    }

    fn optimizer_step(&mut self, ranks: &dyn Communicator, scale: StepScale) -> Result<()> {
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
