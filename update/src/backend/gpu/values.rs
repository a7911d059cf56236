//! An array on the device: 16 bits for weights and activations, f32 for gradients of weights and the residual stream.

use std::ops::Range;

use device::{AnySlice, Buffer, Device, Element, Slice};
use half::{bf16, f16};
use record::failure::{Failure, Result};

/// The 16-bit type of weights and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Half {
    /// bf16: the range of f32.
    #[default]
    BFloat16,
    /// f16: eight times as exact, and at most 65504.
    Float16,
}

/// From here on f32 rounds to infinity in f16.
const F16_OVERFLOW: f32 = 65_520.0;

impl Half {
    /// Bytes that complete a weight to its f32 master.
    pub(crate) fn remainder_bytes(self) -> usize {
        match self {
            Half::BFloat16 => 2,
            Half::Float16 => 4,
        }
    }

    /// The value with these bits.
    pub(crate) fn widened(self, bits: u16) -> f32 {
        match self {
            Half::BFloat16 => bf16::from_bits(bits).to_f32(),
            Half::Float16 => f16::from_bits(bits).to_f32(),
        }
    }

    /// The first of the values that this type has no number for.
    pub(crate) fn overflow(self, values: &[f32]) -> Option<f32> {
        match self {
            Half::BFloat16 => None,
            Half::Float16 => values.iter().copied().find(|value| value.abs() >= F16_OVERFLOW),
        }
    }
}

/// Values on a device, without memory before [`Values::reserve`].
#[derive(Debug)]
pub enum Values {
    /// bf16.
    Bf16(Option<Buffer<bf16>>),
    /// f16.
    F16(Option<Buffer<f16>>),
    /// f32.
    Single(Option<Buffer<f32>>),
    /// A gradient of which two ranges are there at a time.
    Windows(Windows),
}

/// Room for two ranges of a gradient, f32.
#[derive(Debug)]
pub struct Windows {
    buffers: [Buffer<f32>; 2],
    open: [Range<usize>; 2],
}

impl Windows {
    /// Room for ranges of up to these lengths.
    pub fn new<D: Device>(device: &mut D, lengths: [usize; 2]) -> Result<Windows> {
        let [first, second] = lengths.map(|length| device.allocate(length.max(1)));
        Ok(Windows { buffers: [first?, second?], open: [0..0, 0..0] })
    }

    /// Puts a range of the gradient into a window: these values, or zeros.
    pub fn open<D: Device>(
        &mut self,
        device: &mut D,
        window: usize,
        range: Range<usize>,
        values: Option<&[f32]>,
    ) -> Result<()> {
        let room = self.buffers[window].slice(..range.len());
        match values {
            Some(values) => device.upload(values, room)?,
            None => device.clear(room)?,
        }
        self.open[window] = range;
        Ok(())
    }

    /// A range that is open.
    pub fn slice(&self, range: Range<usize>) -> Result<Slice<'_, f32>> {
        let holds = |open: &Range<usize>| open.start <= range.start && range.end <= open.end;
        match self.open.iter().position(holds) {
            Some(window) => {
                let start = self.open[window].start;
                Ok(self.buffers[window].slice(range.start - start..range.end - start))
            }
            None => Err(Failure::work("device: this range of the gradient is not there")),
        }
    }
}

impl Values {
    /// An empty array of a 16-bit type.
    pub(crate) fn of(half: Half) -> Values {
        match half {
            Half::BFloat16 => Values::Bf16(None),
            Half::Float16 => Values::F16(None),
        }
    }

    /// Grows to `length` values; the content is lost if there were fewer.
    pub(crate) fn reserve<D: Device>(&mut self, device: &mut D, length: usize) -> Result<()> {
        match self {
            Values::Bf16(buffer) => reserve(device, buffer, length).map(|_| ()),
            Values::F16(buffer) => reserve(device, buffer, length).map(|_| ()),
            Values::Single(buffer) => reserve(device, buffer, length).map(|_| ()),
            Values::Windows(_) => Err(mismatch("other")),
        }
    }

