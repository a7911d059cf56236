//! How the token terms of one optimizer batch are averaged to a loss.
//!
//! With sᵢ the sum of the token terms of sample i, nᵢ its completion's length (stop token included), over the N
//! samples of one optimizer batch of one policy:
//!
//! ```text
//! token     loss = Σᵢ sᵢ / Σᵢ nᵢ            every token weighs the same (DAPO, arXiv 2503.14476, equation 8)
//! sequence  loss = (1/N) Σᵢ sᵢ / nᵢ         every sample weighs the same (DeepSeekMath, arXiv 2402.03300,
//!                                           equation 3; AT-GRPO, arXiv 2510.11062, equation 2)
//! constant  loss = Σᵢ sᵢ / (N·L)            L a fixed length: no length bias (Dr. GRPO, arXiv 2503.20783)
//! ```
//!
//! Each is a weight of a sample's terms, which the sample alone determines, times a scale, which all of them do. Gradients are added up
//! with the weights, and scaled by the optimizer's step: they can begin before the last sample is known.
//!
//! Samples of flat groups are not run through the model, because their terms are 0, but they count in N and Σ nᵢ. (`advantage --drop-flat` removes them from the stream instead.)

use std::str::FromStr;

use clap::ValueEnum;

/// How token terms are averaged over an optimizer batch; the formulas are in the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Aggregate {
    /// Sum over tokens / tokens of the policy's optimizer batch
    Token,
    /// Mean over samples of the mean over their tokens
    Sequence,
    /// Sum over tokens / (samples × max tokens)
    Constant,
}

/// `--aggregate`: the average, and L of `constant` if it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaging {
    pub how: Aggregate,
    pub length: Option<u64>,
}

impl FromStr for Averaging {
    type Err = String;

    fn from_str(text: &str) -> Result<Averaging, String> {
        let (name, length) = text.split_once('=').map_or((text, None), |(name, length)| (name, Some(length)));
        let how = Aggregate::from_str(name, false).map_err(|_| "not token, sequence or constant[=L]")?;
        let length = match length {
            None => None,
            Some(length) if how == Aggregate::Constant => Some(
                length.parse().ok().filter(|&tokens| tokens > 0).ok_or("L is not a whole number from 1")?,
            ),
            Some(_) => return Err("only constant has a length".to_owned()),
        };
        Ok(Averaging { how, length })
    }
}

/// The average over one optimizer batch.
#[derive(Clone, Copy, Debug)]
pub struct Mean {
    /// How tokens are averaged.
    pub aggregate: Aggregate,
    /// Samples of the batch.
    pub samples: usize,
    /// Completion tokens that they hold together.
    pub tokens: usize,
    /// L of `constant`.
    pub max_tokens: usize,
}

impl Aggregate {
    /// The weight of every token term of a sample with `length` completion tokens.
    pub fn weight(self, length: usize) -> f64 {
        match self {
            Aggregate::Token | Aggregate::Constant => 1.0,
            Aggregate::Sequence => 1.0 / length as f64,
        }
    }
}

impl Mean {
    /// The factor of the sum of all weighted terms.
    pub fn scale(&self) -> f64 {
        match self.aggregate {
            Aggregate::Token => 1.0 / self.tokens as f64,
            Aggregate::Sequence => 1.0 / self.samples as f64,
            Aggregate::Constant => 1.0 / (self.samples as f64 * self.max_tokens as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples of 1 and 3 tokens, every token term 1: token 4/4, sequence (1/1 + 3/3)/2, constant 4/(2·8).
    #[test]
    fn by_hand() {
        let mean = |aggregate| Mean { aggregate, samples: 2, tokens: 4, max_tokens: 8 };
        let total = |aggregate: Aggregate| {
            let sum: f64 = [1usize, 3].iter().map(|&n| n as f64 * aggregate.weight(n)).sum();
            sum * mean(aggregate).scale()
        };
        assert_eq!(total(Aggregate::Token), 1.0);
        assert_eq!(total(Aggregate::Sequence), 1.0);
        assert_eq!(total(Aggregate::Constant), 0.25);
        assert_eq!(mean(Aggregate::Token).scale(), 0.25);
        assert_eq!(Aggregate::Sequence.weight(3), 1.0 / 3.0);
    }
}
