//! What training would do and how much memory it would use: planned before anything is read or allocated, and printed
//! by `--dry-run`.
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
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::metrics;
use crate::minibatch::{self, Sizes, TreeBatch};
use crate::model::{self, Bytes, DeviceMemory, Layout, LoraAdapter, MemoryPlan, MemoryRequest};
use crate::optimizer::{self, Optimizer, on_device::moment_bytes};
use crate::parts::TreeSum;
use crate::samples::Samples;

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

/// The memory request of a call for each of `ranks` processes, or of `--ranks`; `learns` is true if it
/// trains.
pub fn request(arguments: &Arguments, samples: &Samples, ranks: usize, learns: bool) -> MemoryRequest {
    let limit = arguments.max_tokens_per_batch as usize;
    let Sizes { unique, largest_tree, longest } = minibatch::sizes(samples, limit);
    MemoryRequest {
        tokens: limit.min(unique).max(largest_tree),
        largest: largest_tree,
        rows: samples.tokens(),
        positions: longest,
        moments: learns.then(|| moment_bytes(arguments.optimizer)),
        ranks: arguments.ranks.map_or(ranks, |ranks| ranks as usize),
    }
}

/// The memory request without samples: one tree as large as `--max-tokens-per-batch` allows, of sequences as long as the
/// model accepts.
pub fn largest_request(arguments: &Arguments, max_positions: usize) -> MemoryRequest {
    let tokens = arguments.max_tokens_per_batch as usize;
    let moments = Some(moment_bytes(arguments.optimizer));
    let (positions, ranks) = (max_positions.min(tokens), arguments.ranks.unwrap_or(1) as usize);
    MemoryRequest { tokens, largest: 1, rows: tokens, positions, moments, ranks }
}

/// Opens the device of `--device` and plans its memory; `None` for the CPU.
///
/// # Errors
/// It is not available, or the work does not fit (69); unsupported on devices (2).
pub fn open_device(
    arguments: &Arguments,
    spec: ModelSpec<'_>,
    request: &MemoryRequest,
) -> Result<Option<(Any, MemoryPlan)>> {
    let kind = arguments.device_kind()?;
    if kind == DeviceKind::Cpu {
        return on_host(arguments, spec, request).map(|_| None);
    }
    check_window(spec.config, request)?;
    model::check_for_device(spec.config, spec.adapter)?;
    let device = Any::open(kind, arguments.thread_count())?;
    let found = device.memory()?.free;
    let available = DeviceMemory { free: free(arguments, found).min(found), workspace: device.workspace() };
    let plan = MemoryPlan::new(spec.config, spec.adapter, *request, available)?;
    Ok(Some((device, plan)))
}

/// The kernels for devices have no windows; within the shortest one it is plain causal attention.
fn check_window(config: &Config, request: &MemoryRequest) -> Result<()> {
    match config.shortest_window().filter(|&window| window < request.positions) {
        None => Ok(()),
        Some(window) => Err(Failure::data(format!(
            "a sequence of {} tokens is longer than the model's sliding window of {window}",
            request.positions
        ))
        .hint("devices have no sliding-window attention: train on shorter sequences, or use --device cpu")),
    }
}

/// Host memory of training on a device, besides the samples: weights and moments pass between disk and device in pieces;
/// only an adapter, its gradient and its optimizer stay.
fn host_bytes(arguments: &Arguments, spec: ModelSpec<'_>, request: &MemoryRequest) -> u64 {
    // At most one piece each of master weights, published values, their bytes, and lower halves.
    let pieces = 4 * PIECE * size_of::<f32>();
    let adapter = spec.adapter.map_or(0, |adapter| {
        let layout = adapter.layout();
        let learns = request.moments.is_some();
        let moments = if learns { state_bytes(arguments, layout, request.ranks) } else { 0 };
        // Values and gradient, each also as packed factors.
        (if learns { 4 } else { 2 }) * layout.len() * size_of::<f32>() + moments
    });
    // Gradients of parts are added on the host: the waiting sums, and the current gradient of all weights.
    let trained = spec.adapter.map_or(0, |adapter| adapter.layout().len());
    let own = if spec.adapter.is_some() || arguments.parts == 1 { 0 } else { Layout::new(spec.config).len() };
    let sums = if request.moments.is_some() {
        TreeSum::buffers(arguments.parts as usize / request.ranks) * trained.max(own) + own
    } else {
        0
    };
    (pieces + adapter + sums * size_of::<f32>()) as u64
}

