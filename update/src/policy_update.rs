//! One policy in one call: opened at the version that its samples name, then trained, checked or planned.

mod scoring;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use device::{Any, DeviceKind};
use gemm::Precision;
use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::ownership::{Owner, Ownership};
use policy::publish::published;
use policy::retention::Retention;
use record::failure::{Failure, Result};
use record::splice;
use record::stage::{self, choice};
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::checkpoint::{self, Checkpoint, OptimizerState, TrainerState};
use crate::kept::{Kept, KeptState, Older, Unsaved};
use crate::learner::{CpuLearner, DeviceLearner, Learner};
use crate::logprobs::{self, GapBounds};
use crate::metrics;
use crate::model::{LoraAdapter, MemoryPlan, MemoryRequest, Model, Source, most_tokens};
use crate::overlap::Overlap;
use crate::plan::{self, ModelSpec, Plan};
use crate::publish::{self, Change, next_version};
use crate::ranks::{self, Ranks};
use crate::reader::SampleReader;
use crate::samples::Samples;
use crate::timing::{Times, Timing};
use crate::trainer::Trainer;
use crate::weights::Weights;

/// Defaults of `--max-logprob-gap` in training, nats: for f32 weights and arithmetic, and if either has 16
/// bits. In f32 it is wider than for `--check`, because a long run should not stop for one unlikely token.
const TRAINING_GAPS: [f64; 2] = [0.01, 0.5];

/// One policy, its samples, and the version that they were sampled from.
pub struct PolicyUpdate<'a> {
    arguments: &'a Arguments,
    ranks: &'a dyn Ranks,
    owned: &'a Owner,
    samples: &'a Samples,
    reader: &'a SampleReader,
    from: Policy,
    config: Config,
    /// If the version is an adapter.
    adapter: Option<LoraAdapter>,
    reference: Option<Policy>,
    settings: Map<String, Value>,
    /// Digest of the samples and the settings, which with `from` determine the new version.
    input: String,
}

