//! How much of a device's memory training takes, decided before any of it is taken, to the byte.
//!
//! A parameter takes its two halves (4 bytes), its gradient (4) and the optimizer's moments (8 for AdamW). What is left
//! is for activations: a micro-batch is as many tokens as fit, and if a micro-batch of useful size does not fit with
//! everything kept, layers are computed again in the backward pass.

use device::footprint;
use record::failure::{Failure, Result};

use super::linear::Sizes;
use super::workspace::{Counts, Workspace};
use super::{Layout, LowRank};
use crate::backend::{MaxBatch, WorkspaceSizes};
use policy::config::Config;

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
    /// A plan for a decoder of this config, as long micro-batches as fit the memory.
    ///
    /// # Errors
    /// 69 if it cannot fit.
    pub fn new(config: &Config, request: MemoryRequest, memory: DeviceMemory) -> Result<MemoryPlan> {
        MemoryPlan::fitting(config, None, request, memory)
    }

    /// The same where all weights are frozen and an adapter over them is trained, whose masters and moments are on the
    /// host.
    ///
    /// # Errors
    /// The same.
    pub fn adapted(
        config: &Config,
        adapter: &LowRank,
        request: MemoryRequest,
        memory: DeviceMemory,
    ) -> Result<MemoryPlan> {
        let request = MemoryRequest { moments: request.moments.map(|_| 0), ..request };
        MemoryPlan::fitting(config, Some(adapter.sizes()), request, memory)
    }

    fn fitting(
        config: &Config,
        adapter: Option<Sizes>,
        request: MemoryRequest,
        memory: DeviceMemory,
    ) -> Result<MemoryPlan> {
        let weights = Layout::new(config).len();
        let least = request.largest.max(1);
        let request = MemoryRequest { tokens: request.tokens.max(least), ..request };
        let plan = |tokens: usize, recompute: bool| {
            MemoryPlan::of_micro_batch(
                (config, adapter),
                weights,
                request,
                memory.workspace,
                tokens,
                recompute,
            )
        };
        let budget = memory.free.saturating_sub(LEFT_ALONE);
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
            (0, 0) => Err(plan(least, true).refusal(weights, memory.free)),
            (kept, again) if kept >= again => Ok(plan(kept, false)),
            (_, again) => Ok(plan(again, true)),
        }
    }

    /// What micro-batches of so many tokens take.
    fn of_micro_batch(
        (config, adapter): (&Config, Option<Sizes>),
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
        let mut lengths = Workspace::lengths(config, adapter, counts, recompute, learns);
        let sum = |lengths: Vec<&mut Option<usize>>, bytes: usize| -> u64 {
            lengths.into_iter().flatten().map(|length| values(*length, bytes)).sum()
        };
        let activations =
            sum(lengths.activations(), 2) + sum(lengths.f32_buffers(), 4) + sum(lengths.copies(), 2);
        let (logits, own) = WorkspaceSizes::of(&max_batch(config, &request, tokens)).bytes();
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
    pub(super) fn max_batch(&self, config: &Config) -> MaxBatch {
        max_batch(config, &self.request, self.tokens)
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

fn max_batch(config: &Config, request: &MemoryRequest, tokens: usize) -> MaxBatch {
    MaxBatch {
        tokens,
        rows: request.rows,
        positions: request.positions,
        hidden: config.hidden_size,
        heads: (config.num_heads, config.num_kv_heads),
        head_dim: config.head_dim,
        vocabulary: config.vocab_size,
        bias: config.attention_bias,
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
    fn qwen3_8b() -> Config {
        let json = serde_json::json!({
            "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
            "max_position_embeddings": 40_960, "rope_theta": 1e6, "tie_word_embeddings": false,
        });
        Config::from_value(&json, std::path::Path::new("config.json")).unwrap()
    }

    fn plan(config: &Config, free: u64, moments: Option<u64>, largest: usize) -> Result<MemoryPlan> {
        let request = MemoryRequest { tokens: 32_768, largest, rows: 32_768, positions: 4096, moments };
        MemoryPlan::new(config, request, DeviceMemory { free, workspace: device::GEMM_WORKSPACE })
    }

    #[test]
    fn all_of_qwen3_8b_trains_on_141_gigabytes_and_not_on_80() {
        let config = qwen3_8b();
        let weights = Layout::new(&config).len() as u64;
        assert_eq!(weights, 8_190_735_360);
        let memory = plan(&config, H200, Some(8), 4096).unwrap();
        assert!(memory.bytes() + LEFT_ALONE <= H200, "{memory:?}");
        // 16 bytes a weight: 131.05 GB.
        assert_eq!(memory.weights + memory.gradients + memory.moments, 16 * weights);
        assert!(!memory.recompute && memory.tokens >= 4096, "{memory:?}");
        // A tree of 16,384 tokens fits with its layers computed again.
        let long = plan(&config, H200, Some(8), 16_384).unwrap();
        assert!(long.recompute && long.tokens >= 16_384 && long.bytes() + LEFT_ALONE <= H200, "{long:?}");
        // With room for it nothing is computed twice.
        let roomy = plan(&config, 400_000_000_000, Some(8), 8192).unwrap();
        assert_eq!((roomy.recompute, roomy.tokens), (false, 32_768));

        let failure = plan(&config, H100, Some(8), 4096).unwrap_err();
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert!(
            failure.message.contains("131.1 GB for weights, gradients and moments"),
            "{}",
            failure.message
        );
        assert!(failure.message.contains("of which 85.0 GB are free"), "{}", failure.message);
        // Without moments it fits there, and scoring alone takes two bytes a weight.
        assert!(plan(&config, H100, Some(0), 4096).is_ok());
        let scoring = plan(&config, H100, None, 4096).unwrap();
        assert_eq!((scoring.gradients, scoring.moments), (0, 0));
        assert!(scoring.weights < 2 * weights + (64 << 20), "{scoring:?}");
    }

    #[test]
    fn a_plan_grows_with_the_card_and_never_beyond_it() {
        let config = Config { num_layers: 2, ..qwen3_8b() };
        let mut before = 0;
        for free in (0..40).map(|step| (20 + step) * 1_000_000_000) {
            let Ok(plan) = plan(&config, free, Some(8), 512) else {
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
        let config = Config { num_layers: 1, ..qwen3_8b() };
        let request = MemoryRequest {
            tokens: 2 << 20,
            largest: 2 << 20,
            rows: 2 << 20,
            positions: 4096,
            moments: Some(8),
        };
        let plan = MemoryPlan::new(&config, request, DeviceMemory { free: 1 << 42, workspace: 0 }).unwrap();
        assert_eq!(plan.tokens, 2 << 20);
        let gate_up = (2u64 << 20) * 2 * 12_288 * 2;
        assert!(gate_up > 1 << 32 && plan.activations > gate_up, "{plan:?}");
        // Logits stay a chunk however many tokens there are.
        assert!(plan.logits <= (1 << 30) + (1 << 20), "{plan:?}");
    }
}