    /// All values in 16 bits.
    pub(crate) fn half(&self) -> Result<AnySlice<'_>> {
        match self {
            Values::Bf16(Some(buffer)) => Ok(buffer.into()),
            Values::F16(Some(buffer)) => Ok(buffer.into()),
            _ => Err(mismatch("16-bit")),
        }
    }

    /// All values in f32.
    pub(crate) fn single(&self) -> Result<Slice<'_, f32>> {
        match self {
            Values::Single(Some(buffer)) => Ok(buffer.all()),
            _ => Err(mismatch("f32")),
        }
    }

    /// Sets the first `length` values to zero.
    pub(super) fn clear<D: Device>(&self, device: &mut D, length: usize) -> Result<()> {
        match self {
            Values::Bf16(buffer) => device.clear(all(buffer)?.slice(..length)),
            Values::F16(buffer) => device.clear(all(buffer)?.slice(..length)),
            _ => device.clear(self.single()?.slice(..length)),
        }
    }

    /// Copies the bits of a range of 16-bit values to the host.
    pub(crate) fn read_bits<D: Device>(
        &self,
        device: &mut D,
        range: Range<usize>,
        bits: &mut [u16],
    ) -> Result<()> {
        match self {
            Values::Bf16(buffer) => {
                device.download::<bf16>(all(buffer)?.slice(range), bytemuck::cast_slice_mut(bits))
            }
            Values::F16(buffer) => {
                device.download::<f16>(all(buffer)?.slice(range), bytemuck::cast_slice_mut(bits))
            }
            _ => Err(mismatch("16-bit")),
        }
    }

    /// Replaces a range of 16-bit values by values with these bits.
    pub(crate) fn write_bits<D: Device>(
        &self,
        device: &mut D,
        range: Range<usize>,
        bits: &[u16],
    ) -> Result<()> {
        match self {
            Values::Bf16(buffer) => {
                device.upload::<bf16>(bytemuck::cast_slice(bits), all(buffer)?.slice(range))
            }
            Values::F16(buffer) => {
                device.upload::<f16>(bytemuck::cast_slice(bits), all(buffer)?.slice(range))
            }
            _ => Err(mismatch("16-bit")),
        }
    }

    pub(crate) fn gradient(&self, range: Range<usize>) -> Result<Slice<'_, f32>> {
        match self {
            Values::Windows(windows) => windows.slice(range),
            _ => Ok(self.single()?.slice(range)),
        }
    }

    pub(super) fn write<D: Device>(&mut self, device: &mut D, from: &[f32]) -> Result<()> {
        self.reserve(device, from.len())?;
        match self {
            Values::Bf16(buffer) => upload(device, from, buffer, bf16::from_f32),
            Values::F16(buffer) => upload(device, from, buffer, f16::from_f32),
            _ => device.upload(from, self.single()?.slice(..from.len())),
        }
    }

    pub(super) fn read<D: Device>(&self, device: &mut D, to: &mut [f32]) -> Result<()> {
        match self {
            Values::Bf16(buffer) => download(device, buffer, to, bf16::to_f32),
            Values::F16(buffer) => download(device, buffer, to, f16::to_f32),
            _ => device.download(self.single()?.slice(..to.len()), to),
        }
    }
}

fn all<T: Element>(buffer: &Option<Buffer<T>>) -> Result<Slice<'_, T>> {
    buffer.as_ref().map(Buffer::all).ok_or_else(|| mismatch("reserved"))
}

fn upload<D: Device, T: Element>(
    device: &mut D,
    from: &[f32],
    to: &Option<Buffer<T>>,
    round: fn(f32) -> T,
) -> Result<()> {
    let rounded: Vec<T> = from.iter().map(|&value| round(value)).collect();
    device.upload(&rounded, all(to)?.slice(..from.len()))
}

fn download<D: Device, T: Element>(
    device: &mut D,
    from: &Option<Buffer<T>>,
    to: &mut [f32],
    widen: fn(T) -> f32,
) -> Result<()> {
    let mut rounded = vec![T::zeroed(); to.len()];
    device.download(all(from)?.slice(..to.len()), &mut rounded)?;
    to.iter_mut().zip(rounded).for_each(|(to, value)| *to = widen(value));
    Ok(())
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
