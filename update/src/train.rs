//! Optimiser steps over one policy's samples: forward, objective, backward, clip, step; and what was seen on the way.

use std::collections::VecDeque;

use record::failure::{Failure, Result};
use record::progress::Progress;
use record::stage;

use crate::aggregate::Mean;
use crate::arguments::{Arguments, Objective};
use crate::batch::{self, Batch};
use crate::learner::Learner;
use crate::loss::{BatchLoss, Others, Tally, Terms};
use crate::samples::Samples;

/// One policy's training, ready to run.
pub struct Trainer<'a> {
    /// The command line.
    pub arguments: &'a Arguments,
    /// The samples of this policy.
    pub samples: &'a Samples,
    /// Log-probabilities of the reference policy by sample, where `--kl` asks for them.
    pub reference: Option<Vec<Vec<f32>>>,
    /// Log-probabilities before the first step by sample, where `--importance-cap` asks for them and later steps have
    /// other weights.
    pub start: Option<Vec<Vec<f32>>>,
}

/// What training saw.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Optimiser steps taken.
    pub steps: u64,
    /// Minibatches that were flat as a whole and took none.
    pub flat_minibatches: u64,
    /// Sum of the losses of all minibatches, flat ones at 0.
    pub loss: f64,
    /// Losses of the last tenth of the minibatches.
    pub last_losses: VecDeque<f64>,
    /// Sum and number of the gradient norms before clipping.
    pub norm: f64,
    /// Learning rate of the last step.
    pub rate: f64,
    /// Token figures of all minibatches.
    pub tally: Tally,
    /// Sum of the entropies over the scored tokens.
    pub entropy: f64,
    /// Completion tokens of all minibatches, those of flat groups too.
    pub tokens: usize,
    /// Tokens computed in the first epoch, shared ones once.
    pub unique_tokens: usize,
    /// Token figures of the minibatch before the first step: the only one where weights are those sampled from.
    pub first: Option<Tally>,
}

/// Where in a call a minibatch is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Minibatches before it.
    index: u64,
    /// All minibatches of the call.
    horizon: u64,
    first_epoch: bool,
    /// Tokens of the longest completion of the call.
    longest: usize,
}

