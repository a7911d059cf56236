//! The optimiser's step where the weights are: AdamW and plain descent as kernels, moments in device memory.
//!
//! Left out: Muon, whose iteration wants f32 products of every matrix; it runs on the processor only.

use device::{Buffer, Device};
use record::failure::{Failure, Result};

use super::{Method, Optimizer, Rule, clipping};
use crate::kernels;
use crate::model::{Entry, Resident, elementwise};

/// An optimiser whose state lies on a device.
pub struct DeviceOptimizer {
    host: Optimizer,
    /// First and second moments of every weight; none for plain descent.
    moments: Option<(Buffer<f32>, Buffer<f32>)>,
}

/// Bytes of state a weight under a method.
pub fn moment_bytes(method: Method) -> u64 {
    if method == Method::Adamw { 8 } else { 0 }
}

/// Whether a method has its kernels.
///
/// # Errors
/// Usage (exit 2) where it has none.
pub fn check(method: Method) -> Result<()> {
    match method {
        Method::Adamw | Method::Sgd => Ok(()),
        Method::Muon => Err(Failure::usage("--optimizer muon runs on the CPU only")
            .hint("use --device cpu, or --optimizer adamw")),
    }
}

/// Runs of consecutive tensors that are decayed alike.
fn runs(entries: &[Entry]) -> Vec<(std::ops::Range<usize>, bool)> {
    let mut runs: Vec<(std::ops::Range<usize>, bool)> = Vec::new();
    for entry in entries {
        let decayed = entry.shape.len() == 2;
        match runs.last_mut() {
            Some((range, same)) if *same == decayed && range.end == entry.range.start => {
                range.end = entry.range.end;
            }
            _ => runs.push((entry.range.clone(), decayed)),
        }
    }
    runs
}

impl DeviceOptimizer {
    /// Takes an optimiser's state to the device.
    ///
    /// # Errors
    /// Memory (69), or the device's.
    pub fn new<D: Device>(host: Optimizer, resident: &mut Resident<D>) -> Result<DeviceOptimizer> {
        check(host.settings.method)?;
        let length = resident.layout().len();
        let device = resident.device();
        let moments = match host.settings.method {
            Method::Adamw => {
                let (first, second) = (device.allocate::<f32>(length)?, device.allocate::<f32>(length)?);
                for (index, entry) in host.layout.entries.iter().enumerate() {
                    device.upload(&host.first[index], first.slice(entry.range.clone()))?;
                    device.upload(&host.second[index], second.slice(entry.range.clone()))?;
                }
                Some((first, second))
            }
            _ => None,
        };
        Ok(DeviceOptimizer { host, moments })
    }

    /// Optimiser steps taken since the state was made.
    pub fn steps(&self) -> u64 {
        self.host.steps
    }

    /// See [`Optimizer::step`].
    ///
    /// # Errors
    /// The device's.
    pub fn step<D: Device>(&mut self, resident: &mut Resident<D>, norm: f64, factor: f64) -> Result<()> {
        self.host.steps += 1;
        let settings = self.host.settings;
        let scale = clipping(norm, settings.max_norm);
        let rate = settings.rate * factor;
        let parts = resident.parts()?;
        for (range, decayed) in runs(&self.host.layout.entries) {
            let decay = if decayed { settings.decay } else { 0.0 };
            let (length, keep) = (range.len() as u64, (1.0 - rate * decay) as f32);
            let shape = elementwise(range.len());
            let weights = parts.weights.slice(range.clone());
            let remainders = parts.remainders.slice(range.clone());
            let gradients = parts.gradients.slice(range.clone());
            match &self.moments {
                Some((first, second)) => {
                    let (beta1, beta2) = settings.betas;
                    let correction1 = 1.0 - beta1.powi(self.host.steps as i32);
                    let correction2 = 1.0 - beta2.powi(self.host.steps as i32);
                    let arguments = [
                        weights.into(),
                        remainders.into(),
                        first.slice(range.clone()).into(),
                        second.slice(range).into(),
                        gradients.into(),
                        length.into(),
                        scale.into(),
                        keep.into(),
                        ((rate / correction1) as f32).into(),
                        (correction2.sqrt() as f32).into(),
                        ((1.0 - beta1) as f32).into(),
                        (beta2 as f32).into(),
                        ((1.0 - beta2) as f32).into(),
                        super::adamw::EPSILON.into(),
                    ];
                    parts.device.launch(&kernels::ADAMW, shape, &arguments)?;
                }
                None => {
                    let arguments = [
                        weights.into(),
                        remainders.into(),
                        gradients.into(),
                        length.into(),
                        scale.into(),
                        keep.into(),
                        (rate as f32).into(),
                    ];
                    parts.device.launch(&kernels::SGD, shape, &arguments)?;
                }
            }
        }
        Ok(())
    }

    /// Brings the state back to the host.
    ///
    /// # Errors
    /// The device's.
    pub fn into_host<D: Device>(mut self, resident: &mut Resident<D>) -> Result<Optimizer> {
        let device = resident.device();
        if let Some((first, second)) = &self.moments {
            for (index, entry) in self.host.layout.entries.iter().enumerate() {
                debug_assert_eq!(self.host.rules[index], Rule::AdamW);
                device.download(first.slice(entry.range.clone()), &mut self.host.first[index])?;
                device.download(second.slice(entry.range.clone()), &mut self.host.second[index])?;
            }
        }
        Ok(self.host)
    }
}
