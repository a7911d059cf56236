//! The optimizer on a device: AdamW and SGD as kernels, moments in device memory.
//!
//! Left out: Muon, whose iteration needs f32 GEMMs of every matrix; it runs on the CPU only.

use std::ops::Range;
use std::sync::Arc;

use device::{Argument, Buffer, Device};
use policy::publish::PIECE;
use record::failure::{Failure, Result};

use super::shares::RankShare;
use super::{Method, Moment, Settings, StateTensor, StepScale, adamw, tensors};
use crate::kernels;
use crate::model::{DeviceModel, Entry, Layout, elementwise};

/// An optimizer with its state on a device. Every method fails if the device does.
pub struct DeviceOptimizer {
    settings: Settings,
    layout: Arc<Layout>,
    steps: u64,
    /// The weights that it steps.
    share: RankShare,
    /// Their first and second moments; `None` for SGD.
    moments: Option<(Buffer<f32>, Buffer<f32>)>,
}

/// Bytes of optimizer state per weight.
pub fn moment_bytes(method: Method) -> u64 {
    if method == Method::Adamw { 8 } else { 0 }
}

/// Checks that a method has kernels.
pub fn check(method: Method) -> Result<()> {
    match method {
        Method::Adamw | Method::Sgd => Ok(()),
        Method::Muon => Err(Failure::usage("--optimizer muon runs on the CPU only")
            .hint("use --device cpu, or --optimizer adamw")),
    }
}

/// Runs of consecutive tensors that are decayed alike.
fn runs(entries: &[Entry]) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
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
    /// An optimizer of the model's share of the weights that has taken no step.
    pub fn new<D: Device>(settings: Settings, model: &mut DeviceModel<D>) -> Result<DeviceOptimizer> {
        check(settings.method)?;
        let (layout, share) = (model.layout().clone(), model.share().clone());
        let device = model.device();
        let moments = match settings.method {
            Method::Adamw => {
                let (first, second) =
                    (device.allocate::<f32>(share.len())?, device.allocate::<f32>(share.len())?);
                device.clear(first.all())?;
                device.clear(second.all())?;
                Some((first, second))
            }
            _ => None,
        };
        Ok(DeviceOptimizer { settings, layout, steps: 0, share, moments })
    }

    /// Restores saved state like [`super::Optimizer::restore`], but a piece of a tensor at a time: `read` is also given the
    /// index of the piece's first value.
    pub fn restore<D: Device>(
        &mut self,
        model: &mut DeviceModel<D>,
        steps: u64,
        mut read: impl FnMut(&str, usize, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let mut values = Vec::new();
        for StateTensor { name, tensor, moment } in tensors(self.settings.method, &self.layout) {
            let Some(buffer) = self.buffer(moment) else { continue };
            let range = &self.layout.entries[tensor].range;
            for (own, place) in self.share.within(range) {
                for start in own.clone().step_by(PIECE) {
                    let end = (start + PIECE).min(own.end);
                    values.resize(end - start, 0.0);
                    read(&name, start - range.start, &mut values)?;
                    let place = place + start - own.start;
                    model.device().upload(&values, buffer.slice(place..place + values.len()))?;
                }
            }
        }
        self.steps = steps;
        Ok(())
    }

    /// Copies a tensor's moments to the host, starting at index `from`; only this rank's share.
    pub fn moment<D: Device>(
        &self,
        model: &mut DeviceModel<D>,
        moment: Moment,
        tensor: usize,
        from: usize,
        values: &mut [f32],
    ) -> Result<()> {
        let Some(buffer) = self.buffer(moment) else { return Ok(()) };
        let start = self.layout.entries[tensor].range.start + from;
        let mut rest = values;
        for (own, place) in self.share.within(&(start..start + rest.len())) {
            let piece = rest.split_off_mut(..own.len()).unwrap_or_default();
            model.device().download(buffer.slice(place..place + piece.len()), piece)?;
        }
        Ok(())
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
    pub fn step<D: Device>(&mut self, model: &mut DeviceModel<D>, scale: StepScale) -> Result<()> {
        self.steps += 1;
        let settings = self.settings;
        let rate = settings.lr * scale.rate;
        let scale = scale.clipped(settings.max_grad_norm);
        let parts = model.optimizer_tensors()?;
        let own = runs(&self.layout.entries).into_iter().flat_map(|(range, decayed)| {
            self.share.within(&range).into_iter().map(move |(range, place)| (range, place, decayed))
        });
        let own = own.flat_map(|(own, place, decayed)| {
            let alike = parts.published_alike(own.clone());
            alike.into_iter().map(move |(range, narrow)| {
                let place = place + range.start - own.start;
                (range, place, decayed, narrow)
            })
        });
        for (range, place, decayed, narrow) in own.collect::<Vec<_>>() {
            let kept = place..place + range.len();
            let decay = if decayed { settings.weight_decay } else { 0.0 };
            let length = range.len() as u64;
            let gradients = parts.gradient(&range, place);
            let mut arguments: Vec<Argument> =
                vec![parts.weights.slice(range).into(), parts.remainders.slice(kept.clone()).into()];
            if let Some((first, second)) = &self.moments {
                arguments.push(first.slice(kept.clone()).into());
                arguments.push(second.slice(kept).into());
            }
            arguments.extend([Argument::from(gradients), length.into(), scale.into()]);
            let kernel = if self.moments.is_some() {
                let step = adamw::Step { rate, betas: settings.betas, decay, step: self.steps };
                arguments.extend(step.factors().map(Argument::from));
                arguments.push(adamw::EPSILON.into());
                &kernels::ADAMW
            } else {
                arguments.extend([1.0 - rate * decay, rate].map(|factor| Argument::from(factor as f32)));
                &kernels::SGD
            };
            arguments.push(i32::from(narrow).into());
            parts.device.launch(kernel, elementwise(length as usize), &arguments)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_decay_or_place_changes() {
        let entry = |shape: &[usize], range| Entry { name: String::new(), shape: shape.to_vec(), range };
        let entries = [
            entry(&[2, 3], 0..6),
            entry(&[1, 4], 6..10),
            entry(&[5], 10..15),
            entry(&[1], 15..16),
            entry(&[2, 2], 16..20),
            entry(&[2, 2], 24..28),
        ];
        assert_eq!(runs(&entries), [(0..10, true), (10..16, false), (16..20, true), (24..28, true)]);
    }

    #[test]
    fn muon_has_no_kernel_and_plain_descent_no_moments() {
        let refused = check(Method::Muon).unwrap_err().to_string();
        assert!(refused.contains("--optimizer muon runs on the CPU only"), "{refused}");
        assert!(check(Method::Adamw).is_ok() && check(Method::Sgd).is_ok());
        assert_eq!((moment_bytes(Method::Adamw), moment_bytes(Method::Sgd)), (8, 0));
    }
}
