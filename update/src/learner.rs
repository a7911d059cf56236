//! Where training happens: on the processor, or on a device. The trainer asks either for the same few things.

use std::time::Instant;

use device::Device;
use record::failure::{Failure, Result};

use crate::checkpoint::{Checkpoint, State};
use crate::model::{Gradients, MemoryPlan, Model, Resident, RowLoss, Scores, Source, Spent};
use crate::optimizer::on_device::DeviceOptimizer;
use crate::optimizer::{self, Moment, Optimizer, Settings};
use crate::tree::Tree;
use crate::weights::Weights;

/// Trees that the processor's threads share at once.
pub const TREES_AT_ONCE: usize = 32;

/// Where the seconds of a training went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, with the layers that they compute again.
    pub backward: f64,
    /// Gradient norm, clipping and the optimiser's steps.
    pub optimizer: f64,
}

impl Seconds {
    /// Shares the seconds since `started` between the passes as they were spent, be it by several threads at once.
    pub fn passes(&mut self, started: Instant, spent: Spent) {
        let seconds = started.elapsed().as_secs_f64();
        let (forward, backward) = (spent.forward.as_secs_f64(), spent.backward.as_secs_f64());
        let share = if forward + backward > 0.0 { forward / (forward + backward) } else { 1.0 };
        self.forward += seconds * share;
        self.backward += seconds * (1.0 - share);
    }

    fn steps(&mut self, started: Instant) {
        self.optimizer += started.elapsed().as_secs_f64();
    }
}

/// What a learner holds of each weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Its f32 master.
    Master,
    /// A moment of the optimiser's.
    Moment(Moment),
}

/// A policy in training.
pub trait Learner {
    /// Trees to hand over at once: enough to keep the hardware busy, few enough to notice an interruption.
    fn trees_at_once(&self) -> usize;

    /// Sets the gradients to zero.
    ///
    /// # Errors
    /// The device's.
    fn clear(&mut self) -> Result<()>;

    /// Adds the gradient of `loss` over all trees, and returns what the forward pass said.
    ///
    /// # Errors
    /// The device's, or an interruption.
    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>>;

    /// The global L2 norm of the gradients.
    ///
    /// # Errors
    /// The device's.
    fn norm(&mut self) -> Result<f64>;

    /// One optimiser step by gradients of that norm, at `factor` times the peak rates.
    ///
    /// # Errors
    /// The device's.
    fn step(&mut self, norm: f64, factor: f64) -> Result<()>;

    /// Optimiser steps taken since the optimiser's state was made.
    fn steps(&self) -> u64;

    /// Where the time went so far.
    fn seconds(&self) -> Seconds;

    /// The most bytes of a device that were in use; nothing on the processor.
    ///
    /// # Errors
    /// None that a learner in use has.
    fn device_bytes(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Fills `values` with what is held of a tensor, which is an index into the layout, from the value of index `from` on.
    ///
    /// # Errors
    /// The device's.
    fn read(&mut self, held: Held, tensor: usize, from: usize, values: &mut [f32]) -> Result<()>;
}

/// Weights and an optimiser on the host.
struct Host {
    weights: Weights,
    optimizer: Optimizer,
}

impl Host {
    fn new(weights: Weights, settings: Settings, state: Option<&State<'_>>) -> Result<Host> {
        let mut optimizer = Optimizer::new(settings, weights.forward().layout());
        if let Some(state) = state {
            optimizer.restore(state.steps, |name, values| match state.saved {
                Some(saved) => saved.read(name, 0, values),
                None => Ok(()),
            })?;
        }
        Ok(Host { weights, optimizer })
    }

    fn step(&mut self, gradients: &Gradients, norm: f64, factor: f64, threads: usize) {
        let Host { weights, optimizer } = self;
        weights.step(|master| optimizer.step(master, gradients, norm, factor, threads));
    }

    fn read(&self, held: Held, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        match held {
            Held::Master => {
                let masters = self.weights.masters().unwrap_or(self.weights.forward());
                masters.read(&masters.layout().entries[tensor], from, values)
            }
            Held::Moment(moment) => {
                values.copy_from_slice(&self.optimizer.moment(moment, tensor)[from..][..values.len()]);
                Ok(())
            }
        }
    }
}

/// Training on the processor.
pub struct OnHost {
    model: Model,
    host: Host,
    gradients: Gradients,
    threads: usize,
    seconds: Seconds,
}

impl OnHost {
    /// Trains these weights, going on from the optimiser's state if there is one, on so many threads.
    ///
    /// # Errors
    /// The files'.
    pub fn new(
        (model, weights): (Model, Weights),
        settings: Settings,
        state: Option<&State<'_>>,
        threads: usize,
    ) -> Result<OnHost> {
        let host = Host::new(weights, settings, state)?;
        Ok(OnHost { gradients: model.gradients(), model, host, threads, seconds: Seconds::default() })
    }
}

impl Learner for OnHost {
    fn trees_at_once(&self) -> usize {
        TREES_AT_ONCE
    }

    fn clear(&mut self) -> Result<()> {
        self.gradients.values.fill(0.0);
        Ok(())
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let (weights, gradients) = (self.host.weights.forward(), &mut self.gradients);
        let scores = self.model.accumulate(weights, trees, temperature, self.threads, gradients, loss);
        self.seconds.passes(started, self.model.take_spent());
        Ok(scores)
    }

    fn norm(&mut self) -> Result<f64> {
        let started = Instant::now();
        let norm = optimizer::norm(&self.gradients);
        self.seconds.steps(started);
        Ok(norm)
    }

