//! One policy's part of a call: opened at the version that its samples name, then trained, checked or planned.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use device::Any;
use gemm::Precision;
use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::ownership::{Owner, Ownership};
use policy::publish::published;
use policy::weights::Weights as Tensors;
use record::failure::{Failure, Result};
use record::splice;
use record::stage;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::checkpoint::{self, Checkpoint, State, TrainerState};
use crate::clock::{Clock, Times};
use crate::learner::{AdapterOnDevice, Learner, OnDevice, OnHost};
use crate::memory::{self, Subject};
use crate::metrics;
use crate::model::{Demand, LowRank, MemoryPlan, Model, Parameters, Resident, Shape};
use crate::plan::Plan;
use crate::publish::next_version;
use crate::reference;
use crate::samples::Samples;
use crate::scores;
use crate::stage::remark;
use crate::train::Trainer;
use crate::weights::Weights;

/// Largest difference of log-probabilities that `--check` lets pass for f32 weights computed with in f32, nats.
const GAP_SINGLE: f64 = 1e-3;
/// The same for 16-bit weights, whose sampling may compute in 16 bits, and where linear layers do.
const GAP_HALF: f64 = 0.1;

/// One policy, its samples, and the version that they came from.
pub struct Run<'a> {
    arguments: &'a Arguments,
    owned: &'a Owner,
    samples: &'a Samples,
    passed: u64,
    from: Policy,
    config: Config,
    /// Where the version is one.
    adapter: Option<LowRank>,
    reference: Option<Policy>,
    settings: Map<String, Value>,
    /// Names what the new version is made from besides `from`: the samples and the settings.
    input: String,
}

