//! The dynamic loss scale of float16. It multiplies gradients during the backward pass, so that few of them are too small for
//! f16 and none too large.
//!
//! It works like PyTorch's `torch.amp.GradScaler`: it starts at 65536 and doubles after 2000 good optimizer steps in a row. If
//! a gradient is not finite, its step is skipped and the scale halves. Unlike PyTorch's it never falls below 1: a gradient that
//! is too large without a scale ends the training.

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};

use crate::model::{RowDerivative, RowLoss};
use crate::tree::Tree;

const START: f64 = 65_536.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
/// Good steps in a row before it grows.
const INTERVAL: u64 = 2000;
const LEAST: f64 = 1.0;

/// The scale, saved with the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// A power of two.
    pub scale: f64,
    /// Steps since it last changed or one was skipped.
    pub good_steps: u64,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { scale: START, good_steps: 0 }
    }
}

impl LossScale {
    /// The factor of a loss that is a sum, where `mean` makes it the mean that the scale is for: a power of two, so that
    /// scaling rounds nothing.
    pub fn factor(self, mean: f64) -> f64 {
        let exponent = mean.log2().floor();
        self.scale * if exponent.is_finite() { exponent.exp2() } else { 1.0 }
    }

    /// A step was taken.
    pub fn stepped(&mut self) {
        self.good_steps += 1;
        if self.good_steps == INTERVAL {
            *self = LossScale { scale: self.scale * GROWTH, good_steps: 0 };
        }
    }

    /// A step was skipped, because its gradient is not finite.
    pub fn back_off(&mut self) -> Result<()> {
        if self.scale <= LEAST {
            return Err(Failure::work(format!(
                "the gradient is beyond float16 with a loss scale of {LEAST} too"
            ))
            .hint("use --dtype bfloat16, for rollout too, or look for extreme advantages in the samples"));
        }
        *self = LossScale { scale: (self.scale * BACKOFF).max(LEAST), good_steps: 0 };
        Ok(())
    }
}

/// A loss times a factor.
pub struct Scaled<'a> {
    pub loss: &'a dyn RowLoss,
    pub factor: f32,
}

impl RowLoss for Scaled<'_> {
    fn rows(&self, tree_index: usize, tree: &Tree, logprobs: &[f32], derivative: &mut [f32]) {
        self.loss.rows(tree_index, tree, logprobs, derivative);
        derivative.iter_mut().for_each(|value| *value *= self.factor);
    }

    fn entropies(&self, tree_index: usize, tree: &Tree, derivative: &mut [f32]) -> bool {
        let has = self.loss.entropies(tree_index, tree, derivative);
        if has {
            derivative.iter_mut().for_each(|value| *value *= self.factor);
        }
        has
    }

    fn by_row(&self) -> Option<&dyn RowDerivative> {
        self.loss.by_row().map(|_| self as &dyn RowDerivative)
    }
}

impl RowDerivative for Scaled<'_> {
    fn derivative(&self, tree_index: usize, tree: &Tree, row: usize, logprob: f32) -> f32 {
        self.loss.by_row().map_or(0.0, |loss| self.factor * loss.derivative(tree_index, tree, row, logprob))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss of two rows with a derivative of each kind.
    struct Two;

    impl RowLoss for Two {
        fn rows(&self, _: usize, _: &Tree, _: &[f32], derivative: &mut [f32]) {
            derivative.copy_from_slice(&[1.0, -2.0]);
        }

        fn entropies(&self, _: usize, _: &Tree, derivative: &mut [f32]) -> bool {
            derivative.copy_from_slice(&[3.0, 0.5]);
            true
        }

        fn by_row(&self) -> Option<&dyn RowDerivative> {
            Some(self)
        }
    }

    impl RowDerivative for Two {
        fn derivative(&self, _: usize, _: &Tree, row: usize, _: f32) -> f32 {
            [1.0, -2.0][row]
        }
    }

    #[test]
    fn every_derivative_is_scaled() {
        let (scaled, tree) = (Scaled { loss: &Two, factor: 8.0 }, Tree::default());
        let (mut rows, mut entropies) = ([0.0; 2], [0.0; 2]);
        scaled.rows(0, &tree, &[0.0; 2], &mut rows);
        assert!(scaled.entropies(0, &tree, &mut entropies));
        assert_eq!((rows, entropies), ([8.0, -16.0], [24.0, 4.0]));
        let by_row = scaled.by_row().expect("rows one at a time");
        assert_eq!([0, 1].map(|row| by_row.derivative(0, &tree, row, 0.0)), rows);
    }

    #[test]
    fn it_doubles_after_two_thousand_good_steps_and_halves_after_a_bad_one() {
        let mut scale = LossScale::default();
        (0..1999).for_each(|_| scale.stepped());
        assert_eq!(scale, LossScale { scale: 65_536.0, good_steps: 1999 });
        scale.back_off().unwrap();
        assert_eq!(scale, LossScale { scale: 32_768.0, good_steps: 0 });
        (0..2000).for_each(|_| scale.stepped());
        assert_eq!(scale, LossScale { scale: 65_536.0, good_steps: 0 });
        (0..16).for_each(|_| scale.back_off().unwrap());
        assert_eq!(scale.scale, 1.0);
        let failure = scale.back_off().unwrap_err();
        assert!(failure.message.contains("beyond float16"), "{failure}");
        assert!(failure.hint.unwrap().contains("--dtype bfloat16"));
    }

    #[test]
    fn its_factor_is_a_power_of_two_for_any_number_of_tokens() {
        let scale = LossScale::default();
        for (mean, factor) in [(1.0, 65_536.0), (0.5, 32_768.0), (1.0 / 3.0, 16_384.0), (1.0 / 1000.0, 64.0)]
        {
            assert_eq!(scale.factor(mean), factor, "{mean}");
        }
    }
}
