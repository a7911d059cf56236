//! Whether the work fits where it is to be done: asked before anything is read or taken, and told by `--dry-run`.
//!
//! On a device the answer is exact, because memory is taken once and as planned. On the processor it is what the
//! parts of a training hold at most; what the system and the samples hold comes on top.

use device::cuda::{Library, open_library};
use device::{Any, Choice, Device, PRODUCT_WORKSPACE};
use policy::config::DataType;
use policy::publish::PIECE;
use record::failure::{Failure, Result};
use serde::Serialize;

use crate::arguments::Arguments;
use crate::batch;
use crate::model::{Card, Demand, Layout, LowRank, MemoryPlan, Shape, host};
use crate::optimizer::{Optimizer, on_device::moment_bytes};
use crate::samples::Samples;

/// Bytes of an H200, whose memory is planned with where there is no GPU to ask: 143,771 MiB.
const H200: u64 = 143_771 << 20;
/// Bytes of it that a process takes by being there.
const CONTEXT: u64 = 500_000_000;

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Weights, with what keeps the optimiser's view of 16-bit ones.
    pub weights: u64,
    /// Their gradients; on the processor with the partial sums of its threads.
    pub gradients: u64,
    /// The optimiser's moments.
    pub moments: u64,
    /// What the passes keep and use of the largest micro-batch, for every thread.
    pub activations: u64,
    /// Logits of one chunk, for every thread.
    pub logits: u64,
    /// Staging, tables, partial sums, and the workspace of matrix products.
    pub other: u64,
    /// All of it.
    pub total: u64,
}

/// What the work takes, and of what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// The device as `--device` names it.
    pub device: String,
    /// Where the memory is: a GPU's name, or what is planned for instead.
    pub memory: String,
    /// Bytes that are there to be taken.
    pub memory_bytes: Option<u64>,
    /// What is taken.
    pub bytes: Bytes,
    /// Bytes of this machine's own memory besides, where the work is on a device: pieces of weights and moments on their way,
    /// and an adapter. What the system keeps of files comes on top, and it gives that back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Tokens of a micro-batch at most.
    pub tokens_at_once: usize,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
}

/// The decoder that is to be trained: its shape, the type of its weights on disk, and the adapter if not they but that
/// one moves.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Sizes and variants.
    pub shape: &'a Shape,
    /// The type of most weights.
    pub stored: DataType,
    /// What is trained instead of the weights.
    pub adapter: Option<&'a LowRank>,
}

/// What there is to do, as hardware needs to know it; `learns` says whether weights will move.
pub fn demand(arguments: &Arguments, samples: &Samples, learns: bool) -> Demand {
    let limit = arguments.max_tokens_per_batch as usize;
    let largest = batch::largest_tree(samples, limit);
    Demand {
        tokens: limit.min(batch::whole(samples)).max(largest),
        largest,
        rows: samples.tokens(),
        positions: batch::longest(samples),
        moments: learns.then(|| moment_bytes(arguments.optimizer)),
    }
}

/// The same where there are no samples to ask: one tree as large as `--max-tokens-per-batch` allows, of sequences as
/// long as the model can take.
pub fn largest_demand(arguments: &Arguments, max_positions: usize) -> Demand {
    let tokens = arguments.max_tokens_per_batch as usize;
    let moments = Some(moment_bytes(arguments.optimizer));
    Demand { tokens, largest: 1, rows: tokens, positions: max_positions.min(tokens), moments }
}

/// The device of `--device`, opened, and what will be taken of it; nothing for the processor.
///
/// # Errors
/// It is not there, or the work does not fit (69); what no device does (2).
pub fn open(
    arguments: &Arguments,
    subject: Subject<'_>,
    demand: &Demand,
) -> Result<Option<(Any, MemoryPlan)>> {
    let choice = arguments.choice()?;
    if choice == Choice::Cpu {
        return on_host(arguments, subject, demand).map(|_| None);
    }
    crate::model::check_for_device(subject.shape, subject.adapter)?;
    let device = Any::open(choice, arguments.thread_count())?;
    let found = device.memory()?.free;
    let card = Card { free: free(arguments, found).min(found), workspace: device.workspace() };
    let plan = on_device(subject, demand, card)?;
    Ok(Some((device, plan)))
}

