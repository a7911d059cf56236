//! Plans the device memory of training before any of it is taken, exact to the byte.
//!
//! A parameter takes its rounded value (2 bytes), the remainder to its master (2; 4 with f16, because it is the f32 master), its
//! gradient (4) and the optimizer's moments (8 for AdamW). With several ranks each has all rounded values and its share of the
//! rest, and room for the gradient of a layer and of a table.
//! The rest is for activations: a micro-batch holds all tokens that fit, and if a micro-batch of useful size
//! does not fit with everything saved, layers are computed again in the backward pass.

use device::footprint;
use policy::config::Config;
use record::failure::{Failure, Result};
use serde::Serialize;

use super::device_model::window;
use super::workspace::{Batch, Counts, Kind, saved_values};
use super::{Layout, LoraAdapter, schedule};
use crate::backend::{Half, MaxBatch, WorkspaceSizes, cpu};
use crate::optimizer::shares::Shares;
use crate::ranks::{device_checksums, values_received};

/// Tokens of a micro-batch below which GEMMs are slow: layers are rather computed again.
const USEFUL_TOKENS: u64 = 4096;
/// Values that are converted at once on their way to or from the device.
pub(crate) const STAGING: usize = 1 << 24;
/// Values of a piece of the gradient: a block sums the squares of each. SQUARES of `reduce.cu`.
pub(crate) const SQUARES: usize = 4096;
/// Free memory that is left alone: the code of kernels and libraries is loaded there when first used.
const LEFT_ALONE: u64 = 1 << 30;
/// Free memory that is left to NCCL with several ranks: its buffers for each of the others.
const LEFT_TO_NCCL: u64 = 1 << 30;

/// Free memory that is left alone.
fn left_alone(ranks: usize) -> u64 {
    LEFT_ALONE + if ranks > 1 { LEFT_TO_NCCL } else { 0 }
}

/// Memory by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Weights, with the master weights of 16-bit ones.
    pub weights: u64,
    /// Gradients; on the CPU with the micro-batches' gradients, of which a small model has several at a time.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// Activations of the largest micro-batch; on the CPU of all concurrent ones.
    pub activations: u64,
    /// Logits of one chunk for each micro-batch in flight, and on devices their gradient; on the CPU the
    /// gradient of the head's rows.
    pub logits: u64,
    /// Staging buffers, tables, partial sums, and the GEMM workspace; on the CPU the threads' packing buffers.
    pub other: u64,
    /// The sum.
    pub total: u64,
}

impl Bytes {
    /// These bytes with their sum.
    pub(crate) fn summed(self) -> Bytes {
        let Bytes { weights, gradients, moments, activations, logits, other, .. } = self;
        Bytes { total: weights + gradients + moments + activations + logits + other, ..self }
    }

    /// What does not depend on the micro-batch: weights, gradients and moments.
    pub(crate) fn state(&self) -> u64 {
        self.weights + self.gradients + self.moments
    }
}

/// A request for device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Tokens of a micro-batch that there is work for.
    pub tokens: usize,
    /// Tokens of the largest tree, which cannot be cut.
    pub largest: usize,
    /// Loss rows of a micro-batch at most.
    pub rows: usize,
    /// Tokens of a part of an optimizer batch, about.
    pub part: usize,
    /// Tokens of the longest sequence.
    pub positions: usize,
    /// Bytes of optimizer state per weight; `None` if nothing is trained.
    pub moments: Option<u64>,
    /// Processes that share the gradient's sum and the optimizer's state.
    pub ranks: usize,
    /// Sums of parts that wait for the other half of their branch, at most.
    pub waiting: usize,
    /// The type of weights and activations on a device.
    pub half: Half,
}

/// What a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that its GEMMs take for themselves.
    pub workspace: u64,
}

/// What a decoder takes of a device's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes, by purpose.
    pub bytes: Bytes,
    /// Tokens of a micro-batch at most.
    pub tokens: usize,
    /// True if layers are computed again in the backward pass.
    pub recompute: bool,
    /// True if a part's gradient passes through two windows, a layer and a table at a time.
    pub windows: bool,
    /// True if sums of parts wait on the device, else in host memory.
    pub waits_on_device: bool,
    /// The request that it answers.
    pub request: MemoryRequest,
}

