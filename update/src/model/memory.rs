//! How much of a device's memory training takes, decided before any of it is taken, to the byte.
//!
//! A parameter takes its two halves (4 bytes), its gradient (4) and the optimizer's moments (8 for AdamW). What is left
//! is for activations: a micro-batch is as many tokens as fit, and if a micro-batch of useful size does not fit with
//! everything kept, layers are computed again in the backward pass.

use device::footprint;
use record::failure::{Failure, Result};

use super::adapter::Sizes;
use super::workspace::{Counts, Workspace};
use super::{Layout, LowRank, Shape};
use crate::backend::{MaxBatch, WorkspaceSizes};

/// Tokens of a micro-batch below which products are slow: layers are rather computed again.
const USEFUL_TOKENS: u64 = 4096;
/// Values that are converted at once on their way to or from the device.
pub(super) const STAGING: usize = 1 << 24;
/// Partial sums of the gradient's norm.
pub(super) const NORM_BLOCKS: usize = 1024;
/// Free memory that is left alone: the code of kernels and libraries is loaded there when first used.
const LEFT_ALONE: u64 = 1 << 30;

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Tokens of a micro-batch that there is work for.
    pub tokens: usize,
    /// Tokens of the largest tree, which cannot be cut.
    pub largest: usize,
    /// Loss rows of a micro-batch at most.
    pub rows: usize,
    /// Tokens of the longest sequence.
    pub positions: usize,
    /// Bytes of optimizer state a weight; nothing where weights are not moved and gradients not wanted.
    pub moments: Option<u64>,
}

/// What a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that its matrix products take for themselves.
    pub workspace: u64,
}

/// What a decoder takes of a device, in bytes of its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Both halves of the weights.
    pub weights: u64,
    /// Gradients of the weights.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// What the passes keep and use of a micro-batch.
    pub activations: u64,
    /// Logits of one chunk of nodes, and their gradient.
    pub logits: u64,
    /// Staging, tables, partial sums and the products' workspace.
    pub other: u64,
    /// Tokens of a micro-batch at most.
    pub tokens: usize,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
    /// What it was made for.
    pub request: MemoryRequest,
}

impl MemoryPlan {
    /// A plan for a decoder of this shape, as long micro-batches as fit the card.
    ///
    /// # Errors
    /// 69 if it cannot fit.
    pub fn new(shape: &Shape, request: MemoryRequest, available: DeviceMemory) -> Result<MemoryPlan> {
        MemoryPlan::fitting(shape, None, request, available)
    }

    /// The same where all weights are frozen and an adapter over them is trained, whose masters and moments are on the
    /// host.
    ///
    /// # Errors
    /// The same.
    pub fn adapted(
        shape: &Shape,
        adapter: &LowRank,
        request: MemoryRequest,
        available: DeviceMemory,
    ) -> Result<MemoryPlan> {
        let request = MemoryRequest { moments: request.moments.map(|_| 0), ..request };
        MemoryPlan::fitting(shape, Some(adapter.sizes()), request, available)
    }

    fn fitting(
        shape: &Shape,
        adapter: Option<Sizes>,
        request: MemoryRequest,
        available: DeviceMemory,
    ) -> Result<MemoryPlan> {
        let weights = Layout::new(shape).len();
        let least = request.largest.max(1);
        let request = MemoryRequest { tokens: request.tokens.max(least), ..request };
        let plan = |tokens: usize, recompute: bool| {
            MemoryPlan::of_micro_batch(
                (shape, adapter),
                weights,
                request,
                available.workspace,
                tokens,
                recompute,
            )
        };
        let budget = available.free.saturating_sub(LEFT_ALONE);
        // The most tokens that fit, by halving; 0 where not even the least do.
        let fitting = |recompute: bool| {
            let fits = |tokens: usize| plan(tokens, recompute).bytes() <= budget;
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
            (0, 0) => Err(plan(least, true).refusal(weights, available.free)),
            (kept, again) if kept >= again => Ok(plan(kept, false)),
            (_, again) => Ok(plan(again, true)),
        }
    }

