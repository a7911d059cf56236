//! The second comparison of GiGPO (group in group, arXiv 2505.10978): equal prompts, in whatever episode and turn.
//!
//! ```text
//! G_t = r_t + gamma r_{t+1} + gamma² r_{t+2} + …     r_u: what the team earned in turn u     (equation 5)
//! A_S = (G_t - mean) / F                             over the samples of one anchor           (equations 6, 7)
//! A   = A_E + w A_S                                  A_E: `--credit episode`                  (equations 3, 8)
//! ```
//!
//! F is what the estimator divides by. An anchor with one member, or with equal returns, adds 0. Agents that act at once,
//! after one `parent`, share what the team earned: it counts once, as the mean of their rewards; a sample without `rewards`
//! does not say what is the team's, and counts for itself. `group --anchor prompt` says which prompts are equal. Left out:
//! prompts that are only alike, which the paper's package joins in an order-dependent way.

use std::collections::{BTreeMap, HashMap};

use record::sample::Sample;

use crate::credit::{CreditKey, EpisodeKey};
use crate::statistics::{Statistics, Std};

/// The rewards of samples that act at once, and whether they say what is the team's.
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

/// By turn and `parent`.
type Turns = BTreeMap<u32, BTreeMap<Option<String>, Together>>;

/// What teams earned by turn, and what the samples of an anchor have in common.
#[derive(Debug, Default)]
pub struct AnchorReturns {
    gamma: f64,
    turns: HashMap<EpisodeKey, Turns>,
    returns: HashMap<EpisodeKey, BTreeMap<u32, f64>>,
    members: HashMap<String, Vec<f64>>,
    statistics: HashMap<String, Statistics>,
}

impl AnchorReturns {
    /// Nothing seen yet; `gamma` is the discount a turn.
    pub fn new(gamma: f64) -> Self {
        AnchorReturns { gamma, ..AnchorReturns::default() }
    }

    /// Takes in a sample that earned `reward`.
    pub fn take(&mut self, key: &CreditKey, sample: &Sample, reward: f64) {
        let parent = sample.parent.as_deref().map(str::to_owned);
        let turns = self.turns.entry(key.episode.clone()).or_default();
        let together = turns.entry(key.turn).or_default().entry(parent).or_default();
        together.rewards.push(reward);
        together.shared |= sample.rewards.is_some();
    }

    /// The return of the team from the turn of `key` on. The whole stream must have been taken in.
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

    /// All samples have joined.
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

    /// AnchorReturns seen.
    pub fn len(&self) -> usize {
        self.statistics.len()
    }
}
