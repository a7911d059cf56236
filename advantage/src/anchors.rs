//! The second comparison of GiGPO (Group-in-Group Policy Optimization, arXiv 2505.10978): among samples with
//! equal prompts, in any episode and turn.
//!
//! ```text
//! G_t = r_t + gamma r_{t+1} + gamma² r_{t+2} + …     r_u: the team's reward in turn u        (equation 5)
//! A_S = (G_t - mean) / F                             over the samples of one anchor           (equations 6, 7)
//! A   = A_E + w A_S                                  A_E: from `--credit episode`            (equations 3, 8)
//! ```
//!
//! F is the estimator's divisor. A_S is 0 if an anchor has one member or equal returns. Agents that act at
//! once, with the same `parent`, share the team's reward, so it counts once: as the mean of their rewards.
//! Samples without `rewards` do not separate the team's share, so their rewards are summed. `group --anchor
//! prompt` finds equal prompts. Left out: prompts that are merely similar, which the paper's package merges
//! in an order-dependent way.

use std::collections::{BTreeMap, HashMap};

use record::sample::Sample;

use crate::credit::{CreditKey, EpisodeKey};
use crate::statistics::{Statistics, Std};

/// The rewards of samples that act at once; `shared` is true if they record the team's share.
#[derive(Debug, Default)]
struct Together {
    rewards: Vec<f64>,
    shared: bool,
}

impl Together {
    fn earned(&self) -> f64 {
        let mut rewards = self.rewards.clone();
        rewards.sort_by(f64::total_cmp);
        let total: f64 = rewards.iter().sum();
        if self.shared { total / rewards.len() as f64 } else { total }
    }
}

/// By turn, then by `parent`.
type Turns = BTreeMap<u32, BTreeMap<Option<String>, Together>>;

/// The team's rewards by turn, and the statistics of each anchor.
#[derive(Debug, Default)]
pub struct AnchorReturns {
    gamma: f64,
    turns: HashMap<EpisodeKey, Turns>,
    returns: HashMap<EpisodeKey, BTreeMap<u32, f64>>,
    members: HashMap<String, Vec<f64>>,
    statistics: HashMap<String, Statistics>,
}

impl AnchorReturns {
    /// An empty state; `gamma` is the discount per turn.
    pub fn new(gamma: f64) -> Self {
        AnchorReturns { gamma, ..AnchorReturns::default() }
    }

    /// Adds a sample with its reward.
    pub fn take(&mut self, key: &CreditKey, sample: &Sample, reward: f64) {
        let parent = sample.parent.as_deref().map(str::to_owned);
        let turns = self.turns.entry(key.episode.clone()).or_default();
        let together = turns.entry(key.turn).or_default().entry(parent).or_default();
        together.rewards.push(reward);
        together.shared |= sample.rewards.is_some();
    }

    /// The team's return from the turn of `key` on. Needs the complete stream.
    fn return_of(&mut self, key: &CreditKey) -> f64 {
        let turns = &self.turns;
        let gamma = self.gamma;
        let returns = self.returns.entry(key.episode.clone()).or_insert_with(|| {
            let (mut later, mut next, mut returns) = (0.0, 0, BTreeMap::new());
            for (&turn, stages) in turns.get(&key.episode).into_iter().flatten().rev() {
                let discount = if returns.is_empty() { 0.0 } else { gamma.powf(f64::from(next - turn)) };
                later = stages.values().map(Together::earned).sum::<f64>() + discount * later;
                returns.insert(turn, later);
                next = turn;
            }
            returns
        });
        returns.get(&key.turn).copied().unwrap_or_default()
    }

    /// Adds a sample to its anchor.
    pub fn join(&mut self, anchor: &str, key: &CreditKey) {
        let value = self.return_of(key);
        self.members.entry(anchor.to_owned()).or_default().push(value);
    }

    /// Computes the statistics, once all samples have joined.
    pub fn finish(&mut self, std: Std, flat_below: f64) {
        let of = |(anchor, values): (String, Vec<f64>)| (anchor, Statistics::of(&values, std, flat_below));
        self.statistics = std::mem::take(&mut self.members).into_iter().map(of).collect();
    }

    /// G_t of a sample and the statistics of its anchor.
    pub fn of(&mut self, anchor: &str, key: &CreditKey) -> (f64, Statistics) {
        let value = self.return_of(key);
        let alone = Statistics { mean: value, deviation: 0.0, flat: true };
        (value, self.statistics.get(anchor).copied().unwrap_or(alone))
    }

    /// Number of anchors.
    pub fn len(&self) -> usize {
        self.statistics.len()
    }
}