    fn step(&mut self, norm: f64, factor: f64) -> Result<()> {
        let started = Instant::now();
        self.host.step(&self.gradients, norm, factor, self.threads);
        self.seconds.steps(started);
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.host.optimizer.steps()
    }

    fn seconds(&self) -> Seconds {
        self.seconds
    }

    fn read(&mut self, held: Held, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        self.host.read(held, tensor, from, values)
    }
}

/// Training on a device.
pub struct OnDevice<D: Device> {
    resident: Resident<D>,
    optimizer: DeviceOptimizer,
    seconds: Seconds,
}

impl<D: Device> OnDevice<D> {
    /// Takes a checkpoint, and the optimiser's state if there is one, to a device that has no memory reserved yet, as planned.
    /// Of neither is more than a piece on the host.
    ///
    /// # Errors
    /// What the device cannot do (2), memory (69), the device's, or the files'.
    pub fn new(
        device: D,
        plan: &MemoryPlan,
        checkpoint: &Checkpoint,
        settings: Settings,
        state: Option<&State<'_>>,
    ) -> Result<OnDevice<D>> {
        let mut resident = Resident::new(device, &checkpoint.shape, &checkpoint.masters()?, plan)?;
        let mut optimizer = DeviceOptimizer::new(settings, &mut resident)?;
        if let Some(state) = state {
            optimizer.restore(&mut resident, state.steps, |name, from, values| match state.saved {
                Some(saved) => saved.read(name, from, values),
                None => Ok(()),
            })?;
        }
        Ok(OnDevice { resident, optimizer, seconds: Seconds::default() })
    }
}

impl<D: Device> Learner for OnDevice<D> {
    /// All: a device cuts its own micro-batches, and looks for an interruption between them.
    fn trees_at_once(&self) -> usize {
        usize::MAX
    }

    fn clear(&mut self) -> Result<()> {
        self.resident.clear_gradients()
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let scores = self.resident.accumulate(trees, temperature, loss)?;
        self.seconds.passes(started, self.resident.take_spent());
        Ok(scores)
    }

    fn norm(&mut self) -> Result<f64> {
        let started = Instant::now();
        let norm = self.resident.gradient_norm()?;
        self.seconds.steps(started);
        Ok(norm)
    }

    fn step(&mut self, norm: f64, factor: f64) -> Result<()> {
        let started = Instant::now();
        self.optimizer.step(&mut self.resident, norm, factor)?;
        // Work goes on beside the caller until somebody waits for it.
        self.resident.device().synchronize()?;
        self.seconds.steps(started);
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    fn seconds(&self) -> Seconds {
        self.seconds
    }

    fn device_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.resident.device().arena()?.usage().1))
    }

    fn read(&mut self, held: Held, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        match held {
            Held::Master => {
                let start = self.resident.layout().entries[tensor].range.start;
                self.resident.masters(start + from, values)
            }
            Held::Moment(moment) => self.optimizer.moment(&mut self.resident, moment, tensor, from, values),
        }
    }
}

/// Training of an adapter over frozen weights that are on a device. The adapter's own values and its optimiser stay on the
/// host: they are few, and after each step its factors go over anew.
pub struct AdapterOnDevice<D: Device> {
    resident: Resident<D>,
    host: Host,
    gradients: Gradients,
    threads: usize,
    seconds: Seconds,
}

impl<D: Device> AdapterOnDevice<D> {
    /// Takes the frozen weights to a device that has no memory reserved yet, as planned; steps are on so many threads.
    ///
    /// # Errors
    /// As [`OnDevice::new`].
    pub fn new(
        device: D,
        plan: &MemoryPlan,
        checkpoint: &Checkpoint,
        settings: Settings,
        state: Option<&State<'_>>,
        threads: usize,
    ) -> Result<AdapterOnDevice<D>> {
        let Some((adapter, base)) = checkpoint.adapter() else {
            return Err(Failure::work("device: no adapter to train"));
        };
        let trained = &checkpoint.trained;
        let host = Host::new(checkpoint.weights()?, settings, state)?;
        let values = &host.weights.forward().values;
        let resident = Resident::adapted(device, (&checkpoint.shape, adapter), base, values, plan)?;
        let gradients = Gradients::zeros(trained.layout());
        Ok(AdapterOnDevice { resident, host, gradients, threads, seconds: Seconds::default() })
    }
}

impl<D: Device> Learner for AdapterOnDevice<D> {
    fn trees_at_once(&self) -> usize {
        usize::MAX
    }

    fn clear(&mut self) -> Result<()> {
        self.resident.clear_gradients()
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let scores = self.resident.accumulate(trees, temperature, loss)?;
        self.seconds.passes(started, self.resident.take_spent());
        Ok(scores)
    }

    fn norm(&mut self) -> Result<f64> {
        let started = Instant::now();
        self.gradients.values.fill(0.0);
        self.resident.collect(&mut self.gradients.values)?;
        let norm = optimizer::norm(&self.gradients);
        self.seconds.steps(started);
        Ok(norm)
    }

    /// By the gradients that [`Learner::norm`] was asked of.
    fn step(&mut self, norm: f64, factor: f64) -> Result<()> {
        let started = Instant::now();
        self.host.step(&self.gradients, norm, factor, self.threads);
        self.resident.set_adapter(&self.host.weights.forward().values)?;
        self.seconds.steps(started);
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.host.optimizer.steps()
    }

    fn seconds(&self) -> Seconds {
        self.seconds
    }

    fn device_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.resident.device().arena()?.usage().1))
    }

    fn read(&mut self, held: Held, tensor: usize, from: usize, values: &mut [f32]) -> Result<()> {
        self.host.read(held, tensor, from, values)
    }
}
