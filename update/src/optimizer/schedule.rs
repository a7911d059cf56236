//! The learning rate as a multiple of `--lr`, by optimizer step.
//!
//! Warm-up counts optimizer steps over the life of the optimizer's state, across processes: with two minibatches a call,
//! `--warmup 5` ends in the third call. The cosine spans one call (minibatches × epochs); it is for supervised training in
//! one call.

use clap::ValueEnum;

/// The fraction of the peak at which a cosine ends.
const COSINE_FLOOR: f64 = 0.1;

/// The shape of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// Constant
    Constant,
    /// Cosine decay to a tenth of the rate, over the optimizer steps of this call
    Cosine,
}

impl Schedule {
    /// The multiple of the peak rate for one optimizer step.
    ///
    /// `lifetime` counts the optimizer steps before this one since the state was initialized, `here` those in this call, out
    /// of `horizon`. Warm-up is linear: step k of `warmup` has k/`warmup`.
    pub fn factor(self, lifetime: u64, warmup: u64, here: u64, horizon: u64) -> f64 {
        let ramp = if lifetime < warmup { (lifetime + 1) as f64 / warmup as f64 } else { 1.0 };
        let shape = match self {
            Self::Constant => 1.0,
            Self::Cosine => {
                let progress = here as f64 / horizon.max(1) as f64;
                COSINE_FLOOR + (1.0 - COSINE_FLOOR) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
        };
        ramp * shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_counts_across_calls() {
        let factors: Vec<f64> = (0..7).map(|k| Schedule::Constant.factor(k, 5, 0, 1)).collect();
        assert_eq!(factors, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0]);
        assert_eq!(Schedule::Constant.factor(0, 0, 0, 1), 1.0);
    }

    #[test]
    fn cosine_starts_at_the_peak_and_ends_near_a_tenth() {
        assert_eq!(Schedule::Cosine.factor(9, 0, 0, 100), 1.0);
        assert!((Schedule::Cosine.factor(9, 0, 50, 100) - 0.55).abs() < 1e-12);
        let last = Schedule::Cosine.factor(9, 0, 99, 100);
        assert!(last > 0.1 && last < 0.101, "{last}");
        let both = Schedule::Cosine.factor(1, 4, 50, 100);
        assert!((both - 0.5 * 0.55).abs() < 1e-12, "warm-up and cosine multiply: {both}");
    }
}
