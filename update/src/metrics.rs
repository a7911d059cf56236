//! The `metrics` line of a policy's update, with TRL's names. A metric that was not measured is null, never 0.

use device::ComputeDtype;
use record::stage::choice;
use serde_json::{Map, Value, json};

use crate::loss_config::{Importance, LossConfig, Objective, RatioLevel, WeightLevel};
use crate::objective::WeightBounds;
use crate::optimizer::Method;
use crate::samples::Samples;
use crate::settings::TrainingConfig;
use crate::trainer::TrainingStats;

/// The metrics of a training.
pub fn of_training(loss: &LossConfig, samples: &Samples, stats: &TrainingStats) -> Map<String, Value> {
    let scored = (stats.tokens.tokens > 0).then_some(stats.tokens.tokens as f64);
    let over_scored = |sum: f64| scored.map(|count| sum / count);
    let minibatches = stats.optimizer_steps + stats.flat_minibatches + stats.skipped_steps;
    let clip = loss.objective != Objective::Nll;
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
    put("kl", json!(if loss.kl > 0.0 { over_scored(stats.tokens.kl) } else { None }));
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
    let truncated = loss.importance.and_then(|_| over_scored(stats.tokens.truncated as f64));
    put("sampling/importance_sampling_ratio_truncated", json!(truncated));
    if loss.mask_negative_above.is_some() {
        put("sampling/masked_negative", json!(over_scored(stats.tokens.masked as f64)));
    }
    line.extend(of_samples(samples));
    let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
    put("unique_tokens", json!(stats.unique_tokens));
    put("optimizer_steps", json!(stats.optimizer_steps));
    put("flat_minibatches", json!(stats.flat_minibatches));
    if let Some(loss_scale) = stats.loss_scale {
        put("loss_scale", json!(loss_scale));
        put("skipped_steps", json!(stats.skipped_steps));
    }
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

/// The settings that determine the result, for the trainer's state and the input digest; threads do not.
pub fn settings(
    training: &TrainingConfig,
    dtype: ComputeDtype,
    reference: Option<&str>,
) -> Map<String, Value> {
    let TrainingConfig { loss, batching, optimizer, .. } = training;
    let mut settings = Map::new();
    let mut put = |name: &str, value: Value| settings.insert(name.to_owned(), value);
    put("objective", json!(choice(&loss.objective)));
    if loss.objective != Objective::Nll {
        let (low, high) = loss.clip_range;
        put("clip", json!(low));
        put("clip_high", json!(high));
        put("kl", json!(loss.kl));
        if let Some(Importance { outside, .. }) = loss.importance {
            put("importance_cap", json!(outside.cap));
        }
        // A run that never asked for these has the settings that it had before they were flags.
        if loss.entropy > 0.0 {
            put("entropy", json!(loss.entropy));
        }
        if loss.ratio != RatioLevel::Token {
            put("ratio", json!(choice(&loss.ratio)));
        }
        if let Some(Importance { level, outside: WeightBounds { floor, mask, .. } }) = loss.importance {
            if level != WeightLevel::Token {
                put("importance_level", json!(choice(&level)));
            }
            if mask {
                put("importance_outside", json!("mask"));
            }
            if floor > 0.0 {
                put("importance_floor", json!(floor));
            }
        }
        if let Some(bound) = loss.mask_negative_above {
            put("mask_negative_above", json!(bound));
        }
        put("reference", json!(reference));
    }
    put("aggregate", json!(choice(&training.aggregate)));
    put("max_tokens", json!(training.max_tokens));
    put("minibatches", json!(batching.minibatches));
    put("epochs", json!(batching.epochs));
    put("optimizer", json!(choice(&optimizer.method)));
    put("lr", json!(optimizer.lr));
    if optimizer.method == Method::Muon {
        put("lr_other", json!(optimizer.lr_other));
    }
    if optimizer.method != Method::Sgd {
        put("betas", json!([optimizer.betas.0, optimizer.betas.1]));
    }
    put("schedule", json!(choice(&training.schedule)));
    put("warmup", json!(training.warmup));
    put("weight_decay", json!(optimizer.weight_decay));
    put("max_grad_norm", json!(optimizer.max_grad_norm));
    put("max_tokens_per_batch", json!(batching.tokens));
    put("dtype", json!(dtype.name()));
    put("seed", json!(batching.seed));
    if batching.parts > 1 {
        put("parts", json!(batching.parts));
    }
    settings
}
