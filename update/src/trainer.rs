//! The training loop over one policy's samples: forward, loss, backward, gradient clipping, optimizer step.

use std::collections::VecDeque;

use record::failure::{Failure, Result};
use record::progress::Progress;
use record::stage;

use crate::aggregate::Mean;
use crate::arguments::{Arguments, Objective};
use crate::learner::Learner;
use crate::logprobs::GapBounds;
use crate::loss::{BatchLoss, LossConfig, ReferenceLogprobs, TokenStats};
use crate::minibatch::{self, TreeBatch};
use crate::samples::Samples;

/// One policy's training, ready to run.
pub struct Trainer<'a> {
    /// The command line.
    pub arguments: &'a Arguments,
    /// The samples of this policy.
    pub samples: &'a Samples,
    /// Log-probabilities under the reference policy by sample, for `--kl`.
    pub reference: Option<Vec<Vec<f32>>>,
    /// Log-probabilities before the first step by sample, for `--importance-cap` with more than one step.
    pub start: Option<Vec<Vec<f32>>>,
    /// How far recorded log-probabilities may be from those before the first step.
    pub bounds: GapBounds,
}

/// Statistics of a training.
#[derive(Clone, Debug, Default)]
pub struct TrainingStats {
    /// Optimizer steps taken.
    pub optimizer_steps: u64,
    /// Minibatches of flat groups only, which took none.
    pub flat_minibatches: u64,
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
    /// Completion tokens of all minibatches, those of flat groups too.
    pub completion_tokens: usize,
    /// Tokens computed in the first epoch, shared ones once.
    pub unique_tokens: usize,
    /// Statistics of the minibatch before the first step: the only one under the weights that were sampled from.
    pub first: Option<TokenStats>,
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
        let arguments = self.arguments;
        let mut stats = TrainingStats::default();
        let flat = self.flat();
        let parts = (arguments.minibatches as usize).min(self.samples.rows.len());
        let horizon = (parts as u64).saturating_mul(arguments.epochs);
        let step = self.samples.step.unwrap_or(0);
        let longest = self.samples.rows.iter().map(|row| row.length()).max().unwrap_or(1);
        let mut progress = Progress::new("update", arguments.quiet, Some(horizon));
        for epoch in 0..arguments.epochs {
            let minibatches = minibatch::minibatches(self.samples, parts, arguments.seed, epoch, step);
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
        Ok(stats)
    }

    /// Of each group: whether all its terms are 0, so that it need not be computed.
    fn flat(&self) -> Vec<bool> {
        match self.reference {
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
            aggregate: self.arguments.aggregate,
            samples: minibatch.len(),
            tokens: length,
            max_tokens: self.arguments.max_tokens.map_or(position.longest, |n| n as usize),
        };
        learner.zero_grad()?;
        let mut tokens = TokenStats::default();
        for batch in
            minibatch::pack_trees(self.samples, &active, self.arguments.max_tokens_per_batch as usize)
        {
            if position.first_epoch {
                stats.unique_tokens += batch.unique_tokens();
            }
            tokens.add(&self.accumulate(&batch, mean, learner, stats)?);
        }
        self.check(&tokens, stats.optimizer_steps)?;
        if stats.optimizer_steps == 0 && self.arguments.objective == Objective::Clip {
            stats.first = Some(tokens.clone());
        }
        let norm = learner.grad_norm()?;
        if !norm.is_finite() {
            return Err(Failure::work("the gradient is not finite; nothing was published")
                .hint("lower --lr, or look for extreme advantages or log-probabilities in the samples"));
        }
        let arguments = self.arguments;
        let factor = arguments.schedule.factor(
            learner.optimizer_steps(),
            arguments.warmup,
            position.index,
            position.horizon,
        );
        learner.optimizer_step(norm, factor)?;
        stats.optimizer_steps += 1;
        stats.grad_norm += norm;
        stats.lr = arguments.lr * factor;
        stats.tokens.add(&tokens);
        Ok(tokens.loss)
    }

    /// Adds one batch's gradient.
    fn accumulate(
        &self,
        batch: &TreeBatch,
        mean: Mean,
        learner: &mut dyn Learner,
        stats: &mut TrainingStats,
    ) -> Result<TokenStats> {
        let config = LossConfig {
            objective: self.arguments.objective,
            clip_range: self.arguments.clip_range(),
            kl: self.arguments.kl,
            importance_cap: self.arguments.importance_cap,
        };
        let logprobs =
            ReferenceLogprobs { reference: self.reference.as_deref(), start: self.start.as_deref() };
        let mut stats_of_batch = TokenStats::default();
        let at_once = learner.trees_at_once();
        for (trees, members) in batch.trees.chunks(at_once).zip(batch.members.chunks(at_once)) {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let loss = BatchLoss::new(config, self.samples, members, mean, logprobs);
            let scores = learner.accumulate(trees, batch.temperature, &loss)?;
            for scores in &scores {
                stats.entropy += scores.entropies.iter().map(|&entropy| f64::from(entropy)).sum::<f64>();
            }
            stats_of_batch.add(&loss.token_stats());
        }
        Ok(stats_of_batch)
    }

    /// Fails for log-probabilities that no step should be based on.
    fn check(&self, tokens: &TokenStats, steps: u64) -> Result<()> {
        if tokens.not_finite == 0 && steps > 0 {
            return Ok(());
        }
        let Some((cause, hint)) = self.bounds.exceeded(tokens) else { return Ok(()) };
        let default = match self.arguments.max_logprob_gap {
            None if tokens.not_finite == 0 => " (the bound is the default)",
            _ => "",
        };
        Err(Failure::work(format!("{cause}{default}; nothing was published")).hint(hint))
    }
}