/// The memory that [`open_device`] would plan, for an H200 if there is no GPU.
///
/// # Errors
/// It does not fit (69); unsupported on devices (2).
pub fn estimate(
    arguments: &Arguments,
    spec: ModelSpec<'_>,
    request: &MemoryRequest,
) -> Result<MemoryEstimate> {
    let kind = arguments.device_kind()?;
    if kind == DeviceKind::Cpu {
        return on_host(arguments, spec, request);
    }
    check_window(spec.config, request)?;
    model::check_for_device(spec.config, spec.adapter)?;
    let absent = matches!(kind, DeviceKind::Cuda(_)) && open_library(Library::Driver).is_err();
    let (name, available) = if absent {
        let free = free(arguments, H200 - CONTEXT);
        ("no GPU here: that of an H200".to_owned(), DeviceMemory { free, workspace: GEMM_WORKSPACE })
    } else {
        let device = Any::open(kind, 1)?;
        let free = free(arguments, device.memory()?.free);
        (device.describe(), DeviceMemory { free, workspace: device.workspace() })
    };
    let plan = MemoryPlan::new(spec.config, spec.adapter, *request, available)?;
    let name = if arguments.device_memory.is_some() { "as --device-memory says".to_owned() } else { name };
    Ok(MemoryEstimate {
        device: kind.to_string(),
        memory: name,
        memory_bytes: Some(available.free),
        bytes: plan.bytes,
        host_bytes: Some(host_bytes(arguments, spec, request)),
        tokens_at_once: plan.tokens,
        recompute: plan.recompute,
    })
}

/// Free memory to plan with.
fn free(arguments: &Arguments, found: u64) -> u64 {
    arguments.device_memory.map_or(found, |gigabytes| (gigabytes * 1e9) as u64)
}

/// Bytes of optimizer state on the rank that has the most.
fn state_bytes(arguments: &Arguments, layout: &Layout, ranks: usize) -> usize {
    let slices = optimizer::slices(arguments.optimizer, layout, ranks);
    let bytes = |slice: &Range<usize>| Optimizer::state_bytes(arguments.optimizer, layout, slice);
    slices.iter().map(bytes).max().unwrap_or(0)
}

