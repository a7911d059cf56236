//! Estimators: functions from the values of a group to advantages, each with its paper.
//!
//! A new estimator is one function, one arm in [`EstimatorConfig::advantages`] and one variant of [`Estimator`].

use clap::ValueEnum;

use crate::statistics::{Statistics, Std};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Estimator {
    /// (r - mean) / (std + epsilon), arXiv 2402.03300
    Grpo,
    /// r - mean, arXiv 2503.20783
    DrGrpo,
    /// r - mean of the others, arXiv 2402.14740
    Rloo,
    /// r - greatest r of the group, as MAReMax of arXiv 2508.04652's package
    GroupMax,
    /// (r - mean) / mean, 0 where the mean is 0; r must not be negative, arXiv 2602.02710
    MaxRl,
    /// r - mean weighted by completion tokens, arXiv 2505.23585
    Opo,
    /// By how much r raises the best of --k members, arXiv 2503.19595
    MaxAt,
    /// Sum over --components of weight * (c - mean) / (std + epsilon), arXiv 2601.05242
    Gdpo,
    /// r - baseline of the agent in this environment, from earlier steps, arXiv 2506.24119
    Rae,
    /// r - baseline, the reward of the greedy completion that each sample must carry, arXiv 2310.10505
    Remax,
    /// r
    Raw,
}

impl Estimator {
    /// True if members are compared within their group, so a flat group gives no signal.
    pub fn compares(self) -> bool {
        !matches!(self, Estimator::Remax | Estimator::Raw | Estimator::Rae)
    }
}

/// An estimator with its parameters.
#[derive(Clone, Debug)]
pub struct EstimatorConfig {
    pub estimator: Estimator,
    /// The deviation by which `grpo` and `gdpo` divide.
    pub std: Std,
    /// The added term, in units of reward.
    pub epsilon: f64,
    /// The k of `max-at`, the best of k members; at least 2.
    pub k: u32,
    /// The weights of `gdpo`'s components.
    pub weights: Vec<f64>,
    /// The largest difference of values in a flat group.
    pub flat_below: f64,
}

/// The values compared in a group: one number per unit in each field that the estimator reads.
#[derive(Clone, Debug, Default)]
pub struct Units {
    /// The unit's credit.
    pub values: Vec<f64>,
    /// Subtracted by `remax` and `rae`.
    pub baselines: Vec<f64>,
    /// Completion tokens.
    pub tokens: Vec<f64>,
    /// The values of `gdpo` by component.
    pub components: Vec<Vec<f64>>,
}

impl EstimatorConfig {
    /// The advantage of each unit; `statistics` is over their values.
    pub fn advantages(&self, units: &Units, statistics: &Statistics) -> Vec<f64> {
        let Units { values, baselines, tokens, components } = units;
        if statistics.flat && self.estimator.compares() && self.estimator != Estimator::Gdpo {
            return vec![0.0; values.len()];
        }
        match self.estimator {
            Estimator::Grpo => match self.std {
                Std::None => dr_grpo(values, statistics),
                Std::Sample | Std::Population => grpo(values, statistics, self.epsilon),
            },
            Estimator::DrGrpo => dr_grpo(values, statistics),
            Estimator::Rloo => rloo(values, statistics),
            Estimator::GroupMax => group_max(values),
            Estimator::MaxRl => max_rl(values, statistics),
            Estimator::Opo => opo(values, tokens),
            Estimator::MaxAt => max_at(values, self.k as usize),
            Estimator::Gdpo => self.gdpo(components),
            Estimator::Rae | Estimator::Remax => remax(values, baselines),
            Estimator::Raw => raw(values),
        }
    }

    /// The statistics of values, with the deviation that `std` selects.
    pub fn statistics(&self, values: &[f64]) -> Statistics {
        Statistics::of(values, self.std, self.flat_below)
    }

