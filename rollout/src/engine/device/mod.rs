//! The model runner for devices.
//!
//! ONNX Runtime runs over bound memory ([`session`]), then tokens are sampled where the logits are ([`sampler`]); together
//! that is one [`forward`] pass. Our attention may replace ONNX Runtime's ([`prefill_attention`], [`decode_attention`],
//! [`attention_choice`]). Decoding is padded to few batch shapes ([`shape`]), captured once as a CUDA graph and
//! replayed ([`graphs`]). [`adapters`] of one base share all of this. [`budget`] decides how much memory it takes.

pub mod adapters;
mod attention_choice;
mod attention_tier;
mod budget;
pub mod config;
mod decode_attention;
mod forward;
mod graphs;
mod heads;
mod inputs;
mod kv_cache;
mod operators;
mod paged_attention;
mod prefill_attention;
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
use self::attention_choice::AttentionChoice;
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

/// Sizes in the simulator, which is for debugging, not for work.
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
        DeviceKind::Sim(_) => match dtype {
            ComputeDtype::Float32 => Service::start(move || simulated::<f32>(load()?, stop_ids)),
            ComputeDtype::BFloat16 => Service::start(move || simulated::<bf16>(load()?, stop_ids)),
            ComputeDtype::Float16 => Service::start(move || simulated::<f16>(load()?, stop_ids)),
        },
        DeviceKind::Cuda(number) if dtype == ComputeDtype::Float16 => {
            Service::start(move || on_cuda::<f16>(number, load()?, &budget, stop_ids))
        }
        DeviceKind::Cuda(number) => {
            Service::start(move || on_cuda::<bf16>(number, load()?, &budget, stop_ids))
        }
    }
}

/// The scheduler of a model in the simulator.
fn simulated<T: Activation>(
    (config, weights, adapters): (Config, Arc<Weights>, Adapters),
    stop_ids: Vec<u32>,
) -> Result<Vec<Scheduler<DeviceRunner<Sim, T>>>> {
    let provider = Provider::Cpu;
    let choice = AttentionChoice::by_variable::<T>(&config, provider)?;
    let (sim, capacity) = (Sim::new(1, 0)?, |_: &Sim| Ok(SIMULATED));
    let runner = DeviceRunner::open(config, &weights, &adapters, sim, (provider, choice), capacity)?;
    let limits = runner.scheduler_config(stop_ids);
    Ok(vec![Scheduler::new(runner, limits)])
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
    let choice = AttentionChoice::by_variable::<T>(&config, provider)?;
    let (sizes, name, sessions) =
        (config.clone(), DeviceKind::Cuda(number).to_string(), choice.prompt_sessions());
    let capacity = |cuda: &Cuda| budget.next::<T>(&sizes, &adapters, sessions, cuda.memory()?, &name);
    let runner =
        DeviceRunner::<Cuda, T>::open(config, &weights, &adapters, cuda, (provider, choice), capacity)?;
    let limits = runner.scheduler_config(stop_ids);
    Ok(vec![Scheduler::new(runner, limits)])
}
