//! The `metrics` line of a policy's update, with TRL's names. A metric that was not measured is null, never 0.

use record::failure::Result;
use record::stage::choice;
use serde_json::{Map, Value, json};

use crate::arguments::{Arguments, ImportanceOutside, Objective};
use crate::loss::{RatioLevel, WeightLevel};
use crate::optimizer::Method;
use crate::samples::Samples;
use crate::trainer::TrainingStats;

/// The metrics of a training.
pub fn of_training(arguments: &Arguments, samples: &Samples, stats: &TrainingStats) -> Map<String, Value> {
    let scored = (stats.tokens.tokens > 0).then_some(stats.tokens.tokens as f64);
    let over_scored = |sum: f64| scored.map(|count| sum / count);
    let minibatches = stats.optimizer_steps + stats.flat_minibatches;
    let clip = arguments.objective != Objective::Nll;
    // Tokens of flat groups are never clipped, but they are tokens of the batch.
    let clipped = |count: usize| clip.then(|| count as f64 / stats.completion_tokens.max(1) as f64);
    let (low, high) = (stats.tokens.clipped_low, stats.tokens.clipped_high);
    let first = stats.first.as_ref().filter(|first| first.tokens > 0);
    let over_first =
        |pick: &dyn Fn(&crate::loss::TokenStats) -> f64| first.map(|first| pick(first) / first.tokens as f64);
    let last_losses = stats.last_losses.iter().sum::<f64>() / stats.last_losses.len().max(1) as f64;

    let mut line = Map::new();
    let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
    put("loss", json!(stats.loss / minibatches.max(1) as f64));
    put("loss_last", json!(last_losses));
    put("kl", json!(if arguments.kl > 0.0 { over_scored(stats.tokens.kl) } else { None }));
    put("clip_ratio", json!(clipped(low + high)));
    put("clip_ratio/low_mean", json!(clipped(low)));
    put("clip_ratio/high_mean", json!(clipped(high)));
    put("entropy", json!(over_scored(stats.entropy)));
    put(
        "grad_norm",
        json!((stats.optimizer_steps > 0).then(|| stats.grad_norm / stats.optimizer_steps as f64)),
    );
    put("lr", json!(stats.lr));
    put("sampling/logp_difference_mean", json!(over_first(&|first| first.gap)));
    put("sampling/logp_difference_max", json!(first.map(|first| first.largest_gap)));
    put("sampling/importance_sampling_ratio_mean", json!(over_first(&|first| first.ratio)));
    let truncated = arguments.importance_cap.and_then(|_| over_scored(stats.tokens.truncated as f64));
    put("sampling/importance_sampling_ratio_truncated", json!(truncated));
    if arguments.mask_negative_above.is_some() {
        put("sampling/masked_negative", json!(over_scored(stats.tokens.masked as f64)));
    }
    line.extend(of_samples(samples));
    let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
    put("unique_tokens", json!(stats.unique_tokens));
    put("optimizer_steps", json!(stats.optimizer_steps));
    put("flat_minibatches", json!(stats.flat_minibatches));
    if let Some((by_agent, cosine)) = &stats.by_agent {
        put("by_agent", json!(by_agent.metrics));
        put("grad_cosine", json!(cosine));
    }
    line
}

/// Metrics that need no model: rewards by group, lengths, counts.
pub fn of_samples(samples: &Samples) -> Map<String, Value> {
    let rewards: Vec<f64> = samples.rows.iter().filter_map(|row| row.reward).collect();
    let spreads = reward_spreads(samples);
    let mean =
        |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let constant = spreads.iter().filter(|&&spread| spread == 0.0).count();
    let share = (!spreads.is_empty()).then(|| constant as f64 / spreads.len() as f64);
    let lengths = || samples.rows.iter().map(|row| row.length());
    let tokens = samples.tokens();
    let total: usize =
        (0..samples.rows.len()).map(|index| samples.sequence(index).prompt.len()).sum::<usize>() + tokens;

    let mut line = Map::new();
    let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
    put("reward", json!(mean(&rewards)));
    put("reward_std", json!(mean(&spreads)));
    put("frac_reward_zero_std", json!(share));
    put("completions/mean_length", json!(tokens as f64 / samples.rows.len().max(1) as f64));
    put("completions/min_length", json!(lengths().min()));
    put("completions/max_length", json!(lengths().max()));
    put("samples", json!(samples.rows.len()));
    put("groups", json!(samples.groups()));
    put("flat_groups", json!(samples.flat_groups().iter().filter(|&&flat| flat).count()));
    put("tokens", json!(tokens));
    put("total_tokens", json!(total));
    line
}

