//! The training loop over one policy's samples: forward, loss, backward, gradient clipping, optimizer step.

use std::collections::VecDeque;

use record::failure::{Failure, Result};
use record::progress::Progress;
use record::stage;

use crate::aggregate::Mean;
use crate::arguments::{Arguments, Objective};
use crate::by_agent::{self, ByAgent};
use crate::learner::Learner;
use crate::logprobs::GapBounds;
use crate::loss::{BatchLoss, ReferenceLogprobs, TokenStats};
use crate::minibatch::{self, TreeBatch};
use crate::model::{Layout, Scores};
use crate::optimizer::StepScale;
use crate::overlap::Overlap;
use crate::parts::{self, Piece, TreeSum};
use crate::publish;
use crate::ranks::{self, Checksum, Ranks};
use crate::samples::Samples;
use crate::tree::Tree;

/// One policy's training, ready to run.
pub struct Trainer<'a> {
    /// The command line.
    pub arguments: &'a Arguments,
    /// The processes that share the work.
    pub ranks: &'a dyn Ranks,
    /// The weights' names, shapes and places.
    pub layout: &'a Layout,
    /// The samples of this policy.
    pub samples: &'a Samples,
    /// Log-probabilities under the reference policy by sample, for `--kl`.
    pub reference: Option<Vec<Vec<f32>>>,
    /// Log-probabilities before the first step by sample, for `--importance-cap` with more than one step.
    pub start: Option<Vec<Vec<f32>>>,
    /// How far recorded log-probabilities may be from those before the first step.
    pub bounds: GapBounds,
    /// What the learner has done of the first minibatch already.
    pub overlap: Overlap,
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
    /// Seconds of forward and backward while the samples still arrived.
    pub overlap_seconds: f64,
    /// Tokens computed in the first epoch, shared ones once.
    pub unique_tokens: usize,
    /// Statistics of the minibatch before the first step: the only one under the weights that were sampled from.
    pub first: Option<TokenStats>,
    /// What each agent made of the last minibatch, and the cosine of two agents' gradients, if they were measured.
    pub by_agent: Option<(ByAgent, Option<f64>)>,
}

/// What a piece of a part came to.
#[derive(Clone, Debug, Default)]
pub struct PieceStats {
    /// Sum of the entropies of each tree.
    pub entropies: Vec<f64>,
    /// Statistics of its scored tokens.
    pub tokens: TokenStats,
}

impl PieceStats {
    fn add(&mut self, other: &PieceStats) {
        self.entropies.extend(&other.entropies);
        self.tokens.add(&other.tokens);
    }

    /// Those of all ranks, in their order.
    fn of_all(ranks: &dyn Ranks, own: &[PieceStats]) -> Vec<PieceStats> {
        let words = |piece_stats: &PieceStats| {
            let entropies = piece_stats.entropies.iter().map(|entropy| entropy.to_bits());
            let words: Vec<u64> = std::iter::once(piece_stats.entropies.len() as u64)
                .chain(entropies)
                .chain(piece_stats.tokens.words())
                .collect();
            words
        };
        let own: Vec<u64> = own.iter().flat_map(words).collect();
        let mut stats_by_piece = Vec::new();
        for bytes in ranks::gather(ranks, bytemuck::cast_slice(&own)) {
            let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            while let Some(trees) = words.next() {
                let entropies = words.by_ref().take(trees as usize).map(f64::from_bits).collect();
                let tokens = TokenStats::of_words(&std::array::from_fn(|_| words.next().unwrap_or(0)));
                stats_by_piece.push(PieceStats { entropies, tokens });
            }
        }
        stats_by_piece
    }
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

/// Adds the gradient of some trees to the learner's, as they are weighted but not scaled.
///
/// # Errors
/// The device's, or an interruption.
pub fn accumulate(
    (arguments, samples): (&Arguments, &Samples),
    (trees, members): (&[Tree], &[Vec<usize>]),
    temperature: f32,
    logprobs: ReferenceLogprobs,
    learner: &mut dyn Learner,
) -> Result<PieceStats> {
    if stage::interrupted() {
        return Err(Failure::interrupted());
    }
    let loss = BatchLoss::new(arguments.loss_config(), samples, members, arguments.aggregate, logprobs);
    let scores = learner.accumulate(trees, temperature, &loss)?;
    let of_tree = |scores: &Scores| scores.entropies.iter().map(|&entropy| f64::from(entropy)).sum();
    let with_scores = trees.iter().zip(&scores).enumerate();
    let spread: f64 =
        with_scores.map(|(index, (tree, scores))| loss.entropy_term(index, tree, &scores.entropies)).sum();
    let mut tokens = loss.token_stats();
    tokens.loss += spread;
    Ok(PieceStats { entropies: scores.iter().map(of_tree).collect(), tokens })
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
        let batches =
            minibatch::pack_trees(self.samples, &active, self.arguments.max_tokens_per_batch as usize);
        if position.first_epoch {
            stats.unique_tokens += batches.iter().map(TreeBatch::unique_tokens).sum::<usize>();
        }
        let mut tokens = TokenStats::default();
        let by_agent = match self.is_measured_by_agent(position) {
            true => Some(self.measure_by_agent((minibatch, &active), &mean, learner)?),
            false => None,
        };
        // A measurement takes the place of what the learner had begun.
        let overlap = Some(&self.overlap).filter(|overlap| {
            position.index == 0 && by_agent.is_none() && overlap.begins(self.samples, &batches)
        });
        stats.overlap_seconds += overlap.map_or(0.0, |overlap| overlap.seconds);
        let (stats_by_piece, gradient) = self.differentiate(&batches, overlap, learner)?;
        for piece_stats in stats_by_piece {
            piece_stats.entropies.iter().for_each(|entropy| stats.entropy += entropy);
            tokens.add(&piece_stats.tokens);
        }
        let scale = mean.scale();
        tokens.loss *= scale;
        self.check(&tokens, stats.optimizer_steps)?;
        if stats.optimizer_steps == 0 && self.arguments.objective != Objective::Nll {
            stats.first = Some(tokens.clone());
        }
        let norm = learner.grad_norm()? * scale;
        if !norm.is_finite() {
            return Err(Failure::work("the gradient is not finite; nothing was published")
                .hint("lower --lr, or look for extreme advantages or log-probabilities in the samples"));
        }
        stats.by_agent = by_agent.map(|by_agent| (by_agent.clone(), by_agent.cosine(norm)));
        let arguments = self.arguments;
        let factor = arguments.schedule.factor(
            learner.optimizer_steps(),
            arguments.warmup,
            position.index,
            position.horizon,
        );
        self.compare(&gradient, norm, learner)?;
        learner.optimizer_step(self.ranks, StepScale { gradient: scale, norm, rate: factor })?;
        stats.optimizer_steps += 1;
        stats.grad_norm += norm;
        stats.lr = arguments.lr * factor;
        stats.tokens.add(&tokens);
        Ok(tokens.loss)
    }