impl<'a> Run<'a> {
    /// Opens the version that the samples name, and the reference of `--kl`.
    ///
    /// # Errors
    /// The version is not there (65); token ids that the policy does not have (65).
    pub fn open(
        arguments: &'a Arguments,
        owned: &'a Owner,
        references: &Ownership,
        samples: &'a Samples,
        passed: u64,
    ) -> Result<Run<'a>> {
        let (version, place) = samples.version.clone().unwrap_or_default();
        let from = Policy::open_version(&owned.directory, &version).map_err(|failure| failure.at(place))?;
        let mut config = Config::load(from.model())?;
        // Sizes that the files do not have are damage, and no reason to ask for more memory.
        let tensors = Tensors::open(from.model())?;
        tensors.check(&config)?;
        config.dtype = checkpoint::stored(&config, &tensors);
        let adapter = checkpoint::adapter(&from, &config)?;
        refuse_unknown_ids(samples, &config, &from)?;
        let reference = match arguments.kl > 0.0 {
            true => Some(reference::open(owned, references, samples, &config)?),
            false => None,
        };
        let version = reference.as_ref().map(|policy| policy.version.to_string());
        let settings = metrics::settings(arguments, version.as_deref())?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(samples.input_digest().as_bytes());
        hasher.update(splice::json(&settings)?.as_bytes());
        let input = hasher.finalize().to_hex().to_string();
        Ok(Run { arguments, owned, samples, passed, from, config, adapter, reference, settings, input })
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    /// Trains and publishes, unless that was done before; returns the metrics line, and where the time went.
    ///
    /// # Errors
    /// Training failed, or the disk did; the policy is as it was.
    pub fn train(&self) -> Result<(String, Times)> {
        let started = Instant::now();
        if let Some(version) = published(&self.from, &self.input)? {
            return self.repeated(&version).map(|line| (line, Times::new()));
        }
        // Refused before anything is read or taken.
        let place = self.place(true)?;
        let mut clock = Clock::default();
        let checkpoint = Checkpoint::open(&self.from, &self.config)?;
        let settings = self.arguments.optimizer_settings();
        let objective = self.arguments.objective.name();
        let saved = checkpoint.state(settings.method, objective)?;
        let continued = saved.is_some();
        if !continued && self.from.version.step > 0 {
            let method = settings.method.name();
            self.remark(format_args!(
                "version {} has no {method} state of objective {objective}: starting a fresh one",
                self.from.version
            ));
        }
        // Others' weights come and go before the policy's own, and its optimiser's state, take their place.
        let reference = self.reference_logprobs(&mut clock)?;
        let start = self.start_logprobs(&checkpoint, &mut clock)?;
        let loading = Instant::now();
        let mut learner = self.learner(&checkpoint, saved.as_ref(), place)?;
        clock.load += loading.elapsed().as_secs_f64();
        let trainer = Trainer { arguments: self.arguments, samples: self.samples, reference, start };
        let figures = trainer.run(learner.as_mut())?;
        clock.seconds(learner.seconds());
        clock.device_bytes = learner.device_bytes()?;
        let trained = started.elapsed().as_secs_f64();
        if stage::interrupted() {
            return Err(Failure::interrupted());
        }
        let mut values = metrics::of_training(self.arguments, self.samples, &figures);
        values.insert("optimizer_steps_total".to_owned(), json!(learner.steps()));
        values.insert("optimizer_state".to_owned(), json!(if continued { "continued" } else { "fresh" }));
        values.extend(self.description());
        let state = TrainerState {
            optimizer: settings.method.name().to_owned(),
            objective: objective.to_owned(),
            optimizer_steps: learner.steps(),
            settings: self.settings.clone(),
            figures: splice::json(&values)?,
        };
        let keep = self.arguments.keep as usize;
        let publishing = Instant::now();
        let version = next_version(
            (&self.from, &checkpoint),
            &self.input,
            (learner.as_mut(), settings.method),
            &state,
            keep,
        )?;
        drop(learner);
        clock.publish += publishing.elapsed().as_secs_f64();
        if figures.steps == 0 {
            let from = &self.from.version;
            self.remark(format_args!(
                "every group is flat, nothing to learn: version {version} has the weights of {from}"
            ));
        }
        let mut timing = self.timing(started);
        let epochs = self.arguments.epochs as f64;
        let speed = finite(figures.unique_tokens as f64 * epochs / trained);
        timing.insert("training_seconds".to_owned(), json!(trained));
        timing.insert("unique_tokens_per_second".to_owned(), json!(speed));
        timing.extend(clock.times());
        Ok((self.line(&state.figures, Some(&version), timing)?, clock.times()))
    }

    /// The metrics line of a version that an earlier call published from the same input.
    fn repeated(&self, version: &Version) -> Result<String> {
        let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
        // Only the newest versions keep the notes of their making.
        let figures = checkpoint::beside(&made)?.map_or_else(|| "{}".to_owned(), |(_, state)| state.figures);
        self.remark(format_args!("version {version} was already made from this input: nothing to do"));
        self.line(&figures, Some(version), stage::timing(Instant::now()))
    }

    /// Recomputes the recorded log-probabilities; returns the metrics line, where the time went, and whether they
    /// agree.
    ///
    /// # Errors
    /// The policy cannot be read, or an interruption.
    pub fn check(&self) -> Result<(String, Times, Result<()>)> {
        let started = Instant::now();
        // Held until the end: opening the same device again is then quick.
        let _held = self.place(false)?;
        let mut clock = Clock::default();
        let checkpoint = Checkpoint::open(&self.from, &self.config)?;
        let tally = scores::compare(self.samples, &self.logprobs(&checkpoint, &mut clock)?);
        let single = checkpoint.trained.is_single() && self.arguments.dtype()? == Precision::Float32;
        let allowed = match self.arguments.max_logprob_gap {
            Some(gap) => gap,
            None if single => GAP_SINGLE,
            None => GAP_HALF,
        };
        let (tokens, gap) = (tally.tokens as f64, tally.largest_gap);
        let mut values = metrics::of_samples(self.samples);
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("check", json!(true));
        put("sampling/logp_difference_mean", json!(finite(tally.gap / tokens)));
        put("sampling/logp_difference_max", json!(finite(gap)));
        put("sampling/logp_difference_allowed", json!(allowed));
        put("sampling/importance_sampling_ratio_mean", json!(finite(tally.ratio / tokens)));
        values.extend(self.description());
        let mut timing = self.timing(started);
        timing.extend(clock.times());
        let line = self.line(&splice::json(&values)?, None, timing)?;
        if tally.not_finite == 0 && gap <= allowed {
            self.remark(format_args!("{} log-probabilities agree within {gap:.1e}", tally.tokens));
            return Ok((line, clock.times(), Ok(())));
        }
        let cause = match tally.not_finite {
            0 => format!(
                "recorded and recomputed log-probabilities differ by up to {gap:.3e}, above {allowed}"
            ),
            count => format!("{count} recomputed log-probabilities are not finite"),
        };
        let hint =
            "the samples come from other weights or another temperature, or rollout and update disagree";
        Ok((line, clock.times(), Err(Failure::work(cause).at(&self.owned.name).hint(hint))))
    }

