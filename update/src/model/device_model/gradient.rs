//! The gradient on a device: micro-batches, parts and their sum, and its norm.

use device::{Buffer, Device, Shape as LaunchShape, Slice};
use record::failure::{Failure, Result};
use record::stage;

use super::{DeviceModel, frozen, micro_batches};
use crate::backend::{Backend, Gpu, Values, Windows};
use crate::kernels;
use crate::model::memory::SQUARES;
use crate::model::pass::{Decoder, Sink};
use crate::model::{Layout, LoraAdapter, RowLoss, Scores};
use crate::optimizer::shares::Shares;
use crate::ranks::{self, Communicator, DeviceSum, PartSum, SingleProcess};
use crate::tree::Tree;

/// The state of a part's gradient, with windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    /// Nothing, it is 0.
    Zero,
    /// All of it, in host memory.
    OnHost,
    /// It was added to the sum while it was computed.
    Added,
}

/// The window of a region's gradient: embedding and untied head have one, the others another.
pub(crate) fn window(layout: &Layout, region: usize) -> usize {
    let is_table = region == 0 || (region + 1 == layout.regions().len() && !layout.is_tied());
    usize::from(!is_table)
}

/// The last region before `end` that has this window.
fn region_before(layout: &Layout, end: usize, of: usize) -> Option<usize> {
    (0..end).rev().find(|&region| window(layout, region) == of)
}

/// The summed gradient, of the share or in its place among all.
pub(super) fn summed_gradient<'a>(
    summed: &'a Option<Buffer<f32>>,
    gradients: &'a Option<Values>,
) -> Result<Slice<'a, f32>> {
    match summed {
        Some(summed) => Ok(summed.all()),
        None => gradients.as_ref().ok_or_else(frozen)?.single(),
    }
}

impl<D: Device> DeviceModel<D> {
    /// Copies the gradient to the host.
    pub fn gradients(&mut self, gradients: &mut [f32]) -> Result<()> {
        let on_device = self.gradients.as_ref().ok_or_else(frozen)?;
        let Some(adapter) = &self.adapter else {
            self.worker.backend.read(on_device, gradients);
            return self.worker.backend.check();
        };
        let mut factors = vec![0.0; adapter.len()];
        self.worker.backend.read(on_device, &mut factors);
        gradients.fill(0.0);
        adapter.unpack_gradient(&factors, gradients);
        self.worker.backend.check()
    }

    /// Sets the gradients to zero.
    pub fn clear_gradients(&mut self) -> Result<()> {
        self.state = PartState::Zero;
        let length = self.adapter.as_ref().map_or(self.layout.len(), LoraAdapter::len);
        match self.gradients.as_mut().ok_or_else(frozen)? {
            Values::Windows(_) => {}
            gradients => self.worker.backend.zero(length, gradients),
        }
        self.worker.backend.check()
    }

    /// Adds the gradient of a part to a sum, unless [`DeviceModel::accumulate_part`] has done so.
    pub fn add_part(&mut self, sum: &mut PartSum) -> Result<()> {
        let DeviceModel { gradients, summed, parts, part, state, staging, .. } = self;
        let gradients = gradients.as_ref().ok_or_else(frozen)?;
        let (parts, device) = (parts.as_mut().ok_or_else(frozen)?, &mut self.worker.backend.device);
        if *state == PartState::Added {
            return Ok(());
        }
        for _ in self.layout.regions() {
            sum.add_on_device(
                device,
                parts,
                staging,
                |device, range, room| match (gradients, *state) {
                    (Values::Windows(_), PartState::OnHost) => {
                        device.upload(&part[range], room).map(|()| room)
                    }
                    (Values::Windows(_), _) => device.clear(room).map(|()| room),
                    _ => gradients.gradient(range),
                },
                |range, place| match &summed {
                    Some(summed) => Ok(summed.slice(place..place + range.len())),
                    None => gradients.gradient(range),
                },
            )?;
        }
        Ok(())
    }

    /// Gathers the weights that each rank has stepped on all of them.
    pub fn gather_weights(&mut self, ranks: &dyn Communicator) -> Result<()> {
        let shares = Shares::by_layer(&self.layout, ranks.count());
        let Some(transport) = self.parts.as_mut().and_then(DeviceSum::transport) else { return Ok(()) };
        transport.gather(ranks, &mut self.worker.backend.device, &shares, &self.weights)
    }

    /// The checksum of all weights, to compare ranks; `None` with one.
    pub fn weight_checksum(&mut self) -> Result<Option<u64>> {
        let Some(parts) = &mut self.parts else { return Ok(None) };
        parts.weight_checksum(&mut self.worker.backend.device, self.weights.half()?, self.layout.len())
    }

    /// [`DeviceModel::norm_of_all`] of one rank.
    pub fn gradient_norm(&mut self) -> Result<f64> {
        self.norm_of_all(&SingleProcess)
    }