impl<'a> PolicyUpdate<'a> {
    /// Opens the version that the samples name, which may be the one that is in memory, and `--kl`'s reference.
    pub fn open(
        (arguments, ranks): (&'a Arguments, &'a dyn Ranks),
        owned: &'a Owner,
        references: &Ownership,
        samples: &'a Samples,
        reader: &'a SampleReader,
        kept: Option<&Kept>,
    ) -> Result<PolicyUpdate<'a>> {
        let (version, place) = samples.version.clone().unwrap_or_default();
        let from = Policy::open_version(&owned.directory, &version).map_err(|failure| failure.at(place))?;
        // The version in memory was published by this process.
        if kept.is_none_or(|kept| kept.version != from.version) {
            from.verify()?;
        }
        let mut config = from.config.clone();
        // Before memory is planned: a size that the files do not have means damage.
        config.dtype = checkpoint::stored_dtype(&config, &*from.weights()?);
        let adapter = checkpoint::adapter(&from, &config)?;
        check_token_ids(samples, &config, &from)?;
        let reference = match arguments.kl > 0.0 {
            true => Some(logprobs::open_reference(owned, references, samples, &config)?),
            false => None,
        };
        let version = reference.as_ref().map(|policy| policy.version.to_string());
        let settings = metrics::settings(arguments, version.as_deref())?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(samples.input_digest().as_bytes());
        hasher.update(splice::json(&settings)?.as_bytes());
        let input = hasher.finalize().to_hex().to_string();
        Ok(PolicyUpdate {
            arguments,
            ranks,
            owned,
            samples,
            reader,
            from,
            config,
            adapter,
            reference,
            settings,
            input,
        })
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    /// Trains and publishes, unless an earlier call did; returns the metrics line and the phase timings.
    /// Continues with the learner in `kept` if it has the samples' version, and with `--resident` leaves the
    /// new learner there.
    pub fn train(&self, kept: &mut Option<Kept>) -> Result<(String, Times)> {
        let started = Instant::now();
        // Dropped before anything else is loaded.
        let kept_state = kept.take().filter(|kept| kept.version == self.from.version);
        let saved_version = kept_state.as_ref().map_or(&self.from.version, |kept| &kept.saved).clone();
        // A resumed run would start from these until it has recorded the new one.
        let pinned = [self.from.version.clone(), saved_version.clone()];
        let keep = self.arguments.keep as usize;
        let retention = Retention { keep, pinned: &pinned };
        let published = ranks::first(self.ranks, || {
            Ok(match published(&self.from, &self.input, &retention)? {
                Some(version) if self.is_whole(&version)? => version.to_string(),
                _ => String::new(),
            })
        })?;
        if !published.is_empty() {
            return self.already_published(&published.parse()?).map(|line| (line, Times::new()));
        }
        // Fails before anything is read or allocated.
        let device = plan::open_device(self.arguments, self.spec(), &self.request(true))?;
        let mut timing = Timing::default();
        let loaded = kept_state.is_none();
        let (mut checkpoint, kept_learner) = match kept_state {
            Some(Kept { state: KeptState::Checkpoint(checkpoint), .. }) => (*checkpoint, None),
            Some(Kept { state: KeptState::Learner(learner), overlap, .. }) => {
                (Checkpoint::with(&self.from, &self.config, None)?, Some((learner, overlap)))
            }
            None => (Checkpoint::open(&self.from, &self.config)?, None),
        };
        let settings = self.arguments.optimizer_settings();
        let (method, objective) = (choice(&settings.method), choice(&self.arguments.objective));
        let saved = checkpoint.state(settings.method, &objective)?;
        let continued = saved.is_some() || !loaded;
        if !continued && self.from.version.step > 0 {
            self.log(format_args!(
                "version {} has no {method} state for objective {objective}: starting fresh",
                self.from.version
            ));
        }
        // The reference's weights are dropped before the policy's and its optimizer state are loaded.
        let reference = self.reference_logprobs(&mut timing)?;
        let start = self.start_logprobs(&checkpoint, &mut timing)?;
        let loading = Instant::now();
        let (mut learner, overlap) = match kept_learner {
            Some(kept) => kept,
            None => (self.learner(&checkpoint, saved.as_ref(), device)?, Overlap::default()),
        };
        timing.load += loading.elapsed().as_secs_f64();
        checkpoint.forget_state();
        let single = self.is_single(&checkpoint)? && self.reader.sampled_in_f32;
        let bounds = GapBounds { most: self.max_logprob_gap(TRAINING_GAPS, single), single };
        let (arguments, samples) = (self.arguments, self.samples);
        let layout = checkpoint.trained.layout();
        let trainer =
            Trainer { arguments, ranks: self.ranks, layout, samples, reference, start, bounds, overlap };
        let stats = trainer.run(learner.as_mut())?;
        timing.add(learner.take_timing());
        timing.device_bytes = learner.device_bytes();
        let trained = started.elapsed().as_secs_f64();
        if stage::interrupted() {
            return Err(Failure::interrupted());
        }
        let mut values = metrics::of_training(self.arguments, self.samples, &stats);
        values.insert("optimizer_steps_total".to_owned(), json!(learner.optimizer_steps()));
        values.insert("optimizer_state".to_owned(), json!(if continued { "continued" } else { "fresh" }));
        values.extend(self.description());
        let state = TrainerState {
            optimizer: method,
            objective,
            optimizer_steps: learner.optimizer_steps(),
            settings: self.settings.clone(),
            metrics: splice::json(&values)?,
        };
        let publishing = Instant::now();
        let on_device = self.arguments.device_kind()? != DeviceKind::Cpu;
        // Ranks on devices would each have a slice to keep.
        let stays = self.arguments.resident && (!on_device || self.ranks.count() == 1);
        let change = match (stats.optimizer_steps, continued) {
            // The weights in memory were not read again, so the files have not been verified.
            (0, true) if loaded => Change::Nothing,
            (0, false) => Change::State,
            _ => Change::All,
        };
        if self.ranks.count() > 1 {
            let layout = checkpoint.trained.layout();
            let digest = publish::digest(layout, learner.as_mut(), &self.input)?;
            ranks::compare(self.ranks, digest.as_bytes(), "made other weights")?;
        }
        let (layout, method) = (checkpoint.trained.layout(), settings.method);
        let published = publish::with_state(self.ranks, layout, (learner.as_mut(), method), |read| {
            let (from, new) = ((&self.from, &checkpoint), (&*self.input, change));
            next_version(from, new, (read, method), (!stays).then_some(&state), &retention)
        })?;
        let version = published.map_or_else(String::new, |version| version.to_string());
        let version = ranks::first(self.ranks, || Ok(version))?.parse::<Version>()?;
        let line = state.metrics.clone();
        let (root, from) = (self.from.root.clone(), self.from.version.step);
        let older = (self.ranks.rank() == 0).then_some(Older { root, from, keep, pinned });
        if stays {
            let (layout, types) = (checkpoint.trained.layout().clone(), checkpoint.trained.types().to_vec());
            let kept_state = match on_device {
                true => {
                    let method = settings.method;
                    let tensors =
                        publish::with_state(self.ranks, &layout, (learner.as_mut(), method), |read| {
                            publish::in_memory((&layout, &types), (read, method))
                        })?;
                    drop(learner);
                    let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
                    let saved = Some((tensors.flatten(), state.clone()));
                    KeptState::Checkpoint(Box::new(Checkpoint::with(&made, &self.config, saved)?))
                }
                false => KeptState::Learner(learner),
            };
            let directory = self.owned.directory.clone();
            *kept = Some(Kept {
                version: version.clone(),
                state: kept_state,
                saved: saved_version,
                unsaved: Some(Unsaved { directory, layout, types, method: settings.method, state }),
                vocabulary: self.config.vocab_size,
                older,
                overlap: Overlap::default(),
            });
        } else {
            drop(learner);
            older.map_or(Ok(()), |older| older.retire(&version))?;
        }
        timing.publish += publishing.elapsed().as_secs_f64();
        if stats.optimizer_steps == 0 {
            let from = &self.from.version;
            self.log(format_args!(
                "all groups are flat, nothing to learn: version {version} has the weights of {from}"
            ));
        }
        let mut report = self.timing(started);
        let epochs = self.arguments.epochs as f64;
        let speed = finite(stats.unique_tokens as f64 * epochs / trained);
        report.insert("training_seconds".to_owned(), json!(trained));
        report.insert("overlap_seconds".to_owned(), json!(stats.overlap_seconds));
        report.insert("unique_tokens_per_second".to_owned(), json!(speed));
        report.extend(timing.times());
        Ok((self.line(&line, Some(&version), report)?, timing.times()))
    }