/// Bytes that work on a device takes of the machine itself, beside the samples: weights and moments pass from and to the disk in
/// pieces; only an adapter, its gradient and its optimiser stay.
fn beside(arguments: &Arguments, subject: Subject<'_>, demand: &Demand) -> u64 {
    // At most a piece of masters, its published values, their bytes, and halves.
    let pieces = 4 * PIECE * size_of::<f32>();
    let adapter = subject.adapter.map_or(0, |adapter| {
        let layout = adapter.layout();
        let learns = demand.moments.is_some();
        let moments = if learns { Optimizer::state_bytes(arguments.optimizer, layout) } else { 0 };
        // Values and their gradient, both also as the passes need them.
        (if learns { 4 } else { 2 }) * layout.len() * size_of::<f32>() + moments
    });
    (pieces + adapter) as u64
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// What [`open`] would take, without a device where there is none: then the memory of an H200 is planned with.
///
/// # Errors
/// It does not fit (69); what no device does (2).
pub fn planned(arguments: &Arguments, subject: Subject<'_>, demand: &Demand) -> Result<Planned> {
    let choice = arguments.choice()?;
    if choice == Choice::Cpu {
        return on_host(arguments, subject, demand);
    }
    crate::model::check_for_device(subject.shape, subject.adapter)?;
    let absent = matches!(choice, Choice::Cuda(_)) && open_library(Library::Driver).is_err();
    let (name, card) = if absent {
        let free = free(arguments, H200 - CONTEXT);
        ("no GPU here: that of an H200".to_owned(), Card { free, workspace: PRODUCT_WORKSPACE })
    } else {
        let device = Any::open(choice, 1)?;
        let free = free(arguments, device.memory()?.free);
        (device.describe(), Card { free, workspace: device.workspace() })
    };
    let plan = on_device(subject, demand, card)?;
    let name = if arguments.device_memory.is_some() { "as --device-memory says".to_owned() } else { name };
    Ok(Planned {
        device: choice.to_string(),
        memory: name,
        memory_bytes: Some(card.free),
        bytes: Bytes {
            weights: plan.weights,
            gradients: plan.gradients,
            moments: plan.moments,
            activations: plan.activations,
            logits: plan.logits,
            other: plan.other,
            total: plan.bytes(),
        },
        host_bytes: Some(beside(arguments, subject, demand)),
        tokens_at_once: plan.tokens,
        recompute: plan.recompute,
    })
}

/// Free memory to plan with. Without a device to bound it `--device-memory` may say anything.
fn free(arguments: &Arguments, found: u64) -> u64 {
    arguments.device_memory.map_or(found, |gigabytes| (gigabytes * 1e9) as u64)
}

fn on_device(subject: Subject<'_>, demand: &Demand, card: Card) -> Result<MemoryPlan> {
    match subject.adapter {
        None => MemoryPlan::new(subject.shape, *demand, card),
        Some(adapter) => MemoryPlan::adapted(subject.shape, adapter, *demand, card),
    }
}

fn on_host(arguments: &Arguments, subject: Subject<'_>, demand: &Demand) -> Result<Planned> {
    let Subject { shape, stored, adapter } = subject;
    let whole = Layout::new(shape);
    let layout = adapter.map_or(&whole, |adapter| adapter.layout());
    let threads = arguments.thread_count();
    let of = |layout: &Layout| (layout.len() * size_of::<f32>()) as u64;
    // An adapter's own values are f32, and lie beside its base.
    let base = if adapter.is_some() { of(&whole) } else { 0 };
    let values = of(layout);
    let learns = demand.moments.is_some();
    let copies = if learns && stored != DataType::F32 && adapter.is_none() { 2 } else { 1 };
    let workers = host::workers(threads);
    let work = host::work(shape, demand.tokens, demand.largest, workers, learns);
    // The sum, and beyond one thread a partial sum for each and one between them.
    let sums = if workers > 1 { workers + 2 } else { 2 } as u64;
    let mut bytes = Bytes {
        weights: base + values * copies,
        gradients: if learns { values * sums } else { 0 },
        moments: if learns { Optimizer::state_bytes(arguments.optimizer, layout) as u64 } else { 0 },
        activations: work.activations,
        logits: work.logits,
        other: work.other,
        total: 0,
    };
    bytes.total =
        bytes.weights + bytes.gradients + bytes.moments + bytes.activations + bytes.logits + bytes.other;
    let memory = physical();
    if let Some(memory) = memory.filter(|&memory| bytes.total > memory) {
        return Err(Failure::unavailable(format!(
            "{} weights take {} on {threads} threads ({} for weights, gradients and moments), and this machine has {}",
            whole.len(),
            gigabytes(bytes.total),
            gigabytes(bytes.weights + bytes.gradients + bytes.moments),
            gigabytes(memory)
        ))
        .hint("lower --threads (each has a gradient of its own), use --optimizer sgd, or a GPU with --device cuda"));
    }
    Ok(Planned {
        device: Choice::Cpu.to_string(),
        memory: "this machine's".to_owned(),
        memory_bytes: memory,
        bytes,
        host_bytes: None,
        tokens_at_once: work.tokens,
        recompute: false,
    })
}

/// Bytes of memory of this machine, where the system says.
fn physical() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}
