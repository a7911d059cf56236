//! One policy's part of a call: opened at the version that its samples name, then trained, checked or planned.

use std::time::Instant;

use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::publish::published;
use record::failure::{Failure, Result};
use record::line::Metrics;
use record::stage;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::checkpoint::{self, Checkpoint, TrainerState};
use crate::metrics;
use crate::owners::{Owned, Owners};
use crate::plan::Plan;
use crate::samples::Samples;
use crate::scores;
use crate::stage::remark;
use crate::train::{Figures, Trainer};

/// Largest difference of log-probabilities that `--check` lets pass for f32 weights, nats.
const GAP_SINGLE: f64 = 1e-3;
/// The same for 16-bit weights, whose sampling may compute in 16 bits.
const GAP_HALF: f64 = 0.1;

/// One policy, its samples, and the version that they came from.
pub struct Run<'a> {
    arguments: &'a Arguments,
    owned: &'a Owned,
    samples: &'a Samples,
    passed: u64,
    from: Policy,
    config: Config,
    reference: Option<Policy>,
    input: String,
}

impl<'a> Run<'a> {
    /// Opens the version that the samples name, and the reference of `--kl`.
    ///
    /// # Errors
    /// The version is not there (65); token ids that the policy does not have (65).
    pub fn open(
        arguments: &'a Arguments,
        owned: &'a Owned,
        references: &Owners,
        samples: &'a Samples,
        passed: u64,
    ) -> Result<Run<'a>> {
        let (version, place) = samples.version.clone().unwrap_or_default();
        let from = Policy::open_version(&owned.directory, &version).map_err(|failure| failure.at(place))?;
        let config = Config::load(&from.files)?;
        refuse_unknown_ids(samples, &config, &from)?;
        let reference = match arguments.kl > 0.0 {
            true => Some(open_reference(owned, references, samples, &config)?),
            false => None,
        };
        let settings = metrics::settings(
            arguments,
            reference.as_ref().map(|policy| policy.version.to_string()).as_deref(),
        );
        let mut hasher = blake3::Hasher::new();
        hasher.update(samples.input_digest().as_bytes());
        hasher.update(Value::Object(settings).to_string().as_bytes());
        let input = hasher.finalize().to_hex().to_string();
        Ok(Run { arguments, owned, samples, passed, from, config, reference, input })
    }

    /// Trains and publishes, unless that was done before; returns the metrics line.
    ///
    /// # Errors
    /// Training failed, or the disk did; the policy is as it was.
    pub fn train(&self) -> Result<Metrics> {
        let started = Instant::now();
        if let Some(version) = published(&self.from, &self.input)? {
            return self.repeated(&version);
        }
        let mut checkpoint = Checkpoint::load(&self.from, &self.config)?;
        let objective = self.arguments.objective.name();
        let (mut optimizer, continued) =
            checkpoint.optimizer(&self.from, self.arguments.optimizer_settings(), objective)?;
        if !continued && self.from.version.step > 0 {
            let version = &self.from.version;
            let method = self.arguments.optimizer.name();
            remark(
                self.arguments,
                &format!(
                    "{}: version {version} has no {method} state of objective {objective}, starting a fresh one",
                    self.owned.name
                ),
            );
        }
        let trainer = Trainer {
            arguments: self.arguments,
            samples: self.samples,
            model: &checkpoint.model,
            reference: self.reference_logprobs()?,
        };
        let figures = trainer.run(&mut checkpoint.weights, &mut optimizer)?;
        let trained = started.elapsed().as_secs_f64();
        if stage::interrupted() {
            return Err(Failure::interrupted());
        }
        let mut values = metrics::of_training(self.arguments, self.samples, &figures);
        values.insert("optimizer_steps_total".to_owned(), json!(optimizer.steps()));
        values.insert("optimizer_state".to_owned(), json!(if continued { "continued" } else { "fresh" }));
        values.extend(self.description());
        let state = TrainerState {
            optimizer: self.arguments.optimizer.name().to_owned(),
            objective: objective.to_owned(),
            optimizer_steps: optimizer.steps(),
            settings: self.settings(),
            metrics: values.clone(),
        };
        let version =
            checkpoint.publish(&self.from, &self.input, &optimizer, &state, self.arguments.keep as usize)?;
        if figures.steps == 0 {
            remark(
                self.arguments,
                &format!(
                    "{}: every group is flat, nothing to learn; version {version} has the weights of {}",
                    self.owned.name, self.from.version
                ),
            );
        }
        Ok(self.line(values, Some(&version), self.timing(started, trained, &figures)))
    }

    /// Recomputes the recorded log-probabilities; returns the figures, and whether they agree.
    ///
    /// # Errors
    /// The policy cannot be read, or an interruption.
    pub fn check(&self) -> Result<(Metrics, Result<()>)> {
        let started = Instant::now();
        let checkpoint = Checkpoint::load(&self.from, &self.config)?;
        let limit = self.arguments.max_tokens_per_batch as usize;
        let threads = self.arguments.thread_count();
        let recomputed = scores::of_samples(
            &checkpoint.model,
            checkpoint.weights.forward(),
            self.samples,
            limit,
            threads,
        )?;
        let tally = scores::compare(self.samples, &recomputed);
        let allowed = match self.arguments.max_logprob_gap {
            Some(gap) => gap,
            None if checkpoint.is_single() => GAP_SINGLE,
            None => GAP_HALF,
        };
        let tokens = tally.tokens as f64;
        let mut values = metrics::of_samples(self.samples);
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("check", json!(true));
        put("sampling/logp_difference_mean", json!(finite(tally.gap / tokens)));
        put("sampling/logp_difference_max", json!(finite(tally.largest_gap)));
        put("sampling/importance_sampling_ratio_mean", json!(finite(tally.ratio / tokens)));
        put("logp_difference_allowed", json!(allowed));
        values.extend(self.description());
        let (name, gap) = (&self.owned.name, tally.largest_gap);
        let agree = tally.not_finite == 0 && gap <= allowed;
        let outcome = match agree {
            true => Ok(()),
            false => Err(Failure::work(format!(
                "{name}: recorded and recomputed log-probabilities differ by up to {gap:.3e} (mean {:.3e}), above {allowed}",
                tally.gap / tokens
            ))
            .hint("the samples were not drawn from these weights at the recorded temperature, or rollout and update compute differently")),
        };
        if agree {
            remark(
                self.arguments,
                &format!("{name}: {} log-probabilities agree within {gap:.3e}", tally.tokens),
            );
        }
        let trained = started.elapsed().as_secs_f64();
        Ok((self.line(values, None, self.timing(started, trained, &Figures::default())), outcome))
    }

    /// What training would do and need.
    pub fn plan(&self) -> Plan {
        let from = self.from.version.to_string();
        Plan::of(
            self.arguments,
            self.samples,
            &checkpoint::shape(&self.config),
            &self.owned.name,
            from,
            self.settings(),
        )
    }

    /// The metrics line of a version that an earlier call published from the same input.
    fn repeated(&self, version: &Version) -> Result<Metrics> {
        let made = Policy::open_version(&self.owned.directory, &version.to_string())?;
        let values = checkpoint::saved(&made)?.map(|(_, state)| state.metrics).unwrap_or_default();
        remark(
            self.arguments,
            &format!(
                "{}: version {version} was already made from this input, nothing to do",
                self.owned.name
            ),
        );
        let timing = Map::from_iter([
            ("build".to_owned(), json!(stage::build())),
            ("repeated".to_owned(), json!(true)),
        ]);
        Ok(self.line(values, Some(version), timing))
    }

    fn reference_logprobs(&self) -> Result<Option<Vec<Vec<f32>>>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let config = Config::load(&reference.files)?;
        let checkpoint = Checkpoint::load(reference, &config)?;
        let limit = self.arguments.max_tokens_per_batch as usize;
        let threads = self.arguments.thread_count();
        scores::of_samples(&checkpoint.model, checkpoint.weights.forward(), self.samples, limit, threads)
            .map(Some)
    }

    fn settings(&self) -> Map<String, Value> {
        metrics::settings(
            self.arguments,
            self.reference.as_ref().map(|policy| policy.version.to_string()).as_deref(),
        )
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

    fn line(
        &self,
        values: Map<String, Value>,
        version: Option<&Version>,
        timing: Map<String, Value>,
    ) -> Metrics {
        Metrics {
            step: self.samples.step,
            policy: self.owned.name.clone(),
            policy_version: version.map(ToString::to_string),
            values,
            timing,
            ..Metrics::default()
        }
    }

    fn timing(&self, started: Instant, trained: f64, figures: &Figures) -> Map<String, Value> {
        let mut timing = Map::new();
        let mut put = |name: &str, value: Value| timing.insert(name.to_owned(), value);
        put("build", json!(stage::build()));
        put("device", json!(self.arguments.device));
        put("threads", json!(self.arguments.thread_count()));
        put("seconds", json!(started.elapsed().as_secs_f64()));
        put("training_seconds", json!(trained));
        let unique = figures.unique_tokens as f64 * self.arguments.epochs as f64;
        put("unique_tokens_per_second", json!(finite(unique / trained)));
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

/// The reference policy of an owner: the one named for an agent of its, else the one named for all.
fn open_reference(owned: &Owned, references: &Owners, samples: &Samples, config: &Config) -> Result<Policy> {
    let mut found: Vec<usize> = Vec::new();
    for agent in &samples.agents {
        match references.owner(agent) {
            Some(index) if !found.contains(&index) => found.push(index),
            Some(_) => {}
            None => {
                return Err(Failure::usage(format!("--kl: no --reference for agent {agent}"))
                    .hint(format!("add --reference {agent}=DIR, or one without AGENT= for all")));
            }
        }
    }
    let [index] = found[..] else {
        return Err(Failure::usage(format!("{}: its agents have different references", owned.name))
            .hint("a policy is kept close to one reference"));
    };
    let reference = Policy::open(&references.policies[index].directory)?;
    if Config::load(&reference.files)?.vocab_size != config.vocab_size {
        return Err(Failure::data(format!(
            "{}: its vocabulary is not that of {}",
            reference.root.display(),
            owned.name
        ))
        .hint("a reference needs the policy's own tokenizer"));
    }
    Ok(reference)
}
