//! Each agent of a shared policy by itself: entropy, clipped tokens, and the norm of its gradient alone.
//!
//! A gradient of one agent takes another pass, so the last minibatch is measured, in the first step and in every tenth. Ranks share that pass like any other.

use record::failure::Result;
use serde_json::{Map, Value, json};

use crate::learner::Learner;
use crate::minibatch;
use crate::trainer::Trainer;

/// Steps from one measurement to the next.
const EVERY: u64 = 10;

/// True if a step is measured.
pub fn is_due(step: u64) -> bool {
    step == 1 || step.is_multiple_of(EVERY)
}

/// The measurements of one minibatch.
#[derive(Clone, Debug, Default)]
pub struct ByAgent {
    /// `entropy`, `clip_ratio` and `grad_norm` by agent; null if no group of an agent teaches.
    pub metrics: Map<String, Value>,
    norms: Vec<f64>,
}

impl ByAgent {
    /// The cosine of two agents' gradients a and b, from the norm of their sum: (‖a + b‖² − ‖a‖² − ‖b‖²) / 2‖a‖‖b‖; `None` for another
    /// number of agents, or if one is 0.
    pub fn cosine(&self, norm: f64) -> Option<f64> {
        let &[a, b] = &self.norms[..] else { return None };
        (a > 0.0 && b > 0.0).then(|| ((norm * norm - a * a - b * b) / (2.0 * a * b)).clamp(-1.0, 1.0))
    }
}

impl Trainer<'_> {
    /// Measures the agents one after another, and leaves the last gradient in the learner. `minibatch` is all of its samples, `active` the
    /// ones that teach; `scale` makes sums of gradients means.
    pub fn measure_by_agent(
        &self,
        minibatch: &[usize],
        active: &[usize],
        scale: f64,
        learner: &mut dyn Learner,
    ) -> Result<ByAgent> {
        let mut measured = ByAgent::default();
        for (agent, name) in self.samples.agents.iter().enumerate() {
            let is_own = |sample: &usize| self.samples.rows[*sample].agent() == Some(agent);
            let own: Vec<usize> = active.iter().copied().filter(is_own).collect();
            if own.is_empty() {
                measured
                    .metrics
                    .insert(name.clone(), json!({"entropy": null, "clip_ratio": 0.0, "grad_norm": 0.0}));
                measured.norms.push(0.0);
                continue;
            }
            let limit = self.training.batching.tokens;
            let batches = minibatch::pack_trees(self.samples, &own, limit);
            let (spans, received) = self.differentiate(&batches, None, learner)?;
            let norm = learner.grad_norm(self.ranks)? * scale;
            self.compare(&received, norm, learner)?;
            let entropy: f64 = spans.iter().flat_map(|span| &span.entropies).sum();
            let scored: usize = spans.iter().map(|span| span.tokens.tokens).sum();
            let clipped: usize =
                spans.iter().map(|span| span.tokens.clipped_low + span.tokens.clipped_high).sum();
            let all: usize = minibatch
                .iter()
                .filter(|sample| is_own(sample))
                .map(|&sample| self.samples.rows[sample].length())
                .sum();
            let values = json!({
                "entropy": entropy / scored.max(1) as f64,
                "clip_ratio": clipped as f64 / all.max(1) as f64,
                "grad_norm": norm,
            });
            measured.metrics.insert(name.clone(), values);
            measured.norms.push(norm);
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_of_two_gradients_follows_from_their_sum() {
        let of = |norms: &[f64]| ByAgent { norms: norms.to_vec(), ..ByAgent::default() };
        // 3 along one axis and 4 along another, along the same, and against it.
        assert_eq!(of(&[3.0, 4.0]).cosine(5.0), Some(0.0));
        assert_eq!(of(&[3.0, 4.0]).cosine(7.0), Some(1.0));
        assert_eq!(of(&[3.0, 4.0]).cosine(1.0), Some(-1.0));
        assert_eq!((of(&[3.0, 0.0]).cosine(3.0), of(&[1.0, 1.0, 1.0]).cosine(1.0)), (None, None));
    }

    #[test]
    fn the_first_and_every_tenth_step_are_measured() {
        let due: Vec<u64> = (0..=20).filter(|step| is_due(*step)).collect();
        assert_eq!(due, [0, 1, 10, 20]);
    }
}
