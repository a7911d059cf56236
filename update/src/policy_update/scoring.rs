//! The log-probabilities of a policy's samples under a checkpoint: the sampled version, for `--check` and for
//! several optimizer steps, or the reference.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::time::Instant;

use record::failure::{Failure, Result};
use record::splice;
use serde_json::{Value, json};

use super::{PolicyUpdate, finite};
use crate::checkpoint::Checkpoint;
use crate::logprobs::{self, GapBounds};
use crate::metrics;
use crate::model::{DeviceModel, Parameters};
use crate::plan::ModelSpec;
use crate::settings::Work;
use crate::timing::{Times, Timing};

/// Defaults of `--max-logprob-gap` with `--check`, nats: for f32 weights and arithmetic, and where either has 16 bits. Right
/// runs of up to 30 layers have means of 4e-6 and 0.04, and single tokens at up to 8e-5 and 1.4.
const CHECK_GAPS: [f64; 2] = [1e-3, 0.5];

impl PolicyUpdate<'_> {
    /// Recomputes the recorded log-probabilities; returns the metrics line, the phase timings, and a failure if they
    /// differ too much.
    pub fn check(&self) -> Result<(String, Times, Result<()>)> {
        let started = Instant::now();
        // Kept open: opening the same device again is then quick.
        let _device = self.planner(self.spec()).open_device(&self.request(false))?;
        let mut timing = Timing::default();
        let checkpoint = Checkpoint::open(&self.from, &self.config)?;
        let recomputed = self.logprobs(&checkpoint, &mut timing)?;
        let stats = logprobs::compare(self.samples, &recomputed);
        if let Work::Check { per_token: Some(path) } = &self.settings.work {
            let failure = |error: io::Error| Failure::io(format!("--check={}: {error}", path.display()));
            let file = OpenOptions::new().append(true).open(path).map_err(failure)?;
            let mut file = BufWriter::new(file);
            logprobs::write_tokens(&mut file, &self.owned.name, self.samples, &recomputed)
                .and_then(|()| file.flush())
                .map_err(failure)?;
        }
        let is_f32 = self.is_f32(&checkpoint);
        let allowed = self.max_logprob_gap(CHECK_GAPS, is_f32);
        let (tokens, gap) = (stats.tokens as f64, stats.largest_gap);
        let mut values = metrics::of_samples(self.samples);
        let mut put = |name: &str, value: Value| values.insert(name.to_owned(), value);
        put("check", json!(true));
        put("sampling/logp_difference_mean", json!(finite(stats.gap / tokens)));
        put("sampling/logp_difference_max", json!(finite(gap)));
        put("sampling/logp_difference_allowed", json!(finite(allowed)));
        put("sampling/importance_sampling_ratio_mean", json!(finite(stats.ratio / tokens)));
        values.extend(self.description());
        let mut report = self.timing(started);
        report.extend(timing.times());
        let line = self.line(&splice::json(&values)?, None, report)?;
        let bounds = GapBounds { max: allowed, is_f32 };
        let Some((cause, hint)) = bounds.exceeded(&stats) else {
            self.log(format_args!("{} log-probabilities agree within {gap:.1e}", stats.tokens));
            return Ok((line, timing.times(), Ok(())));
        };
        Ok((line, timing.times(), Err(Failure::work(cause).at(&self.owned.name).hint(hint))))
    }

    /// The log-probabilities under `--kl`'s reference.
    pub(super) fn reference_logprobs(&self, timing: &mut Timing) -> Result<Option<Vec<Vec<f32>>>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let checkpoint = Checkpoint::open(reference, &reference.config)?;
        self.logprobs(&checkpoint, timing).map(Some)
    }

    /// The trainer's log-probabilities under the weights that the samples came from. A single step does not
    /// need them, because its forward pass computes them.
    pub(super) fn start_logprobs(
        &self,
        checkpoint: &Checkpoint,
        timing: &mut Timing,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        let training = &self.training;
        match training.loss.importance {
            Some(_) if training.steps() > 1 => self.logprobs(checkpoint, timing).map(Some),
            _ => Ok(None),
        }
    }

    /// The log-probability of every completion token under the weights of a checkpoint.
    fn logprobs(&self, checkpoint: &Checkpoint, timing: &mut Timing) -> Result<Vec<Vec<f32>>> {
        let limit = self.training.batching.tokens;
        let threads = self.settings.hardware.threads;
        let mut started = Instant::now();
        // The checkpoint may be the reference, and then an adapter where the policy is not, or the other way round.
        let adapter = checkpoint.adapter().map(|(adapter, _)| adapter);
        let config = &checkpoint.config;
        let spec = ModelSpec { config, stored: self.config.dtype, adapter };
        let device = self.planner(spec).open_device(&self.request(false))?;
        let Some((device, plan)) = device else {
            let (model, weights) = self.on_host(checkpoint)?;
            // Nothing is kept for a backward pass.
            let model = model.recomputing();
            timing.load += started.elapsed().as_secs_f64();
            started = Instant::now();
            let found = logprobs::of_samples(self.ranks, self.samples, limit, |trees, temperature| {
                Ok(model.logprobs(weights.forward(), trees, temperature, threads))
            })?;
            timing.forward += started.elapsed().as_secs_f64();
            return Ok(found);
        };
        let mut model = match checkpoint.adapter() {
            None => DeviceModel::new(device, config, None, &checkpoint.trained, &plan)?,
            Some((adapter, base)) => {
                let trained = Parameters::of(&checkpoint.trained)?;
                DeviceModel::new(device, config, Some((adapter, &trained.values)), base, &plan)?
            }
        };
        timing.load += started.elapsed().as_secs_f64();
        started = Instant::now();
        let found = logprobs::of_samples(self.ranks, self.samples, limit, |trees, temperature| {
            model.logprobs(trees, temperature)
        })?;
        timing.forward += started.elapsed().as_secs_f64();
        Ok(found)
    }
}
