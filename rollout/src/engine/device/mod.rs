//! The model runner for devices.
//!
//! ONNX Runtime runs over bound memory ([`session`]), then tokens are sampled where the logits are ([`sampler`]); together
//! that is one [`forward`] pass. Decoding is padded to few batch shapes ([`shape`]), captured once as a CUDA graph and
//! replayed ([`graphs`]). [`adapters`] of one base share all of this. [`budget`] decides how much memory it takes.

pub mod adapters;
mod attention_tier;
mod budget;
pub mod config;
mod forward;
mod graphs;
mod heads;
mod inputs;
mod kv_cache;
mod operators;
mod paged_attention;
pub mod runner;
pub mod sampler;
pub mod session;
mod shape;
#[cfg(test)]
mod tests;
mod weights;

pub use self::attention_tier::sdpa_kernel;
pub use self::budget::{DeviceBudget, MemoryLimit, SEQUENCES};
use self::config::Capacity;
use self::runner::{DeviceRunner, read};
use self::session::Provider;
use crate::engine::scheduler::Scheduler;
use crate::engine::service::Service;
use crate::runtime;
use device::{Cuda, Device, DeviceKind, Sim};
use half::bf16;
use policy::directory::Policy;
use record::failure::{Failure, Result};
use std::sync::Arc;

/// Sizes on the simulator, which is for debugging, not for work.
const SIMULATED: Capacity = Capacity { rows: 256 + 64, sequences: 64, blocks: 64, block_size: 64 };

/// Loads a model, or a base with its adapters, in a thread of its own. Clients select an adapter by index; the base
/// itself may be one of the policies. The models of one device share its `budget`.
///
/// # Errors
/// Exit 69 without the device, a library or enough memory; files that are missing, damaged or not implemented.
pub fn start(
    policies: &[&Policy],
    device: DeviceKind,
    budget: &Arc<DeviceBudget>,
    stop_ids: Vec<u32>,
) -> Result<Arc<Service>> {
    let budget = budget.clone();
    let policies: Vec<Policy> = policies.iter().map(|&policy| policy.clone()).collect();
    let load = move || {
        let Some(policy) = policies.first() else {
            return Err(Failure::work("an engine without a policy"));
        };
        read(policy, &policies)
    };
    match device {
        DeviceKind::Cpu => Err(Failure::work("the CPU has no device thread")),
        DeviceKind::Sim(_) => Service::start(move || {
            let (config, weights, adapters) = load()?;
            let sim = Sim::new(1, 0)?;
            let capacity = |_: &Sim| Ok(SIMULATED);
            let runner =
                DeviceRunner::<Sim, f32>::open(config, &weights, &adapters, sim, Provider::Cpu, capacity)?;
            let limits = runner.scheduler_config(stop_ids);
            Ok(vec![Scheduler::new(runner, limits)])
        }),
        DeviceKind::Cuda(number) => Service::start(move || {
            runtime::open_cuda()?;
            let (config, weights, adapters) = load()?;
            let cuda = Cuda::new(number)?;
            let provider = Provider::Cuda { number, stream: cuda.stream() };
            let sizes = config.clone();
            let capacity =
                |cuda: &Cuda| budget.next::<bf16>(&sizes, &adapters, cuda.memory()?, &device.to_string());
            let runner =
                DeviceRunner::<Cuda, bf16>::open(config, &weights, &adapters, cuda, provider, capacity)?;
            let limits = runner.scheduler_config(stop_ids);
            Ok(vec![Scheduler::new(runner, limits)])
        }),
    }
}
