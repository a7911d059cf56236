//! [`Learner`] on a device.

use std::time::Instant;

use device::Device;
use record::failure::Result;

use super::{HostState, Learner, Workers, timed};
use crate::backend::Half;
use crate::checkpoint::{Checkpoint, OptimizerState};
use crate::loss_scale::{LossScale, Scaled};
use crate::model::{DeviceModel, MemoryPlan, RowLoss, Scores};
use crate::optimizer::on_device::DeviceOptimizer;
use crate::optimizer::shares::Shares;
use crate::optimizer::{Settings, StateKind, StepScale};
use crate::ranks::{self, Communicator, PartSum};
use crate::timing::Timing;
use crate::tree::Tree;

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

    fn grad_norm(&mut self, ranks: &dyn Communicator) -> Result<f64> {
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

    fn optimizer_step(&mut self, ranks: &dyn Communicator, scale: StepScale) -> Result<()> {
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
        self.model.device().arena().ok().map(|arena| arena.usage().1)
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
