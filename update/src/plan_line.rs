//! The `plan` line of `--dry-run`: what a call would do for one policy.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::metrics;
use crate::minibatch::{self, TreeBatch};
use crate::model::Layout;
use crate::plan::{MemoryEstimate, ModelSpec};
use crate::samples::Samples;
use crate::settings::TrainingConfig;

/// The `plan` line: what a call would do for one policy.
#[derive(Debug, Serialize)]
pub struct Plan {
    #[serde(rename = "type")]
    kind: &'static str,
    v: u64,
    policy: String,
    /// None without samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_version: Option<String>,
    /// Trained weights: an adapter's, or all. Counted as by PEFT's `print_trainable_parameters`.
    trainable_parameters: usize,
    /// All weights: the model's and the adapter's.
    parameters: usize,
    #[serde(flatten)]
    estimate: MemoryEstimate,
    optimizer_steps: usize,
    #[serde(flatten)]
    metrics: Map<String, Value>,
    /// The minibatches of the first epoch.
    minibatches: Vec<Minibatch>,
    settings: Map<String, Value>,
}

/// One minibatch of the plan.
#[derive(Debug, Serialize)]
struct Minibatch {
    samples: usize,
    flat_samples: usize,
    tokens: usize,
    unique_tokens: usize,
    trees: usize,
}

impl Plan {
    /// The plan without samples: the memory that the decoder takes.
    pub fn new(
        spec: ModelSpec<'_>,
        estimate: MemoryEstimate,
        policy: &str,
        settings: Map<String, Value>,
    ) -> Plan {
        let model = Layout::new(spec.config).len();
        let adapter = spec.adapter.map(|adapter| adapter.layout().len());
        Plan {
            kind: "plan",
            v: record::read::VERSION,
            policy: policy.to_owned(),
            from_version: None,
            trainable_parameters: adapter.unwrap_or(model),
            parameters: model + adapter.unwrap_or(0),
            estimate,
            optimizer_steps: 0,
            metrics: Map::new(),
            minibatches: Vec::new(),
            settings,
        }
    }

    /// The plan for one policy's samples of a version.
    #[must_use]
    pub fn with_samples(self, training: &TrainingConfig, samples: &Samples, from_version: String) -> Plan {
        let TrainingConfig { batching, loss, .. } = training;
        let flat = samples.flat_groups();
        let is_flat = |sample: usize| loss.kl == 0.0 && flat[samples.rows[sample].group as usize];
        let describe = |part: &Vec<usize>| {
            let active: Vec<usize> = part.iter().copied().filter(|&sample| !is_flat(sample)).collect();
            let batches = minibatch::pack_trees(samples, &active, batching.tokens);
            Minibatch {
                samples: part.len(),
                flat_samples: part.len() - active.len(),
                tokens: part.iter().map(|&sample| samples.rows[sample].length()).sum(),
                unique_tokens: batches.iter().map(TreeBatch::unique_tokens).sum(),
                trees: batches.iter().map(|batch| batch.trees.len()).sum(),
            }
        };
        let (step, parts) = (samples.step.unwrap_or(0), batching.minibatches as usize);
        let parts = minibatch::minibatches(samples, parts, batching.seed, 0, step);
        let minibatches: Vec<Minibatch> = parts.iter().map(describe).collect();
        let unique: usize = minibatches.iter().map(|part| part.unique_tokens).sum();
        let mut metrics = metrics::of_samples(samples);
        metrics.insert("unique_tokens".to_owned(), json!(unique));
        let steps = minibatches.iter().filter(|part| part.trees > 0).count() * batching.epochs as usize;
        Plan { from_version: Some(from_version), optimizer_steps: steps, metrics, minibatches, ..self }
    }
}
