//! Log-probabilities of recorded completions under given weights: of `--kl`'s reference policy, and for `--check`, which
//! compares rollout's with update's.

use std::io::{self, Write};

use policy::config::Config;
use policy::directory::Policy;
use policy::ownership::{Owner, Ownership};
use record::failure::{Failure, Result};
use record::stage;
use serde_json::json;

use crate::learner::TREES_AT_ONCE;
use crate::loss::{FAR, TokenStats};
use crate::minibatch;
use crate::model::Scores;
use crate::ranks::{self, Communicator};
use crate::samples::Samples;
use crate::tree::Tree;

/// The log-probability of every completion token of every sample, at the sample's temperature. `logprobs` scores trees at
/// a temperature. Ranks take turns, and each has them all in the end.
pub fn of_samples(
    ranks: &dyn Communicator,
    samples: &Samples,
    limit: usize,
    mut logprobs: impl FnMut(&[Tree], f32) -> Result<Vec<Scores>>,
) -> Result<Vec<Vec<f32>>> {
    let all = minibatch::minibatches(samples, 1, 0, 0, 0).into_iter().next().unwrap_or_default();
    let mut found: Vec<Vec<f32>> = samples.rows.iter().map(|row| vec![0.0; row.length()]).collect();
    let mut turn = (0..ranks.count()).cycle();
    for batch in minibatch::pack_trees(samples, &all, limit) {
        for (trees, members) in batch.trees.chunks(TREES_AT_ONCE).zip(batch.members.chunks(TREES_AT_ONCE)) {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            if turn.next() != Some(ranks.rank()) {
                continue;
            }
            let scores = logprobs(trees, batch.temperature)?;
            for ((tree, members), scores) in trees.iter().zip(members).zip(scores) {
                for (row, logprob) in tree.rows.iter().zip(scores.logprobs) {
                    found[members[row.sequence as usize]][row.index as usize] = logprob;
                }
            }
        }
    }
    if ranks.count() > 1 {
        let mut flat = found.concat();
        ranks::gather_disjoint(ranks, &mut flat);
        let mut flat = flat.into_iter();
        found.iter_mut().flatten().zip(&mut flat).for_each(|(place, value)| *place = value);
    }
    Ok(found)
}

/// Compares recomputed log-probabilities with the recorded ones.
pub fn compare(samples: &Samples, recomputed: &[Vec<f32>]) -> TokenStats {
    let mut stats = TokenStats::default();
    for (index, recomputed) in recomputed.iter().enumerate() {
        for (&new, &old) in recomputed.iter().zip(samples.logprobs(index)) {
            stats.compare(f64::from(new), f64::from(old));
        }
    }
    stats
}

/// Writes each token with both its log-probabilities, a JSON object a line. A number that is not finite is null.
pub fn write_tokens(
    to: &mut impl Write,
    policy: &str,
    samples: &Samples,
    recomputed: &[Vec<f32>],
) -> io::Result<()> {
    for (sample, recomputed) in recomputed.iter().enumerate() {
        let sequence = samples.sequence(sample);
        let (first, group) = (sequence.prompt.len(), samples.rows[sample].group);
        let recorded = samples.logprobs(sample);
        for (index, (token, (recorded, recomputed))) in
            sequence.completion.iter().zip(recorded.iter().zip(recomputed)).enumerate()
        {
            let line = json!({
                "policy": policy, "sample": sample, "group": group, "position": first + index, "token": token,
                "recorded": f64::from(*recorded), "recomputed": f64::from(*recomputed),
            });
            writeln!(to, "{line}")?;
        }
    }
    Ok(())
}

/// How far recorded log-probabilities may be from recomputed ones, nats.
///
/// Rounding leaves a few large differences among many small ones of either sign. Another temperature, other
/// weights or another computation shift all of them. So the mean has a separate bound, a tenth of the largest
/// difference's.
///
/// With 16 bits the largest difference says little, because it belongs to the least likely of thousands of
/// tokens. There one token in a hundred may be [`FAR`] off, and no token ten times the bound.
#[derive(Clone, Copy, Debug)]
pub struct GapBounds {
    /// Bound of the largest difference in f32; infinite to allow any.
    pub max: f64,
    /// True if weights and arithmetic on both sides are known to be f32.
    pub is_f32: bool,
}