impl MemoryPlan {
    /// A plan for a decoder of this config, with micro-batches as long as fit the memory. With an adapter all weights are
    /// frozen, and the adapter's masters and moments are on the host. Several ranks exchange a part's gradient while it is
    /// computed, where each part fits one micro-batch. Parts of several micro-batches are summed on the device if the whole
    /// gradient fits there, else in host memory. Sums of parts wait on the device if the micro-batches do not become smaller by
    /// that. The gradient has the same bits.
    pub fn new(
        config: &Config,
        adapter: Option<&LoraAdapter>,
        request: MemoryRequest,
        memory: DeviceMemory,
    ) -> Result<MemoryPlan> {
        let least = request.largest.max(1);
        let moments = request.moments.map(|bytes| if adapter.is_some() { 0 } else { bytes });
        let request = MemoryRequest { tokens: request.tokens.max(least), moments, ..request };
        let layout = Layout::new(config);
        let weights = layout.len();
        let is_shared = request.ranks > 1 && request.moments.is_some() && adapter.is_none();
        let is_small = is_shared && request.part <= request.tokens;
        let choices =
            [(is_small, true, least.max(request.part)), (true, false, least), (is_shared, true, least)];
        let budget = memory.free.saturating_sub(left_alone(request.ranks));
        let empty = MemoryPlan {
            bytes: Bytes::default(),
            tokens: least,
            recompute: true,
            windows: false,
            waits_on_device: false,
            request,
        };
        let bytes = |plan| MemoryPlan::of_micro_batch(config, adapter, &layout, plan, memory.workspace);
        let mut refused = None;
        for (_, windows, least) in choices.into_iter().filter(|(is_possible, ..)| *is_possible) {
            let plan = |tokens, recompute| bytes(MemoryPlan { tokens, recompute, windows, ..empty });
            let Some(found) = MemoryPlan::fitting(plan, least, &request, budget) else {
                refused = Some(plan(least, true));
                continue;
            };
            let waits_on_device = request.waiting > 0 && request.moments.is_some() && adapter.is_none();
            let with_waiting = bytes(MemoryPlan { waits_on_device, ..found });
            return Ok(if with_waiting.bytes.total <= budget { with_waiting } else { found });
        }
        let refused = refused.unwrap_or(empty);
        Err(refused.refusal(weights, memory.free))
    }

    /// The plan with the longest micro-batches within the budget, from the `least` tokens on; `None` if not even these fit.
    fn fitting(
        plan: impl Fn(usize, bool) -> MemoryPlan,
        least: usize,
        request: &MemoryRequest,
        budget: u64,
    ) -> Option<MemoryPlan> {
        // The most tokens that fit, by halving; 0 where not even the least do.
        let fitting = |recompute: bool| {
            let fits = |tokens: usize| plan(tokens, recompute).bytes.total <= budget;
            if !fits(least) {
                return 0;
            }
            let (mut good, mut bad) = (least, request.tokens + 1);
            while good + 1 < bad {
                let middle = good + (bad - good) / 2;
                if fits(middle) { good = middle } else { bad = middle }
            }
            good
        };
        // Without a backward pass nothing is kept and nothing computed again.
        let kept = if request.moments.is_some() { fitting(false) } else { 0 };
        let useful = least.max(request.tokens.min(USEFUL_TOKENS as usize));
        let again = if kept < useful { fitting(true) } else { 0 };
        match (kept, again) {
            (0, 0) => None,
            (kept, again) if kept >= again => Some(plan(kept, false)),
            (_, again) => Some(plan(again, true)),
        }
    }

