//! Where training happens: on the processor, or on a device. The trainer asks either for the same few things.

use std::mem;
use std::time::Instant;

use device::Device;
use record::failure::Result;

use crate::model::{Gradients, MemoryPlan, Model, Resident, RowLoss, Scores, Spent};
use crate::optimizer::on_device::DeviceOptimizer;
use crate::optimizer::{self, Optimizer};
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

    /// Brings weights and the optimiser's state to where they are published from.
    ///
    /// # Errors
    /// The device's.
    fn finish(&mut self) -> Result<()>;
}

/// Training on the processor.
pub struct OnHost<'a> {
    model: &'a Model,
    weights: &'a mut Weights,
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    threads: usize,
    seconds: Seconds,
}

impl<'a> OnHost<'a> {
    /// Trains these weights by this optimiser on so many threads.
    pub fn new(
        model: &'a Model,
        weights: &'a mut Weights,
        optimizer: &'a mut Optimizer,
        threads: usize,
    ) -> OnHost<'a> {
        OnHost {
            model,
            weights,
            optimizer,
            gradients: model.gradients(),
            threads,
            seconds: Seconds::default(),
        }
    }
}

impl Learner for OnHost<'_> {
    fn trees_at_once(&self) -> usize {
        TREES_AT_ONCE
    }

    fn clear(&mut self) -> Result<()> {
        self.gradients.values.fill(0.0);
        Ok(())
    }

    fn accumulate(&mut self, trees: &[Tree], temperature: f32, loss: &dyn RowLoss) -> Result<Vec<Scores>> {
        let started = Instant::now();
        let (weights, gradients) = (self.weights.forward(), &mut self.gradients);
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
        let (optimizer, gradients, threads) = (&mut *self.optimizer, &self.gradients, self.threads);
        let started = Instant::now();
        self.weights.step(|master| optimizer.step(master, gradients, norm, factor, threads));
        self.seconds.steps(started);
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    fn seconds(&self) -> Seconds {
        self.seconds
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Training on a device.
pub struct OnDevice<'a, D: Device> {
    resident: Resident<D>,
    weights: &'a mut Weights,
    optimizer: &'a mut Optimizer,
    moved: Option<DeviceOptimizer>,
    seconds: Seconds,
}

impl<'a, D: Device> OnDevice<'a, D> {
    /// Takes weights and the optimiser's state to a device that has no memory reserved yet, as planned.
    ///
    /// # Errors
    /// What the device cannot do (2), memory (69), or the device's.
    pub fn new(
        device: D,
        plan: &MemoryPlan,
        model: &Model,
        weights: &'a mut Weights,
        optimizer: &'a mut Optimizer,
    ) -> Result<OnDevice<'a, D>> {
        let masters = weights.masters().unwrap_or(weights.forward());
        let mut resident = Resident::new(device, model.shape(), masters, plan)?;
        let moved = Some(DeviceOptimizer::new(optimizer.take(), &mut resident)?);
        Ok(OnDevice { resident, weights, optimizer, moved, seconds: Seconds::default() })
    }
}

impl<D: Device> Learner for OnDevice<'_, D> {
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
        let Some(optimizer) = &mut self.moved else { return Ok(()) };
        let started = Instant::now();
        optimizer.step(&mut self.resident, norm, factor)?;
        // Work goes on beside the caller until somebody waits for it.
        self.resident.device().synchronize()?;
        self.seconds.steps(started);
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.moved.as_ref().map_or(self.optimizer.steps(), DeviceOptimizer::steps)
    }

    fn seconds(&self) -> Seconds {
        self.seconds
    }

    fn device_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.resident.device().arena()?.usage().1))
    }

    fn finish(&mut self) -> Result<()> {
        let Some(moved) = mem::take(&mut self.moved) else { return Ok(()) };
        *self.optimizer = moved.into_host(&mut self.resident)?;
        let resident = &mut self.resident;
        let mut outcome = Ok(());
        self.weights.step(|master| outcome = resident.masters(&mut master.values));
        outcome
    }
}

/// Training of an adapter over frozen weights that are on a device. The adapter's own values and its optimiser stay on the
/// host: they are few, and after each step its factors go over anew.
pub struct AdapterOnDevice<'a, D: Device> {
    resident: Resident<D>,
    weights: &'a mut Weights,
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    threads: usize,
    seconds: Seconds,
}

impl<'a, D: Device> AdapterOnDevice<'a, D> {
    /// Takes the frozen weights to a device that has no memory reserved yet, as planned; steps are on so many threads.
    ///
    /// # Errors
    /// As [`OnDevice::new`].
    pub fn new(
        device: D,
        plan: &MemoryPlan,
        model: &Model,
        weights: &'a mut Weights,
        optimizer: &'a mut Optimizer,
        threads: usize,
    ) -> Result<AdapterOnDevice<'a, D>> {
        let resident = Resident::of_model(device, model, weights.forward(), plan)?;
        let gradients = model.gradients();
        Ok(AdapterOnDevice { resident, weights, optimizer, gradients, threads, seconds: Seconds::default() })
    }
}

impl<D: Device> Learner for AdapterOnDevice<'_, D> {
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
        let (optimizer, gradients, threads) = (&mut *self.optimizer, &self.gradients, self.threads);
        self.weights.step(|master| optimizer.step(master, gradients, norm, factor, threads));
        self.resident.set_adapter(&self.weights.forward().values)?;
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

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