impl GapBounds {
    /// Cause and hint of differences that are too large.
    pub fn exceeded(self, stats: &TokenStats) -> Option<(String, &'static str)> {
        let (largest, mean) = (stats.largest_gap, stats.gap / stats.tokens.max(1) as f64);
        let allowed = self.max / 10.0;
        if stats.not_finite > 0 {
            let cause = format!("{} recomputed log-probabilities are not finite", stats.not_finite);
            return Some((
                cause,
                "the weights may contain NaN: policy check DIR; with --dtype float16 activations may be beyond 65504: use bfloat16",
            ));
        }
        if mean > allowed {
            let hint = match self.is_f32 {
                true => {
                    "all are shifted, as by other weights, another temperature or another --dtype than rollout's; \
                     --max-logprob-gap allows it"
                }
                false => {
                    "all are shifted, more than 16 bits explain: by other weights, another temperature or another --dtype \
                     than rollout's; --max-logprob-gap allows it"
                }
            };
            let cause = format!(
                "recorded and recomputed log-probabilities differ by up to {largest:.3e}, on average {mean:.3e}, above a tenth \
                 of --max-logprob-gap {}",
                self.max
            );
            return Some((cause, hint));
        }
        if !self.is_f32 && self.max <= FAR && stats.far > stats.tokens / 100 {
            let cause = format!(
                "recorded and recomputed log-probabilities differ by more than {FAR} in {} of {} tokens, and on average by \
                 {mean:.3e}",
                stats.far, stats.tokens
            );
            return Some((
                cause,
                "one token in a hundred may with 16 bits: more are computed differently; --max-logprob-gap 1 allows it",
            ));
        }
        let (most, times) = if self.is_f32 { (self.max, "") } else { (10.0 * self.max, "ten times ") };
        (largest > most).then(|| {
            let cause = format!(
                "recorded and recomputed log-probabilities differ by up to {largest:.3e}, above {times}--max-logprob-gap {}, and \
                 on average by {mean:.3e}",
                self.max
            );
            (cause, "single tokens differ: rollout and update compute them differently; --max-logprob-gap allows it")
        })
    }
}

/// The reference policy of an owner's agents.
pub fn open_reference(
    owned: &Owner,
    references: &Ownership,
    samples: &Samples,
    config: &Config,
) -> Result<Policy> {
    let mut found: Vec<usize> = Vec::new();
    for agent in &samples.agents {
        match references.of(agent) {
            Some(index) if !found.contains(&index) => found.push(index),
            Some(_) => {}
            None => {
                return Err(Failure::usage(format!("--kl: no --reference for agent {agent}"))
                    .hint(format!("add --reference {agent}=DIR, or one without AGENT= for all")));
            }
        }
    }
    let [index] = found[..] else {
        return Err(Failure::usage(format!("{}: its agents have different references", owned.name))
            .hint("a policy has one reference"));
    };
    let reference = Policy::open(&references.owners()[index].directory)?;
    reference.verify()?;
    if reference.config.vocab_size != config.vocab_size {
        return Err(Failure::data(format!(
            "{}: its vocabulary differs from that of {}",
            reference.root.display(),
            owned.name
        ))
        .hint("the reference must use the policy's tokenizer"));
    }
    Ok(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten thousand tokens that differ by `each`, but `few` of them by `far` more.
    fn stats(each: f64, few: usize, far: f64) -> TokenStats {
        let mut stats = TokenStats::default();
        for token in 0..10_000 {
            stats.compare(-1.0 - each - if token < few { far } else { 0.0 }, -1.0);
        }
        stats
    }

    #[test]
    fn sixteen_bits_may_scatter_but_not_shift() {
        let refused = |is_f32: bool, max: f64, stats: &TokenStats| {
            GapBounds { max, is_f32 }.exceeded(stats).map(|(cause, _)| cause)
        };
        let half = |stats: &TokenStats| refused(false, 0.5, stats);
        // The numbers of a right run, and each of them beyond its bound.
        assert_eq!(half(&stats(0.04, 20, 1.4)), None);
        assert!(half(&stats(0.051, 0, 0.0)).is_some_and(|cause| cause.contains("above a tenth")));
        assert_eq!(half(&stats(0.01, 100, 0.6)), None);
        assert!(half(&stats(0.01, 101, 0.6)).is_some_and(|cause| cause.contains("in 101 of 10000 tokens")));
        assert!(half(&stats(0.01, 1, 5.1)).is_some_and(|cause| cause.contains("above ten times")));
        // In f32 no token is excused, and a bound that was asked for is the user's.
        assert!(
            refused(true, 0.01, &stats(1e-5, 1, 0.02)).is_some_and(|cause| cause.contains("above --max"))
        );
        assert_eq!(refused(false, 1.0, &stats(0.01, 500, 0.6)), None);
        assert_eq!(refused(false, f64::INFINITY, &stats(0.5, 10_000, 50.0)), None);
    }
}
