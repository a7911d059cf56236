//! [`PartSum`] on devices: pieces of the gradient pass from device to device, and kernels add them in the order of the tree.

use std::ops::Range;

use device::{AnySlice, Buffer, Device, Shape, Slice};
use record::failure::Result;

use super::{Checksum, PartSum};
use crate::kernels;
use crate::model::{STAGING, elementwise};
use crate::optimizer::shares::Shares;
use crate::ranks::{Communicator, ThroughHost, Transport};

/// What a device needs to add parts.
pub struct DeviceSum<D: Device> {
    /// `None` with one rank.
    link: Option<Link<D>>,
    /// Sums that wait for the other half of their branch, [waiting, share]; `None` if they wait on the host.
    waiting: Option<Buffer<f32>>,
    /// Values that a rank sends at once.
    at_once: usize,
}

/// The way to the other ranks.
struct Link<D: Device> {
    transport: Box<dyn Transport<D>>,
    /// A piece of each rank's part.
    received: Buffer<f32>,
    /// One of the values sent to each rank, then one of the values received from each.
    checksums: Buffer<u64>,
}

/// Values that a rank receives at once.
pub fn values_received(shares: &Shares, ranks: usize) -> usize {
    let longest = |region| shares.of_region(region).iter().map(Range::len).max().unwrap_or(0);
    (0..shares.regions()).map(|region| ranks * at_once(STAGING, ranks, longest(region))).max().unwrap_or(0)
}

/// Values of one rank's piece.
fn at_once(all: usize, ranks: usize, longest: usize) -> usize {
    (all / ranks).min(longest).max(1)
}

/// Checksums that a device keeps.
pub fn checksums(ranks: usize) -> usize {
    2 * ranks
}

/// Launch shape of checksums: few blocks, because each ends with an atomic addition.
fn checksum_shape(length: usize, ranks: usize) -> Shape {
    Shape { grid: [length.div_ceil(4096).clamp(1, 1024) as u32, ranks as u32, 1], ..Shape::rows(1, 256) }
}

impl<D: Device> DeviceSum<D> {
    /// Buffers for `ranks` processes, and for `waiting` sums of a share of the gradient. Values pass through the host until
    /// [`DeviceSum::set_transport`] names another way.
    pub fn new(device: &mut D, shares: &Shares, ranks: usize, waiting: usize) -> Result<DeviceSum<D>> {
        let link = match ranks {
            1 => None,
            _ => Some(Link {
                transport: Box::new(ThroughHost::default()),
                received: device.allocate(values_received(shares, ranks))?,
                checksums: device.allocate(checksums(ranks))?,
            }),
        };
        let waiting = if waiting > 0 { Some(device.allocate(waiting)?) } else { None };
        Ok(DeviceSum { link, waiting, at_once: STAGING })
    }

    /// Sets the way to the other ranks.
    pub fn set_transport(&mut self, transport: Box<dyn Transport<D>>) {
        if let Some(link) = &mut self.link {
            link.transport = transport;
        }
    }

    /// The way to the other ranks; `None` with one.
    pub fn transport(&mut self) -> Option<&mut dyn Transport<D>> {
        Some(self.link.as_mut()?.transport.as_mut())
    }

    /// The checksum of the bits of all weights, to compare ranks; `None` with one.
    pub fn weight_checksum(
        &mut self,
        device: &mut D,
        weights: AnySlice<'_>,
        length: usize,
    ) -> Result<Option<u64>> {
        let Some(Link { checksums, .. }) = &self.link else { return Ok(None) };
        let (slot, mut sum) = (checksums.slice(..1), [0]);
        device.clear(slot)?;
        let arguments = [slot.into(), weights.into(), (length as u64).into()];
        device.launch(&kernels::ADD_WEIGHT_CHECKSUM, checksum_shape(length, 1), &arguments)?;
        device.download(slot, &mut sum)?;
        Ok(Some(sum[0]))
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, at_once: usize) {
        self.at_once = at_once;
    }
}

