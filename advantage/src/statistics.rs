//! Mean and standard deviation of a group.

use clap::ValueEnum;

/// Which standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Std {
    /// Divides the squares by n - 1
    Sample,
    /// Divides the squares by n
    Population,
    /// Is not divided by
    None,
}

/// What a group's values have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The mean.
    pub mean: f64,
    /// The standard deviation, 0 for a single value. For [`Std::None`] that of [`Std::Sample`].
    pub deviation: f64,
    /// Whether all values are equal, so that there is nothing to compare.
    pub flat: bool,
}

impl Statistics {
    /// The statistics of `values`, at least one. The order of the values does not matter, to the last bit.
    pub fn of(values: &[f64], std: Std) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let flat = sorted.first() == sorted.last();
        let count = sorted.len() as f64;
        let first = sorted.first().copied().unwrap_or_default();
        if flat {
            return Statistics { mean: first, deviation: 0.0, flat };
        }
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
        assert_eq!(Statistics::of(&values, Std::Sample), Statistics::of(&reversed, Std::Sample));
    }

    #[test]
    fn equal_values_are_flat_whatever_their_sum_rounds_to() {
        let statistics = Statistics::of(&[0.1; 3], Std::Sample);
        assert_eq!(statistics, Statistics { mean: 0.1, deviation: 0.0, flat: true });
        assert!(Statistics::of(&[5.0], Std::Sample).flat);
        assert!(Statistics::of(&[0.0, -0.0], Std::Sample).flat);
    }
}
