//! The optimizer on a device: AdamW and SGD as kernels, moments in device memory.
//!
//! Left out: Muon, whose iteration needs f32 GEMMs of every matrix; it runs on the CPU only.

use std::sync::Arc;

use device::{Buffer, Device};
use policy::publish::PIECE;
use record::failure::{Failure, Result};

use super::{Method, Moment, Settings, StateTensor, clipping, tensors};
use crate::kernels;
use crate::model::{DeviceModel, Entry, Layout, elementwise};

/// An optimizer with its state on a device.
pub struct DeviceOptimizer {
    settings: Settings,
    layout: Arc<Layout>,
    steps: u64,
    /// First and second moments of every weight; none for SGD.
    moments: Option<(Buffer<f32>, Buffer<f32>)>,
}

/// Bytes of optimizer state per weight.
pub fn moment_bytes(method: Method) -> u64 {
    if method == Method::Adamw { 8 } else { 0 }
}

/// Checks that a method has kernels.
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
    /// An optimizer that has taken no step.
    ///
    /// # Errors
    /// Memory (69), or the device's.
    pub fn new<D: Device>(settings: Settings, resident: &mut DeviceModel<D>) -> Result<DeviceOptimizer> {
        check(settings.method)?;
        let layout = resident.layout().clone();
        let device = resident.device();
        let moments = match settings.method {
            Method::Adamw => {
                let (first, second) =
                    (device.allocate::<f32>(layout.len())?, device.allocate::<f32>(layout.len())?);
                device.clear(first.all())?;
                device.clear(second.all())?;
                Some((first, second))
            }
            _ => None,
        };
        Ok(DeviceOptimizer { settings, layout, steps: 0, moments })
    }

    /// Restores saved state like [`super::Optimizer::restore`], but a piece of a tensor at a time: `read` is also given the
    /// index of the piece's first value.
    ///
    /// # Errors
    /// The first error of `read`, or the device's.
    pub fn restore<D: Device>(
        &mut self,
        resident: &mut DeviceModel<D>,
        steps: u64,
        mut read: impl FnMut(&str, usize, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let mut values = Vec::new();
        for StateTensor { name, tensor, moment } in tensors(self.settings.method, &self.layout) {
            let Some(buffer) = self.buffer(moment) else { continue };
            let range = &self.layout.entries[tensor].range;
            for start in range.clone().step_by(PIECE) {
                let end = (start + PIECE).min(range.end);
                values.resize(end - start, 0.0);
                read(&name, start - range.start, &mut values)?;
                resident.device().upload(&values, buffer.slice(start..end))?;
            }
        }
        self.steps = steps;
        Ok(())
    }

    /// Copies a tensor's moments to the host, from the one of index `from` on.
    ///
    /// # Errors
    /// The device's.
    pub fn moment<D: Device>(
        &self,
        resident: &mut DeviceModel<D>,
        moment: Moment,
        tensor: usize,
        from: usize,
        values: &mut [f32],
    ) -> Result<()> {
        let Some(buffer) = self.buffer(moment) else { return Ok(()) };
        let start = self.layout.entries[tensor].range.start + from;
        resident.device().download(buffer.slice(start..start + values.len()), values)
    }

    fn buffer(&self, moment: Moment) -> Option<&Buffer<f32>> {
        let (first, second) = self.moments.as_ref()?;
        Some(if moment == Moment::First { first } else { second })
    }

    /// Optimizer steps taken since the state was made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// See [`super::Optimizer::step`].
    ///
    /// # Errors
    /// The device's.
    pub fn step<D: Device>(&mut self, resident: &mut DeviceModel<D>, norm: f64, factor: f64) -> Result<()> {
        self.steps += 1;
        let settings = self.settings;
        let scale = clipping(norm, settings.max_grad_norm);
        let rate = settings.lr * factor;
        let parts = resident.optimizer_tensors()?;
        for (range, decayed) in runs(&self.layout.entries) {
            let decay = if decayed { settings.weight_decay } else { 0.0 };
            let (length, keep) = (range.len() as u64, (1.0 - rate * decay) as f32);
            let shape = elementwise(range.len());
            let weights = parts.weights.slice(range.clone());
            let remainders = parts.remainders.slice(range.clone());
            let gradients = parts.gradients.slice(range.clone());
            match &self.moments {
                Some((first, second)) => {
                    let (beta1, beta2) = settings.betas;
                    let correction1 = 1.0 - beta1.powi(self.steps as i32);
                    let correction2 = 1.0 - beta2.powi(self.steps as i32);
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
}
