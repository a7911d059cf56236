//! Whitening: gives all advantages of a policy in a step mean 0 and standard deviation 1.
//!
//! A_i becomes (A_i - m) / s. Over samples, m and s are the samples' mean and standard deviation (n - 1), and
//! epsilon is added to s (GDPO, arXiv 2601.05242, as implemented in TRL). Over tokens, each sample counts
//! once per completion token, and s = sqrt(v + 1e-8) (REINFORCE++, arXiv 2501.03262; verl's `masked_whiten`).
//! Each policy is whitened separately, or a role with many samples would set the scale for the others.
//! Left out: the advantages themselves.

use std::collections::BTreeMap;

use clap::ValueEnum;
use record::failure::{Failure, Result};
use serde_json::{Value, json};

/// Added to the variance over tokens.
const VARIANCE: f64 = 1e-8;

/// The unit that counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Whiten {
    /// Over samples
    Samples,
    /// Over completion tokens, each with its sample's advantage
    Tokens,
    /// Off
    None,
}

/// Mean and scale of one policy's advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moments {
    mean: f64,
    /// Before epsilon is added; 0 if all advantages are equal.
    deviation: f64,
    scale: f64,
    count: f64,
}

/// The advantages of a step; at the end, the moments of each policy.
#[derive(Clone, Debug)]
pub struct Whitening {
    over: Whiten,
    epsilon: f64,
    seen: BTreeMap<String, Vec<(f64, f64)>>,
    moments: BTreeMap<String, Moments>,
}

impl Whitening {
    /// An empty state; `epsilon` is in units of advantage.
    pub fn new(over: Whiten, epsilon: f64) -> Self {
        Whitening { over, epsilon, seen: BTreeMap::new(), moments: BTreeMap::new() }
    }

    /// Adds the advantage of a sample of `policy` with `tokens` completion tokens.
    pub fn take(&mut self, policy: &str, advantage: f64, tokens: usize) {
        let weight = if self.over == Whiten::Tokens { tokens as f64 } else { 1.0 };
        if !self.seen.contains_key(policy) {
            self.seen.insert(policy.to_owned(), Vec::new());
        }
        if let Some(seen) = self.seen.get_mut(policy) {
            seen.push((advantage, weight));
        }
    }

    /// Computes the moments, once all advantages are added.
    ///
    /// # Errors
    /// 65: a policy has a single sample or token, which has no standard deviation.
    pub fn finish(&mut self) -> Result<()> {
        for (policy, mut seen) in std::mem::take(&mut self.seen) {
            // Sorted, so that the sums have the same bits for any order of the lines.
            seen.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            let count: f64 = seen.iter().map(|(_, weight)| weight).sum();
            let equal = seen.first().map(|(value, _)| value) == seen.last().map(|(value, _)| value);
            if count < 2.0 {
                let of = if policy.is_empty() { String::new() } else { format!(" of policy {policy}") };
                let one = if self.over == Whiten::Tokens { "token" } else { "sample" };
                return Err(Failure::data(format!("stdin: one {one}{of}, which has no standard deviation"))
                    .hint("more tasks a step, or leave --whiten out"));
            }
            let mean = seen.iter().map(|(value, weight)| weight * value).sum::<f64>() / count;
            let squares: f64 = seen.iter().map(|(value, weight)| weight * (value - mean).powi(2)).sum();
            let variance = if equal { 0.0 } else { squares / (count - 1.0) };
            let scale = match self.over {
                Whiten::Tokens => (variance + VARIANCE).sqrt(),
                _ => variance.sqrt() + self.epsilon,
            };
            self.moments.insert(policy, Moments { mean, deviation: variance.sqrt(), scale, count });
        }
        Ok(())
    }

    /// The whitened advantage of a sample of `policy`.
    pub fn of(&self, policy: &str, advantage: f64) -> f64 {
        match self.moments.get(policy) {
            Some(moments) if moments.deviation > 0.0 => (advantage - moments.mean) / moments.scale,
            _ => 0.0,
        }
    }

    /// The means and deviations, for the `end` line.
    pub fn counts(&self) -> Value {
        let of = |moments: &Moments| json!({"mean": moments.mean, "std": moments.deviation, "count": moments.count});
        self.moments.iter().map(|(policy, moments)| (policy.clone(), of(moments))).collect()
    }
}
