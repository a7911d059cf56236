//! The objective and its coefficients, as the flags under "Objective" set them.

use std::str::FromStr;

use clap::ValueEnum;

use crate::objective::WeightBounds;

/// The loss of `--objective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Objective {
    /// Clipped surrogate on token ratios (PPO, GRPO, AT-GRPO)
    Clip,
    /// Policy gradient, weighted by the ratio, which is capped and treated as a constant (CISPO)
    Cispo,
    /// Weighted negative log-likelihood (supervised)
    Nll,
}

/// The level at which the ratio of `--objective clip` is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RatioLevel {
    /// One for each token
    #[default]
    Token,
    /// One for the completion: the geometric mean over its tokens (GSPO, arXiv 2507.18071)
    Sequence,
}

/// The level at which importance weights are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WeightLevel {
    /// One for each token
    #[default]
    Token,
    /// One for the completion: the product over its tokens
    Sequence,
}

/// Trainer-to-sampler importance weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Importance {
    /// Token or sequence.
    pub level: WeightLevel,
    /// Bounds of a weight.
    pub outside: WeightBounds,
}

impl FromStr for Importance {
    type Err = String;

    fn from_str(text: &str) -> Result<Importance, String> {
        let (cap, rest) = text.split_once(',').unwrap_or((text, ""));
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        let cap = number(cap).filter(|cap| *cap > 0.0).ok_or("C is not a number above 0")?;
        let (mut level, mut mask, mut floor) = (WeightLevel::Token, false, None);
        for setting in rest.split(',').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=').unwrap_or((setting, "")) {
                ("level", name) => level = WeightLevel::from_str(name, false)?,
                ("mask", "") => mask = true,
                ("floor", text) => {
                    floor =
                        Some(number(text).filter(|floor| *floor >= 0.0).ok_or("F is not a number from 0")?);
                }
                _ => return Err(format!("{setting} is none of level=sequence, mask and floor=F")),
            }
        }
        match floor.is_some() && !mask {
            true => Err("floor has no effect without mask".to_owned()),
            false => {
                Ok(Importance { level, outside: WeightBounds { floor: floor.unwrap_or(0.0), cap, mask } })
            }
        }
    }
}

/// The objective and its coefficients.
#[derive(Clone, Copy, Debug)]
pub struct LossConfig {
    /// The objective.
    pub objective: Objective,
    /// Clip range: how far a ratio may go below and above 1.
    pub clip_range: (f64, f64),
    /// Level of the ratio of `clip`.
    pub ratio: RatioLevel,
    /// Weight of the KL term.
    pub kl: f64,
    /// Importance weights; without them ratios are taken to the recorded log-probabilities.
    pub importance: Option<Importance>,
    /// Weight of the mean entropy of the tokens' distributions, which is subtracted from the loss.
    pub entropy: f64,
    /// Sequences with a negative advantage that have become less likely by more than this, nats a token, count as 0.
    pub mask_negative_above: Option<f64>,
}
