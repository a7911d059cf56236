//! Success, pass@k and paired differences of an evaluation, each with its interval.
//!
//! pass@k is the chance that at least one of k samples solves the task (Chen et al., "Evaluating large
//! language models trained on code", arXiv 2107.03374, equation 1). A paired difference compares two
//! evaluations task by task: hard tasks are hard for both, so its interval is narrower than the two rates'
//! intervals suggest.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::evaluate::interval::{self, Interval};
use crate::stats::{EnvironmentStats, RunningStats, TaskStats};

/// The result of an evaluation on one environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Mean over distinct tasks, at least one, of the share of each one's episodes that solved it.
    pub success: Rate,
    /// How the interval of success was made: `wilson` or `bootstrap`.
    pub method: &'static str,
    /// pass@k by k, averaged over tasks, where every task has the same number of episodes, above one.
    pub pass: BTreeMap<u64, Rate>,
    /// Mean over tasks of their mean return; `None` if no episode was scored.
    pub returns: Option<Rate>,
    /// Components of the executed candidates' rewards, by agent and name, each a mean over tasks.
    pub components: BTreeMap<String, BTreeMap<String, Rate>>,
}

impl Measured {
    /// The mean return, if the environment pays for more than success.
    pub fn partial_returns(&self) -> Option<Rate> {
        self.returns.filter(|returns| (returns.value - self.success.value).abs() > 1e-9)
    }
}

/// Measures the episodes of an environment.
pub fn measure(stats: &EnvironmentStats) -> Measured {
    let episodes = || stats.tasks.values().map(|task| task.episodes);
    let (fewest, most) = (episodes().min().unwrap_or(0), episodes().max().unwrap_or(0));
    let rates: Vec<f64> = stats.tasks.values().map(TaskStats::rate).collect();
    let mut pass = BTreeMap::new();
    if most > 1 && fewest == most {
        for k in ks(most) {
            let of_task = |task: &TaskStats| pass_at(k, task.episodes, task.solved);
            let values = stats.tasks.values().map(of_task).collect::<Option<Vec<f64>>>();
            pass.extend(values.and_then(|values| Rate::of_shares(&values)).map(|rate| (k, rate)));
        }
    }
    let of_name = |(name, tasks): (&String, &BTreeMap<String, RunningStats>)| {
        Some((name.clone(), Rate::of_numbers(tasks.values().filter_map(RunningStats::mean).collect())?))
    };
    let components = stats.components.iter();
    Measured {
        success: Rate::of_shares(&rates).unwrap_or(Rate { value: f64::NAN, interval: None }),
        method: if most > 1 { "bootstrap" } else { "wilson" },
        pass,
        returns: Rate::of_numbers(stats.tasks.values().filter_map(|task| task.returns.mean()).collect()),
        components: components
            .map(|(agent, names)| (agent.clone(), names.iter().filter_map(of_name).collect()))
            .collect(),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The unbiased estimate 1 - C(n - c, k) / C(n, k) from `samples` n of which `solved` c solved the task;
/// `None` with fewer than `k` samples, because a smaller sample knows nothing about a larger one.
fn pass_at(k: u64, samples: u64, solved: u64) -> Option<f64> {
    if k == 0 || k > samples || solved > samples {
        return None;
    }
    if samples - solved < k {
        return Some(1.0);
    }
    // The product of the paper's listing: no factorial, hence no overflow.
    let missed: f64 = (samples - solved + 1..=samples).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - missed)
}

/// The k that are reported for n samples a task: the powers of two below n, and n.
fn ks(samples: u64) -> Vec<u64> {
    let mut ks: Vec<u64> =
        std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|&k| k < samples).collect();
    ks.push(samples.max(1));
    ks
}

/// How much more of its tasks one evaluation solves than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Tasks that both played.
    pub tasks: usize,
    /// Mean over these tasks of the difference between the shares solved.
    pub value: f64,
    /// Its 95 % interval, by a bootstrap over tasks; `None` below two tasks.
    pub interval: Option<Interval>,
    /// The chance that it solves a task that the other fails. If the other is played without a role, this is
    /// how often the role helps.
    pub helped: Rate,
    /// The reverse: how often the role hurts. The difference is `helped` less `hurt`.
    pub hurt: Rate,
    /// The mean over these tasks of the difference between their mean returns; `None` if no episode was scored.
    pub returns: Option<Rate>,
    /// True if either evaluation is paid for more than success.
    pub pays_in_parts: bool,
}

/// A mean over tasks with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub value: f64,
    pub interval: Option<Interval>,
}

impl Rate {
    /// Of shares, one per task; `None` without tasks.
    fn of_shares(rates: &[f64]) -> Option<Rate> {
        (!rates.is_empty()).then(|| Rate { value: mean(rates), interval: interval::of_rates(rates) })
    }

    /// Of any numbers, one per task; `None` without tasks.
    fn of_numbers(values: Vec<f64>) -> Option<Rate> {
        (!values.is_empty()).then(|| Rate { value: mean(&values), interval: interval::of_numbers(&values) })
    }
}

