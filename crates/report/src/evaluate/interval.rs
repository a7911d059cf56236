//! Confidence intervals of rates.
//!
//! - One verdict a task: the score interval of Wilson ("Probable inference, the law of succession, and
//!   statistical inference", JASA 22, 1927), which stays inside [0, 1] and keeps its level near the ends,
//!   where a trained policy's rate lies.
//! - Several samples a task are not independent, so tasks are drawn and not samples: the percentile bootstrap
//!   over clusters (Efron, "Bootstrap methods: another look at the jackknife", 1979; Field and Welsh,
//!   "Bootstrapping clustered data", JRSS B 69, 2007).
//! - Means of returns, of components of rewards, and over seeds, which are few: Student's interval ("The
//!   probable error of a mean", Biometrika 6, 1908).
//!
//! Left out: tests of significance. An interval says more.

use record::philox::{Draws, Part, Stream};
use serde::Serialize;

use crate::stats::RunningStats;

/// The two-sided 95 % point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;
/// Resamples of a bootstrap; the ends then wander by about 1 % of the interval's width from seed to seed.
const RESAMPLES: usize = 10_000;

pub type Interval = (f64, f64);

/// Wilson's 95 % interval of `successes` out of `trials` independent ones; `None` without trials.
pub fn wilson(successes: u64, trials: u64) -> Option<Interval> {
    if trials == 0 {
        return None;
    }
    let (n, p) = (trials as f64, successes as f64 / trials as f64);
    let shrink = 1.0 + Z * Z / n;
    let center = (p + Z * Z / (2.0 * n)) / shrink;
    let half = Z / shrink * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    // The exact ends at 0 and 1, which rounding would miss by a hair.
    let low = if successes == 0 { 0.0 } else { (center - half).max(0.0) };
    let high = if successes == trials { 1.0 } else { (center + half).min(1.0) };
    Some((low, high))
}

/// The 95 % percentile interval of a mean over tasks under resampling of tasks; `None` without tasks. Equal
/// values in equal order give equal intervals.
pub fn bootstrap(tasks: &[f64]) -> Option<Interval> {
    let count = u32::try_from(tasks.len()).ok().filter(|&count| count > 0)?;
    let mut draws = Draws::new(Stream::named(0, &[Part::Text("bootstrap"), Part::Number(u64::from(count))]));
    let mut mean = || (0..count).map(|_| tasks[draws.below(count) as usize]).sum::<f64>() / f64::from(count);
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| mean()).collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some((at(0.025), at(0.975)))
}

/// The interval of the mean of rates, one rate per task. If every rate is 0 or 1, the spread within tasks is
/// unknown and each task counts as one verdict.
pub fn of_rates(rates: &[f64]) -> Option<Interval> {
    if rates.iter().all(|&rate| rate == 0.0 || rate == 1.0) {
        return wilson(rates.iter().filter(|&&rate| rate > 0.0).count() as u64, rates.len() as u64);
    }
    bootstrap(rates)
}

/// The interval of the mean of numbers, one per task: Wilson's where each is 0 or 1, otherwise Student's.
pub fn of_numbers(values: &[f64]) -> Option<Interval> {
    match values.iter().all(|&value| value == 0.0 || value == 1.0) {
        true => of_rates(values),
        false => mean_of_seeds(values)?.interval,
    }
}

/// The mean of a few numbers, their standard deviation over n - 1, and the 95 % interval of the mean by
/// Student's distribution with n - 1 degrees of freedom; deviation and interval only of two and more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanOfSeeds {
    pub count: usize,
    pub mean: f64,
    pub deviation: Option<f64>,
    pub interval: Option<Interval>,
}

/// See [`MeanOfSeeds`]; `None` without numbers.
pub fn mean_of_seeds(values: &[f64]) -> Option<MeanOfSeeds> {
    let mut stats = RunningStats::default();
    values.iter().for_each(|value| stats.push(*value));
    let (count, mean, deviation) = (values.len(), stats.mean()?, stats.deviation());
    let interval = deviation.map(|deviation| {
        let half = student(count - 1) * deviation / (count as f64).sqrt();
        (mean - half, mean + half)
    });
    Some(MeanOfSeeds { count, mean, deviation, interval })
}

/// See [`MeanOfSeeds`]; of rates, whose interval ends at 0 and 1.
pub fn mean_of_rates(rates: &[f64]) -> Option<MeanOfSeeds> {
    mean_within(rates, 0.0)
}

/// See [`MeanOfSeeds`]; of differences of two rates, whose interval ends at -1 and 1.
pub fn mean_of_differences(differences: &[f64]) -> Option<MeanOfSeeds> {
    mean_within(differences, -1.0)
}

