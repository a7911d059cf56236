//! From device to device through NCCL. Left out: a second stream, in which a layer's gradient would leave while the layer below is
//! computed.

use std::sync::{Arc, Once};

use device::cuda::nccl::{self, NcclCommunicator};
use device::{AnySlice, Device, Slice};
use record::failure::{Failure, Result};
use record::stage;

use super::wait::Wait;
use super::{Communicator, ThroughHost, Transport, gather, host};
use crate::backend::Values;
use crate::optimizer::shares::Shares;

/// Set to `off`, values pass through the host.
const SWITCH: &str = "TROUPE_NCCL";
/// What a rank has in the place of a version: nothing, or [`SWITCH`].
const ABSENT: u32 = 0;
const OFF: u32 = u32::MAX;

/// The way between these ranks' devices: NCCL if all have it, else through the host, which is said once.
///
/// # Errors
/// NCCL fails (1), naming rank, machine and device; an interruption.
pub fn connect<D: Device>(ranks: &dyn Communicator, device: &mut D) -> Result<Box<dyn Transport<D>>> {
    let through_host = || Box::new(ThroughHost::default());
    let Some(stream) = device.library_stream() else { return Ok(through_host()) };
    let is_off = std::env::var_os(SWITCH).is_some_and(|value| value == "off");
    let found = if is_off { None } else { nccl::Nccl::open().ok() };
    let own = found.as_ref().map_or(if is_off { OFF } else { ABSENT }, nccl::Nccl::version);
    match (agreed(ranks, own), found) {
        (Ok(true), Some(found)) => {
            let name = device.describe();
            let name = name.split_whitespace().next().unwrap_or_default();
            Ok(Box::new(Nccl::join(ranks, device, Arc::new(found), stream, name)?))
        }
        (Ok(_), _) => Ok(through_host()),
        (Err(cause), _) => {
            static SAID: Once = Once::new();
            if ranks.number(ranks.rank()) == 0 {
                SAID.call_once(|| {
                    stage::note(
                        "update",
                        format_args!("gradients pass through host memory, because {cause}"),
                    );
                    stage::note(
                        "hint",
                        "./scripts/fetch-cuda.sh nccl fetches NCCL, the same version for all machines",
                    );
                });
            }
            Ok(through_host())
        }
    }
}

/// True if all ranks have the same NCCL, false if one has it switched off; else why they cannot use it.
pub(super) fn agreed(ranks: &dyn Communicator, own: u32) -> std::result::Result<bool, String> {
    let all = gather(ranks, &[&own.to_le_bytes(), host().as_bytes()].concat());
    let versions: Vec<u32> = all
        .iter()
        .map(|bytes| bytes.first_chunk().map_or(ABSENT, |bytes| u32::from_le_bytes(*bytes)))
        .collect();
    let name = |rank: usize| {
        format!("rank {} on {}", ranks.number(rank), String::from_utf8_lossy(&all[rank][size_of::<u32>()..]))
    };
    if versions.contains(&OFF) {
        return Ok(false);
    }
    if let Some(rank) = versions.iter().position(|version| *version == ABSENT) {
        return Err(format!("{} has no NCCL (libnccl.so.2)", name(rank)));
    }
    match versions.iter().position(|version| *version != versions[0]) {
        None => Ok(true),
        Some(rank) => {
            let version = |rank: usize| {
                let version = versions[rank];
                format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
            };
            Err(format!("{} has NCCL {} and {} {}", name(0), version(0), name(rank), version(rank)))
        }
    }
}

/// NCCL's communicator of these ranks.
pub struct Nccl {
    communicator: NcclCommunicator,
    /// Rank, machine and device, for messages.
    name: String,
}

impl Nccl {
    /// Joins the other ranks, with an id that rank 0 makes. Work is done in `stream` of `device`, which `name` names.
    pub fn join<D: Device>(
        ranks: &dyn Communicator,
        device: &mut D,
        nccl: Arc<nccl::Nccl>,
        stream: *mut std::ffi::c_void,
        name: &str,
    ) -> Result<Nccl> {
        let name = format!("rank {} on {}, {name}", ranks.number(ranks.rank()), host());
        let mut id = [0; nccl::ID_BYTES];
        if ranks.rank() == 0 {
            id = nccl.id().map_err(|failure| named(&name, failure))?;
        }
        ranks.broadcast(0, &mut id)?;
        // The context becomes current in this thread.
        device.synchronize()?;
        let joined = NcclCommunicator::join(nccl, &id, ranks.rank(), ranks.count(), stream);
        let joined = Nccl { communicator: joined.map_err(|failure| named(&name, failure))?, name };
        joined.wait(device)?;
        Ok(joined)
    }

    /// Waits until all work on the device is done. A rank that has ended would never send: whoever ends this one, the launcher
    /// or NCCL, is heard.
    fn wait<D: Device>(&self, device: &mut D) -> Result<()> {
        let mut wait = Wait::new();
        loop {
            let is_ready = self.communicator.is_ready().map_err(|failure| named(&self.name, failure))?;
            if is_ready && device.is_idle()? {
                return Ok(());
            }
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            if let Some(waited) = wait.is_over() {
                let (name, seconds) = (&self.name, waited.as_secs());
                stage::note("update", format_args!("{name}: NCCL has taken {seconds} s so far"));
            }
            wait.pause();
        }
    }
}

/// A failure with who had it.
fn named(name: &str, failure: Failure) -> Failure {
    Failure::work(format!("{name}: {}; nothing was published", failure.message)).hint(
        "NCCL_DEBUG=WARN says more; TROUPE_NCCL=off passes gradients through host memory, with the same bytes",
    )
}

fn untyped<'a>(slices: &[Slice<'a, f32>]) -> Vec<AnySlice<'a>> {
    slices.iter().map(|slice| AnySlice::from(*slice)).collect()
}

/// Waits for all ranks, so that one that is slow or stopped is named.
fn meet(ranks: &dyn Communicator) {
    ranks.all_gather(&[0], &mut vec![0; ranks.count()]);
}

impl<D: Device> Transport<D> for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn all_to_all(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        sent: &[Slice<'_, f32>],
        received: &[Slice<'_, f32>],
    ) -> Result<()> {
        meet(ranks);
        let begun = self.communicator.all_to_all(&untyped(sent), &untyped(received));
        begun.map_err(|failure| named(&self.name, failure))?;
        self.wait(device)
    }

    fn gather(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut D,
        shares: &Shares,
        weights: &Values,
    ) -> Result<()> {
        meet(ranks);
        let weights = weights.half()?;
        for region in 0..shares.regions() {
            let slices: Vec<_> =
                shares.of_region(region).iter().map(|range| weights.slice(range.clone())).collect();
            let begun = self.communicator.broadcast(&slices);
            begun.map_err(|failure| named(&self.name, failure))?;
            self.wait(device)?;
        }
        Ok(())
    }
}
