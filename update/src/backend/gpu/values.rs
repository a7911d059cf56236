//! An array on the device: bf16 for weights and activations, f32 for gradients of weights and the residual stream.

use device::{Buffer, Device, Element, Slice};
use half::bf16;
use record::failure::{Failure, Result};

/// Values on a device, without memory before [`Values::reserve`].
#[derive(Debug)]
pub enum Values {
    /// bf16.
    Half(Option<Buffer<bf16>>),
    /// f32.
    Single(Option<Buffer<f32>>),
}

impl Values {
    /// Grows to `length` values; the content is lost if there were fewer.
    pub(crate) fn reserve<D: Device>(&mut self, device: &mut D, length: usize) -> Result<()> {
        match self {
            Values::Half(buffer) => reserve(device, buffer, length).map(|_| ()),
            Values::Single(buffer) => reserve(device, buffer, length).map(|_| ()),
        }
    }

    /// All values in bf16.
    pub(crate) fn half(&self) -> Result<Slice<'_, bf16>> {
        match self {
            Values::Half(Some(buffer)) => Ok(buffer.all()),
            _ => Err(mismatch("bf16")),
        }
    }

    /// All values in f32.
    pub(crate) fn single(&self) -> Result<Slice<'_, f32>> {
        match self {
            Values::Single(Some(buffer)) => Ok(buffer.all()),
            _ => Err(mismatch("f32")),
        }
    }

    pub(super) fn write<D: Device>(&mut self, device: &mut D, from: &[f32]) -> Result<()> {
        self.reserve(device, from.len())?;
        match self {
            Values::Half(_) => {
                let rounded: Vec<bf16> = from.iter().map(|&value| bf16::from_f32(value)).collect();
                device.upload(&rounded, self.half()?.slice(..from.len()))
            }
            Values::Single(_) => device.upload(from, self.single()?.slice(..from.len())),
        }
    }

    pub(super) fn read<D: Device>(&self, device: &mut D, to: &mut [f32]) -> Result<()> {
        match self {
            Values::Half(_) => {
                let mut rounded = vec![bf16::ZERO; to.len()];
                device.download(self.half()?.slice(..to.len()), &mut rounded)?;
                to.iter_mut().zip(rounded).for_each(|(to, value)| *to = value.to_f32());
                Ok(())
            }
            Values::Single(_) => device.download(self.single()?.slice(..to.len()), to),
        }
    }
}

fn mismatch(expected: &str) -> Failure {
    Failure::work(format!("device: an operation expected {expected} values"))
}

/// At least `length` values in `slot`. A buffer that is too small is freed before the larger one is allocated.
pub(crate) fn reserve<'a, D: Device, T: Element>(
    device: &mut D,
    slot: &'a mut Option<Buffer<T>>,
    length: usize,
) -> Result<&'a Buffer<T>> {
    if slot.as_ref().is_none_or(|buffer| buffer.len() < length) {
        *slot = None;
        *slot = Some(device.allocate(length.max(1))?);
    }
    slot.as_ref().ok_or_else(|| mismatch("reserved"))
}
