//! What the loss of a token asks of its whole sequence: its ratio, its importance weight, whether it is masked.
//!
//! They are needed before the first derivative of the sequence, so a tree is passed over twice. A prefix that several
//! sequences share has no completion rows of theirs.

use crate::loss_config::{LossConfig, RatioLevel, WeightLevel};
use crate::objective;

/// A token's log-probability: now, before the first step, and as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprobs {
    /// Under the weights in training.
    pub new: f64,
    /// Under the weights before the first step, where that is asked for, else as recorded.
    pub start: f64,
    /// Recorded by `rollout`.
    pub recorded: f64,
}

/// Numbers of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SequenceStats {
    /// Mean of new − start over its tokens.
    pub log_ratio: f64,
    /// Sum of start − recorded.
    pub log_weight: f64,
    /// Mean of recorded − new.
    pub drift: f64,
    /// Mean of the importance weights of its tokens.
    pub mean_weight: f64,
}

impl LossConfig {
    /// Whether a token's derivative depends on other tokens of its sequence.
    pub fn needs_sequences(&self) -> bool {
        self.ratio == RatioLevel::Sequence
            || self.importance.is_some_and(|importance| importance.level == WeightLevel::Sequence)
            || self.mask_negative_above.is_some()
    }

    /// The numbers of a sequence, from all of its tokens.
    pub fn sequence(&self, tokens: impl Iterator<Item = TokenLogprobs>) -> SequenceStats {
        let (mut stats, mut count) = (SequenceStats::default(), 0.0);
        for TokenLogprobs { new, start, recorded } in tokens {
            count += 1.0;
            stats.log_ratio += new - start;
            stats.log_weight += start - recorded;
            stats.drift += recorded - new;
            let weight = self.importance.map_or(1.0, |importance| {
                objective::importance((start - recorded).exp(), importance.outside).0
            });
            stats.mean_weight += weight;
        }
        for mean in [&mut stats.log_ratio, &mut stats.drift, &mut stats.mean_weight] {
            *mean /= count;
        }
        stats
    }
}
