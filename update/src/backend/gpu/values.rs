//! An array on the device: bf16 for weights and activations, f32 for gradients of weights, the residual stream and
//! statistics.

use device::{Buffer, Device, Element, Slice};
use half::bf16;
use record::failure::{Failure, Result};

/// Values on a device; nothing is allocated until room is made.
#[derive(Debug)]
pub enum Values {
    /// Weights and activations.
    Half(Option<Buffer<bf16>>),
    /// Gradients of weights, and numbers that more depends on than on one activation.
    Single(Option<Buffer<f32>>),
}

impl Values {
    /// Makes room for `length` values; what was there is lost if there was less.
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
            _ => Err(misuse("bf16")),
        }
    }

    /// All values in f32.
    pub(crate) fn single(&self) -> Result<Slice<'_, f32>> {
        match self {
            Values::Single(Some(buffer)) => Ok(buffer.all()),
            _ => Err(misuse("f32")),
        }
    }
}

fn misuse(wanted: &str) -> Failure {
    Failure::work(format!("device: an operation found no {wanted} values where it needs them"))
}

/// At least `length` values in `slot`. A buffer that is too small is given back before the larger one is taken.
pub(crate) fn reserve<'a, D: Device, T: Element>(
    device: &mut D,
    slot: &'a mut Option<Buffer<T>>,
    length: usize,
) -> Result<&'a Buffer<T>> {
    if slot.as_ref().is_none_or(|buffer| buffer.len() < length) {
        *slot = None;
        *slot = Some(device.allocate(length.max(1))?);
    }
    slot.as_ref().ok_or_else(|| misuse("reserved"))
}