impl Trainer<'_> {
    /// Runs every epoch. The learner is as it was if this fails before the first step, and useless for publishing if it
    /// fails later.
    ///
    /// # Errors
    /// A log-probability gap above the limit, numbers that are not finite, an interruption.
    pub fn run(&self, learner: &mut dyn Learner) -> Result<Figures> {
        let arguments = self.arguments;
        let mut figures = Figures::default();
        let flat = self.flat();
        let parts = (arguments.minibatches as usize).min(self.samples.rows.len());
        let horizon = (parts as u64).saturating_mul(arguments.epochs);
        let step = self.samples.step.unwrap_or(0);
        let longest = self.samples.rows.iter().map(|row| row.length()).max().unwrap_or(1);
        let mut progress = Progress::new("update", arguments.quiet, Some(horizon));
        for epoch in 0..arguments.epochs {
            let minibatches = batch::minibatches(self.samples, parts, arguments.seed, epoch, step);
            for (index, minibatch) in minibatches.iter().enumerate() {
                let index = epoch * parts as u64 + index as u64;
                let place = Place { index, horizon, first_epoch: epoch == 0, longest };
                let loss = self.minibatch(minibatch, &flat, place, learner, &mut figures)?;
                figures.loss += loss;
                figures.last_losses.push_back(loss);
                if figures.last_losses.len() as u64 > horizon.div_ceil(10) {
                    figures.last_losses.pop_front();
                }
                progress.set_message(format!("loss {loss:.4}"));
                progress.inc(1);
            }
        }
        progress.finish();
        Ok(figures)
    }

    /// Of each group: whether its terms are all 0, so that it need not be computed.
    fn flat(&self) -> Vec<bool> {
        match self.reference {
            Some(_) => vec![false; self.samples.groups()],
            None => self.samples.flat_groups(),
        }
    }

    /// One optimiser step; returns the minibatch's loss.
    fn minibatch(
        &self,
        minibatch: &[usize],
        flat: &[bool],
        place: Place,
        learner: &mut dyn Learner,
        figures: &mut Figures,
    ) -> Result<f64> {
        let tokens: usize = minibatch.iter().map(|&sample| self.samples.rows[sample].length()).sum();
        figures.tokens += tokens;
        let active: Vec<usize> = minibatch
            .iter()
            .copied()
            .filter(|&sample| !flat[self.samples.rows[sample].group as usize])
            .collect();
        if active.is_empty() {
            figures.flat_minibatches += 1;
            return Ok(0.0);
        }
        let mean = Mean {
            aggregate: self.arguments.aggregate,
            samples: minibatch.len(),
            tokens,
            max_tokens: self.arguments.max_tokens.map_or(place.longest, |n| n as usize),
        };
        learner.clear()?;
        let mut tally = Tally::default();
        for batch in batch::pack_trees(self.samples, &active, self.arguments.max_tokens_per_batch as usize) {
            if place.first_epoch {
                figures.unique_tokens += batch.unique_tokens();
            }
            tally.add(&self.accumulate(&batch, mean, learner, figures)?);
        }
        self.check(&tally, figures.steps)?;
        if figures.steps == 0 && self.arguments.objective == Objective::Clip {
            figures.first = Some(tally.clone());
        }
        let norm = learner.norm()?;
        if !norm.is_finite() {
            return Err(Failure::work("the gradient is not finite; nothing was published")
                .hint("lower --lr, or look for extreme advantages or log-probabilities among the samples"));
        }
        let arguments = self.arguments;
        let factor = arguments.schedule.factor(learner.steps(), arguments.warmup, place.index, place.horizon);
        learner.step(norm, factor)?;
        figures.steps += 1;
        figures.norm += norm;
        figures.rate = arguments.lr * factor;
        figures.tally.add(&tally);
        Ok(tally.loss)
    }

    /// Adds one batch's gradient.
    fn accumulate(
        &self,
        batch: &Batch,
        mean: Mean,
        learner: &mut dyn Learner,
        figures: &mut Figures,
    ) -> Result<Tally> {
        let terms = Terms {
            objective: self.arguments.objective,
            range: self.arguments.clip_range(),
            kl: self.arguments.kl,
            importance_cap: self.arguments.importance_cap,
        };
        let others = Others { reference: self.reference.as_deref(), start: self.start.as_deref() };
        let mut tally = Tally::default();
        let at_once = learner.trees_at_once();
        for (trees, members) in batch.trees.chunks(at_once).zip(batch.members.chunks(at_once)) {
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let loss = BatchLoss::new(terms, self.samples, members, mean, others);
            let scores = learner.accumulate(trees, batch.temperature, &loss)?;
            for scores in &scores {
                figures.entropy += scores.entropies.iter().map(|&entropy| f64::from(entropy)).sum::<f64>();
            }
            tally.add(&loss.tally());
        }
        Ok(tally)
    }

    /// Refuses numbers that no step should be taken by.
    fn check(&self, tally: &Tally, steps: u64) -> Result<()> {
        if tally.not_finite > 0 {
            let cause = format!(
                "{} recomputed log-probabilities are not finite; nothing was published",
                tally.not_finite
            );
            return Err(Failure::work(cause).hint("the weights themselves may hold NaN: policy check DIR"));
        }
        if let Some(limit) = self.arguments.max_logprob_gap.filter(|_| steps == 0)
            && tally.largest_gap > limit
        {
            let gap = tally.largest_gap;
            return Err(Failure::work(format!(
                "recorded and recomputed log-probabilities differ by up to {gap:.3e}, above --max-logprob-gap {limit}; \
                 nothing was published"
            ))
            .hint("update --check shows the gap; samples of other weights or a changed temperature cause one"));
        }
        Ok(())
    }
}
