//! Where training happens: on the processor, or on a device. The trainer asks either for the same few things.

use std::mem;

use device::Device;
use record::failure::Result;

use crate::model::{Gradients, MemoryPlan, Model, Parameters, Resident, RowLoss, Scores};
use crate::optimizer::on_device::{DeviceOptimizer, moment_bytes};
use crate::optimizer::{self, Optimizer};
use crate::tree::Tree;
use crate::weights::Weights;

/// Trees that the processor's threads share at once.
pub const TREES_AT_ONCE: usize = 32;

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
}

impl<'a> OnHost<'a> {
    /// Trains these weights by this optimiser on so many threads.
    pub fn new(
        model: &'a Model,
        weights: &'a mut Weights,
        optimizer: &'a mut Optimizer,
        threads: usize,
    ) -> OnHost<'a> {
        OnHost { model, weights, optimizer, gradients: model.gradients(), threads }
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
        let (weights, gradients) = (self.weights.forward(), &mut self.gradients);
        Ok(self.model.accumulate(weights, trees, temperature, self.threads, gradients, loss))
    }

    fn norm(&mut self) -> Result<f64> {
        Ok(optimizer::norm(&self.gradients))
    }

    fn step(&mut self, norm: f64, factor: f64) -> Result<()> {
        let (optimizer, gradients, threads) = (&mut *self.optimizer, &self.gradients, self.threads);
        self.weights.step(|master| optimizer.step(master, gradients, norm, factor, threads));
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.optimizer.steps()
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
}

impl<'a, D: Device> OnDevice<'a, D> {
    /// Takes weights and the optimiser's state to a device that has no memory reserved yet. Micro-batches are up to
    /// `wanted` tokens and no tree is larger than `largest`.
    ///
    /// # Errors
    /// What the device cannot do (2), memory (69), or the device's.
    pub fn new(
        device: D,
        model: &Model,
        weights: &'a mut Weights,
        optimizer: &'a mut Optimizer,
        (wanted, largest): (u64, u64),
    ) -> Result<OnDevice<'a, D>> {
        let masters = weights.masters().unwrap_or(weights.forward());
        let moments = moment_bytes(optimizer.method());
        let mut resident = resident(device, model, masters, moments, (wanted, largest))?;
        let moved = Some(DeviceOptimizer::new(optimizer.clone(), &mut resident)?);
        Ok(OnDevice { resident, weights, optimizer, moved })
    }
}

/// A decoder on a device, for micro-batches of up to `wanted` tokens whose trees are no larger than `largest`, with room
/// for so many bytes of optimiser state a weight.
///
/// # Errors
/// What the device cannot do (2), memory (69), or the device's.
pub fn resident<D: Device>(
    device: D,
    model: &Model,
    masters: &Parameters,
    moments: u64,
    (wanted, largest): (u64, u64),
) -> Result<Resident<D>> {
    let free = device.memory()?.free;
    let length = masters.values.len();
    let plan = MemoryPlan::new(model.shape(), length, moments, free, (wanted, largest))?;
    Resident::new(device, model.shape(), masters, &plan)
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
        self.resident.accumulate(trees, temperature, loss)
    }

    fn norm(&mut self) -> Result<f64> {
        self.resident.gradient_norm()
    }

    fn step(&mut self, norm: f64, factor: f64) -> Result<()> {
        match &mut self.moved {
            Some(optimizer) => optimizer.step(&mut self.resident, norm, factor),
            None => Ok(()),
        }
    }

    fn steps(&self) -> u64 {
        self.moved.as_ref().map_or(self.optimizer.steps(), DeviceOptimizer::steps)
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
