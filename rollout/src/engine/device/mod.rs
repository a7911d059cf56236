//! The model runner for devices.
//!
//! ONNX Runtime runs over bound memory ([`session`]), then tokens are sampled where the logits are ([`sampler`]); together
//! that is one [`forward`] pass. Decoding has another attention
//! ([`decode_attention`]) if that is faster. It is padded to few batch shapes ([`shape`]), captured once as a CUDA graph and
//! replayed ([`graphs`]). [`adapters`] of one base share all of this. [`budget`] decides how much memory it takes.

pub mod adapters;
mod attention_tier;
mod budget;
pub mod config;
mod decode_attention;
mod decode_choice;
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
mod sessions;
mod shape;
mod tasks;
#[cfg(test)]
mod tests;
mod weights;

use self::adapters::Adapters;
pub use self::attention_tier::sdpa_kernel;
pub use self::budget::{DeviceBudget, MemoryLimit, SEQUENCES};
use self::config::{Activation, Capacity};
use self::runner::{DeviceRunner, read};
use self::session::Provider;
use crate::engine::scheduler::Scheduler;
use crate::engine::service::Service;
use crate::runtime;
use device::{ComputeDtype, Cuda, Device, DeviceKind, Sim};
use half::{bf16, f16};
use policy::config::Config;
use policy::directory::Policy;
use policy::weights::Weights;
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
    dtype: ComputeDtype,
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
        DeviceKind::Cuda(number) if dtype == ComputeDtype::Float16 => {
            Service::start(move || on_cuda::<f16>(number, load()?, &budget, stop_ids))
        }
        DeviceKind::Cuda(number) => {
            Service::start(move || on_cuda::<bf16>(number, load()?, &budget, stop_ids))
        }
    }
}

/// The scheduler of a model on a GPU.
fn on_cuda<T: Activation>(
    number: u32,
    (config, weights, adapters): (Config, Arc<Weights>, Adapters),
    budget: &DeviceBudget,
    stop_ids: Vec<u32>,
) -> Result<Vec<Scheduler<DeviceRunner<Cuda, T>>>> {
    runtime::open_cuda()?;
    let cuda = Cuda::new(number)?;
    let provider = Provider::Cuda { number, stream: cuda.stream() };
    let (sizes, name) = (config.clone(), DeviceKind::Cuda(number).to_string());
    let capacity = |cuda: &Cuda| budget.next::<T>(&sizes, &adapters, cuda.memory()?, &name);
    let runner = DeviceRunner::<Cuda, T>::open(config, &weights, &adapters, cuda, provider, capacity)?;
    let limits = runner.scheduler_config(stop_ids);
    Ok(vec![Scheduler::new(runner, limits)])
}
