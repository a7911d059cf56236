//! From the values of a group to advantages: one function per estimator, each with its paper.
//!
//! A new estimator is one function, one arm in [`EstimatorConfig::advantages`] and one variant of [`Estimator`].

use clap::ValueEnum;

use crate::statistics::{Statistics, Std};

/// The estimators.
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
    /// r - baseline, the reward of the greedy completion that each sample must carry, arXiv 2310.10505
    Remax,
    /// r
    Raw,
}

/// An estimator with its numbers.
#[derive(Clone, Copy, Debug)]
pub struct EstimatorConfig {
    /// Which one.
    pub estimator: Estimator,
    /// What `grpo` divides by.
    pub std: Std,
    /// What `grpo` adds to it, in units of reward.
    pub epsilon: f64,
}

impl EstimatorConfig {
    /// The advantages of `values`, whose statistics are `statistics`. `baselines` are as many, for `remax` only.
    pub fn advantages(&self, values: &[f64], baselines: &[f64], statistics: &Statistics) -> Vec<f64> {
        match self.estimator {
            Estimator::Grpo => match self.std {
                Std::None => dr_grpo(values, statistics),
                Std::Sample | Std::Population => grpo(values, statistics, self.epsilon),
            },
            Estimator::DrGrpo => dr_grpo(values, statistics),
            Estimator::Rloo => rloo(values, statistics),
            Estimator::GroupMax => group_max(values),
            Estimator::Remax => remax(values, baselines),
            Estimator::Raw => raw(values),
        }
    }
}

/// Group-relative policy optimization: A_i = (r_i - mean) / (std + epsilon). DeepSeekMath, arXiv 2402.03300,
/// section 4.1.2; AT-GRPO, arXiv 2510.11062, equation 1. A flat group gets 0.
fn grpo(values: &[f64], statistics: &Statistics, epsilon: f64) -> Vec<f64> {
    let scale = statistics.deviation + epsilon;
    values.iter().map(|value| if statistics.flat { 0.0 } else { (value - statistics.mean) / scale }).collect()
}

/// GRPO done right: A_i = r_i - mean, without the division that favors groups of little variance.
/// Arxiv 2503.20783, section 3. A flat group gets 0.
fn dr_grpo(values: &[f64], statistics: &Statistics) -> Vec<f64> {
    values.iter().map(|value| if statistics.flat { 0.0 } else { value - statistics.mean }).collect()
}

/// REINFORCE leave-one-out: A_i = r_i - mean of the others = (r_i - mean) n / (n - 1). Arxiv 2402.14740, section 3.
/// A flat group gets 0, and so does a single member, which has no others.
fn rloo(values: &[f64], statistics: &Statistics) -> Vec<f64> {
    let count = values.len() as f64;
    let scale = if statistics.flat { 0.0 } else { count / (count - 1.0) };
    values.iter().map(|value| if statistics.flat { 0.0 } else { (value - statistics.mean) * scale }).collect()
}

/// Group maximum: A_i = r_i - max of the group, so that the best gets 0 and the others less. The baseline of CoMLRL's
/// MAReMax (the package of MAGRPO, arXiv 2508.04652), which has no greedy completion. A flat group gets 0.
fn group_max(values: &[f64]) -> Vec<f64> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|value| value - most).collect()
}

/// ReMax: A_i = r_i - reward of the greedy completion of the same prompt. Arxiv 2310.10505, section 4. Members are not
/// compared with each other, so a flat group needs no special case.
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
        let method = EstimatorConfig { estimator, std, epsilon: 1e-6 };
        let baselines = vec![0.25; values.len()];
        method.advantages(values, &baselines, &Statistics::of(values, std))
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
        for estimator in [Estimator::Grpo, Estimator::DrGrpo, Estimator::Rloo, Estimator::GroupMax] {
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
    }
}