/// `stats` minus `base`; `None` without a common task.
pub fn difference(stats: &EnvironmentStats, base: &EnvironmentStats) -> Option<Difference> {
    let pair = |(name, task): (&String, &TaskStats)| Some((task.rate(), base.tasks.get(name)?.rate()));
    let pairs: Vec<(f64, f64)> = stats.tasks.iter().filter_map(pair).collect();
    let over = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> { pairs.iter().map(of).collect() };
    let differences = over(|(own, other)| own - other);
    let interval = (pairs.len() > 1).then(|| interval::bootstrap(&differences)).flatten();
    let earned = |(name, task): (&String, &TaskStats)| {
        Some(task.returns.mean()? - base.tasks.get(name)?.returns.mean()?)
    };
    let earned: Vec<f64> = stats.tasks.iter().filter_map(earned).collect();
    Some(Difference {
        tasks: pairs.len(),
        value: mean(&differences),
        interval,
        helped: Rate::of_shares(&over(|(own, other)| own * (1.0 - other)))?,
        hurt: Rate::of_shares(&over(|(own, other)| other * (1.0 - own)))?,
        returns: interval::mean_of_seeds(&earned)
            .map(|found| Rate { value: found.mean, interval: found.interval }),
        pays_in_parts: [stats, base].into_iter().any(|stats| measure(stats).partial_returns().is_some()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of all subsets of k samples that hold a solved one, counted one by one.
    fn by_counting(k: u64, samples: u64, solved: u64) -> f64 {
        let (mut all, mut hit) = (0_u64, 0_u64);
        for subset in 0_u64..1 << samples {
            if u64::from(subset.count_ones()) == k {
                all += 1;
                hit += u64::from(subset & ((1 << solved) - 1) != 0);
            }
        }
        hit as f64 / all as f64
    }

    #[test]
    fn pass_at_k_agrees_with_counting() {
        for samples in 1..=10 {
            for solved in 0..=samples {
                for k in 1..=samples {
                    let (found, wanted) =
                        (pass_at(k, samples, solved).unwrap(), by_counting(k, samples, solved));
                    assert!(
                        (found - wanted).abs() < 1e-12,
                        "n {samples}, c {solved}, k {k}: {found}, {wanted}"
                    );
                }
            }
        }
        assert_eq!(pass_at(3, 2, 1), None);
        assert_eq!(pass_at(0, 2, 1), None);
        assert!((pass_at(100, 10_000, 100).unwrap() - 0.635_8).abs() < 1e-3);
    }

    #[test]
    fn pass_at_k_is_reported_for_powers_of_two() {
        assert_eq!(ks(1), [1]);
        assert_eq!(ks(8), [1, 2, 4, 8]);
        assert_eq!(ks(10), [1, 2, 4, 8, 10]);
    }

    fn stats(solved: impl Iterator<Item = (u32, bool)>) -> EnvironmentStats {
        let tasks = solved.map(|(task, solved)| {
            (format!("t{task:03}"), TaskStats { episodes: 1, solved: solved.into(), ..TaskStats::default() })
        });
        EnvironmentStats { tasks: tasks.collect(), ..EnvironmentStats::default() }
    }

    #[test]
    fn difference_takes_common_tasks_and_narrows_the_interval() {
        // Both solve the same half; the better one solves 10 tasks more.
        let base = stats((0..200).map(|task| (task, task < 100)));
        let better = stats((0..220).map(|task| (task, task < 110)));
        let found = difference(&better, &base).unwrap();
        let (low, high) = found.interval.unwrap();
        assert_eq!(found.tasks, 200);
        assert!((found.value - 0.05).abs() < 1e-12);
        // 10 ones among 200 differences: mean 0.05, standard error 0.0154.
        assert!((low - 0.02).abs() < 0.006 && (high - 0.08).abs() < 0.006, "{low} {high}");
        assert_eq!(difference(&base, &base).unwrap().interval, Some((0.0, 0.0)));
        assert_eq!(difference(&base, &stats(std::iter::empty())), None);
    }

    /// Where no task is solved, the return tells: by task 0.5 and 1.5 more, so 1 with 12.706205 * 0.7071 / sqrt(2)
    /// on each side.
    #[test]
    fn a_difference_of_returns_is_paired_by_task() {
        let paid = |all: [f64; 2]| {
            let mut found = stats([(0, false), (1, false)].into_iter());
            found.tasks.values_mut().zip(all).for_each(|(task, earned)| task.returns.push(earned));
            found
        };
        let found = difference(&paid([1.0, 3.5]), &paid([0.5, 2.0])).unwrap();
        let (returns, (low, high)) = (found.returns.unwrap(), found.returns.unwrap().interval.unwrap());
        assert_eq!((found.value, returns.value), (0.0, 1.0));
        assert!((low + 5.353_102).abs() < 1e-5 && (high - 7.353_102).abs() < 1e-5, "{low} {high}");
        assert_eq!(difference(&stats([(0, true)].into_iter()), &paid([0.5, 2.0])).unwrap().returns, None);
    }

    /// Of ten tasks the team solves 1 to 6, and without a role 5 to 7: the role helps in four and hurts in
    /// one.
    #[test]
    fn role_helps_and_hurts_are_counted_by_task() {
        let with = stats((1..=10).map(|task| (task, task <= 6)));
        let without = stats((1..=10).map(|task| (task, (5..=7).contains(&task))));
        let found = difference(&with, &without).unwrap();
        assert_eq!(found.helped, Rate { value: 0.4, interval: interval::wilson(4, 10) });
        assert_eq!(found.hurt, Rate { value: 0.1, interval: interval::wilson(1, 10) });
        assert!((found.value - 0.3).abs() < 1e-12);
        // Several episodes of a task: 3 of 4 solved with the role and 1 of 2 without it, at random which.
        let one = |episodes, solved| EnvironmentStats {
            tasks: [("t".to_owned(), TaskStats { episodes, solved, ..TaskStats::default() })].into(),
            ..EnvironmentStats::default()
        };
        let found = difference(&one(4, 3), &one(2, 1)).unwrap();
        assert_eq!((found.helped.value, found.hurt.value, found.value), (0.375, 0.125, 0.25));
    }
}