    /// What micro-batches of so many tokens take.
    fn of_micro_batch(
        (shape, adapter): (&Shape, Option<Sizes>),
        weights: usize,
        request: MemoryRequest,
        workspace: u64,
        tokens: usize,
        recompute: bool,
    ) -> MemoryPlan {
        let values = |count: usize, bytes: usize| footprint((count * bytes) as u64);
        let staging = STAGING.min(weights);
        let learns = request.moments.is_some();
        let backward = |bytes: u64| if learns { bytes } else { 0 };
        let counts = Counts { tokens, scored: tokens };
        let mut lengths = Workspace::lengths(shape, adapter, counts, recompute, learns);
        let sum = |lengths: Vec<&mut Option<usize>>, bytes: usize| -> u64 {
            lengths.into_iter().flatten().map(|length| values(*length, bytes)).sum()
        };
        let activations =
            sum(lengths.activations(), 2) + sum(lengths.f32_buffers(), 4) + sum(lengths.copies(), 2);
        let (logits, own) = WorkspaceSizes::of(&max_batch(shape, &request, tokens)).bytes();
        let own: u64 = own.into_iter().map(footprint).sum();
        let workspace = if workspace > 0 { footprint(workspace) } else { 0 };
        let moments = request.moments.unwrap_or(0) as usize;
        MemoryPlan {
            // Of weights that do not move the remainders are not kept.
            weights: values(weights, 2)
                + values(if learns && adapter.is_none() { weights } else { staging }, 2)
                + adapter.map_or(0, |sizes| values(sizes.values, 2)),
            gradients: backward(values(adapter.map_or(weights, |sizes| sizes.values), 4)),
            moments: (moments / 4) as u64 * values(weights, 4),
            activations,
            logits: logits.into_iter().map(footprint).sum(),
            other: values(staging, 4) + values(NORM_BLOCKS, 4) + workspace + own,
            tokens,
            recompute,
            request,
        }
    }

    /// The largest micro-batch as the backend sees it.
    pub(super) fn max_batch(&self, shape: &Shape) -> MaxBatch {
        max_batch(shape, &self.request, self.tokens)
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.weights + self.gradients + self.moments + self.activations + self.logits + self.other
    }

    fn refusal(&self, weights: usize, free: u64) -> Failure {
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let state = self.weights + self.gradients + self.moments;
        let failure = Failure::unavailable(format!(
            "{weights} weights take {} on the device ({} for weights, gradients and moments, {} for {} at a time, {} for \
             logits and tables, {} left to libraries), of which {} are free",
            gigabytes(self.bytes() + LEFT_ALONE),
            gigabytes(state),
            gigabytes(self.activations),
            if self.tokens == 1 { "one token".to_owned() } else { format!("{} tokens", self.tokens) },
            gigabytes(self.logits + self.other),
            gigabytes(LEFT_ALONE),
            gigabytes(free)
        ));
        failure.hint(match state + LEFT_ALONE > free {
            true => "an adapter (policy init --adapter) moves few weights, --optimizer sgd keeps no moments; or use a device with more memory",
            false => "lower --max-tokens-per-batch, use --optimizer sgd, or a device with more memory",
        })
    }
}

