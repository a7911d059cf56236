//! Speed of the device engine, compared with the least work that any program must do.
//!
//! ```text
//! cargo bench -p rollout --bench generate -- --policy DIR --device cuda --batch 1,64 --context 512 --branches 1,4
//! ```
//!
//! One JSON object per line: for a decode step the tokens and seconds, and the bytes and operations that no
//! program can avoid (weights once, keys and values of shared prompts once per group); for prefill the same.
//! Decoding is timed as the difference of two lengths whose beginning and end are alike, which leaves steps
//! with all rows at work. Every prompt is new, so the prefix cache never helps.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::sync::Arc;
use std::time::Instant;

use device::{ComputeDtype, DeviceKind};
use policy::config::Config;
use policy::decoder::Tensor;
use policy::directory::Policy;
use record::failure::Result;
use rollout::engine::device::{self as engine, DeviceBudget};
use rollout::engine::group::group_blocks;
use rollout::engine::service::{Client, Inbox};
use serde_json::json;

use crate::{Arguments, request};

/// Prompts of a prefill measurement.
const PROMPTS: usize = 8;

/// Measures every batch size at every context, with each number of branches that share a prompt.
pub fn measure(arguments: &Arguments, policy: &Policy, device: DeviceKind) -> Result<()> {
    let (dtype, size) = match device {
        DeviceKind::Sim(_) => (ComputeDtype::Float32, 4.0),
        _ => (ComputeDtype::BFloat16, 2.0),
    };
    let cost = Cost::of(&policy.config, size);
    let service = engine::start(&[policy], device, dtype, &Arc::new(DeviceBudget::new(None, 1)), Vec::new())?;
    let limits = service.limits(0).clone();
    let client = service.client(0, policy.base.as_ref().map(|_| 0), &Inbox::new());
    let mut engine = Engine { client, number: 0 };
    engine.seconds(1, 16, 1, 2)?;
    let repeats = arguments.repeats.max(1);
    for &context in &arguments.context {
        let (seconds, spread) = median(repeats, || engine.seconds(PROMPTS, context, 1, 1))?;
        let tokens = (PROMPTS * context) as f64;
        let operations = cost.operations(tokens, context as f64 / 2.0);
        let line = json!({
            "measure": "prefill", "context": context, "tokens_per_second": tokens / seconds,
            "bytes": cost.weights, "operations": operations, "seconds": seconds, "spread": spread,
        });
        println!("{line}");
        for (&batch, &branches) in
            arguments.batch.iter().flat_map(|batch| arguments.branches.iter().map(move |k| (batch, k)))
        {
            let mut line =
                json!({"measure": "decode", "batch": batch, "context": context, "branches": branches});
            let groups = batch / branches;
            // All have begun when the last has: prompts come in pieces of what one run takes.
            let ramp = (groups * context).div_ceil(limits.prompt_tokens) + 2;
            let long = ramp + arguments.steps;
            let own = (ramp + long) / 2;
            if batch % branches != 0 || own >= context {
                continue;
            }
            let prompt = context - own;
            let blocks = groups * group_blocks(&limits.cache, prompt, long, branches);
            if batch > limits.sequences || blocks > limits.cache.blocks {
                line["skipped"] = json!(format!(
                    "{batch} rows and {blocks} blocks are needed, {} and {} are there",
                    limits.sequences, limits.cache.blocks
                ));
                println!("{line}");
                continue;
            }
            let (all, spread) = median(repeats, || {
                let short = engine.seconds(groups, prompt, branches, ramp)?;
                Ok(engine.seconds(groups, prompt, branches, long)? - short)
            })?;
            let seconds = all / arguments.steps as f64;
            line["spread"] = json!(spread);
            let read = (groups * prompt + batch * own) as f64;
            line["tokens_per_second"] = json!(batch as f64 / seconds);
            line["seconds"] = json!(seconds);
            line["bytes"] = json!(cost.weights + cost.token * read);
            line["operations"] = json!(cost.operations(batch as f64, context as f64));
            println!("{line}");
        }
    }
    Ok(())
}

/// What a model costs.
struct Cost {
    /// Weights that take part in products.
    parameters: f64,
    /// Their bytes.
    weights: f64,
    /// Bytes of a token's keys and values.
    token: f64,
    /// Operations of one query at one earlier position.
    attention: f64,
}

impl Cost {
    fn of(config: &Config, size: f64) -> Cost {
        // The embedding is looked up and not multiplied; a tied head is the same matrix and is.
        let counted =
            |tensor: &Tensor| config.tie_word_embeddings || tensor.name != "model.embed_tokens.weight";
        let parameters: f64 = config
            .tensors()
            .iter()
            .filter(|tensor| counted(tensor))
            .map(|tensor| tensor.count() as f64)
            .sum();
        let side = (config.num_layers * config.num_kv_heads * config.head_dim) as f64;
        let attention = 4.0 * (config.num_layers * config.num_heads * config.head_dim) as f64;
        Cost { parameters, weights: parameters * size, token: 2.0 * side * size, attention }
    }

    /// Operations of `tokens` tokens, each with `context` positions before it on average.
    fn operations(&self, tokens: f64, context: f64) -> f64 {
        tokens * (2.0 * self.parameters + self.attention * context)
    }
}

/// The engine, and how many measurements there were.
struct Engine {
    client: Client,
    number: u64,
}

impl Engine {
    /// Seconds to complete `groups` groups with new prompts.
    fn seconds(&mut self, groups: usize, prompt: usize, branches: usize, tokens: usize) -> Result<f64> {
        self.number += 1;
        let requests: Vec<_> = (0..groups as u64)
            .map(|group| request([u64::MAX, self.number, group], prompt, branches, tokens))
            .collect();
        let started = Instant::now();
        for request in requests {
            self.client.submit(request)?;
        }
        while !self.client.is_idle() {
            self.client.advance(true)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// The median, and how far the least and the most are apart as a share of it.
fn median(repeats: usize, mut measure: impl FnMut() -> Result<f64>) -> Result<(f64, f64)> {
    let mut all = (0..repeats).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    all.sort_by(f64::total_cmp);
    let median = all[repeats / 2];
    Ok((median, (all[repeats - 1] - all[0]) / median))
}