    /// Group reward-decoupled normalization: A_i = sum over components of w (c_i - mean) / (std + epsilon). Arxiv 2601.05242,
    /// section 3; its whitening afterwards is `--whiten`. A flat component adds 0.
    fn gdpo(&self, components: &[Vec<f64>]) -> Vec<f64> {
        let mut sums = vec![0.0; components.first().map_or(0, Vec::len)];
        for (weight, values) in self.weights.iter().zip(components) {
            let statistics = self.statistics(values);
            let own = match self.std {
                Std::None => dr_grpo(values, &statistics),
                Std::Sample | Std::Population => grpo(values, &statistics, self.epsilon),
            };
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += weight * own);
        }
        sums
    }
}

/// Group-relative policy optimization: A_i = (r_i - mean) / (std + epsilon). DeepSeekMath, arXiv 2402.03300,
/// section 4.1.2; AT-GRPO, arXiv 2510.11062, equation 1. A flat group gets 0.
fn grpo(values: &[f64], statistics: &Statistics, epsilon: f64) -> Vec<f64> {
    let scale = statistics.deviation + epsilon;
    values.iter().map(|value| if statistics.flat { 0.0 } else { (value - statistics.mean) / scale }).collect()
}

/// Dr. GRPO: A_i = r_i - mean, without the division that favors groups of little variance. arXiv 2503.20783,
/// section 3. A flat group gets 0.
fn dr_grpo(values: &[f64], statistics: &Statistics) -> Vec<f64> {
    values.iter().map(|value| if statistics.flat { 0.0 } else { value - statistics.mean }).collect()
}

/// REINFORCE leave-one-out: A_i = r_i - mean of the others = (r_i - mean) n / (n - 1). arXiv 2402.14740,
/// section 3. A flat group gets 0, and so does a single member, which has no others.
fn rloo(values: &[f64], statistics: &Statistics) -> Vec<f64> {
    let count = values.len() as f64;
    let scale = if statistics.flat { 0.0 } else { count / (count - 1.0) };
    values.iter().map(|value| if statistics.flat { 0.0 } else { (value - statistics.mean) * scale }).collect()
}

/// Group maximum: A_i = r_i - max of the group, so that the best gets 0 and the others less. This is the
/// baseline of CoMLRL's MAReMax (the package of MAGRPO, arXiv 2508.04652), which plays no greedy
/// completion. A flat group gets 0.
fn group_max(values: &[f64]) -> Vec<f64> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|value| value - most).collect()
}

/// Maximum-likelihood RL: A_i = (r_i - mean) / mean, and 0 if all rewards are 0. Arxiv 2602.02710, equation 9 with
/// all members as samples of the mean. Rewards are not negative.
fn max_rl(values: &[f64], statistics: &Statistics) -> Vec<f64> {
    let mean = statistics.mean;
    values.iter().map(|value| if mean > 0.0 { (value - mean) / mean } else { 0.0 }).collect()
}

/// On-policy RL with the optimal baseline: A_i = r_i - sum(n r) / sum(n), where n is the number of completion
/// tokens. A long answer has a larger gradient, so its reward weighs more in the baseline. arXiv 2505.23585,
/// section 3. A single member gets 0.
fn opo(values: &[f64], tokens: &[f64]) -> Vec<f64> {
    // Sorted, so that the sum has the same bits for any order of the members.
    let mut pairs: Vec<(f64, f64)> = values.iter().copied().zip(tokens.iter().copied()).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let total: f64 = pairs.iter().map(|(_, tokens)| tokens).sum();
    let baseline = pairs.iter().map(|(value, tokens)| tokens * value).sum::<f64>() / total;
    values.iter().map(|value| value - baseline).collect()
}

