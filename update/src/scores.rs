//! Log-probabilities of recorded completions under given weights: for the reference policy of `--kl`, and for
//! `--check`, which asks whether rollout and update agree.

use record::failure::{Failure, Result};
use record::stage;

use crate::batch;
use crate::learner::TREES_AT_ONCE;
use crate::loss::Tally;
use crate::model::Scores;
use crate::samples::Samples;
use crate::tree::Tree;

/// The log-probability of every completion token of every sample, each at its sample's temperature, as `logprobs` has
/// them of trees at a temperature.
///
/// # Errors
/// The device's, or an interruption.
pub fn of_samples(
    samples: &Samples,
    limit: usize,
    mut logprobs: impl FnMut(&[Tree], f32) -> Result<Vec<Scores>>,
) -> Result<Vec<Vec<f32>>> {
    let all = batch::minibatches(samples, 1, None, 0, 0).into_iter().next().unwrap_or_default();
    let mut found: Vec<Vec<f32>> = samples.rows.iter().map(|row| vec![0.0; row.length()]).collect();
    for batch in batch::pack_trees(samples, &all, limit) {
        for (trees, members) in batch.trees.chunks(TREES_AT_ONCE).zip(batch.members.chunks(TREES_AT_ONCE)) {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let scores = logprobs(trees, batch.temperature)?;
            for ((tree, members), scores) in trees.iter().zip(members).zip(scores) {
                for (row, logprob) in tree.rows.iter().zip(scores.logprobs) {
                    found[members[row.sequence as usize]][row.index as usize] = logprob;
                }
            }
        }
    }
    Ok(found)
}

/// Compares recomputed log-probabilities with the recorded ones.
pub fn compare(samples: &Samples, recomputed: &[Vec<f32>]) -> Tally {
    let mut tally = Tally::default();
    for (index, recomputed) in recomputed.iter().enumerate() {
        for (&new, &old) in recomputed.iter().zip(samples.logprobs(index)) {
            tally.compare(f64::from(new), f64::from(old));
        }
    }
    tally
}
