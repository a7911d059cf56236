//! Training one policy and publishing its next version.

use std::time::Instant;

use policy::directory::{Policy, Version};
use policy::publish::published;
use policy::retention::Retention;
use record::failure::{Failure, Result};
use record::splice;
use record::stage::{self, choice};
use serde_json::json;

use super::{PolicyUpdate, finite};
use crate::checkpoint::{self, Checkpoint, TrainerState};
use crate::learner::Learner;
use crate::logprobs::GapBounds;
use crate::loss::ReferenceLogprobs;
use crate::metrics;
use crate::overlap::Overlap;
use crate::publish::{self, Change, NextVersion, gather_state_on_rank0, publish_next};
use crate::ranks;
use crate::resident_policy::{LoadedPolicy, LoadedState, PendingSave, ResidentPolicy, SupersededVersions};
use crate::settings::Settings;
use crate::timing::{Times, Timing};
use crate::trainer::{Trainer, TrainingStats};

/// Defaults of `--max-logprob-gap` in training, nats: for f32 weights and arithmetic, and if either has 16
/// bits. In f32 it is wider than for `--check`, because a long run should not stop for one unlikely token.
const TRAINING_GAPS: [f64; 2] = [0.01, 0.5];

/// A policy that is ready to train.
struct ReadyPolicy {
    /// The version that the samples name, without its training state.
    checkpoint: Checkpoint,
    learner: Box<dyn Learner>,
    /// The part of the update that the learner has done already.
    overlap: Overlap,
    /// Log-probabilities under the reference, by sample.
    reference: Option<Vec<Vec<f32>>>,
    /// Log-probabilities before the first step, by sample.
    start: Option<Vec<Vec<f32>>>,
    /// True if the optimizer goes on from earlier steps.
    continued: bool,
    /// True if the weights were read from files.
    from_files: bool,
}