fn max_batch(shape: &Shape, request: &MemoryRequest, tokens: usize) -> MaxBatch {
    MaxBatch {
        tokens,
        rows: request.rows,
        positions: request.positions,
        hidden: shape.hidden,
        heads: (shape.heads, shape.kv_heads),
        head_dim: shape.head_dim,
        vocabulary: shape.vocabulary,
        bias: shape.attention_bias,
        backward: request.moments.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200's memory, and an H100's, of which a context has taken half a gigabyte.
    const H200: u64 = (143_771 << 20) - 500_000_000;
    const H100: u64 = (81_559 << 20) - 500_000_000;

    /// Qwen3-8B, whose figures are published with its checkpoint.
    fn qwen3_8b() -> Shape {
        Shape {
            hidden: 4096,
            intermediate: 12288,
            layers: 36,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocabulary: 151_936,
            epsilon: 1e-6,
            inverse_frequencies: vec![1.0; 64],
            qk_norm: true,
            attention_bias: false,
            tied: false,
        }
    }

    fn plan(shape: &Shape, free: u64, moments: Option<u64>, largest: usize) -> Result<MemoryPlan> {
        let request = MemoryRequest { tokens: 32_768, largest, rows: 32_768, positions: 4096, moments };
        MemoryPlan::new(shape, request, DeviceMemory { free, workspace: device::GEMM_WORKSPACE })
    }

    #[test]
    fn all_of_qwen3_8b_trains_on_141_gigabytes_and_not_on_80() {
        let shape = qwen3_8b();
        let weights = Layout::new(&shape).len() as u64;
        assert_eq!(weights, 8_190_735_360);
        let full = plan(&shape, H200, Some(8), 4096).unwrap();
        assert!(full.bytes() + LEFT_ALONE <= H200, "{full:?}");
        // 16 bytes a weight: 131.05 GB.
        assert_eq!(full.weights + full.gradients + full.moments, 16 * weights);
        assert!(!full.recompute && full.tokens >= 4096, "{full:?}");
        // A tree of 16,384 tokens fits with its layers computed again.
        let long = plan(&shape, H200, Some(8), 16_384).unwrap();
        assert!(long.recompute && long.tokens >= 16_384 && long.bytes() + LEFT_ALONE <= H200, "{long:?}");
        // With room for it nothing is computed twice.
        let roomy = plan(&shape, 400_000_000_000, Some(8), 8192).unwrap();
        assert_eq!((roomy.recompute, roomy.tokens), (false, 32_768));

        let failure = plan(&shape, H100, Some(8), 4096).unwrap_err();
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(
            failure.message.contains("131.1 GB for weights, gradients and moments"),
            "{}",
            failure.message
        );
        assert!(failure.message.contains("of which 85.0 GB are free"), "{}", failure.message);
        // Without moments it fits there, and scoring alone takes two bytes a weight.
        assert!(plan(&shape, H100, Some(0), 4096).is_ok());
        let scoring = plan(&shape, H100, None, 4096).unwrap();
        assert_eq!((scoring.gradients, scoring.moments), (0, 0));
        assert!(scoring.weights < 2 * weights + (64 << 20), "{scoring:?}");
    }

    #[test]
    fn a_plan_grows_with_the_card_and_never_beyond_it() {
        let shape = Shape { layers: 2, ..qwen3_8b() };
        let mut before = 0;
        for free in (0..40).map(|step| (20 + step) * 1_000_000_000) {
            let Ok(plan) = plan(&shape, free, Some(8), 512) else {
                assert_eq!(before, 0, "{free}");
                continue;
            };
            assert!(plan.bytes() + LEFT_ALONE <= free, "{plan:?}");
            assert!(plan.tokens >= before.min(USEFUL_TOKENS as usize), "{plan:?} after {before} tokens");
            before = plan.tokens;
        }
        assert_eq!(before, 32_768);
    }

    #[test]
    fn sizes_beyond_32_bits_are_counted() {
        // 2 million tokens of a wide decoder: every product here is beyond 2^32.
        let shape = Shape { layers: 1, ..qwen3_8b() };
        let request = MemoryRequest {
            tokens: 2 << 20,
            largest: 2 << 20,
            rows: 2 << 20,
            positions: 4096,
            moments: Some(8),
        };
        let plan = MemoryPlan::new(&shape, request, DeviceMemory { free: 1 << 42, workspace: 0 }).unwrap();
        assert_eq!(plan.tokens, 2 << 20);
        let gate_up = (2u64 << 20) * 2 * 12_288 * 2;
        assert!(gate_up > 1 << 32 && plan.activations > gate_up, "{plan:?}");
        // Logits stay a chunk however many tokens there are.
        assert!(plan.logits <= (1 << 30) + (1 << 20), "{plan:?}");
    }
}
