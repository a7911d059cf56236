//! The training loop over one policy's samples: forward, loss, backward, gradient clipping, optimizer step.

use std::collections::VecDeque;

use record::failure::{Failure, Result};
use record::progress::Progress;

use crate::accumulate::{TreeSlice, TreeStats, accumulate};
use crate::aggregate::Mean;
use crate::by_agent::{self, ByAgent};
use crate::learner::Learner;
use crate::logprobs::GapBounds;
use crate::loss::{ReferenceLogprobs, TokenStats};
use crate::loss_config::Objective;
use crate::minibatch::{self, TreeBatch};
use crate::model::Layout;
use crate::optimizer::StepScale;
use crate::overlap::Overlap;
use crate::parts::{TreeSpan, split_by_tokens};
use crate::publish::weight_checksum;
use crate::ranks::{self, Communicator, PartSum};
use crate::samples::Samples;
use crate::settings::{Messages, TrainingConfig};

/// One policy's training, ready to run.
pub struct Trainer<'a> {
    pub training: &'a TrainingConfig,
    pub messages: Messages,
    /// The processes that share the work.
    pub ranks: &'a dyn Communicator,
    /// The weights' names, shapes and places.
    pub layout: &'a Layout,
    /// The samples of this policy.
    pub samples: &'a Samples,
    /// Log-probabilities under other weights, where the loss needs them.
    pub logprobs: ReferenceLogprobs<'a>,
    /// How far recorded log-probabilities may be from those before the first step.
    pub bounds: GapBounds,
    /// The part of the first minibatch that the learner has done already.
    pub overlap: &'a Overlap,
}

#[derive(Clone, Debug, Default)]
pub struct TrainingStats {
    /// Optimizer steps taken.
    pub optimizer_steps: u64,
    /// Minibatches of flat groups only, which took none.
    pub flat_minibatches: u64,
    /// Minibatches that took none because their gradient is beyond float16.
    pub skipped_steps: u64,
    /// The loss scale of the next step, with float16.
    pub loss_scale: Option<f64>,
    /// Sum of the losses of all minibatches, flat ones at 0.
    pub loss: f64,
    /// Losses of the last tenth of the minibatches.
    pub last_losses: VecDeque<f64>,
    /// Sum of the gradient norms before clipping.
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// Statistics of the scored tokens of all minibatches.
    pub tokens: TokenStats,
    /// Sum of the entropies over the scored tokens.
    pub entropy: f64,
    /// Completion tokens of all minibatches, flat groups included.
    pub completion_tokens: usize,
    /// Seconds of forward and backward while the samples still arrived.
    pub overlap_seconds: f64,
    /// Tokens computed in the first epoch, shared ones once.
    pub unique_tokens: usize,
    /// Statistics of the minibatch before the first step: the only one under the weights that were sampled from.
    pub first: Option<TokenStats>,
    /// What each agent made of the last minibatch, and the cosine of two agents' gradients, if they were measured.
    pub by_agent: Option<(ByAgent, Option<f64>)>,
}

/// The position of a minibatch in a call.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Minibatches before it.
    index: u64,
    /// All minibatches of the call.
    horizon: u64,
    first_epoch: bool,
    /// Tokens of the call's longest completion.
    longest: usize,
}

