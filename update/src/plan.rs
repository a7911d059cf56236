//! How much memory a call uses: planned before anything is read or allocated, and printed by `--dry-run`.
//!
//! On a device the answer is exact, because its memory is reserved once, as planned. On the CPU it is an upper bound of
//! weights, gradients and activations; the samples and the process itself come on top.

use std::ops::Range;

use device::cuda::{Library, open_library};
use device::{Any, Device, DeviceKind, GEMM_WORKSPACE};
use policy::config::Config;
use policy::publish::PIECE;
use policy::weights::ElementType;
use record::failure::{Failure, Result};
use serde::Serialize;

use crate::backend::Half;
use crate::hardware::Hardware;
use crate::minibatch::{self, Sizes};
use crate::model::{self, Bytes, DeviceMemory, Layout, LoraAdapter, MemoryPlan, MemoryRequest};
use crate::optimizer::shares::Shares;
use crate::optimizer::{self, Optimizer, on_device::moment_bytes};
use crate::ranks::{PartSum, values_received};
use crate::samples::Samples;
use crate::settings::TrainingConfig;

/// Memory of an H200, the default of a plan without a GPU: 143,771 MiB.
const H200: u64 = 143_771 << 20;
/// Size of a CUDA context.
const CONTEXT: u64 = 500_000_000;

/// The memory that a call would use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryEstimate {
    /// The device as `--device` names it.
    pub device: String,
    /// Name of the memory: a GPU's, or the planned one's.
    pub memory: String,
    /// Bytes available.
    pub memory_bytes: Option<u64>,
    /// Bytes used, by purpose.
    pub bytes: Bytes,
    /// Host memory used with a device, bytes: pieces of weights and moments in transit, and an adapter. The page cache
    /// comes on top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Tokens of the largest micro-batch.
    pub tokens_at_once: usize,
    /// True if the backward pass recomputes layers.
    pub recompute: bool,
}

/// The model to train: the decoder's configuration, the type of its weights on disk, and the adapter if one is trained.
#[derive(Clone, Copy)]
pub struct ModelSpec<'a> {
    /// The decoder's configuration.
    pub config: &'a Config,
    /// The type of most weights.
    pub stored: ElementType,
    /// The adapter trained instead of the weights.
    pub adapter: Option<&'a LoraAdapter>,
}

/// The memory request of a call for each of `ranks` processes; `learns` is true if it trains.
pub fn request(training: &TrainingConfig, samples: &Samples, ranks: usize, learns: bool) -> MemoryRequest {
    let limit = training.batching.tokens;
    let Sizes { unique, largest_tree, longest } = minibatch::sizes(samples, limit);
    MemoryRequest {
        tokens: limit.min(unique).max(largest_tree),
        largest: largest_tree,
        rows: samples.tokens(),
        part: unique / (training.batching.minibatches as usize * training.batching.parts).max(1)
            + largest_tree,
        positions: longest,
        moments: learns.then(|| moment_bytes(training.optimizer.method)),
        ranks,
        waiting: waiting(training, ranks),
        half: Half::default(),
    }
}

/// Sums of parts that wait for the other half of their branch on each of `ranks` processes.
fn waiting(training: &TrainingConfig, ranks: usize) -> usize {
    PartSum::waiting((training.batching.parts / ranks).max(1))
}

/// The memory request without samples: one tree as large as `--max-tokens-per-batch` allows, of sequences as long as the
/// model accepts.
pub fn largest_request(training: &TrainingConfig, max_positions: usize, ranks: usize) -> MemoryRequest {
    let tokens = training.batching.tokens;
    let moments = Some(moment_bytes(training.optimizer.method));
    MemoryRequest {
        tokens,
        largest: 1,
        rows: tokens,
        part: tokens,
        positions: max_positions.min(tokens),
        moments,
        ranks,
        waiting: waiting(training, ranks),
        half: Half::default(),
    }
}

/// Plans the memory of one policy's training or scoring.
#[derive(Clone, Copy)]
pub struct Planner<'a> {
    pub hardware: &'a Hardware,
    pub training: &'a TrainingConfig,
    pub spec: ModelSpec<'a>,
}

