//! Experts in place of an MLP (arXiv 1701.06538, 2101.03961): their settings, and which of them a token takes.
//!
//! Inference and training both choose by [`Experts::route`], so that equal logits always mean equal experts. Left out: the
//! auxiliary loss that balances experts in pretraining.

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::json::{flag, present, size};

/// More experts, in all layers together, mean a damaged or hostile file: each costs three table entries.
const LARGEST_COUNT: usize = 1 << 16;

/// Experts in place of the MLP: each token takes those that a router finds likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many a layer has.
    pub count: usize,
    /// How many a token takes.
    pub per_token: usize,
    /// Width of one (one of its two halves).
    pub width: usize,
    /// The probabilities of those taken are divided by their sum.
    pub normalized: bool,
    /// True if each layer has experts, not an MLP.
    pub layers: Vec<bool>,
}

impl Experts {
    /// Qwen3-MoE's, with its defaults, if any layer has them.
    pub(crate) fn read(json: &Value, num_layers: usize) -> Result<Option<Experts>> {
        let or = |key: &str, default: usize| match present(json, key) {
            Some(_) => size(json, key),
            None => Ok(default),
        };
        let count = match present(json, "num_local_experts") {
            Some(_) => size(json, "num_local_experts")?,
            None => or("num_experts", 128)?,
        };
        let per_token = or("num_experts_per_tok", 8)?;
        if per_token > count {
            return Err(Failure::data(format!(
                "num_experts_per_tok is {per_token}, but there are {count} experts"
            )));
        }
        if count.saturating_mul(num_layers) > LARGEST_COUNT {
            return Err(Failure::data(format!(
                "{num_layers} layers of {count} experts are more than {LARGEST_COUNT}"
            )));
        }
        let dense = match present(json, "mlp_only_layers") {
            None => Vec::new(),
            Some(list) => {
                let list: Option<Vec<u64>> =
                    list.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
                list.ok_or_else(|| Failure::data("mlp_only_layers is not a list of layers"))?
            }
        };
        let step = or("decoder_sparse_step", 1)?;
        let sparse = |layer: usize| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step);
        let layers: Vec<bool> = (0..num_layers).map(sparse).collect();
        if !layers.contains(&true) {
            return Ok(None);
        }
        let normalized = flag(json, "norm_topk_prob")?.unwrap_or(false);
        Ok(Some(Experts { count, per_token, width: or("moe_intermediate_size", 768)?, normalized, layers }))
    }

    /// The experts that a token takes, the likeliest first and the lower index first among equals, from its router logits,
    /// which become probabilities: their softmax. Returns them with what their probabilities are divided by: 1, or their sum.
    pub fn route(&self, logits: &mut [f32]) -> (Vec<usize>, f32) {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // A stable sort, of logits: probabilities may be equal where logits are not.
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(self.per_token);
        let largest = order.first().map_or(0.0, |&first| logits[first]);
        logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
        let sum: f32 = logits.iter().sum();
        logits.iter_mut().for_each(|probability| *probability /= sum);
        let total = if self.normalized { order.iter().map(|&expert| logits[expert]).sum() } else { 1.0 };
        (order, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(normalized: bool) -> Experts {
        Experts { count: 4, per_token: 2, width: 1, normalized, layers: vec![true] }
    }

    #[test]
    fn the_likeliest_are_taken() {
        let mut logits = [0.0, 3f32.ln(), 4f32.ln(), f32::NEG_INFINITY];
        let (taken, total) = experts(false).route(&mut logits);
        assert_eq!((taken, total), (vec![2, 1], 1.0));
        assert!(logits.iter().zip([0.125, 0.375, 0.5, 0.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{logits:?}");
        let (_, total) = experts(true).route(&mut [0.0, 3f32.ln(), 4f32.ln(), f32::NEG_INFINITY]);
        assert!((total - 0.875).abs() < 1e-6, "{total}");
    }

    #[test]
    fn of_equals_the_first_are_taken() {
        assert_eq!(experts(true).route(&mut [1.0; 4]).0, [0, 1]);
        assert_eq!(experts(true).route(&mut [0.0, 5.0, 1.0, 1.0]).0, [1, 2]);
        // These differ, and their probabilities do not.
        assert_eq!(experts(true).route(&mut [-200.0, -199.0, 0.0, -198.0]).0, [2, 3]);
    }

    #[test]
    fn nan_logits_do_not_panic() {
        assert_eq!(experts(true).route(&mut [f32::NAN, 1.0, f32::INFINITY, 0.0]).0.len(), 2);
    }
}
