//! What a call does, in parts that each go only to the code that needs them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use policy::config::Config;
use policy::decoder::Tensor;
use policy::ownership::Ownership;
use record::failure::{Failure, Result};
use record::stage;

use crate::aggregate::Aggregate;
use crate::hardware::Hardware;
use crate::loss::{LossInputs, ReferenceLogprobs};
use crate::loss_config::LossConfig;
use crate::minibatch::Batching;
use crate::optimizer;
use crate::optimizer::schedule::Schedule;
use crate::parts;
use crate::samples::{Needs, Samples};

/// The checked settings of a call.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Values of `--policy`, `[AGENT=]DIR`.
    pub policies: Vec<String>,
    /// Values of `--reference`, `[AGENT=]DIR`.
    pub references: Vec<String>,
    pub work: Work,
    pub reading: Reading,
    pub training: TrainingConfig,
    /// `--lr`: learning rates by agent; the empty name stands for all others.
    pub rates: BTreeMap<String, f64>,
    /// `--lr-warmup`: optimizer steps of linear warm-up, over all calls.
    pub warmup: Option<u64>,
    pub hardware: Hardware,
    pub publishing: Publishing,
    /// True if the policies train at the same time, each on an equal share of the processes.
    pub side_by_side: bool,
    pub messages: Messages,
}

/// The work on the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Train and publish.
    Train,
    /// Recompute the recorded log-probabilities, and write each token to a file if one is named.
    Check { per_token: Option<PathBuf> },
    /// Say what training would do, on each of `ranks` processes.
    Plan { ranks: Option<usize> },
}

/// The streams and samples that are accepted.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Accepts a stream without a complete set of `end` lines.
    pub allow_incomplete: bool,
    /// Copies the input to stdout.
    pub pass_through: bool,
    /// True if the input comes in parts, each up to its `end` line (`--resident`).
    pub in_parts: bool,
    /// The fields that every sample must have.
    pub needs: Needs,
}

/// Everything that determines the new weights, but for the precision.
#[derive(Clone, Copy, Debug)]
pub struct TrainingConfig {
    pub loss: LossConfig,
    /// How the terms of tokens are averaged.
    pub aggregate: Aggregate,
    /// L of [`Aggregate::Constant`]; the longest completion without it.
    pub max_tokens: Option<u64>,
    pub batching: Batching,
    pub optimizer: optimizer::Settings,
    /// The learning rate after warm-up.
    pub schedule: Schedule,
    /// Optimizer steps of linear warm-up, over all calls. [`Settings::training_of`] sets it for each policy, as the learning rate.
    pub warmup: u64,
    /// `--max-logprob-gap`, nats; 0 for no limit.
    pub max_logprob_gap: Option<f64>,
}

/// How versions are published.
#[derive(Clone, Copy, Debug)]
pub struct Publishing {
    /// Versions that stay in the policy's directory.
    pub keep: usize,
    /// True if weights and moments stay in memory from one part of the input to the next.
    pub resident: bool,
    /// Training steps from one saved optimizer state of a resident call to the next.
    pub save_every: u64,
}

/// Messages on stderr.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// True for no progress and no messages.
    pub quiet: bool,
}

impl Messages {
    /// Prints a message on stderr, unless `--quiet`.
    pub fn print(self, text: impl Display) {
        if !self.quiet {
            stage::note("update", text);
        }
    }
}

impl Settings {
    /// The training of a policy of `ownership`. Without `--lr` or `--lr-warmup`, the values of a run: `pipeline.sh`
    /// has the same, and docs/real-models.md the measurements behind them.
    ///
    /// # Errors
    /// As [`Settings::policy_rates`].
    pub fn training_of(
        &self,
        ownership: &Ownership,
        index: usize,
        config: &Config,
        is_adapter: bool,
    ) -> Result<TrainingConfig> {
        let is_tiny = config.vocab_size < 1000;
        let parameters = || config.tensors().iter().map(Tensor::count).sum::<usize>();
        let lr = match is_adapter {
            _ if is_tiny => 1e-3,
            false => 1e-5,
            true if parameters() < 300_000_000 => 5e-4,
            true => 1e-4,
        };
        let mut training = self.training;
        training.optimizer.lr = self.policy_rates(ownership)?[index].unwrap_or(lr);
        training.warmup = self.warmup.unwrap_or(if is_tiny { 5 } else { 2 });
        Ok(training)
    }

