//! Two evaluations on the same tasks: the difference of their success, task by task. Hard tasks are hard for both, so
//! the interval is narrower than those of the two rates suggest.

use crate::evaluate::interval::{self, Interval};
use crate::evaluate::outcomes::Outcomes;

/// How much more one solves than the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Tasks that both played.
    pub tasks: usize,
    /// Mean over these tasks of the difference between the shares solved.
    pub value: f64,
    /// Its 95 % interval, by a bootstrap over tasks; none below two tasks.
    pub interval: Option<Interval>,
}

/// `outcomes` less `base`; none where they have no task in common.
pub fn difference(outcomes: &Outcomes, base: &Outcomes) -> Option<Difference> {
    let rate = |outcomes: &Outcomes, task: &str| {
        outcomes.tasks.get(task).map(|tally| tally.solved as f64 / tally.episodes as f64)
    };
    let pairs: Vec<(f64, f64)> = outcomes
        .tasks
        .keys()
        .filter_map(|task| Some((rate(outcomes, task)? - rate(base, task)?, 1.0)))
        .collect();
    let value = pairs.iter().map(|(difference, _)| difference).sum::<f64>() / pairs.len() as f64;
    let interval = (pairs.len() > 1).then(|| interval::bootstrap(&pairs)).flatten();
    (!pairs.is_empty()).then_some(Difference { tasks: pairs.len(), value, interval })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::outcomes::Tally;

    fn outcomes(solved: impl Iterator<Item = (u32, bool)>) -> Outcomes {
        let tasks = solved
            .map(|(task, solved)| (format!("t{task:03}"), Tally { episodes: 1, solved: solved.into() }));
        Outcomes { tasks: tasks.collect(), ..Outcomes::default() }
    }

    #[test]
    fn only_tasks_of_both_count_and_pairing_narrows() {
        // Both solve the same half; the better one solves 10 tasks more.
        let base = outcomes((0..200).map(|task| (task, task < 100)));
        let better = outcomes((0..220).map(|task| (task, task < 110)));
        let found = difference(&better, &base).unwrap();
        let (low, high) = found.interval.unwrap();
        assert_eq!(found.tasks, 200);
        assert!((found.value - 0.05).abs() < 1e-12);
        // 10 ones among 200 differences: mean 0.05, standard error 0.0154.
        assert!((low - 0.02).abs() < 0.006 && (high - 0.08).abs() < 0.006, "{low} {high}");
        assert_eq!(difference(&base, &base).unwrap().interval, Some((0.0, 0.0)));
        assert_eq!(difference(&base, &outcomes(std::iter::empty())), None);
    }
}