impl Trainer<'_> {
    /// Runs every epoch. After an error the learner must not be published.
    pub fn run(&self, learner: &mut dyn Learner) -> Result<TrainingStats> {
        let batching = &self.training.batching;
        let mut stats = TrainingStats::default();
        let flat = self.flat();
        let parts = (batching.minibatches as usize).min(self.samples.rows.len());
        let horizon = (parts as u64).saturating_mul(batching.epochs);
        let step = self.samples.step.unwrap_or(0);
        let longest = self.samples.rows.iter().map(|row| row.length()).max().unwrap_or(1);
        let mut progress = Progress::new("update", self.messages.quiet, Some(horizon));
        for epoch in 0..batching.epochs {
            let minibatches = minibatch::minibatches(self.samples, parts, batching.seed, epoch, step);
            for (index, minibatch) in minibatches.iter().enumerate() {
                let index = epoch * parts as u64 + index as u64;
                let position = Position { index, horizon, first_epoch: epoch == 0, longest };
                let loss = self.minibatch(minibatch, &flat, position, learner, &mut stats)?;
                stats.loss += loss;
                stats.last_losses.push_back(loss);
                if stats.last_losses.len() as u64 > horizon.div_ceil(10) {
                    stats.last_losses.pop_front();
                }
                progress.set_message(format!("loss {loss:.4}"));
                progress.inc(1);
            }
        }
        progress.finish();
        stats.loss_scale = learner.loss_scale().map(|loss_scale| loss_scale.scale);
        Ok(stats)
    }

    /// For each group, true if all its terms are 0, so that it need not be computed.
    fn flat(&self) -> Vec<bool> {
        match self.logprobs.reference {
            Some(_) => vec![false; self.samples.groups()],
            None => self.samples.flat_groups(),
        }
    }

    /// One optimizer step; returns the minibatch's loss.
    fn minibatch(
        &self,
        minibatch: &[usize],
        flat: &[bool],
        position: Position,
        learner: &mut dyn Learner,
        stats: &mut TrainingStats,
    ) -> Result<f64> {
        let length: usize = minibatch.iter().map(|&sample| self.samples.rows[sample].length()).sum();
        stats.completion_tokens += length;
        let active: Vec<usize> = minibatch
            .iter()
            .copied()
            .filter(|&sample| !flat[self.samples.rows[sample].group as usize])
            .collect();
        if active.is_empty() {
            stats.flat_minibatches += 1;
            return Ok(0.0);
        }
        let mean = Mean {
            aggregate: self.training.aggregate,
            samples: minibatch.len(),
            tokens: length,
            max_tokens: self.training.max_tokens.map_or(position.longest, |n| n as usize),
        };
        let batches = minibatch::pack_trees(self.samples, &active, self.training.batching.tokens);
        if position.first_epoch {
            stats.unique_tokens += batches.iter().map(TreeBatch::unique_tokens).sum::<usize>();
        }
        let mut tokens = TokenStats::default();
        // Gradients are sums, and in float16 multiplied by the loss scale.
        let scale = mean.scale() / learner.scale_loss(mean.scale());
        let by_agent = match self.is_measured_by_agent(position) {
            true => Some(self.measure_by_agent(minibatch, &active, scale, learner)?),
            false => None,
        };
        // A measurement takes the place of what the learner had begun.
        let overlap = Some(self.overlap).filter(|overlap| {
            position.index == 0 && by_agent.is_none() && overlap.begins(self.samples, &batches)
        });
        stats.overlap_seconds += overlap.map_or(0.0, |overlap| overlap.seconds);
        let (stats_by_span, received) = self.differentiate(&batches, overlap, learner)?;
        for tree_stats in stats_by_span {
            tree_stats.entropies.iter().for_each(|entropy| stats.entropy += entropy);
            tokens.add(&tree_stats.tokens);
        }
        tokens.loss *= mean.scale();
        self.check(&tokens, stats.optimizer_steps)?;
        if stats.optimizer_steps == 0 && self.training.loss.objective != Objective::Nll {
            stats.first = Some(tokens.clone());
        }
        let norm = learner.grad_norm(self.ranks)? * scale;
        self.compare(&received, norm, learner)?;
        if let Some(loss_scale) = learner.loss_scale().filter(|_| !norm.is_finite()) {
            loss_scale.back_off()?;
            stats.skipped_steps += 1;
            stats.tokens.add(&tokens);
            return Ok(tokens.loss);
        }
        if !norm.is_finite() {
            return Err(Failure::work("the gradient is not finite; nothing was published")
                .hint("lower --lr, or look for extreme advantages or log-probabilities in the samples"));
        }
        stats.by_agent = by_agent.map(|by_agent| (by_agent.clone(), by_agent.cosine(norm)));
        stats.lr = self.step(position, scale, norm, learner)?;
        if let Some(loss_scale) = learner.loss_scale() {
            loss_scale.stepped();
        }
        stats.optimizer_steps += 1;
        stats.grad_norm += norm;
        stats.tokens.add(&tokens);
        Ok(tokens.loss)
    }

    /// True if the agents of a shared policy are measured in this minibatch.
    fn is_measured_by_agent(&self, position: Position) -> bool {
        self.samples.agents.len() > 1
            && self.training.loss.objective != Objective::Nll
            && position.index + 1 == position.horizon
            && by_agent::is_due(self.samples.step.unwrap_or(0))
    }

    /// Steps by the learner's gradient times `scale`, which then has this norm; returns the learning rate.
    fn step(&self, position: Position, scale: f64, norm: f64, learner: &mut dyn Learner) -> Result<f64> {
        let TrainingConfig { schedule, warmup, optimizer, .. } = self.training;
        let Position { index, horizon, .. } = position;
        let factor = schedule.factor(learner.optimizer_steps(), *warmup, index, horizon);
        learner.optimizer_step(self.ranks, StepScale { gradient: scale, norm, rate: factor })?;
        Ok(optimizer.lr * factor)
    }

    /// Leaves the gradient of all batches in the learner, summed over the parts of all ranks: this rank's share of it. The work
    /// of `overlap`, the beginning of the only part, is in it already. Returns the statistics of all spans in their order, and
    /// the checksums of what ranks sent to each other.
    pub fn differentiate(
        &self,
        batches: &[TreeBatch],
        overlap: Option<&Overlap>,
        learner: &mut dyn Learner,
    ) -> Result<(Vec<TreeStats>, Vec<u64>)> {
        let ranks = self.ranks;
        let parts = split_by_tokens(batches, self.training.batching.parts);
        let mut sum = PartSum::new(ranks, learner.shares(ranks.count()), parts.len());
        let mut stats_by_part = Vec::new();
        for part in ranks::own_parts(ranks, &parts) {
            if overlap.is_none() {
                learner.zero_grad()?;
            }
            let mut stats_by_span = Vec::new();
            for span in part {
                let done = overlap.filter(|_| span.batch == 0).map_or(&[][..], Overlap::stats);
                let whole = (part.len() == 1 && ranks.count() > 1).then_some(&mut sum);
                stats_by_span.push(self.accumulate(&batches[span.batch], span, done, learner, whole)?);
            }
            if parts.len() > 1 {
                learner.add_part(&mut sum)?;
            }
            stats_by_part.push(stats_by_span);
        }
        if ranks.count() > 1 {
            stats_by_part = TreeStats::of_all(ranks, &stats_by_part);
        }
        Ok((stats_by_part.into_iter().flatten().collect(), sum.checksums()))
    }

    /// Fails where a rank has other weights than the rest, or has received another gradient than was sent. The step would
    /// overwrite its weights, so this is the last point at which we can notice.
    pub(crate) fn compare(&self, received: &[u64], norm: f64, learner: &mut dyn Learner) -> Result<()> {
        if self.ranks.count() == 1 {
            return Ok(());
        }
        ranks::compare_received(self.ranks, received)?;
        let held = [weight_checksum(self.layout, learner)?, norm.to_bits()];
        ranks::compare(self.ranks, bytemuck::cast_slice(&held), "would step from other weights")
    }

    /// Adds the gradient of a span of trees; its first chunks are `done` already. `sum` is given if the span is a whole part.
    fn accumulate(
        &self,
        batch: &TreeBatch,
        span: &TreeSpan,
        done: &[TreeStats],
        learner: &mut dyn Learner,
        mut sum: Option<&mut PartSum>,
    ) -> Result<TreeStats> {
        let mut tree_stats = TreeStats::default();
        done.iter().for_each(|chunk_stats| tree_stats.add(chunk_stats));
        let (mut from, mut chunks) = (span.trees.start, 0);
        while from < span.trees.end {
            let at_once = learner.trees_at_once(from - span.trees.start);
            let chunk = from..from.saturating_add(at_once).min(span.trees.end);
            let whole = sum.as_deref_mut().filter(|_| chunk == span.trees);
            if chunks >= done.len() {
                let slice = TreeSlice {
                    temperature: batch.temperature,
                    trees: &batch.trees[chunk.clone()],
                    members: &batch.members[chunk.clone()],
                };
                let inputs = self.training.loss_inputs(self.samples, self.logprobs);
                let stats = accumulate(inputs, slice, learner, whole)?;
                tree_stats.add(&stats);
            }
            (from, chunks) = (chunk.end, chunks + 1);
        }
        Ok(tree_stats)
    }

    /// Fails for log-probabilities that no step should be based on.
    fn check(&self, tokens: &TokenStats, steps: u64) -> Result<()> {
        if tokens.not_finite == 0 && steps > 0 {
            return Ok(());
        }
        let Some((cause, hint)) = self.bounds.exceeded(tokens) else { return Ok(()) };
        let default = match self.training.max_logprob_gap {
            None if tokens.not_finite == 0 => " (the bound is the default)",
            _ => "",
        };
        Err(Failure::work(format!("{cause}{default}; nothing was published")).hint(hint))
    }
}
