//! Values between the host and the device: f32 here, there what a buffer holds.

use device::Device;
use half::bf16;

use super::Gpu;
use super::values::Values;

impl<D: Device> Gpu<D> {
    /// Fills a buffer from the host, rounding where it holds bf16.
    pub fn write(&mut self, from: &[f32], to: &mut Values) {
        self.attempt(|gpu| {
            to.reserve(&mut gpu.device, from.len())?;
            match to {
                Values::Half(_) => {
                    let rounded: Vec<bf16> = from.iter().map(|&value| bf16::from_f32(value)).collect();
                    gpu.device.upload(&rounded, to.half()?.slice(..from.len()))
                }
                Values::Single(_) => gpu.device.upload(from, to.single()?.slice(..from.len())),
            }
        });
    }

    /// The first values of a buffer, as many as `to` has.
    pub fn read(&mut self, from: &Values, to: &mut [f32]) {
        self.attempt(|gpu| match from {
            Values::Half(_) => {
                let mut rounded = vec![bf16::ZERO; to.len()];
                gpu.device.download(from.half()?.slice(..to.len()), &mut rounded)?;
                to.iter_mut().zip(rounded).for_each(|(to, value)| *to = value.to_f32());
                Ok(())
            }
            Values::Single(_) => gpu.device.download(from.single()?.slice(..to.len()), to),
        });
    }
}
