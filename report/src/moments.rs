//! Mean and spread of numbers that come one by one (Welford's method), so that no list of them is kept.

/// Count, mean and sum of squared differences from the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Takes a number in.
    pub fn push(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Their mean; none without numbers.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Their standard deviation over n - 1; none below two numbers.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).max(0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::Moments;

    #[test]
    fn mean_and_deviation() {
        let mut moments = Moments::default();
        assert_eq!((moments.mean(), moments.deviation()), (None, None));
        moments.push(2.0);
        assert_eq!((moments.mean(), moments.deviation()), (Some(2.0), None));
        for value in [4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            moments.push(value);
        }
        assert_eq!(moments.mean(), Some(5.0));
        let deviation = moments.deviation().unwrap();
        assert!((deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12, "{deviation}");
    }
}
