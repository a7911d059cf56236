//! Mean and standard deviation of a group.

use clap::ValueEnum;

/// The kind of standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Std {
    /// Divides the squares by n - 1
    Sample,
    /// Divides the squares by n
    Population,
    /// No division; group_std records the sample standard deviation
    None,
}

/// Statistics of a group's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    pub mean: f64,
    /// The standard deviation, 0 for a single value. [`Std::None`] gives the sample deviation, too.
    pub deviation: f64,
    /// Returns true if all values are equal up to rounding, so that there is nothing to compare.
    pub flat: bool,
}

/// Relative difference below which values are equal.
const ROUNDING: f64 = 1e-12;

impl Statistics {
    /// The statistics of at least one value; flat if the values differ by at most `flat_below`. Bit-identical
    /// for any order of the values.
    pub fn of(values: &[f64], std: Std, flat_below: f64) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let [first, last] = [sorted.first(), sorted.last()].map(|value| value.copied().unwrap_or_default());
        // Equal sums that were added in another order differ in their last digits.
        if last - first <= ROUNDING * first.abs().max(last.abs()) {
            return Statistics { mean: first, deviation: 0.0, flat: true };
        }
        let flat = last - first <= flat_below;
        let mean = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let divisor = if std == Std::Population { count } else { count - 1.0 };
        Statistics { mean, deviation: (squares / divisor).sqrt(), flat }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter() {
        let values = [0.1, 0.7, 1e-9, 3.3, 0.1, 2.0 / 3.0];
        let mut reversed = values;
        reversed.reverse();
        assert_eq!(Statistics::of(&values, Std::Sample, 0.0), Statistics::of(&reversed, Std::Sample, 0.0));
    }

    #[test]
    fn equal_values_are_flat_whatever_their_sum_rounds_to() {
        let statistics = Statistics::of(&[0.1; 3], Std::Sample, 0.0);
        assert_eq!(statistics, Statistics { mean: 0.1, deviation: 0.0, flat: true });
        assert!(Statistics::of(&[5.0], Std::Sample, 0.0).flat);
        assert!(Statistics::of(&[0.0, -0.0], Std::Sample, 0.0).flat);
        let sums = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1];
        assert!(sums[0] != sums[1] && Statistics::of(&sums, Std::Population, 0.0).flat);
        assert!(!Statistics::of(&[0.0, 1e-15], Std::Sample, 0.0).flat);
        assert!(!Statistics::of(&[0.0, 0.1], Std::Sample, 0.0).flat);
    }

    #[test]
    fn rewards_within_the_limit_are_flat_and_keep_their_deviation() {
        let near = Statistics::of(&[0.25, 0.75], Std::Population, 0.5);
        assert_eq!(near, Statistics { mean: 0.5, deviation: 0.25, flat: true });
        assert!(!Statistics::of(&[0.25, 0.75], Std::Population, 0.499).flat);
    }
}
