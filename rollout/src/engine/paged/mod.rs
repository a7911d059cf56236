//! Inference on a device: groups of branches over one cache of keys and values in blocks.
//!
//! The cache is a pool of blocks with counted holders ([`pool`]); a [`sequence`] is a list of blocks, branches share
//! those of their prompt, and whole blocks of earlier prompts are remembered for later ones ([`cache`]). The
//! [`scheduler`] lays the rows of a run out ([`batch`]) and a [`runner`] computes them: ONNX Runtime over bound memory
//! ([`session`]), then tokens where the logits are ([`sampler`]), all of it one piece of [`work`]. Decoding does the same
//! work again and again: it is laid out in few forms ([`form`]), recorded once and repeated ([`recordings`]).
//!
//! One thread does all that for all threads that play episodes ([`service`]), so that their groups share each run and the
//! device computes while they step environments. Policies that are [`adapters`] of one base share all of this: a row has
//! the adapter of its group. How much memory it may take is decided in [`budget`].
//!
//! Left out: throwing sequences out when memory runs short. A group is let in only when all that it may come to need
//! is there.

pub mod adapters;
pub mod batch;
mod budget;
pub mod cache;
mod form;
pub mod group;
mod inputs;
pub mod limits;
pub mod pool;
mod recordings;
mod reference;
pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod service;
pub mod session;
#[cfg(test)]
mod tests;
mod work;

use self::adapters::Adapters;
pub use self::budget::SEQUENCES;
use self::limits::Limits;
use self::runner::{DeviceRunner, Room};
use self::service::Service;
use self::session::Provider;
use crate::runtime;
use device::{Choice, Cuda, Device, Sim};
use half::bf16;
use policy::config::Config;
use policy::directory::Policy;
use policy::weights::Weights;
use record::failure::{Failure, Result};

/// Rows and blocks on the simulator, which is for looking into mistakes and not for work.
const SIMULATED: Room = Room { rows: 256 + 64, sequences: 64, blocks: 64, block_size: 64 };

type Simulated = DeviceRunner<Sim, f32>;

/// Opens a policy on a device, in a thread of its own, or policies that are adapters of one base, of which a client names
/// one by its place among the adapters; the base itself may be one of the policies. `share` says how many models still have to be opened there, this one included; they divide what is
/// free.
///
/// # Errors
/// Exit 69 without the device, a library or enough memory; files that are missing, damaged or not implemented.
pub fn start(policies: &[&Policy], device: Choice, share: u64, stop_ids: Vec<u32>) -> Result<Service> {
    let policies: Vec<Policy> = policies.iter().map(|&policy| policy.clone()).collect();
    let opened = move || {
        let Some(policy) = policies.first() else {
            return Err(Failure::work("an engine without a policy"));
        };
        let config = Config::load(policy.model())?;
        let adapters = Adapters::load(&policies, &config)?;
        Ok((config, Weights::open(policy.model())?, adapters))
    };
    let limits = move |config: &Config, room: Room| Limits {
        rows: room.sequences,
        prompt_tokens: room.rows - room.sequences,
        blocks: room.blocks,
        block_size: room.block_size,
        positions: config.max_positions,
        vocabulary: config.vocab_size,
        stop_ids,
    };
    match device {
        Choice::Cpu => Err(Failure::work("the processor has an engine of its own")),
        Choice::Sim => Service::start(move || {
            let (config, weights, adapters) = opened()?;
            let limits = limits(&config, SIMULATED);
            let (sim, provider) = (Sim::new(1, 0)?, Provider::Processor);
            Ok((Simulated::open(config, &weights, &adapters, sim, provider, |_| Ok(SIMULATED))?, limits))
        }),
        Choice::Cuda(number) => Service::start(move || {
            runtime::open_cuda()?;
            let (config, weights, adapters) = opened()?;
            let cuda = Cuda::new(number)?;
            let provider = Provider::Cuda { number, stream: cuda.stream() };
            let mut taken = None;
            let sizes = config.clone();
            let decide = |cuda: &Cuda| {
                let free = cuda.memory()?.free / share;
                let room = budget::room::<bf16>(&sizes, &adapters, free, &device.to_string())?;
                taken = Some(room);
                Ok(room)
            };
            let runner =
                DeviceRunner::<Cuda, bf16>::open(config, &weights, &adapters, cuda, provider, decide)?;
            let room = taken.ok_or_else(|| Failure::work("no room was decided on"))?;
            Ok((runner, limits(&sizes, room)))
        }),
    }
}
