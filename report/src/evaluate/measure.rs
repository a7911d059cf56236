//! Figures of an evaluation out of its outcomes.

use crate::evaluate::interval::{self, Interval};
use crate::evaluate::outcomes::{Outcomes, Tally};
use crate::evaluate::pass::{ks, pass_at};

/// pass@k with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// How many samples one has.
    pub k: u64,
    /// The chance that one of them solves the task, averaged over tasks.
    pub value: f64,
    /// Its 95 % interval.
    pub interval: Option<Interval>,
}

/// What an evaluation comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Episodes solved over episodes begun; none without episodes.
    pub success: Option<f64>,
    /// Its 95 % interval.
    pub interval: Option<Interval>,
    /// How the interval was made: `wilson` or `bootstrap`.
    pub method: &'static str,
    /// pass@k, where every task has the same number of episodes, above one.
    pub pass: Vec<Pass>,
}

/// Measures.
pub fn of(outcomes: &Outcomes) -> Measured {
    let (fewest, most) = outcomes.per_task();
    let single = most <= 1;
    let interval = match single {
        true => interval::wilson(outcomes.solved(), outcomes.episodes()),
        false => interval::of_rates(&outcomes.rates()),
    };
    let mut pass = Vec::new();
    if !single && fewest == most {
        for k in ks(most) {
            let of_task = |tally: &Tally| Some((pass_at(k, tally.episodes, tally.solved)?, 1.0));
            let values: Option<Vec<(f64, f64)>> = outcomes.tasks.values().map(of_task).collect();
            if let Some(values) = values {
                let value = values.iter().map(|(value, _)| value).sum::<f64>() / values.len() as f64;
                pass.push(Pass { k, value, interval: interval::of_rates(&values) });
            }
        }
    }
    Measured {
        success: (outcomes.episodes() > 0).then(|| outcomes.solved() as f64 / outcomes.episodes() as f64),
        interval,
        method: if single { "wilson" } else { "bootstrap" },
        pass,
    }
}