/// Max@k: A_i = sum over the subsets S of k members with i of max S - max of S without i, divided by C(n-1,
/// k-1). Then the gradient of the expected maximum of k is k times the mean of A grad log pi. arXiv
/// 2503.19595, equation 6, for arbitrary rewards. A group of fewer than k members is compared as a whole.
///
/// With sorted values, the member of rank p is the maximum of those subsets whose second largest has a rank q
/// < p, and there are C(q, k-2) such subsets for each q.
fn max_at(values: &[f64], k: usize) -> Vec<f64> {
    let count = values.len();
    let k = k.min(count);
    if k < 2 {
        return vec![0.0; count];
    }
    // C(q, k-2) / C(n-1, k-1), from q = n-2 down.
    let mut shares = vec![0.0; count - 1];
    shares[count - 2] = (k - 1) as f64 / (count - 1) as f64;
    for q in (1..count - 1).rev() {
        shares[q - 1] = shares[q] * (q + 2).saturating_sub(k) as f64 / q as f64;
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut advantages = vec![0.0; count];
    for (rank, &own) in order.iter().enumerate() {
        let below = order[..rank].iter().zip(&shares);
        advantages[own] = below.map(|(&other, share)| share * (values[own] - values[other])).sum();
    }
    advantages
}

/// ReMax: A_i = r_i - reward of the greedy completion of the same prompt. arXiv 2310.10505, section 4.
/// Members are not compared with each other, so a flat group needs no special case. RAE (arXiv 2506.24119,
/// section 3.3) subtracts a moving average of the agent's rewards in this environment (`baselines.rs`).
fn remax(values: &[f64], baselines: &[f64]) -> Vec<f64> {
    values.iter().zip(baselines).map(|(value, baseline)| value - baseline).collect()
}

/// REINFORCE without a baseline: A_i = r_i. Williams, Machine Learning 8 (1992).
fn raw(values: &[f64]) -> Vec<f64> {
    values.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advantages(estimator: Estimator, std: Std, values: &[f64]) -> Vec<f64> {
        let method =
            EstimatorConfig { estimator, std, epsilon: 1e-6, k: 2, weights: vec![1.0], flat_below: 0.0 };
        let units = Units {
            values: values.to_vec(),
            baselines: vec![0.25; values.len()],
            tokens: (1..=values.len()).map(|tokens| tokens as f64).collect(),
            components: vec![values.to_vec()],
        };
        method.advantages(&units, &method.statistics(values))
    }

    fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
        let differences: Vec<f64> = actual.iter().zip(expected).map(|(a, e)| (a - e).abs()).collect();
        assert_eq!(actual.len(), expected.len());
        assert!(differences.iter().all(|&d| d <= tolerance), "{actual:?} - {expected:?} = {differences:?}");
    }

    /// Worked by hand: [1,0,0,1] has mean 1/2, deviation sqrt(1/3) with n - 1 and 1/2 with n.
    #[test]
    fn vectors_of_grpo() {
        let sample = [0.866_024, -0.866_024, -0.866_024, 0.866_024];
        assert_close(&advantages(Estimator::Grpo, Std::Sample, &[1.0, 0.0, 0.0, 1.0]), &sample, 5e-7);
        let population = [0.999_998, -0.999_998, -0.999_998, 0.999_998];
        assert_close(&advantages(Estimator::Grpo, Std::Population, &[1.0, 0.0, 0.0, 1.0]), &population, 5e-7);
        let one = advantages(Estimator::Grpo, Std::Sample, &[1.0, 0.0, 0.0, 0.0]);
        assert_close(&one, &[1.5, -0.5, -0.5, -0.5], 5e-6);
        let one = advantages(Estimator::Grpo, Std::Population, &[1.0, 0.0, 0.0, 0.0]);
        assert_close(&one, &[1.732_05, -0.577_35, -0.577_35, -0.577_35], 1e-5);
        for pair in [[1.0, 0.0], [0.3, 0.1], [-5.0, -7.0]] {
            assert_close(
                &advantages(Estimator::Grpo, Std::Sample, &pair),
                &[std::f64::consts::FRAC_1_SQRT_2, -std::f64::consts::FRAC_1_SQRT_2],
                1e-5,
            );
        }
        assert_close(&advantages(Estimator::Grpo, Std::None, &[1.0, 0.0]), &[0.5, -0.5], 0.0);
    }

    #[test]
    fn a_flat_group_gets_nothing_where_members_are_compared() {
        for estimator in [
            Estimator::Grpo,
            Estimator::DrGrpo,
            Estimator::Rloo,
            Estimator::GroupMax,
            Estimator::MaxRl,
            Estimator::Opo,
            Estimator::MaxAt,
            Estimator::Gdpo,
        ] {
            for values in [&[0.7; 4][..], &[0.1; 3], &[5.0]] {
                assert!(advantages(estimator, Std::Sample, values).iter().all(|&advantage| advantage == 0.0));
            }
        }
        assert_eq!(advantages(Estimator::Raw, Std::Sample, &[0.5, 0.5]), [0.5, 0.5]);
        assert_eq!(advantages(Estimator::Remax, Std::Sample, &[0.5, 0.5]), [0.25, 0.25]);
    }

    #[test]
    fn leave_one_out_is_the_difference_to_the_mean_of_the_others() {
        let values = [1.0, 0.25, 0.0, 2.0];
        let expected: Vec<f64> = (0..4)
            .map(|own| {
                let others: f64 = (0..4).filter(|&other| other != own).map(|other| values[other]).sum();
                values[own] - others / 3.0
            })
            .collect();
        assert_close(&advantages(Estimator::Rloo, Std::Sample, &values), &expected, 1e-12);
    }

    #[test]
    fn the_others_are_what_their_formulas_say() {
        assert_close(&advantages(Estimator::DrGrpo, Std::Sample, &[1.0, 0.0]), &[0.5, -0.5], 0.0);
        assert_close(&advantages(Estimator::Remax, Std::Sample, &[1.0, 0.0]), &[0.75, -0.25], 0.0);
        assert_close(&advantages(Estimator::Raw, Std::Sample, &[1.0, -2.0]), &[1.0, -2.0], 0.0);
        assert_close(&advantages(Estimator::GroupMax, Std::Sample, &[-1.0, -2.0]), &[0.0, -1.0], 0.0);
        assert_close(
            &advantages(Estimator::MaxRl, Std::Sample, &[1.0, 0.0, 0.0, 0.0]),
            &[3.0, -1.0, -1.0, -1.0],
            0.0,
        );
        assert_close(&advantages(Estimator::Opo, Std::Sample, &[1.0, 0.25]), &[0.5, -0.25], 0.0);
    }

    /// As above, by enumeration of all subsets of k members.
    fn best_of_all_subsets(values: &[f64], k: usize) -> Vec<f64> {
        let max = |set: u32| {
            let of = |(index, value): (usize, &f64)| (set >> index & 1 == 1).then_some(*value);
            values.iter().enumerate().filter_map(of).fold(f64::NEG_INFINITY, f64::max)
        };
        let with = |own: usize| {
            let sets = (0..1_u32 << values.len()).filter(move |set| set >> own & 1 == 1);
            let gains: Vec<f64> = sets
                .filter(|set| set.count_ones() as usize == k)
                .map(|set| max(set) - max(set & !(1 << own)))
                .collect();
            gains.iter().sum::<f64>() / gains.len() as f64
        };
        (0..values.len()).map(with).collect()
    }

    #[test]
    fn the_best_of_k_is_that_of_every_subset() {
        let values = [0.5, 0.2, 0.0, 0.9, 0.2, -1.0];
        for k in 2..=values.len() {
            assert_close(&max_at(&values, k), &best_of_all_subsets(&values, k), 1e-12);
        }
        assert_eq!(max_at(&[0.5, 0.2, 0.0, 0.9], 9), [0.0, 0.0, 0.0, 0.4]);
        assert_eq!(max_at(&[1.0, 1.0, 0.0], 3), [0.0; 3]);
        assert!(max_at(&vec![0.5; 4096], 2048).iter().all(|advantage| *advantage == 0.0));
    }
}