    /// A plan with its bytes, which follow from the rest.
    fn of_micro_batch(
        config: &Config,
        adapter: Option<&LoraAdapter>,
        layout: &Layout,
        plan: MemoryPlan,
        workspace: u64,
    ) -> MemoryPlan {
        let MemoryPlan { tokens, recompute, windows, request, .. } = plan;
        let values = |count: usize, bytes: usize| footprint((count * bytes) as u64);
        let weights = layout.len();
        let staging = STAGING.min(weights);
        let learns = request.moments.is_some();
        let counts = Counts { tokens, scored: tokens };
        let batch = Batch { config, adapter, counts, recompute, backward: learns };
        let mut activations = batch.workspace(|kind, length| match (length, kind) {
            (0, _) => 0,
            (length, Kind::F32) => values(length, 4),
            (length, Kind::Activations | Kind::Rounded) => values(length, 2),
        });
        let (logits, own) = WorkspaceSizes::of(&plan.max_batch(config)).bytes();
        let own: u64 = own.into_iter().map(footprint).sum();
        let workspace = if workspace > 0 { footprint(workspace) } else { 0 };
        let moments = request.moments.unwrap_or(0) as usize;
        let remainder = request.half.remainder_bytes();
        let (share, pieces, received) = match learns && adapter.is_none() {
            true => {
                let shares = Shares::by_layer(layout, request.ranks);
                let received = values_received(&shares, request.ranks);
                (shares.largest(), shares.of_rank(0).pieces(), received)
            }
            false => (0, 0, 0),
        };
        // Pieces of the gradient from all ranks, and their checksums.
        let exchange = match request.ranks > 1 && share > 0 {
            true => values(received, 4) + values(device_checksums(request.ranks), 8),
            false => 0,
        };
        let waiting = match plan.waiting_on_device() {
            0 => 0,
            waiting => values(waiting * share, 4),
        };
        let bytes = Bytes {
            // The remainders of weights that are frozen, or in the share of another rank, are not kept.
            weights: values(weights, 2)
                + values(share.max(1), remainder)
                + if share < weights { values(staging, remainder) } else { 0 }
                + adapter.map_or(0, |adapter| values(adapter.len(), 2)),
            gradients: match (learns, adapter) {
                (false, _) => 0,
                (true, Some(adapter)) => values(adapter.len(), 4),
                (true, None) if !windows => values(weights, 4) + waiting,
                (true, None) => {
                    let windows = window_lengths(layout).map(|length| values(length.max(1), 4));
                    windows.into_iter().sum::<u64>() + values(share, 4) + waiting
                }
            },
            moments: (moments / 4) as u64 * values(share, 4),
            activations: activations.all().into_iter().map(|bytes| *bytes).sum(),
            logits: logits.into_iter().map(footprint).sum(),
            other: values(staging, 4) + values(pieces.max(1), 4) + exchange + workspace + own,
            total: 0,
        };
        MemoryPlan { bytes: bytes.summed(), ..plan }
    }

    /// Sums of parts that wait on the device.
    pub fn waiting_on_device(&self) -> usize {
        if self.waits_on_device { self.request.waiting } else { 0 }
    }

    /// The largest micro-batch as the backend sees it.
    pub(super) fn max_batch<'a>(&self, config: &'a Config) -> MaxBatch<'a> {
        let MemoryRequest { rows, positions, moments, .. } = self.request;
        MaxBatch { tokens: self.tokens, rows, positions, config, backward: moments.is_some() }
    }

    fn refusal(&self, weights: usize, free: u64) -> Failure {
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let Bytes { activations, logits, other, total, .. } = self.bytes;
        let (state, left) = (self.bytes.state(), left_alone(self.request.ranks));
        let failure = Failure::unavailable(format!(
            "{weights} weights take {} on the device ({} for weights, gradients and moments, {} for {} at a time, {} for \
             logits and tables, {} left to libraries), of which {} are free",
            gigabytes(total + left),
            gigabytes(state),
            gigabytes(activations),
            if self.tokens == 1 { "one token".to_owned() } else { format!("{} tokens", self.tokens) },
            gigabytes(logits + other),
            gigabytes(left),
            gigabytes(free)
        ));
        failure.hint(match state + left > free {
            true => "an adapter (policy init --adapter) moves few weights, --optimizer sgd keeps no moments; or use a device with more memory",
            false => "lower --max-tokens-per-batch, use --optimizer sgd, or a device with more memory",
        })
    }
}

/// Values of the two windows through which a part's gradient passes with several ranks.
pub(super) fn window_lengths(layout: &Layout) -> [usize; 2] {
    let mut lengths = [0; 2];
    for (region, range) in layout.regions().into_iter().enumerate() {
        let length = &mut lengths[window(layout, region)];
        *length = range.len().max(*length);
    }
    lengths
}

