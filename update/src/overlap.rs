//! Overlaps the first minibatch with sampling (`--resident`): forward and backward of its first trees while
//! `rollout` still plays other tasks, in time that this stage would spend waiting.
//!
//! Still on-policy, and the same bytes: we compute a prefix of the final minibatch. The minibatch of a task
//! depends only on earlier tasks, and scaling happens last, so the prefix is known early. When the stream has
//! ended, the trainer plans from all samples and discards this work if it is not a prefix of that plan, which
//! happens with shards or with the samples of a task apart. Left out: everything that needs all samples first
//! (`--kl`, several steps with `--importance-cap`, parts and ranks); and devices, whose memory rollout is
//! using.

use std::time::Instant;

use record::failure::Result;

use crate::accumulate::{TreeSlice, TreeStats, accumulate};
use crate::learner::Learner;
use crate::loss::ReferenceLogprobs;
use crate::minibatch::{self, TreeBatch, tree_members};
use crate::samples::Samples;
use crate::settings::TrainingConfig;

/// Computed parts of a minibatch.
#[derive(Default)]
pub struct Overlap {
    /// The samples of each tree, in order.
    members: Vec<Vec<usize>>,
    temperature: f32,
    /// Statistics of each chunk of trees.
    stats: Vec<TreeStats>,
    /// Tasks that were complete when this was last looked at.
    tasks: u32,
    /// When the last call that computed began and ended.
    last: Option<[Instant; 2]>,
    /// Seconds that it took, while samples still arrived.
    pub seconds: f64,
}

impl Overlap {
    /// Returns true if the first minibatch of such a training can begin before all samples are there.
    pub fn is_allowed(training: &TrainingConfig) -> bool {
        let TrainingConfig { loss, batching, .. } = training;
        loss.kl == 0.0 && (loss.importance.is_none() || training.steps() == 1) && batching.parts == 1
    }

    /// Computes the next chunk of trees, if the samples so far complete one.
    pub fn advance(
        &mut self,
        training: &TrainingConfig,
        samples: &Samples,
        learner: &mut dyn Learner,
    ) -> Result<()> {
        let started = Instant::now();
        // The last task may have further samples.
        let tasks = samples.rows.iter().map(|row| row.task).max().unwrap_or(0);
        let batching = &training.batching;
        let minibatches = batching.minibatches as usize;
        if tasks == self.tasks || (tasks as usize) < minibatches || samples.is_sharded() {
            return Ok(());
        }
        self.tasks = tasks;
        let (flat, step) = (samples.flat_groups(), samples.step.unwrap_or(0));
        let first = minibatch::minibatches(samples, minibatches, batching.seed, 0, step).swap_remove(0);
        let temperature = samples.rows[0].temperature;
        let done = self.members.iter().map(Vec::len).sum();
        let active = first.into_iter().filter(|&sample| {
            let row = &samples.rows[sample];
            row.task < tasks && row.temperature == temperature && !flat[row.group as usize]
        });
        let mut members = tree_members(samples, active.skip(done), batching.tokens);
        members.pop(); // may go on
        let mut members = &members[..];
        while let Some((chunk, rest)) = members.split_at_checked(learner.trees_at_once(self.members.len())) {
            members = rest;
            if self.stats.is_empty() {
                learner.zero_grad()?;
                self.temperature = temperature;
            }
            let trees = minibatch::trees(samples, chunk);
            let slice = TreeSlice { temperature, trees: &trees, members: chunk };
            let inputs = training.loss_inputs(samples, ReferenceLogprobs::default());
            let stats = accumulate(inputs, slice, learner, None)?;
            self.stats.push(stats);
            self.members.extend_from_slice(chunk);
        }
        self.last = Some([started, Instant::now()]);
        self.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Stops the clock at the arrival of the last sample: later work overlaps with nothing.
    pub fn end(&mut self, at: Instant) {
        if let Some([started, ended]) = self.last {
            self.seconds -= ended.saturating_duration_since(at.max(started)).as_secs_f64();
        }
    }

    /// Returns true if the computed chunks are a prefix of a minibatch of these samples, packed this way.
    pub fn begins(&self, samples: &Samples, batches: &[TreeBatch]) -> bool {
        !self.stats.is_empty()
            && !samples.is_sharded()
            && batches.first().is_some_and(|batch| {
                batch.temperature == self.temperature && batch.members.starts_with(&self.members)
            })
    }

    /// The statistics of each chunk of trees that was computed.
    pub fn stats(&self) -> &[TreeStats] {
        &self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn computation_after_the_last_sample_is_no_overlap() {
        let start = Instant::now() + Duration::from_secs(10);
        let second = |number| start + Duration::from_secs(number);
        // The last call took 4 of 5 s.
        for (arrival, overlapped) in
            [(start - Duration::from_secs(1), 1.0), (second(1), 2.0), (second(9), 5.0)]
        {
            let mut overlap = Overlap { last: Some([start, second(4)]), seconds: 5.0, ..Overlap::default() };
            overlap.end(arrival);
            assert_eq!(overlap.seconds, overlapped);
        }
    }
}