    /// Returns true if a version that an earlier call published is complete. With `--resident` that call may
    /// have ended before it saved the training state that the next version starts from.
    fn is_whole(&self, version: &Version) -> Result<bool> {
        if !self.arguments.resident {
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

    /// What training would do, and the memory it would use.
    pub fn plan(&self) -> Result<Plan> {
        let spec = self.spec();
        let estimate = plan::estimate(self.arguments, spec, &self.request(true))?;
        let plan = Plan::new(spec, estimate, &self.owned.name, self.settings.clone());
        Ok(plan.with_samples(self.arguments, self.samples, self.from.version.to_string()))
    }

    /// Returns true if weights and arithmetic are f32.
    fn is_single(&self, checkpoint: &Checkpoint) -> Result<bool> {
        Ok(checkpoint.trained.is_single() && self.arguments.dtype()? == Precision::Float32)
    }

    /// `--max-logprob-gap`, or its default for f32 or 16 bits.
    fn max_logprob_gap(&self, [single, half]: [f64; 2], is_single: bool) -> f64 {
        match self.arguments.max_logprob_gap {
            Some(0.0) => f64::INFINITY,
            Some(gap) => gap,
            None => {
                if is_single {
                    single
                } else {
                    half
                }
            }
        }
    }

    fn spec(&self) -> ModelSpec<'_> {
        ModelSpec { config: &self.config, stored: self.config.dtype, adapter: self.adapter.as_ref() }
    }

    fn request(&self, learns: bool) -> MemoryRequest {
        plan::request(self.arguments, self.samples, self.ranks.count(), learns)
    }

    /// A checkpoint in host memory, and its decoder in the precision of `--dtype`.
    fn on_host(&self, checkpoint: &Checkpoint) -> Result<(Model, Weights)> {
        let (model, weights) = checkpoint.on_host()?;
        let MemoryRequest { tokens, largest, .. } = self.request(true);
        let planned = most_tokens(&self.config, tokens, largest);
        Ok((model.rounding(self.arguments.dtype()?).planned_for(planned), weights))
    }

    /// Loads the checkpoint for training. No device memory is allocated before this.
    fn learner(
        &self,
        checkpoint: &Checkpoint,
        state: Option<&OptimizerState<'_>>,
        device: Option<(Any, MemoryPlan)>,
    ) -> Result<Box<dyn Learner>> {
        let settings = self.arguments.optimizer_settings();
        let workers = (self.ranks, self.arguments.thread_count());
        Ok(match device {
            None => Box::new(CpuLearner::new(self.on_host(checkpoint)?, settings, state, workers)?),
            Some((device, plan)) => {
                Box::new(DeviceLearner::new(device, &plan, checkpoint, settings, state, workers)?)
            }
        })
    }

    fn log(&self, text: fmt::Arguments) {
        self.arguments.log(format_args!("{}: {text}", self.owned.name));
    }

    /// What the metrics are of.
    fn description(&self) -> Map<String, Value> {
        let mut values = Map::new();
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("samples_passed_by", json!(self.reader.passed));
        put("from_version", json!(self.from.version.to_string()));
        put("agents", json!(self.samples.agents));
        put("objective", json!(choice(&self.arguments.objective)));
        put("aggregate", json!(choice(&self.arguments.aggregate)));
        put("optimizer", json!(choice(&self.arguments.optimizer)));
        values
    }

    /// The metrics line: its head, the metrics (a JSON object as text), and the timing.
    fn line(
        &self,
        metrics: &str,
        version: Option<&Version>,
        timing: BTreeMap<String, Value>,
    ) -> Result<String> {
        let mut head = Map::new();
        head.insert("type".to_owned(), json!("metrics"));
        head.insert("v".to_owned(), json!(record::read::VERSION));
        head.extend(self.samples.step.map(|step| ("step".to_owned(), json!(step))));
        head.insert("policy".to_owned(), json!(self.owned.name));
        head.extend(version.map(|version| ("policy_version".to_owned(), json!(version.to_string()))));
        let head = splice::json(&head)?;
        let metrics =
            metrics.strip_prefix('{').filter(|inside| *inside != "}").map(|inside| format!(",{inside}"));
        let line = head.trim_end_matches('}').to_owned() + metrics.as_deref().unwrap_or("}");
        splice::splice(&line, &[("timing", splice::json(&timing)?)])
    }

    fn timing(&self, started: Instant) -> BTreeMap<String, Value> {
        let mut timing = stage::timing(started);
        timing.insert("device".to_owned(), json!(self.arguments.device));
        timing.insert("threads".to_owned(), json!(self.arguments.thread_count()));
        if self.ranks.count() > 1 {
            timing.insert("ranks".to_owned(), json!(self.ranks.count()));
        }
        timing
    }
}

/// The number, or `None` if it is not finite.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn check_token_ids(samples: &Samples, config: &Config, policy: &Policy) -> Result<()> {
    let (largest, size) = (samples.largest_id, config.vocab_size);
    if (largest as usize) < size {
        return Ok(());
    }
    Err(Failure::data(format!(
        "token id {largest} is outside the vocabulary of {size} of version {} of {}",
        policy.version,
        policy.root.display()
    ))
    .hint("the samples were encoded with another tokenizer"))
}
