//! How values pass between the devices of the ranks.

use device::{Device, Slice};
use record::failure::Result;

use super::{Communicator, exchange};
use crate::backend::Values;
use crate::optimizer::shares::Shares;

/// Moves values between the devices of the ranks. It computes nothing.
///
/// # Errors
/// Every method fails if the device or the transport does. All ranks call the same methods in the same order.
pub trait Transport<D: Device> {
    /// Its name in `timing`.
    fn name(&self) -> &'static str;

    /// Sends `sent[r]` to rank r and receives `received[r]` from it. The r-th of `sent` is as long on all ranks.
    fn all_to_all(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        sent: &[Slice<'_, f32>],
        received: &[Slice<'_, f32>],
    ) -> Result<()>;

    /// Gathers every rank's share of the weights, 16-bit values, on all ranks.
    fn gather(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        shares: &Shares,
        weights: &Values,
    ) -> Result<()>;
}

/// Through host memory and [`Communicator`].
#[derive(Debug, Default)]
pub struct ThroughHost {
    sent: Vec<f32>,
    received: Vec<f32>,
}

impl<D: Device> Transport<D> for ThroughHost {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_to_all(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        sent: &[Slice<'_, f32>],
        received: &[Slice<'_, f32>],
    ) -> Result<()> {
        let longest = sent.iter().map(|values| values.len()).max().unwrap_or(0);
        self.sent.resize(longest * sent.len(), 0.0);
        self.received.resize(longest * sent.len(), 0.0);
        for (values, place) in sent.iter().zip(self.sent.chunks_mut(longest.max(1))) {
            device.download(*values, &mut place[..values.len()])?;
        }
        ranks.all_to_all(bytemuck::cast_slice(&self.sent), bytemuck::cast_slice_mut(&mut self.received));
        for (values, place) in received.iter().zip(self.received.chunks(longest.max(1))) {
            device.upload(&place[..values.len()], *values)?;
        }
        Ok(())
    }

    fn gather(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        shares: &Shares,
        weights: &Values,
    ) -> Result<()> {
        exchange(
            ranks,
            shares,
            device,
            |device, range, bits| weights.read_bits(device, range, bits),
            |device, range, bits| weights.write_bits(device, range, bits),
        )
    }
}