    /// The global L2 norm of the gradients, of which each rank has its share; not finite if one of them is not. Any number of
    /// ranks gives the same bits.
    pub fn norm_of_all(&mut self, ranks: &dyn Communicator) -> Result<f64> {
        let gradients = summed_gradient(&self.summed, &self.gradients)?;
        let device = &mut self.worker.backend.device;
        let (mut place, mut first) = (0, 0);
        for range in self.share.ranges().iter().filter(|range| !range.is_empty()) {
            let pieces = range.len().div_ceil(SQUARES);
            let arguments = [
                self.sums.slice(first..first + pieces).into(),
                gradients
                    .slice(if self.summed.is_some() { place..place + range.len() } else { range.clone() })
                    .into(),
                (range.len() as u64).into(),
            ];
            device.launch(&kernels::SQUARE_SUMS, LaunchShape::rows(pieces as u32, 256), &arguments)?;
            (place, first) = (place + range.len(), first + pieces);
        }
        let mut own = vec![0.0f32; first];
        if first > 0 {
            device.download(self.sums.slice(..first), &mut own)?;
        }
        let all = ranks::gather(ranks, bytemuck::cast_slice(&own));
        let mut sums: Vec<_> =
            all.iter().map(|bytes| bytes.as_chunks().0.iter().map(|sum| f32::from_ne_bytes(*sum))).collect();
        let shares = Shares::by_layer(&self.layout, ranks.count());
        let mut total = 0.0;
        for region in 0..shares.regions() {
            for (range, sums) in shares.of_region(region).iter().zip(&mut sums) {
                let pieces = sums.by_ref().take(range.len().div_ceil(SQUARES));
                pieces.for_each(|sum| total += f64::from(sum));
            }
        }
        Ok(f64::sqrt(total))
    }

    /// Adds the gradient of `loss` over all trees, and returns the scores of the forward pass.
    pub fn accumulate(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
    ) -> Result<Vec<Scores>> {
        self.each_micro_batch(trees, temperature, Some(loss), None)
    }

    /// [`DeviceModel::accumulate`] of trees that are a whole part. With windows the gradient of one micro-batch is added to
    /// `sum` layer by layer, while it is computed.
    pub fn accumulate_part(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: &dyn RowLoss,
        sum: &mut PartSum,
    ) -> Result<Vec<Scores>> {
        self.each_micro_batch(trees, temperature, Some(loss), Some(sum))
    }

    pub(super) fn each_micro_batch(
        &mut self,
        trees: &[Tree],
        temperature: f32,
        loss: Option<&dyn RowLoss>,
        sum: Option<&mut PartSum>,
    ) -> Result<Vec<Scores>> {
        let DeviceModel { config, layout, adapter, worker, weights, gradients, .. } = self;
        let DeviceModel { summed, parts, part, state, staging, .. } = self;
        let (layout, regions) = (&**layout, layout.regions());
        let decoder = Decoder { config, layout, adapter: adapter.as_ref(), temperature };
        let mut found = Vec::with_capacity(trees.len());
        let batches = micro_batches(trees, self.tokens);
        let mut sum = sum.filter(|_| batches.len() == 1);
        for range in batches {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let (first, trees) = (range.start, &trees[range]);
            let Some(loss) = loss else {
                found.extend(worker.score(&decoder, weights, trees, None).0);
                worker.backend.check()?;
                continue;
            };
            let gradients = gradients.as_mut().ok_or_else(frozen)?;
            // With windows: the regions that come first, and after each the next one of its window.
            let open =
                |device: &mut D, windows: &mut Windows, end: usize, of: usize, before: Option<&[f32]>| {
                    let Some(region) = region_before(layout, end, of) else { return Ok(()) };
                    let range = regions[region].clone();
                    windows.open(device, of, range.clone(), before.map(|before| &before[range]))
                };
            if let Values::Windows(windows) = gradients {
                let before = (*state == PartState::OnHost).then_some(&part[..]);
                for of in 0..2 {
                    open(&mut worker.backend.device, windows, regions.len(), of, before)?;
                }
            }
            let mut leave = |gpu: &mut Gpu<D>, gradients: &mut Values, region: usize| {
                let Values::Windows(windows) = gradients else { return };
                let (Some(summed), Some(parts)) = (summed.as_ref(), parts.as_mut()) else { return };
                gpu.attempt(|gpu| {
                    let device = &mut gpu.device;
                    let is_on_host = *state == PartState::OnHost;
                    if let Some(sum) = sum.as_deref_mut() {
                        sum.add_on_device(
                            device,
                            parts,
                            staging,
                            |_, range, _| windows.slice(range),
                            |range, place| Ok(summed.slice(place..place + range.len())),
                        )?;
                    } else {
                        part.resize(layout.len(), 0.0);
                        let range = regions[region].clone();
                        device.download(windows.slice(range.clone())?, &mut part[range])?;
                    }
                    if region == 0 {
                        *state = if sum.is_some() { PartState::Added } else { PartState::OnHost };
                    }
                    open(device, windows, region, window(layout, region), is_on_host.then_some(&part[..]))
                });
            };
            let sink = Sink { gradients, leave: &mut leave };
            found.extend(worker.differentiate(&decoder, weights, first, trees, sink, loss));
            worker.backend.check()?;
        }
        Ok(found)
    }
}