impl PolicyUpdate<'_> {
    /// Trains and publishes, unless an earlier call did; returns the metrics line and the phase timings.
    /// Continues with the weights and moments of `resident` if they are of the samples' version, and with
    /// `--resident` leaves the new ones there.
    pub fn train(&self, resident: &mut ResidentPolicy) -> Result<(String, Times)> {
        let started = Instant::now();
        // Another version is dropped before anything else is loaded.
        let loaded = resident.take(&self.from.version);
        // A resumed run would start from these until it has recorded the new one.
        let last_saved = loaded.as_ref().map_or(&self.from.version, |loaded| &loaded.last_saved);
        let pinned = [self.from.version.clone(), last_saved.clone()];
        let retention = Retention { keep: self.settings.publishing.keep, pinned: &pinned };
        if let Some(version) = self.published_earlier(&retention)? {
            return self.already_published(&version).map(|line| (line, Times::new()));
        }
        let mut timing = Timing::default();
        let mut ready = self.load(loaded, &mut timing)?;
        let stats = self.run(&mut ready, &mut timing)?;
        let trained = started.elapsed().as_secs_f64();
        if stage::interrupted() {
            return Err(Failure::interrupted());
        }
        let trainer = self.trainer_state(&mut ready, &stats)?;
        let metrics = trainer.metrics.clone();
        let publishing = Instant::now();
        let version = self.publish(&mut ready, &stats, &trainer, &retention)?;
        self.keep_or_drop(resident, ready, trainer, &version, pinned)?;
        timing.publish += publishing.elapsed().as_secs_f64();
        if stats.optimizer_steps == 0 {
            let from = &self.from.version;
            let why = match stats.skipped_steps {
                0 => "all groups are flat, nothing to learn",
                _ => "the gradient is beyond float16, the loss scale is halved",
            };
            self.log(format_args!("{why}: version {version} has the weights of {from}"));
        }
        let mut report = self.timing(started);
        let epochs = self.training.batching.epochs as f64;
        let speed = finite(stats.unique_tokens as f64 * epochs / trained);
        report.insert("training_seconds".to_owned(), json!(trained));
        report.insert("overlap_seconds".to_owned(), json!(stats.overlap_seconds));
        report.insert("unique_tokens_per_second".to_owned(), json!(speed));
        report.extend(timing.times());
        Ok((self.line(&metrics, Some(&version), report)?, timing.times()))
    }

    /// The version that an earlier call published from the same input, if it is complete.
    fn published_earlier(&self, retention: &Retention) -> Result<Option<Version>> {
        let found = ranks::find_on_rank0(self.ranks, || {
            Ok(match published(&self.from, &self.input, retention)? {
                Some(version) if self.is_complete(&version)? => version.to_string(),
                _ => String::new(),
            })
        })?;
        if found.is_empty() { Ok(None) } else { found.parse().map(Some) }
    }

    /// Returns true if a version that an earlier call published is complete. With `--resident` that call may
    /// have ended before it saved the training state that the next version starts from.
    fn is_complete(&self, version: &Version) -> Result<bool> {
        if !self.settings.publishing.resident {
            return Ok(true);
        }
        let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
        Ok(checkpoint::saved_state(&made)?.is_some())
    }

    /// The metrics line of a version that an earlier call published from the same input.
    fn already_published(&self, version: &Version) -> Result<String> {
        let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
        // Only the newest versions keep their trainer state.
        let metrics =
            checkpoint::saved_state(&made)?.map_or_else(|| "{}".to_owned(), |(_, state)| state.metrics);
        self.log(format_args!("version {version} was already published from this input: nothing to do"));
        self.line(&metrics, Some(version), stage::timing(Instant::now()))
    }

    /// Loads weights, moments and the log-probabilities under other weights.
    fn load(&self, loaded: Option<LoadedPolicy>, timing: &mut Timing) -> Result<ReadyPolicy> {
        // Fails before anything is read or allocated.
        let device = self.planner(self.spec()).open_device(&self.request(true))?;
        let from_files = loaded.is_none();
        let (mut checkpoint, in_memory) = match loaded {
            None => (Checkpoint::open(&self.from, &self.config)?, None),
            Some(LoadedPolicy { state: LoadedState::Checkpoint(checkpoint), .. }) => (*checkpoint, None),
            Some(LoadedPolicy { state: LoadedState::Learner(learner), overlap, .. }) => {
                (Checkpoint::with(&self.from, &self.config, None)?, Some((learner, overlap)))
            }
        };
        let objective = choice(&self.training.loss.objective);
        let saved = checkpoint.state(self.method(), &objective)?;
        let continued = saved.is_some() || !from_files;
        if !continued && self.from.version.step > 0 {
            let (version, method) = (&self.from.version, choice(&self.method()));
            self.log(format_args!(
                "version {version} has no {method} state for objective {objective}: starting fresh"
            ));
        }
        // The reference's weights are dropped before the policy's and its optimizer state are loaded.
        let reference = self.reference_logprobs(timing)?;
        let start = self.start_logprobs(&checkpoint, timing)?;
        let loading = Instant::now();
        let (learner, overlap) = match in_memory {
            Some(in_memory) => in_memory,
            None => (self.learner(&checkpoint, saved.as_ref(), device)?, Overlap::default()),
        };
        timing.load += loading.elapsed().as_secs_f64();
        checkpoint.forget_state();
        Ok(ReadyPolicy { checkpoint, learner, overlap, reference, start, continued, from_files })
    }

    /// Takes all optimizer steps.
    fn run(&self, ready: &mut ReadyPolicy, timing: &mut Timing) -> Result<TrainingStats> {
        let ReadyPolicy { checkpoint, learner, overlap, reference, start, .. } = ready;
        let is_f32 = self.is_f32(checkpoint) && self.reader.sampled_in_f32;
        let trainer = Trainer {
            training: &self.training,
            messages: self.settings.messages,
            ranks: self.ranks,
            layout: &checkpoint.trained.formats().layout,
            samples: self.samples,
            logprobs: ReferenceLogprobs { reference: reference.as_deref(), start: start.as_deref() },
            bounds: GapBounds { max: self.max_logprob_gap(TRAINING_GAPS, is_f32), is_f32 },
            overlap,
        };
        let stats = trainer.run(learner.as_mut())?;
        timing.add(learner.take_timing());
        (timing.device_bytes, timing.transport) = (learner.device_bytes(), learner.transport());
        Ok(stats)
    }

    /// The content of `trainer_state.json`, with the metrics.
    fn trainer_state(&self, ready: &mut ReadyPolicy, stats: &TrainingStats) -> Result<TrainerState> {
        let loss = &self.training.loss;
        let optimizer_steps = ready.learner.optimizer_steps();
        let mut values = metrics::of_training(loss, self.samples, stats);
        values.insert("optimizer_steps_total".to_owned(), json!(optimizer_steps));
        let origin = if ready.continued { "continued" } else { "fresh" };
        values.insert("optimizer_state".to_owned(), json!(origin));
        values.extend(self.description());
        Ok(TrainerState {
            optimizer: choice(&self.method()),
            objective: choice(&loss.objective),
            optimizer_steps,
            loss_scale: ready.learner.loss_scale().copied(),
            settings: self.record.clone(),
            metrics: splice::json(&values)?,
        })
    }

    /// Publishes the next version, once all ranks agree on its weights.
    fn publish(
        &self,
        ready: &mut ReadyPolicy,
        stats: &TrainingStats,
        trainer: &TrainerState,
        retention: &Retention,
    ) -> Result<Version> {
        let ReadyPolicy { checkpoint, learner, continued, from_files, .. } = ready;
        let change = match (stats.optimizer_steps, continued) {
            // The loss scale of skipped steps is part of the state.
            (0, true) if *from_files && stats.skipped_steps > 0 => Change::State,
            // Weights from memory were not read again, so the files have not been verified.
            (0, true) if *from_files => Change::Nothing,
            (0, false) => Change::State,
            _ => Change::All,
        };
        let formats = checkpoint.trained.formats();
        if self.ranks.count() > 1 {
            let digest = publish::digest(&formats.layout, learner.as_mut(), &self.input)?;
            ranks::compare(self.ranks, digest.as_bytes(), "made other weights")?;
        }
        let trainer = (!self.stays_in_memory()).then_some(trainer);
        let written =
            gather_state_on_rank0(self.ranks, &formats.layout, learner.as_mut(), self.method(), |state| {
                let next = NextVersion { formats, state, input: &self.input, change, trainer };
                publish_next(&self.from, &next, retention)
            })?;
        let version = written.map_or_else(String::new, |version| version.to_string());
        ranks::find_on_rank0(self.ranks, || Ok(version))?.parse()
    }

    /// Returns true if weights and moments wait in memory for the next update. Ranks on devices would each have a slice
    /// to keep.
    fn stays_in_memory(&self) -> bool {
        let Settings { publishing, hardware, .. } = self.settings;
        publishing.resident && (!hardware.is_device() || self.ranks.count() == 1)
    }

    /// Leaves the new version in memory for the next update, or drops it and removes the versions that it supersedes.
    fn keep_or_drop(
        &self,
        resident: &mut ResidentPolicy,
        ready: ReadyPolicy,
        trainer: TrainerState,
        version: &Version,
        pinned: [Version; 2],
    ) -> Result<()> {
        let last_saved = pinned[1].clone();
        let superseded = (self.ranks.rank() == 0).then(|| SupersededVersions {
            root: self.from.root.clone(),
            from: self.from.version.step,
            keep: self.settings.publishing.keep,
            pinned,
        });
        if !self.stays_in_memory() {
            drop(ready);
            return superseded.map_or(Ok(()), |superseded| superseded.retire(version));
        }
        let ReadyPolicy { checkpoint, mut learner, .. } = ready;
        let (formats, method) = (checkpoint.trained.formats().clone(), self.method());
        let state = if self.settings.hardware.is_device() {
            let tensors =
                gather_state_on_rank0(self.ranks, &formats.layout, learner.as_mut(), method, |state| {
                    publish::in_memory(&formats, state)
                })?;
            drop(learner);
            let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
            let saved = Some((tensors.flatten(), trainer.clone()));
            LoadedState::Checkpoint(Box::new(Checkpoint::with(&made, &self.config, saved)?))
        } else {
            LoadedState::Learner(learner)
        };
        *resident = ResidentPolicy::Published {
            loaded: LoadedPolicy {
                version: version.clone(),
                state,
                last_saved,
                vocabulary: self.config.vocab_size,
                overlap: Overlap::default(),
            },
            superseded,
            pending: PendingSave { directory: self.owned.directory.clone(), formats, method, trainer },
        };
        Ok(())
    }
}
