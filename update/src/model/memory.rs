//! How much of a device's memory training takes, decided before any of it is taken.
//!
//! A parameter takes its two halves (4 bytes), its gradient (4) and the optimiser's moments (8 for AdamW). What is left
//! is for activations: a micro-batch is as many tokens as fit, and if a micro-batch of useful size does not fit with
//! everything kept, layers are computed again in the backward pass.

use record::failure::{Failure, Result};

use super::Shape;
use super::workspace::{saved_values, working_values};
use crate::backend::chunk_bytes;

/// Bytes of a bf16.
const HALF: u64 = 2;
/// Tokens of a micro-batch below which products are slow: layers are rather computed again.
const USEFUL_TOKENS: u64 = 4096;
/// Values that are converted at once on their way to or from the device.
pub(super) const STAGING: usize = 1 << 24;
/// The share of free memory that is planned with: the driver, libraries and rounding to pages take some.
const SHARE: (u64, u64) = (19, 20);
/// Memory for what grows and shrinks, so that gaps between buffers do not matter: a share of the activations.
const SLACK: (u64, u64) = (9, 8);

/// What training takes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, gradients and moments, bytes.
    pub parameters: u64,
    /// Logits of one chunk and what else does not grow with a micro-batch, bytes.
    pub fixed: u64,
    /// Activations of the largest micro-batch, bytes.
    pub activations: u64,
    /// Tokens of a micro-batch at most.
    pub tokens: u64,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
}

impl MemoryPlan {
    /// A plan for `parameters` weights of this shape with `moments` bytes of optimiser state each, in `free` bytes,
    /// micro-batches being up to `wanted` tokens and no tree being larger than `largest`.
    ///
    /// # Errors
    /// 69 if it cannot fit.
    pub fn new(
        shape: &Shape,
        parameters: usize,
        moments: u64,
        free: u64,
        (wanted, largest): (u64, u64),
    ) -> Result<MemoryPlan> {
        let budget = free / SHARE.1 * SHARE.0;
        let state = parameters as u64 * (2 * HALF + 4 + moments);
        let wanted = wanted.max(largest).max(1);
        let chunk = chunk_bytes(wanted as usize, shape.vocabulary) as u64;
        let angles = wanted.next_power_of_two() * shape.head_dim as u64 * 4;
        let fixed = chunk + angles + (64 << 20) + (STAGING.min(parameters) * 4) as u64;
        let room = budget.saturating_sub(state + fixed) / SLACK.0 * SLACK.1;
        let of_token = |recompute: bool| {
            let layers = shape.layers as u64;
            let inputs = layers * shape.hidden as u64;
            let saved = saved_values(shape) as u64;
            let kept = if recompute { inputs + saved / layers } else { saved };
            // Log-sum-exps are f32, and each node has a dozen integers beside it.
            HALF * (kept + working_values(shape) as u64 + layers * shape.heads as u64) + 64
        };
        let fitting = |recompute: bool| room / of_token(recompute);
        let least = largest.max(1);
        let recompute = fitting(false) < least.max(wanted.min(USEFUL_TOKENS));
        let tokens = fitting(recompute).min(wanted);
        if tokens < least {
            let needed = state + fixed + least * of_token(true) / SLACK.1 * SLACK.0;
            let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
            return Err(Failure::unavailable(format!(
                "training takes {} on the device ({} for weights, gradients and moments), of which {} are free",
                gigabytes(needed),
                gigabytes(state),
                gigabytes(free)
            ))
            .hint("lower --max-tokens-per-batch, use --optimizer sgd, or another device"));
        }
        let activations = tokens * of_token(recompute) / SLACK.1 * SLACK.0;
        Ok(MemoryPlan { parameters: state, fixed, activations, tokens, recompute })
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.parameters + self.fixed + self.activations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3-8B, whose figures are published with its checkpoint.
    fn qwen3_8b() -> (Shape, usize) {
        let shape = Shape {
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
        };
        let parameters = super::super::Layout::new(&shape).len();
        (shape, parameters)
    }

    #[test]
    fn memory_is_traded_for_work_and_then_refused() {
        let (shape, parameters) = qwen3_8b();
        assert_eq!(parameters, 8_190_735_360);
        let plan = |free: u64, largest| MemoryPlan::new(&shape, parameters, 8, free, (32_768, largest));
        let roomy = plan(400_000_000_000, 8192).unwrap();
        assert!(!roomy.recompute);
        assert_eq!(roomy.tokens, 32_768);
        // Full AdamW of 8B parameters on one card of 141 GB: 131 GB of state, and short micro-batches beside it.
        let card = plan(150_754_820_096, 2048).unwrap();
        assert!(card.recompute, "{card:?}");
        assert!(card.bytes() <= 150_754_820_096, "{card:?}");
        assert_eq!(card.parameters, 16 * 8_190_735_360);
        let failure = plan(80_000_000_000, 2048).unwrap_err();
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
    }

    #[test]
    fn a_small_decoder_keeps_everything() {
        let (mut shape, _) = qwen3_8b();
        (shape.layers, shape.hidden, shape.vocabulary) = (2, 64, 97);
        let parameters = super::super::Layout::new(&shape).len();
        let plan = MemoryPlan::new(&shape, parameters, 8, 1 << 34, (1000, 100)).unwrap();
        assert_eq!((plan.tokens, plan.recompute), (1000, false));
    }
}
