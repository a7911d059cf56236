//! The `plan` line of `--dry-run`: what training would do, and how much memory it would take.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::batch::{self, Batch};
use crate::metrics;
use crate::model::{Layout, Shape};
use crate::optimizer::Optimizer;
use crate::samples::Samples;

/// What one call would do for one policy.
#[derive(Debug, Serialize)]
pub struct Plan {
    #[serde(rename = "type")]
    kind: &'static str,
    v: u64,
    policy: String,
    from_version: String,
    optimizer_steps: usize,
    bytes: Bytes,
    #[serde(flatten)]
    figures: Map<String, Value>,
    /// The optimiser batches of the first epoch.
    minibatches: Vec<Minibatch>,
    settings: Map<String, Value>,
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

/// Memory, in bytes. Activations are what the backward pass needs of the largest tree, for every thread.
#[derive(Debug, Serialize)]
struct Bytes {
    weights: usize,
    gradients: usize,
    moments: usize,
    activations: usize,
}

impl Plan {
    /// The plan for one policy's samples.
    pub fn of(
        arguments: &Arguments,
        samples: &Samples,
        shape: &Shape,
        policy: &str,
        from_version: String,
        settings: Map<String, Value>,
    ) -> Plan {
        let flat = samples.flat_groups();
        let is_flat = |sample: usize| arguments.kl == 0.0 && flat[samples.rows[sample].group as usize];
        let mut largest = 0;
        let mut describe = |part: &Vec<usize>| {
            let active: Vec<usize> = part.iter().copied().filter(|&sample| !is_flat(sample)).collect();
            let batches = batch::pack_trees(samples, &active, arguments.max_tokens_per_batch as usize);
            let sizes = batches.iter().flat_map(|batch| batch.trees.iter().map(|tree| tree.len()));
            largest = sizes.fold(largest, usize::max);
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
        let minibatches: Vec<Minibatch> = parts.iter().map(&mut describe).collect();
        let unique: usize = minibatches.iter().map(|part| part.unique_tokens).sum();
        let mut figures = metrics::of_samples(samples);
        figures.insert("unique_tokens".to_owned(), json!(unique));
        let layout = Layout::new(shape);
        let threads = arguments.thread_count();
        let values = layout.len() * size_of::<f32>();
        Plan {
            kind: "plan",
            v: record::read::VERSION,
            policy: policy.to_owned(),
            from_version,
            optimizer_steps: minibatches.iter().filter(|part| part.trees > 0).count()
                * arguments.epochs as usize,
            bytes: Bytes {
                weights: values,
                // The sum, and beyond one thread a partial sum for each and one between them.
                gradients: values * if threads > 1 { threads + 2 } else { 2 },
                moments: Optimizer::state_bytes(arguments.optimizer, &layout),
                activations: kept_bytes(shape) * largest * threads,
            },
            figures,
            minibatches,
            settings,
        }
    }
}

/// What the backward pass needs of one token: inputs of each layer's norms and projections, queries, keys and values,
/// attention's result and normaliser, and both halves of the SwiGLU.
fn kept_bytes(shape: &Shape) -> usize {
    let layer =
        2 * shape.hidden + shape.qkv_width() + shape.query_width() + shape.heads + 2 * shape.intermediate;
    shape.layers * layer * size_of::<f32>()
}