fn mean_within(values: &[f64], least: f64) -> Option<MeanOfSeeds> {
    let found = mean_of_seeds(values)?;
    let interval = found.interval.map(|(low, high)| (low.max(least), high.min(1.0)));
    Some(MeanOfSeeds { interval, ..found })
}

/// The two-sided 95 % point of Student's distribution. Below ten degrees of freedom from the tables; then the
/// expansion in Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5, good to five digits
/// there.
fn student(degrees: usize) -> f64 {
    const TABLE: [f64; 9] =
        [12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157];
    if let Some(point) = TABLE.get(degrees.saturating_sub(1)) {
        return *point;
    }
    let n = degrees as f64;
    let [z3, z5, z7, z9] = [3, 5, 7, 9].map(|power| Z.powi(power));
    Z + (z3 + Z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * n.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * n.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * Z) / (92_160.0 * n.powi(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<Interval>, wanted: Interval, tolerance: f64) {
        let (low, high) = found.unwrap();
        let off = (low - wanted.0).abs().max((high - wanted.1).abs());
        assert!(off <= tolerance, "({low}, {high}) is not {wanted:?}");
    }

    /// Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17
    /// (1998), table I, method 3.
    #[test]
    fn wilson_agrees_with_published_values() {
        close(wilson(81, 263), (0.2553, 0.3662), 5e-5);
        close(wilson(15, 148), (0.0624, 0.1605), 5e-5);
        close(wilson(0, 20), (0.0, 0.1611), 5e-5);
        close(wilson(1, 29), (0.0061, 0.1718), 5e-5);
    }

    #[test]
    fn wilson_is_symmetric_and_inside() {
        for trials in [1, 2, 7, 300] {
            for successes in 0..=trials {
                let (low, high) = wilson(successes, trials).unwrap();
                let rate = successes as f64 / trials as f64;
                assert!(0.0 <= low && low <= rate && rate <= high && high <= 1.0, "{successes}/{trials}");
                close(wilson(trials - successes, trials), (1.0 - high, 1.0 - low), 1e-12);
            }
        }
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn bootstrap_agrees_with_the_normal_interval_of_many_tasks() {
        let values: Vec<f64> = (0..400).map(|task| f64::from(task % 5) / 4.0).collect();
        let spread = (values.iter().map(|rate| (rate - 0.5).powi(2)).sum::<f64>() / 400.0 / 400.0).sqrt();
        close(bootstrap(&values), (0.5 - Z * spread, 0.5 + Z * spread), 0.003);
        assert_eq!(bootstrap(&values), bootstrap(&values));
        assert_eq!(bootstrap(&[]), None);
        assert_eq!(bootstrap(&[0.25]), Some((0.25, 0.25)));
    }

    #[test]
    fn samples_of_one_task_do_not_count_as_independent() {
        // 40 tasks of 8 samples each that all agree: as wide as 40 verdicts, not as 320.
        let rates: Vec<f64> = (0..40).map(|task| f64::from(task % 2)).collect();
        assert_eq!(of_rates(&rates), wilson(20, 40));
        let (low, high) = bootstrap(&rates).unwrap();
        let (one, many) = (wilson(20, 40).unwrap(), wilson(160, 320).unwrap());
        assert!(high - low > 0.9 * (one.1 - one.0) && high - low > 2.0 * (many.1 - many.0), "{low} {high}");
    }

    /// Points of Student's distribution as R's `qt(0.975, df)` prints them.
    #[test]
    fn few_seeds_have_a_wide_interval() {
        for (degrees, point) in [
            (1, 12.706_205),
            (2, 4.302_653),
            (4, 2.776_445),
            (10, 2.228_139),
            (20, 2.085_963),
            (100, 1.983_972),
        ] {
            assert!((student(degrees) - point).abs() < 3e-5, "{degrees}: {}", student(degrees));
        }
        let found = mean_of_seeds(&[0.9, 0.94, 0.95]).unwrap();
        assert!((found.mean - 0.93).abs() < 1e-12 && (found.deviation.unwrap() - 0.026_457_5).abs() < 1e-6);
        // 4.302653 * 0.0264575 / sqrt(3)
        close(found.interval, (0.93 - 0.065_724, 0.93 + 0.065_724), 1e-5);
        let one = mean_of_seeds(&[0.5]).unwrap();
        assert_eq!((one.count, one.mean, one.deviation, one.interval), (1, 0.5, None, None));
        assert_eq!(mean_of_seeds(&[]), None);
    }
}