/// The sample standard deviation (n − 1) of the rewards of each group that has any; 0 for a single one.
fn reward_spreads(samples: &Samples) -> Vec<f64> {
    let mut rewards: Vec<Vec<f64>> = vec![Vec::new(); samples.groups()];
    for row in &samples.rows {
        rewards[row.group as usize].extend(row.reward);
    }
    let spread = |group: &Vec<f64>| {
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        let squares: f64 = group.iter().map(|reward| (reward - mean).powi(2)).sum();
        // Equal rewards have no spread, whatever their mean rounds to.
        if group.iter().all(|reward| reward == &group[0]) {
            0.0
        } else {
            (squares / (group.len() - 1) as f64).sqrt()
        }
    };
    rewards.iter().filter(|group| !group.is_empty()).map(spread).collect()
}

/// The resolved settings that determine the result, for the trainer's state and the input digest; threads do not.
pub fn settings(arguments: &Arguments, reference: Option<&str>) -> Result<Map<String, Value>> {
    let mut settings = Map::new();
    let mut put = |name: &str, value: Value| settings.insert(name.to_owned(), value);
    put("objective", json!(choice(&arguments.objective)));
    if arguments.objective != Objective::Nll {
        let (low, high) = arguments.clip_range();
        put("clip", json!(low));
        put("clip_high", json!(high));
        put("kl", json!(arguments.kl));
        if let Some(cap) = arguments.importance_cap {
            put("importance_cap", json!(cap));
        }
        // A run that never asked for these has the settings that it had before they were flags.
        let chosen = [
            ("entropy", (arguments.entropy > 0.0).then(|| json!(arguments.entropy))),
            (
                "ratio",
                arguments
                    .ratio
                    .filter(|ratio| *ratio != RatioLevel::Token)
                    .map(|ratio| json!(choice(&ratio))),
            ),
            (
                "importance_level",
                arguments
                    .importance_level
                    .filter(|level| *level != WeightLevel::Token)
                    .map(|level| json!(choice(&level))),
            ),
            (
                "importance_outside",
                arguments
                    .importance_outside
                    .filter(|outside| *outside != ImportanceOutside::Truncate)
                    .map(|outside| json!(choice(&outside))),
            ),
            ("importance_floor", arguments.importance_floor.map(|floor| json!(floor))),
            ("mask_negative_above", arguments.mask_negative_above.map(|bound| json!(bound))),
        ];
        for (name, value) in chosen {
            value.into_iter().for_each(|value| drop(put(name, value)));
        }
        put("reference", json!(reference));
    }
    put("aggregate", json!(choice(&arguments.aggregate)));
    put("max_tokens", json!(arguments.max_tokens));
    put("minibatches", json!(arguments.minibatches));
    put("epochs", json!(arguments.epochs));
    let optimizer = arguments.optimizer_settings();
    put("optimizer", json!(choice(&optimizer.method)));
    put("lr", json!(optimizer.lr));
    if optimizer.method == Method::Muon {
        put("lr_other", json!(optimizer.lr_other));
    }
    if optimizer.method != Method::Sgd {
        put("betas", json!([optimizer.betas.0, optimizer.betas.1]));
    }
    put("schedule", json!(choice(&arguments.schedule)));
    put("warmup", json!(arguments.warmup));
    put("weight_decay", json!(optimizer.weight_decay));
    put("max_grad_norm", json!(optimizer.max_grad_norm));
    put("max_tokens_per_batch", json!(arguments.max_tokens_per_batch));
    put("dtype", json!(arguments.dtype()?.name()));
    put("seed", json!(arguments.seed));
    if arguments.parts > 1 {
        put("parts", json!(arguments.parts));
    }
    Ok(settings)
}