    /// True if the agents of a shared policy are measured in this minibatch.
    fn is_measured_by_agent(&self, position: Position) -> bool {
        self.samples.agents.len() > 1
            && self.arguments.objective != Objective::Nll
            && position.index + 1 == position.horizon
            && by_agent::is_due(self.samples.step.unwrap_or(0))
    }

    /// Leaves the gradient of all batches in the learner: that of this rank's parts, added up over ranks. What `overlap` has done is in
    /// it already, the one part's beginning. Returns the statistics of all pieces in their order, and of several ranks the
    /// gradient's checksum.
    ///
    /// # Errors
    /// The learner's, or an interruption.
    pub fn differentiate(
        &self,
        batches: &[TreeBatch],
        overlap: Option<&Overlap>,
        learner: &mut dyn Learner,
    ) -> Result<(Vec<PieceStats>, Checksum)> {
        let (ranks, mut checksum) = (self.ranks, Checksum::default());
        let parts = parts::cut(batches, self.arguments.parts as usize);
        let own = &parts[ranks::share(ranks, parts.len())];
        let (mut sum, mut stats_by_piece) = (TreeSum::new(own.len()), Vec::new());
        for part in own {
            if overlap.is_none() {
                learner.zero_grad()?;
            }
            for piece in part {
                let done = overlap.filter(|_| piece.batch == 0).map_or(&[][..], Overlap::stats);
                stats_by_piece.push(self.accumulate(&batches[piece.batch], piece, done, learner)?);
            }
            if parts.len() > 1 {
                learner.change_gradients(&mut |gradient| {
                    if sum.add(gradient) && ranks.count() > 1 {
                        ranks::sum(ranks, gradient);
                        checksum.add(gradient);
                    }
                })?;
            }
        }
        if ranks.count() > 1 {
            stats_by_piece = PieceStats::of_all(ranks, &stats_by_piece);
        }
        Ok((stats_by_piece, checksum))
    }

    /// Fails where a rank has other weights or another gradient than the rest. Its part in the gradient is in everyone's then, and
    /// the step would give it everyone's weights: afterwards nobody could tell.
    fn compare(&self, gradient: &Checksum, norm: f64, learner: &mut dyn Learner) -> Result<()> {
        if self.ranks.count() == 1 {
            return Ok(());
        }
        let mut weights = Checksum::default();
        publish::masters(self.layout, learner, |values| weights.add(values))?;
        let held = [weights.sum, gradient.sum, norm.to_bits()];
        let has = "would step from other weights, or by another gradient,";
        ranks::compare(self.ranks, bytemuck::cast_slice(&held), has)
    }

    /// Adds one piece's gradient, but not that of its first chunks of trees, which is `done`.
    fn accumulate(
        &self,
        batch: &TreeBatch,
        piece: &Piece,
        done: &[PieceStats],
        learner: &mut dyn Learner,
    ) -> Result<PieceStats> {
        let logprobs =
            ReferenceLogprobs { reference: self.reference.as_deref(), start: self.start.as_deref() };
        let mut piece_stats = PieceStats::default();
        done.iter().for_each(|chunk_stats| piece_stats.add(chunk_stats));
        let (mut from, mut chunks) = (piece.trees.start, 0);
        while from < piece.trees.end {
            let at_once = learner.trees_at_once(from - piece.trees.start);
            let chunk = from..from.saturating_add(at_once).min(piece.trees.end);
            if chunks >= done.len() {
                let (trees, members) = (&batch.trees[chunk.clone()], &batch.members[chunk.clone()]);
                let inputs = (self.arguments, self.samples);
                let stats = accumulate(inputs, (trees, members), batch.temperature, logprobs, learner)?;
                piece_stats.add(&stats);
            }
            (from, chunks) = (chunk.end, chunks + 1);
        }
        Ok(piece_stats)
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