    /// The learning rate that flags give each policy.
    ///
    /// # Errors
    /// Usage: a rate without a policy, or two for one.
    pub fn policy_rates(&self, ownership: &Ownership) -> Result<Vec<Option<f64>>> {
        let named = |agent: &String| agent.is_empty() || ownership.named().any(|(named, _)| named == *agent);
        if let Some(agent) = self.rates.keys().find(|agent| !named(agent)) {
            return Err(Failure::usage(format!("--lr {agent}=…: there is no --policy {agent}=DIR"))
                .hint("an agent of a shared policy has the rate of that policy"));
        }
        let mut found = vec![None; ownership.owners().len()];
        for (agent, policy) in ownership.named().chain(ownership.of("").map(|policy| ("", policy))) {
            let rate = self.rates.get(agent).or(self.rates.get("")).copied();
            if found[policy].replace(rate).is_some_and(|before| before != rate) {
                let name = &ownership.owners()[policy].name;
                return Err(Failure::usage(format!(
                    "--lr: the agents of policy {name} have different rates"
                ))
                .hint("give each a policy: --policy AGENT=DIR"));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Fails if `count` processes cannot share the work on the policies.
    pub fn check_ranks(&self, count: usize, policies: usize) -> Result<()> {
        let single = match self.work {
            Work::Train => None,
            Work::Check { .. } => Some("--check"),
            Work::Plan { .. } => Some("--dry-run"),
        };
        if let Some(flag) = single.filter(|_| count > 1) {
            return Err(Failure::usage(format!("{flag} is for one process, and these are {count}"))
                .hint("run it without mpirun or srun"));
        }
        if count > 1 && self.publishing.save_every > 1 && self.hardware.is_device() {
            return Err(Failure::usage(format!(
                "--save-every has no effect with ranks on --device {}",
                self.hardware.device
            ))
            .hint("leave it out: there every step saves its state"));
        }
        let parts = self.training.batching.parts;
        if !self.side_by_side {
            return parts::check_ranks(parts, count);
        }
        if policies == 1 {
            return Err(Failure::usage("--side-by-side has no effect with one policy").hint("leave it out"));
        }
        if !count.is_multiple_of(policies) {
            return Err(Failure::usage(format!(
                "--side-by-side: {policies} policies cannot have as many of {count} ranks each"
            ))
            .hint(format!(
                "start a multiple of {policies}, such as mpirun -n {policies} update-mpi, or leave it out"
            )));
        }
        parts::check_ranks(parts, count / policies)
    }
}

impl TrainingConfig {
    /// Optimizer steps of the call, if there are enough samples.
    pub fn steps(&self) -> u64 {
        self.batching.minibatches.saturating_mul(self.batching.epochs)
    }

    /// The inputs of the loss of these samples.
    pub fn loss_inputs<'a>(&self, samples: &'a Samples, logprobs: ReferenceLogprobs<'a>) -> LossInputs<'a> {
        LossInputs { config: self.loss, aggregate: self.aggregate, samples, logprobs }
    }

    /// The limit on differences of log-probabilities, nats: `--max-logprob-gap`, or `default` without it.
    pub fn gap_limit(&self, default: f64) -> f64 {
        match self.max_logprob_gap {
            Some(0.0) => f64::INFINITY,
            Some(gap) => gap,
            None => default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;
    use serde_json::json;
    use std::path::Path;

    /// The learning rate and the warm-up of a policy of these sizes, as flags say, or else as `pipeline.sh` has them.
    fn rates(flags: &str, [vocab, hidden, layers]: [u64; 3], is_adapter: bool) -> (f64, u64) {
        let config = json!({
            "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
            "intermediate_size": 4 * hidden, "num_attention_heads": hidden / 64, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "max_position_embeddings": 512, "tie_word_embeddings": true,
        });
        let config = Config::from_value(&config, Path::new("config.json")).unwrap();
        let words =
            ["update", "--policy", "tool=a", "--policy", "b"].into_iter().chain(flags.split_whitespace());
        let settings = Arguments::try_parse_from(words).unwrap().settings().unwrap();
        let ownership = Ownership::of_directories("--policy", &settings.policies).unwrap();
        let training = settings.training_of(&ownership, 0, &config, is_adapter).unwrap();
        (training.optimizer.lr, training.warmup)
    }

    #[test]
    fn rates_follow_from_the_model_and_flags_come_first() {
        let [tiny, smollm2, qwen] = [[64, 64, 2], [49_152, 576, 30], [151_936, 896, 24]];
        assert_eq!(rates("", tiny, false), (1e-3, 5));
        assert_eq!(rates("", tiny, true), (1e-3, 5));
        assert_eq!(rates("", smollm2, false), (1e-5, 2));
        assert_eq!(rates("", smollm2, true), (5e-4, 2));
        assert_eq!(rates("", qwen, true), (1e-4, 2));
        assert_eq!(rates("--lr 3e-4 --lr-warmup 0", qwen, true), (3e-4, 0));
        assert_eq!(rates("--lr 3e-4 --lr tool=2e-4", qwen, true), (2e-4, 2));
    }
}