    /// What training would do and need.
    ///
    /// # Errors
    /// It cannot fit (69).
    pub fn plan(&self) -> Result<Plan> {
        let shape = checkpoint::shape(&self.config);
        let subject = self.subject(&shape);
        let planned = memory::planned(self.arguments, subject, &self.demand(true))?;
        let (name, from) = (&self.owned.name, Some(self.from.version.to_string()));
        Ok(Plan::of(self.arguments, self.samples, subject, planned, name, from, self.settings.clone()))
    }

    fn subject<'s>(&'s self, shape: &'s Shape) -> Subject<'s> {
        Subject { shape, stored: self.config.dtype, adapter: self.adapter.as_ref() }
    }

    /// What there is to do, as hardware needs to know it.
    fn demand(&self, learns: bool) -> Demand {
        memory::demand(self.arguments, self.samples, learns)
    }

    /// The device of `--device`, opened, and what will be taken of it; nothing for the processor.
    ///
    /// # Errors
    /// It is not there, or the work does not fit (69).
    fn place(&self, learns: bool) -> Result<Option<(Any, MemoryPlan)>> {
        let shape = checkpoint::shape(&self.config);
        memory::open(self.arguments, self.subject(&shape), &self.demand(learns))
    }

    /// All of a checkpoint in memory, and its decoder in the precision of `--dtype`.
    fn on_host(&self, checkpoint: &Checkpoint) -> Result<(Model, Weights)> {
        let (model, weights) = checkpoint.on_host()?;
        Ok((model.rounding(self.arguments.dtype()?), weights))
    }