impl Planner<'_> {
    /// Opens the device of `--device` and plans its memory; `None` for the CPU.
    ///
    /// # Errors
    /// It is not available, or the work does not fit (69); unsupported on devices (2).
    pub fn open_device(&self, request: &MemoryRequest) -> Result<Option<(Any, MemoryPlan)>> {
        if !self.hardware.is_device() {
            return self.on_host(request).map(|_| None);
        }
        self.check_device(request)?;
        let device = Any::open(self.hardware.kind, self.hardware.threads)?;
        let found = device.memory()?.free;
        let available = DeviceMemory { free: self.free(found).min(found), workspace: device.workspace() };
        Ok(Some((device, self.memory_plan(request, available)?)))
    }

    /// The memory that [`Planner::open_device`] would plan, for an H200 if there is no GPU.
    pub fn estimate(&self, request: &MemoryRequest) -> Result<MemoryEstimate> {
        let kind = self.hardware.kind;
        if !self.hardware.is_device() {
            return self.on_host(request);
        }
        self.check_device(request)?;
        let absent = matches!(kind, DeviceKind::Cuda(_)) && open_library(Library::Driver).is_err();
        let (name, available) = if absent {
            let free = self.free(H200 - CONTEXT);
            ("no GPU here: memory of an H200".to_owned(), DeviceMemory { free, workspace: GEMM_WORKSPACE })
        } else {
            let device = Any::open(kind, 1)?;
            let free = self.free(device.memory()?.free);
            (device.describe(), DeviceMemory { free, workspace: device.workspace() })
        };
        let plan = self.memory_plan(request, available)?;
        let name = if self.hardware.memory.is_some() { "as --device-memory says".to_owned() } else { name };
        Ok(MemoryEstimate {
            device: kind.to_string(),
            memory: name,
            memory_bytes: Some(available.free),
            bytes: plan.bytes,
            host_bytes: Some(self.host_bytes(&plan)),
            tokens_at_once: plan.tokens,
            recompute: plan.recompute,
        })
    }

    fn memory_plan(&self, request: &MemoryRequest, available: DeviceMemory) -> Result<MemoryPlan> {
        let request = MemoryRequest { half: self.hardware.half(), ..*request };
        MemoryPlan::new(self.spec.config, self.spec.adapter, request, available)
    }

    /// Fails for a model that the kernels cannot run, or for sequences longer than its shortest window: they have none,
    /// and within it plain causal attention is right.
    fn check_device(&self, request: &MemoryRequest) -> Result<()> {
        let ModelSpec { config, adapter, .. } = self.spec;
        if let Some(window) = config.shortest_window().filter(|&window| window < request.positions) {
            return Err(Failure::data(format!(
                "a sequence of {} tokens is longer than the model's sliding window of {window}",
                request.positions
            ))
            .hint(
                "devices have no sliding-window attention: train on shorter sequences, or use --device cpu",
            ));
        }
        model::check_for_device(config, adapter)
    }

    /// Host memory of training on a device, besides the samples: weights and moments pass between disk and device in
    /// pieces; only an adapter, its gradient and its optimizer stay, and sums of parts that have no room on the device.
    fn host_bytes(&self, plan: &MemoryPlan) -> u64 {
        let ModelSpec { config, adapter, .. } = self.spec;
        let request = &plan.request;
        let learns = request.moments.is_some();
        // At most one piece each of master weights, published values, their bytes, and lower halves.
        let pieces = 4 * PIECE * size_of::<f32>();
        let trained = adapter.map_or(0, |adapter| {
            let layout = adapter.layout();
            let moments = if learns { self.state_bytes(layout, request.ranks) } else { 0 };
            // Values and gradient, each also as packed factors.
            (if learns { 4 } else { 2 }) * layout.len() * size_of::<f32>() + moments
        });
        let sums = match adapter {
            _ if !learns => 0,
            Some(adapter) => self.sums(request, || self.largest_slice(adapter.layout(), request.ranks)),
            None => {
                let shares = Shares::by_layer(&Layout::new(config), request.ranks);
                let waiting = (request.waiting - plan.waiting_on_device()) * shares.largest();
                let passing = if request.ranks > 1 { 2 * values_received(&shares, request.ranks) } else { 0 };
                ((waiting + passing) * size_of::<f32>()) as u64
            }
        };
        (pieces + trained) as u64 + sums
    }

    /// Host bytes of a rank's `share` of the sums that wait for other parts, and of the buffers for their exchange.
    fn sums(&self, request: &MemoryRequest, share: impl FnOnce() -> usize) -> u64 {
        let parts = self.training.batching.parts;
        if parts == 1 {
            return 0;
        }
        let waiting = PartSum::waiting(parts / request.ranks) * share() * size_of::<f32>();
        (waiting + PartSum::buffer_bytes()) as u64
    }

    /// Free memory to plan with.
    fn free(&self, found: u64) -> u64 {
        self.hardware.memory.unwrap_or(found)
    }

    /// Bytes of optimizer state on the rank that has the most.
    fn state_bytes(&self, layout: &Layout, ranks: usize) -> usize {
        let method = self.training.optimizer.method;
        let slices = optimizer::slices(method, layout, ranks);
        let bytes = |slice: &Range<usize>| Optimizer::state_bytes(method, layout, slice);
        slices.iter().map(bytes).max().unwrap_or(0)
    }

    /// The most values of a layout that a rank steps on the CPU.
    fn largest_slice(&self, layout: &Layout, ranks: usize) -> usize {
        let slices = optimizer::slices(self.training.optimizer.method, layout, ranks);
        slices.iter().map(Range::len).max().unwrap_or(0)
    }

    fn on_host(&self, request: &MemoryRequest) -> Result<MemoryEstimate> {
        let ModelSpec { config, stored, adapter } = self.spec;
        let whole = Layout::new(config);
        let layout = adapter.map_or(&whole, |adapter| adapter.layout());
        let threads = self.hardware.threads;
        let of = |layout: &Layout| (layout.len() * size_of::<f32>()) as u64;
        // An adapter's values are f32, in addition to the base.
        let base = if adapter.is_some() { of(&whole) } else { 0 };
        let values = of(layout);
        let learns = request.moments.is_some();
        // What completes 16-bit weights to their masters.
        let masters = match stored {
            ElementType::BF16 => values / 2,
            ElementType::F16 => values,
            _ => 0,
        };
        let gradient = learns.then(|| layout.len());
        let (passes, tokens_at_once) =
            model::memory_on_host(config, request.tokens, request.largest, threads, gradient);
        // With an adapter also as packed factors.
        let sums = if adapter.is_some() { 2 } else { 1 };
        let waiting = self.sums(request, || self.largest_slice(layout, request.ranks));
        let bytes = Bytes {
            weights: base + values * sums + if learns && adapter.is_none() { masters } else { 0 },
            gradients: if learns { values * sums + waiting } else { 0 } + passes.gradients,
            moments: if learns { self.state_bytes(layout, request.ranks) as u64 } else { 0 },
            ..passes
        };
        let bytes = bytes.summed();
        let memory = physical_memory();
        if let Some(memory) = memory.filter(|&memory| bytes.total > memory) {
            let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
            return Err(Failure::unavailable(format!(
                "{} weights take {} on {threads} threads ({} for weights, gradients and moments), and this machine has {}",
                whole.len(),
                gigabytes(bytes.total),
                gigabytes(bytes.state()),
                gigabytes(memory)
            ))
            .hint(self.ways_out(bytes, request)));
        }
        Ok(MemoryEstimate {
            device: DeviceKind::Cpu.to_string(),
            memory: "this machine's".to_owned(),
            memory_bytes: memory,
            bytes,
            host_bytes: None,
            tokens_at_once,
            recompute: false,
        })
    }

    /// What helps where training does not fit this machine, the most effective first.
    fn ways_out(&self, bytes: Bytes, request: &MemoryRequest) -> String {
        let mut ways = Vec::new();
        let rest = bytes.total - bytes.state();
        if self.spec.adapter.is_none() && request.moments.is_some() {
            ways.push(
                "train an adapter (policy init --adapter), which has gradients and moments of a few weights only",
            );
            if bytes.moments > 0 {
                ways.push("use --optimizer sgd, which keeps no moments");
            }
        }
        if rest > bytes.total / 8 && request.tokens > request.largest.max(1) {
            ways.push("lower --max-tokens-per-batch");
        }
        if self.hardware.threads > 1 && rest > bytes.total / 8 {
            ways.push("lower --threads");
        }
        ways.push("use a GPU with --device cuda");
        ways.join(", or ")
    }
}

/// Memory of this machine in bytes, where /proc/meminfo exists.
fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}
