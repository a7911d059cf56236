//! The `plan` line of `--dry-run`: what training would do, and how much memory it would take.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::batch::{self, Batch};
use crate::memory::{Planned, Subject};
use crate::metrics;
use crate::model::Layout;
use crate::samples::Samples;

/// What one call would do for one policy.
#[derive(Debug, Serialize)]
pub struct Plan {
    #[serde(rename = "type")]
    kind: &'static str,
    v: u64,
    policy: String,
    /// Nothing where there are no samples to name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_version: Option<String>,
    #[serde(flatten)]
    parameters: Parameters,
    #[serde(flatten)]
    planned: Planned,
    optimizer_steps: usize,
    #[serde(flatten)]
    figures: Map<String, Value>,
    /// The optimiser batches of the first epoch.
    minibatches: Vec<Minibatch>,
    settings: Map<String, Value>,
}

/// How many weights there are, counted as PEFT's `print_trainable_parameters` does.
#[derive(Debug, Serialize)]
struct Parameters {
    /// Those that move: an adapter's own, or all.
    trainable_parameters: usize,
    /// All that take part: those of the model, and of an adapter over it.
    parameters: usize,
}

impl Parameters {
    fn of(subject: Subject<'_>) -> Parameters {
        let model = Layout::new(subject.shape).len();
        let adapter = subject.adapter.map(|adapter| adapter.layout().len());
        Parameters {
            trainable_parameters: adapter.unwrap_or(model),
            parameters: model + adapter.unwrap_or(0),
        }
    }
}

/// One optimiser batch of the plan.
#[derive(Debug, Serialize)]
struct Minibatch {
    samples: usize,
    flat_samples: usize,
    tokens: usize,
    unique_tokens: usize,
    trees: usize,
}

impl Plan {
    /// The plan where there are no samples: what the decoder alone takes.
    pub fn of_geometry(
        subject: Subject<'_>,
        planned: Planned,
        policy: &str,
        settings: Map<String, Value>,
    ) -> Plan {
        Plan {
            kind: "plan",
            v: record::read::VERSION,
            policy: policy.to_owned(),
            from_version: None,
            parameters: Parameters::of(subject),
            planned,
            optimizer_steps: 0,
            figures: Map::new(),
            minibatches: Vec::new(),
            settings,
        }
    }

    /// The plan for one policy's samples.
    pub fn of(
        arguments: &Arguments,
        samples: &Samples,
        subject: Subject<'_>,
        planned: Planned,
        policy: &str,
        from_version: Option<String>,
        settings: Map<String, Value>,
    ) -> Plan {
        let flat = samples.flat_groups();
        let is_flat = |sample: usize| arguments.kl == 0.0 && flat[samples.rows[sample].group as usize];
        let describe = |part: &Vec<usize>| {
            let active: Vec<usize> = part.iter().copied().filter(|&sample| !is_flat(sample)).collect();
            let batches = batch::pack_trees(samples, &active, arguments.max_tokens_per_batch as usize);
            Minibatch {
                samples: part.len(),
                flat_samples: part.len() - active.len(),
                tokens: part.iter().map(|&sample| samples.rows[sample].length()).sum(),
                unique_tokens: batches.iter().map(Batch::unique_tokens).sum(),
                trees: batches.iter().map(|batch| batch.trees.len()).sum(),
            }
        };
        let step = samples.step.unwrap_or(0);
        let parts = batch::minibatches(samples, arguments.minibatches as usize, arguments.seed, 0, step);
        let minibatches: Vec<Minibatch> = parts.iter().map(describe).collect();
        let unique: usize = minibatches.iter().map(|part| part.unique_tokens).sum();
        let mut figures = metrics::of_samples(samples);
        figures.insert("unique_tokens".to_owned(), json!(unique));
        Plan {
            kind: "plan",
            v: record::read::VERSION,
            policy: policy.to_owned(),
            from_version,
            parameters: Parameters::of(subject),
            planned,
            optimizer_steps: minibatches.iter().filter(|part| part.trees > 0).count()
                * arguments.epochs as usize,
            figures,
            minibatches,
            settings,
        }
    }
}