fn on_host(arguments: &Arguments, spec: ModelSpec<'_>, request: &MemoryRequest) -> Result<MemoryEstimate> {
    let ModelSpec { config, stored, adapter } = spec;
    let whole = Layout::new(config);
    let layout = adapter.map_or(&whole, |adapter| adapter.layout());
    let threads = arguments.thread_count();
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
    let work = [request.tokens, request.largest];
    let gradient = learns.then(|| layout.len());
    let (passes, tokens_at_once) = model::memory_on_host(config, work, threads, gradient);
    // With an adapter also as packed factors.
    let sums = if adapter.is_some() { 2 } else { 1 };
    let bytes = Bytes {
        weights: base + values * sums + if learns && adapter.is_none() { masters } else { 0 },
        gradients: if learns {
            values * (sums + TreeSum::buffers(arguments.parts as usize / request.ranks) as u64)
        } else {
            0
        } + passes.gradients,
        moments: if learns { state_bytes(arguments, layout, request.ranks) as u64 } else { 0 },
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
        .hint(ways_out(arguments, spec, bytes, request)));
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
fn ways_out(arguments: &Arguments, spec: ModelSpec<'_>, bytes: Bytes, request: &MemoryRequest) -> String {
    let mut ways = Vec::new();
    let rest = bytes.total - bytes.state();
    if spec.adapter.is_none() && request.moments.is_some() {
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
    if arguments.thread_count() > 1 && rest > bytes.total / 8 {
        ways.push("lower --threads");
    }
    ways.push("use a GPU with --device cuda");
    ways.join(", or ")
}

/// Memory of this machine in bytes, where /proc/meminfo exists.
fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The `plan` line: what a call would do for one policy.
#[derive(Debug, Serialize)]
pub struct Plan {
    #[serde(rename = "type")]
    kind: &'static str,
    v: u64,
    policy: String,
    /// None without samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_version: Option<String>,
    /// Trained weights: an adapter's, or all. Counted as by PEFT's `print_trainable_parameters`.
    trainable_parameters: usize,
    /// All weights: the model's and the adapter's.
    parameters: usize,
    #[serde(flatten)]
    estimate: MemoryEstimate,
    optimizer_steps: usize,
    #[serde(flatten)]
    metrics: Map<String, Value>,
    /// The minibatches of the first epoch.
    minibatches: Vec<Minibatch>,
    settings: Map<String, Value>,
}

/// One minibatch of the plan.
#[derive(Debug, Serialize)]
struct Minibatch {
    samples: usize,
    flat_samples: usize,
    tokens: usize,
    unique_tokens: usize,
    trees: usize,
}

impl Plan {
    /// The plan without samples: the memory that the decoder takes.
    pub fn new(
        spec: ModelSpec<'_>,
        estimate: MemoryEstimate,
        policy: &str,
        settings: Map<String, Value>,
    ) -> Plan {
        let model = Layout::new(spec.config).len();
        let adapter = spec.adapter.map(|adapter| adapter.layout().len());
        Plan {
            kind: "plan",
            v: record::read::VERSION,
            policy: policy.to_owned(),
            from_version: None,
            trainable_parameters: adapter.unwrap_or(model),
            parameters: model + adapter.unwrap_or(0),
            estimate,
            optimizer_steps: 0,
            metrics: Map::new(),
            minibatches: Vec::new(),
            settings,
        }
    }

    /// The plan for one policy's samples of a version.
    #[must_use]
    pub fn with_samples(self, arguments: &Arguments, samples: &Samples, from_version: String) -> Plan {
        let flat = samples.flat_groups();
        let is_flat = |sample: usize| arguments.kl == 0.0 && flat[samples.rows[sample].group as usize];
        let describe = |part: &Vec<usize>| {
            let active: Vec<usize> = part.iter().copied().filter(|&sample| !is_flat(sample)).collect();
            let batches = minibatch::pack_trees(samples, &active, arguments.max_tokens_per_batch as usize);
            Minibatch {
                samples: part.len(),
                flat_samples: part.len() - active.len(),
                tokens: part.iter().map(|&sample| samples.rows[sample].length()).sum(),
                unique_tokens: batches.iter().map(TreeBatch::unique_tokens).sum(),
                trees: batches.iter().map(|batch| batch.trees.len()).sum(),
            }
        };
        let (step, parts) = (samples.step.unwrap_or(0), arguments.minibatches as usize);
        let parts = minibatch::minibatches(samples, parts, arguments.seed, 0, step);
        let minibatches: Vec<Minibatch> = parts.iter().map(describe).collect();
        let unique: usize = minibatches.iter().map(|part| part.unique_tokens).sum();
        let mut metrics = metrics::of_samples(samples);
        metrics.insert("unique_tokens".to_owned(), json!(unique));
        let steps = minibatches.iter().filter(|part| part.trees > 0).count() * arguments.epochs as usize;
        Plan { from_version: Some(from_version), optimizer_steps: steps, metrics, minibatches, ..self }
    }
}