/// Bytes for gradients of single micro-batches and for activations, on the CPU, beyond which threads rather share a
/// micro-batch than take one each.
const SHARED: u64 = 512 << 20;

/// Threads at most. More would wait for each other more than they compute, and each has packing buffers.
const THREADS: usize = 16;

/// How threads share micro-batches on the CPU: streams that each take one at a time, and the threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parallelism {
    pub streams: usize,
    pub threads: usize,
}

impl Parallelism {
    /// For `batches` micro-batches of up to `tokens`, and a gradient of the given length, if any. Small
    /// models have an independent stream for each thread; large ones have a single stream, so memory does not
    /// grow with threads.
    pub(super) fn new(
        config: &Config,
        tokens: usize,
        batches: usize,
        recompute: bool,
        gradient: Option<usize>,
        threads: usize,
    ) -> Parallelism {
        let threads = threads.clamp(1, THREADS);
        let gradient = (gradient.unwrap_or(0) * size_of::<f32>()) as u64;
        let bytes = activations(config, tokens, gradient > 0, recompute) + gradient;
        let fit = usize::try_from(SHARED / bytes.max(1)).unwrap_or(usize::MAX);
        let most = threads.min(batches).min(fit).max(1);
        let each = threads.div_ceil(most);
        Parallelism { streams: (threads / each).max(1), threads: each }
    }
}

/// Bytes of a micro-batch's activations on the CPU.
fn activations(config: &Config, tokens: usize, backward: bool, recompute: bool) -> u64 {
    let counts = Counts { tokens, scored: tokens };
    let batch = Batch { config, adapter: None, counts, recompute, backward };
    let mut lengths = batch.workspace(|kind, length| if kind == Kind::Rounded { 0 } else { length });
    (lengths.all().into_iter().map(|length| *length).sum::<usize>() * size_of::<f32>()) as u64
}

/// Tokens of a micro-batch at most on the CPU, for `tokens` of work in trees of up to `largest`.
pub(crate) fn most_tokens(config: &Config, tokens: usize, largest: usize) -> usize {
    schedule::most_tokens(tokens, largest, saved_values(config))
}

/// An upper bound of the CPU memory of the passes without weights and their gradient: for the number of
/// threads, `tokens` of work in trees of up to `largest`, and a gradient of the given length, if any.
pub(crate) fn on_host(
    config: &Config,
    tokens: usize,
    largest: usize,
    threads: usize,
    gradient: Option<usize>,
) -> (Bytes, usize) {
    let tokens = most_tokens(config, tokens, largest);
    let backward = gradient.is_some();
    // Without a backward pass nothing is kept.
    let parallelism = Parallelism::new(config, tokens, usize::MAX, !backward, gradient, threads);
    let streams = parallelism.streams;
    let bytes = |values: usize| (values * size_of::<f32>()) as u64;
    let group = config.num_heads / config.num_kv_heads;
    // For each thread: packing buffers of products, one block of attention, and the gradients of keys and
    // values.
    let attention =
        cpu::attention_values(largest, group, config.head_dim, if backward { config.key_width() } else { 0 });
    let head =
        if backward { cpu::head_gradient_values(tokens, config.vocab_size, config.hidden_size) } else { 0 };
    // An expert's rows, at most all of them, and their results; probabilities and their gradient.
    let experts = config.variant.experts.as_ref();
    let experts = experts.map_or(0, |experts| {
        4 * config.hidden_size + 5 * experts.width + 2 * experts.count + 4 * experts.per_token
    });
    let (threads, buffers) = (streams * parallelism.threads, schedule::buffers(streams));
    let found = Bytes {
        gradients: bytes(gradient.unwrap_or(0) * buffers),
        activations: streams as u64 * activations(config, tokens, backward, !backward),
        logits: bytes(streams * (cpu::logits_values(tokens, config.vocab_size) + head)),
        // Angles of the rotary embedding, and of the embedding's gradient the rows of a micro-batch's tokens.
        other: bytes(streams * (largest.next_power_of_two() * config.head_dim + tokens * config.hidden_size))
            + threads as u64 * (gemm::SCRATCH_BYTES as u64 + bytes(attention))
            + bytes(streams * tokens * experts),
        ..Bytes::default()
    };
    (found, tokens)
}

#[cfg(test)]
mod tests;
