//! One policy in one call: opened at the version that its samples name, then trained, checked or planned.

mod scoring;
mod training;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use device::{Any, ComputeDtype};
use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::ownership::Owner;
use record::failure::{Failure, Result};
use record::splice;
use record::stage::{self, choice};
use serde_json::{Map, Value, json};

use crate::checkpoint::{self, Checkpoint, OptimizerState};
use crate::context::UpdateContext;
use crate::learner::{CpuLearner, DeviceLearner, Learner, Workers};
use crate::logprobs;
use crate::metrics;
use crate::model::{LoraAdapter, MemoryPlan, MemoryRequest, Model, most_tokens};
use crate::optimizer::Method;
use crate::plan::{self, ModelSpec, Planner};
use crate::plan_line::Plan;
use crate::ranks::Communicator;
use crate::reader::SampleReader;
use crate::resident_policy::ResidentPolicy;
use crate::samples::Samples;
use crate::settings::{Settings, TrainingConfig, Work};
use crate::weights::Weights;

/// One policy, its samples, and the version that they were sampled from.
pub struct PolicyUpdate<'a> {
    settings: &'a Settings,
    training: TrainingConfig,
    ranks: &'a dyn Communicator,
    owned: &'a Owner,
    samples: &'a Samples,
    reader: &'a SampleReader<'a>,
    from: Policy,
    config: Config,
    /// If the version is an adapter.
    adapter: Option<LoraAdapter>,
    reference: Option<Policy>,
    /// The settings that determine the new version.
    record: Map<String, Value>,
    /// Digest of the samples and the settings, which with `from` determine the new version.
    input: String,
}

impl<'a> PolicyUpdate<'a> {
    /// Opens the version that the samples of a policy of the call name, which may be in memory, and `--kl`'s reference.
    pub fn open(
        call: &UpdateContext<'a>,
        index: usize,
        reader: &'a SampleReader<'a>,
        resident: &ResidentPolicy,
    ) -> Result<PolicyUpdate<'a>> {
        let UpdateContext { settings, ownership, references, processes } = *call;
        let (owned, samples, ranks) = (&ownership.owners()[index], &reader.samples[index], processes.own());
        let (version, place) = samples.version.clone().unwrap_or_default();
        let from = Policy::open_version(&owned.directory, &version).map_err(|failure| failure.at(place))?;
        // The version in memory was published by this process.
        if resident.version() != Some(&from.version) {
            from.verify()?;
        }
        let mut config = from.config.clone();
        // Before memory is planned: a size that the files do not have means damage.
        config.dtype = checkpoint::stored_dtype(&config, &*from.weights()?);
        let adapter = checkpoint::adapter(&from, &config)?;
        check_token_ids(samples, &config, &from)?;
        let training = settings.training_of(ownership, index, &config, adapter.is_some())?;
        let reference = match training.loss.kl > 0.0 {
            true => Some(logprobs::open_reference(owned, references, samples, &config)?),
            false => None,
        };
        let version = reference.as_ref().map(|policy| policy.version.to_string());
        let record = metrics::settings(&training, settings.hardware.dtype, version.as_deref());
        let mut hasher = blake3::Hasher::new();
        hasher.update(samples.input_digest().as_bytes());
        hasher.update(splice::json(&record)?.as_bytes());
        let input = hasher.finalize().to_hex().to_string();
        Ok(PolicyUpdate {
            settings,
            training,
            ranks,
            owned,
            samples,
            reader,
            from,
            config,
            adapter,
            reference,
            record,
            input,
        })
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    /// What training would do, and the memory it would use.
    pub fn plan(&self) -> Result<Plan> {
        let spec = self.spec();
        let estimate = self.planner(spec).estimate(&self.request(true))?;
        let plan = Plan::new(spec, estimate, &self.owned.name, self.record.clone());
        Ok(plan.with_samples(&self.training, self.samples, self.from.version.to_string()))
    }

    /// Returns true if weights and arithmetic are f32.
    fn is_f32(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.trained.is_f32() && self.settings.hardware.dtype == ComputeDtype::Float32
    }

    /// `--max-logprob-gap`, or its default for f32 or 16 bits.
    fn max_logprob_gap(&self, defaults: [f64; 2], is_f32: bool) -> f64 {
        self.training.gap_limit(defaults[usize::from(!is_f32)])
    }

    fn method(&self) -> Method {
        self.training.optimizer.method
    }

    fn spec(&self) -> ModelSpec<'_> {
        ModelSpec { config: &self.config, stored: self.config.dtype, adapter: self.adapter.as_ref() }
    }

    fn planner<'b>(&'b self, spec: ModelSpec<'b>) -> Planner<'b> {
        Planner { hardware: &self.settings.hardware, training: &self.training, spec }
    }

    fn request(&self, learns: bool) -> MemoryRequest {
        let ranks = match self.settings.work {
            Work::Plan { ranks: Some(ranks) } => ranks,
            _ => self.ranks.count(),
        };
        plan::request(&self.training, self.samples, ranks, learns)
    }

    /// A checkpoint in host memory, and its decoder in the precision of `--dtype`.
    fn on_host(&self, checkpoint: &Checkpoint) -> Result<(Model, Weights)> {
        let (model, weights) = checkpoint.on_host()?;
        let MemoryRequest { tokens, largest, .. } = self.request(true);
        let planned = most_tokens(&self.config, tokens, largest);
        Ok((model.rounding(self.settings.hardware.precision()).planned_for(planned), weights))
    }

    /// Loads the checkpoint for training. No device memory is allocated before this.
    fn learner(
        &self,
        checkpoint: &Checkpoint,
        state: Option<&OptimizerState<'_>>,
        device: Option<(Any, MemoryPlan)>,
    ) -> Result<Box<dyn Learner>> {
        let settings = self.training.optimizer;
        let workers = Workers { ranks: self.ranks, threads: self.settings.hardware.threads };
        Ok(match device {
            None => {
                let (model, weights) = self.on_host(checkpoint)?;
                Box::new(CpuLearner::new(model, weights, settings, state, workers)?)
            }
            Some((device, plan)) => {
                Box::new(DeviceLearner::new(device, &plan, checkpoint, settings, state, workers)?)
            }
        })
    }

    fn log(&self, text: fmt::Arguments) {
        self.settings.messages.print(format_args!("{}: {text}", self.owned.name));
    }

    /// What the metrics are of.
    fn description(&self) -> Map<String, Value> {
        let mut values = Map::new();
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("samples_passed_by", json!(self.reader.passed));
        put("from_version", json!(self.from.version.to_string()));
        put("agents", json!(self.samples.agents));
        let training = &self.training;
        put("objective", json!(choice(&training.loss.objective)));
        put("aggregate", json!(choice(&training.aggregate)));
        put("optimizer", json!(choice(&training.optimizer.method)));
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
        timing.insert("device".to_owned(), json!(self.settings.hardware.device));
        timing.insert("threads".to_owned(), json!(self.settings.hardware.threads));
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