impl<D: Device> Link<D> {
    /// Exchanges pieces of the ranks' parts; returns the sum of those for this rank, `length` values.
    fn add<'a>(
        &'a mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        sent: &[Slice<'_, f32>],
        length: usize,
        [of_sent, of_received]: &mut [Vec<Checksum>; 2],
    ) -> Result<Slice<'a, f32>> {
        let Link { transport, received, checksums } = self;
        let count = sent.len();
        for (to, (values, checksum)) in sent.iter().zip(of_sent).enumerate() {
            if !values.is_empty() {
                let arguments = [
                    checksums.slice(to..=to).into(),
                    (*values).into(),
                    (values.len() as u64).into(),
                    checksum.count.into(),
                ];
                device.launch(&kernels::ADD_CHECKSUMS, checksum_shape(values.len(), 1), &arguments)?;
            }
            checksum.count += values.len() as u64;
        }
        let pieces: Vec<_> =
            (0..count).map(|from| received.slice(from * length..(from + 1) * length)).collect();
        transport.all_to_all(ranks, device, sent, &pieces)?;
        if length == 0 {
            return Ok(pieces[0]);
        }
        let (all, values) = (received.slice(..count * length), length as u64);
        let first = of_received[0].count;
        let arguments = [checksums.slice(count..).into(), all.into(), values.into(), first.into()];
        device.launch(&kernels::ADD_CHECKSUMS, checksum_shape(length, count), &arguments)?;
        of_received.iter_mut().for_each(|checksum| checksum.count += values);
        let arguments = [all.into(), (count as i32).into(), values.into()];
        device.launch(&kernels::ADD_TREE, elementwise(length), &arguments)?;
        Ok(pieces[0])
    }
}

impl PartSum<'_> {
    /// [`PartSum::add`] on a device. `read` returns where a range of the part's gradient is on the device; it may put it into the
    /// room that it is given, of `staging`. `write` returns where a range of this rank's share of the sum belongs.
    pub fn add_on_device<'a, D: Device>(
        &mut self,
        device: &mut D,
        sums: &mut DeviceSum<D>,
        staging: &'a Buffer<f32>,
        read: impl Fn(&mut D, Range<usize>, Slice<'a, f32>) -> Result<Slice<'a, f32>>,
        write: impl Fn(Range<usize>, usize) -> Result<Slice<'a, f32>>,
    ) -> Result<()> {
        let Some(region) = self.next() else { return Ok(()) };
        let DeviceSum { link, waiting, at_once: all } = sums;
        let (count, rank) = (self.ranks.count(), self.ranks.rank());
        let ranges = self.shares.of_region(region);
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let most = at_once(*all, count, longest);
        let (completes, is_last) = (self.completes(), self.is_last());
        if !is_last && waiting.is_none() && self.waiting.len() == completes.start {
            self.waiting.push(vec![0.0; self.own.len()]);
        }
        if let Some(link) = link.as_ref().filter(|_| self.round == 0 && self.added == 0) {
            device.clear(link.checksums.all())?;
        }
        for from in (0..longest).step_by(most) {
            let piece = |range: &Range<usize>| {
                let start = (range.start + from).min(range.end);
                start..(start + most).min(range.end)
            };
            let (mut sent, mut before) = (Vec::with_capacity(count), 0);
            for range in ranges.iter().map(piece) {
                let room = staging.slice(before..before + range.len());
                before += range.len();
                sent.push(if range.is_empty() { room } else { read(device, range, room)? });
            }
            let mine = piece(&ranges[rank]);
            let sum = match link {
                Some(link) => link.add(self.ranks, device, &sent, mine.len(), &mut self.checksums)?,
                None => sent[rank],
            };
            if mine.is_empty() {
                continue;
            }
            let place = self.own.place(region) + from;
            let on_device = |half: usize| {
                let start = half * self.own.len() + place;
                start..start + mine.len()
            };
            for half in completes.clone().rev() {
                let other = match &waiting {
                    Some(waiting) => waiting.slice(on_device(half)),
                    None => {
                        let room = staging.slice(..mine.len());
                        device.upload(&self.waiting[half][place..][..mine.len()], room)?;
                        room
                    }
                };
                let arguments = [sum.into(), other.into(), (mine.len() as u64).into()];
                device.launch(&kernels::ADD_VALUES, elementwise(mine.len()), &arguments)?;
            }
            match &waiting {
                _ if is_last => {
                    let to = write(mine, place)?;
                    if to.address() != sum.address() {
                        device.copy(sum, to)?;
                    }
                }
                Some(waiting) => device.copy(sum, waiting.slice(on_device(completes.start)))?,
                None => {
                    let kept = &mut self.waiting[completes.start][place..][..mine.len()];
                    device.download(sum, kept)?;
                }
            }
        }
        self.end_region();
        match link {
            Some(link) if self.round == self.rounds => self.read_checksums(device, &link.checksums),
            _ => Ok(()),
        }
    }

    fn read_checksums<D: Device>(&mut self, device: &mut D, checksums: &Buffer<u64>) -> Result<()> {
        let mut sums = vec![0; checksums.len()];
        device.download(checksums.all(), &mut sums)?;
        self.checksums.iter_mut().flatten().zip(sums).for_each(|(checksum, sum)| checksum.sum = sum);
        Ok(())
    }
}
