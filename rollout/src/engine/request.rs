//! Requests to an engine, and its answers.
//!
//! A request is one group: a prompt and K branches sampled from it. Nothing here knows of tasks, agents or
//! turns.

use super::stop::StopStrings;
use record::failure::{Failure, Result};
use record::philox::Stream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// How a token is chosen from the logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the softmax; above 0.
    pub temperature: f32,
    /// Nucleus sampling: keep the smallest set of likeliest tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep only this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep only tokens at least this likely relative to the likeliest; 0 keeps all. Applied after the other two.
    pub min_p: f32,
    /// Take the likeliest token, the lowest id among equals.
    pub greedy: bool,
}

impl SamplingParams {
    /// Plain sampling from the model's unmodified distribution.
    pub const PLAIN: SamplingParams =
        SamplingParams { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, greedy: false };

    /// Refuses values out of range, by the flags that set them.
    ///
    /// # Errors
    /// 2 for a temperature, a top-p or a min-p out of range.
    pub fn check(&self) -> Result<()> {
        let SamplingParams { temperature, top_p, min_p, .. } = *self;
        if !(temperature > 0.0 && temperature.is_finite() && temperature.recip().is_finite()) {
            return Err(Failure::usage(format!("--temperature {temperature}: must be 0 or above"))
                .hint("1 samples from the model's distribution, 0 takes the most likely token every time"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Failure::usage(format!("--top-p {top_p}: must be above 0 and at most 1"))
                .hint("1 samples from all tokens"));
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Failure::usage(format!("--min-p {min_p}: must be from 0 to 1")).hint(
                "0 samples from all tokens, 0.05 from those at least a twentieth as likely as the likeliest",
            ));
        }
        Ok(())
    }
}

/// One group to generate: a prompt and its branches.
#[derive(Debug, Clone)]
pub struct Request {
    /// Returned with the completions; the engine does not interpret it.
    pub id: u64,
    /// The prompt's token ids, at least one.
    pub prompt: Vec<u32>,
    /// A random stream per branch, addressed by the token's position in the completion.
    pub streams: Vec<Stream>,
    /// The longest completion, stop token included; at least one.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end a completion.
    pub stop: Option<Arc<StopStrings>>,
    /// Gets each token of every branch when it is sampled. When its receiver is gone, generation ends.
    pub watch: Option<Sender<SampledToken>>,
}

/// The completion of one branch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completion {
    /// Token ids, stop token included.
    pub ids: Vec<u32>,
    /// For each id, log-softmax(logits / temperature) in nats before any truncation (greedy: temperature 1).
    pub logprobs: Vec<f32>,
    /// True if a stop token or a stop string ended it rather than the length limit.
    pub stopped: bool,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub id: u32,
    /// log-softmax(logits / temperature) of the token, in nats.
    pub logprob: f32,
}