    fn reference_logprobs(&self, clock: &mut Clock) -> Result<Option<Vec<Vec<f32>>>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let config = Config::load(reference.model())?;
        let checkpoint = Checkpoint::open(reference, &config)?;
        self.logprobs(&checkpoint, clock).map(Some)
    }

    /// The trainer's own log-probabilities under the weights that were sampled from. With a single step there is no need:
    /// its forward pass has them.
    fn start_logprobs(&self, checkpoint: &Checkpoint, clock: &mut Clock) -> Result<Option<Vec<Vec<f32>>>> {
        let arguments = self.arguments;
        let steps = arguments.minibatches.saturating_mul(arguments.epochs);
        match arguments.importance_cap {
            Some(_) if steps > 1 => self.logprobs(checkpoint, clock).map(Some),
            _ => Ok(None),
        }
    }

    /// The checkpoint where `--device` says. Nothing is taken of a device before this.
    fn learner(
        &self,
        checkpoint: &Checkpoint,
        state: Option<&State<'_>>,
        place: Option<(Any, MemoryPlan)>,
    ) -> Result<Box<dyn Learner>> {
        let (settings, threads) = (self.arguments.optimizer_settings(), self.arguments.thread_count());
        Ok(match (place, checkpoint.adapter()) {
            (None, _) => Box::new(OnHost::new(self.on_host(checkpoint)?, settings, state, threads)?),
            (Some((device, plan)), None) => {
                Box::new(OnDevice::new(device, &plan, checkpoint, settings, state)?)
            }
            (Some((device, plan)), Some(_)) => {
                Box::new(AdapterOnDevice::new(device, &plan, checkpoint, settings, state, threads)?)
            }
        })
    }

    /// The log-probability of every completion token under the weights of a checkpoint.
    fn logprobs(&self, checkpoint: &Checkpoint, clock: &mut Clock) -> Result<Vec<Vec<f32>>> {
        let limit = self.arguments.max_tokens_per_batch as usize;
        let threads = self.arguments.thread_count();
        let mut started = Instant::now();
        // Of this checkpoint, which may be the reference and then of another kind than the policy.
        let adapter = checkpoint.adapter().map(|(adapter, _)| adapter);
        let shape = &checkpoint.shape;
        let subject = Subject { shape, stored: self.config.dtype, adapter };
        let place = memory::open(self.arguments, subject, &self.demand(false))?;
        let Some((device, plan)) = place else {
            let (model, weights) = self.on_host(checkpoint)?;
            clock.load += started.elapsed().as_secs_f64();
            started = Instant::now();
            let found = scores::of_samples(self.samples, limit, |trees, temperature| {
                Ok(model.logprobs(weights.forward(), trees, temperature, threads))
            })?;
            clock.forward += started.elapsed().as_secs_f64();
            return Ok(found);
        };
        let mut resident = match checkpoint.adapter() {
            None => Resident::new(device, shape, &checkpoint.trained, &plan)?,
            Some((adapter, base)) => {
                let trained = Parameters::of(&checkpoint.trained)?;
                Resident::adapted(device, (shape, adapter), base, &trained.values, &plan)?
            }
        };
        clock.load += started.elapsed().as_secs_f64();
        started = Instant::now();
        let found = scores::of_samples(self.samples, limit, |trees, temperature| {
            resident.logprobs(trees, temperature)
        })?;
        clock.forward += started.elapsed().as_secs_f64();
        Ok(found)
    }

    fn remark(&self, text: fmt::Arguments) {
        remark(self.arguments, format_args!("{}: {text}", self.owned.name));
    }

    /// What the figures are of.
    fn description(&self) -> Map<String, Value> {
        let mut values = Map::new();
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("samples_passed_by", json!(self.passed));
        put("from_version", json!(self.from.version.to_string()));
        put("agents", json!(self.samples.agents));
        put("objective", json!(self.arguments.objective.name()));
        put("aggregate", json!(self.arguments.aggregate.name()));
        put("optimizer", json!(self.arguments.optimizer.name()));
        values
    }

    /// The metrics line: what it is of, the figures (a JSON object as text), and the times.
    fn line(
        &self,
        figures: &str,
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
        let figures =
            figures.strip_prefix('{').filter(|inside| *inside != "}").map(|inside| format!(",{inside}"));
        let line = head.trim_end_matches('}').to_owned() + figures.as_deref().unwrap_or("}");
        splice::splice(&line, &[("timing", splice::json(&timing)?)])
    }

    fn timing(&self, started: Instant) -> BTreeMap<String, Value> {
        let mut timing = stage::timing(started);
        timing.insert("device".to_owned(), json!(self.arguments.device));
        timing.insert("threads".to_owned(), json!(self.arguments.thread_count()));
        timing
    }
}

/// The number, or nothing where there is none to report.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn refuse_unknown_ids(samples: &Samples, config: &Config, policy: &Policy) -> Result<()> {
    let (largest, size) = (samples.largest_id(), config.vocab_size);
    if (largest as usize) < size {
        return Ok(());
    }
    Err(Failure::data(format!(
        "token id {largest} is beyond the {size} of version {} of {}",
        policy.version,
        policy.root.display()
    ))
    .hint("the samples were encoded by another tokenizer"))
}
