//! The `sample` line: one candidate of one agent at one turn.
//!
//! Every known field is listed once, with its unit and its rule; `check.rs` parses and checks them. Every stage checks
//! each field that is present; a stage that needs a field asks for it with [`Sample::require`]. Unknown fields are
//! ignored: splicing carries them along.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::read::Line;
use crate::tag;
use crate::text::Text;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or another role that the chat template knows.
    pub role: String,
    pub content: String,
}

/// How a completion was sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divisor of the logits; above 0.
    pub temperature: f32,
    /// Nucleus size in (0, 1]; 1 keeps every token.
    pub top_p: f32,
    /// How many of the most likely tokens were kept; 0 keeps every token.
    pub top_k: u32,
    /// True if decoding was greedy; log-probabilities are then taken at temperature 1.
    pub greedy: bool,
    /// The seed of the run, below 2^53.
    pub seed: u64,
    /// Tokens less likely than this share of the most likely one were left out; absent or in (0, 1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Texts of which each ends a completion, not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    /// Completion limit in tokens, where limits differ by agent; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
}

impl Sampling {
    /// Returns true if tokens were drawn from the same distribution and ended by the same rules, with whatever seed.
    pub fn agrees(&self, other: &Sampling) -> bool {
        Sampling { seed: self.seed, ..other.clone() } == *self
    }

    /// Returns true if some tokens could not be drawn, although their probability is not 0.
    pub fn is_truncated(&self) -> bool {
        self.top_p < 1.0 || self.top_k > 0 || self.min_p.is_some()
    }
}

/// How the candidates of a turn were sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplingMode {
    /// Branches of one state: the siblings share their prompt. An absent field means this.
    Tree,
    /// `branches` independent episodes; `branch` is the index of the episode.
    Parallel,
}

/// The two parts of a reward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// The team's reward for this candidate.
    pub team: f64,
    /// The agent's local reward.
    pub local: f64,
}

macro_rules! sample_fields {
    ($($(#[$attribute:meta])* $field:ident $variant:ident: $type:ty,)*) => {
        /// One candidate of one agent at one turn. An absent field is `None`. Texts borrow from the line.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        pub struct Sample<'a> {
            /// `"type":"sample"`.
            #[serde(rename = "type")]
            pub tag: tag::Sample,
            pub v: tag::RecordVersion,
            $(
                $(#[$attribute])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        /// A field of a sample, for a stage to require.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Field {
            $(
                #[doc = concat!("`", stringify!($field), "`.")]
                $variant,
            )*
        }

        impl Field {
            /// Every field but `type` and `v`, in the order in which they are written.
            pub const ALL: &'static [Field] = &[$(Field::$variant),*];

            pub fn key(self) -> &'static str {
                match self {
                    $(Field::$variant => stringify!($field),)*
                }
            }

            /// Returns true if `sample` has the field. A null is there: it says that a reward is not known, or an advantage.
            pub fn is_in(self, sample: &Sample) -> bool {
                match self {
                    $(Field::$variant => sample.$field.is_some(),)*
                }
            }
        }
    };
}

sample_fields! {
    /// Training step, from 0.
    step Step: u64,
    /// `i/n`: this stream is the i-th of n, i from 0.
    #[serde(borrow)]
    shard Shard: Text<'a>,
    /// The environment's name.
    env Env: Text<'a>,
    /// The task's name, the same for the same instance.
    task Task: Text<'a>,
    /// The episode's name, unique in a run.
    episode Episode: Text<'a>,
    /// Turn within the episode, from 0.
    turn Turn: u32,
    /// Node of the tree of joint actions: the joint actions that led to it, by index, as in `3.0`; absent at the root.
    node Node: Text<'a>,
    /// The agent that acts; a policy owns samples by this.
    agent Agent: Text<'a>,
    /// Index of the candidate, below `branches`; in parallel sampling the index of the episode.
    branch Branch: u32,
    /// Candidates of the turn, in parallel sampling episodes in parallel; at least 1.
    branches Branches: u32,
    /// The sample's name, unique in a stream.
    id Id: Text<'a>,
    /// `id` of the sample whose action led to this state; null at the start.
    parent Parent: Text<'a>,
    /// True if this candidate was executed.
    selected Selected: bool,
    /// How the candidates of the turn were sampled; absent means `tree`.
    sampling_mode SamplingMode: SamplingMode,
    /// Label of the policy that acted; not interpreted.
    policy Policy: Text<'a>,
    /// `STEP:DIGEST` of the weights that acted.
    policy_version PolicyVersion: Text<'a>,
    /// How the completion was sampled.
    sampling Sampling: Sampling,
    /// The prompt as chat messages, at least one.
    prompt Prompt: Vec<Message>,
    /// The tools that the agent may call, as the chat template was given them; at least one.
    tools Tools: Vec<Value>,
    /// The completion as text, without its stop token.
    completion Completion: Text<'a>,
    /// The prompt's tokens, at least one.
    prompt_ids PromptIds: Vec<u32>,
    /// The completion's tokens, the stop token included, at least one.
    completion_ids CompletionIds: Vec<u32>,
    /// Natural-log probability of each of `completion_ids` under log-softmax(logits / temperature), before
    /// any truncation; same length as `completion_ids`.
    completion_logprobs CompletionLogprobs: Vec<f32>,
    /// `stop` or `length`.
    finish_reason FinishReason: Text<'a>,
    /// Reward of the candidate. Absent is `None`; null (not scored) is `Some(None)`.
    #[serde(deserialize_with = "present")]
    reward Reward: Option<f64>,
    /// The components of `reward`: team and local.
    rewards Rewards: Rewards,
    /// Components of the reward by name; informative.
    reward_components RewardComponents: BTreeMap<Text<'a>, f64>,
    /// The environment's remarks on the action, for people: an object.
    info Info: Value,
    /// Baseline of the `remax` estimator: the reward of the greedy completion of this prompt.
    baseline Baseline: f64,
    /// True if the environment ended the episode.
    terminated Terminated: bool,
    /// True if the turn limit ended the episode.
    truncated Truncated: bool,
    /// Group id: samples that share it are compared.
    group Group: Text<'a>,
    /// Samples in the group; at least 1.
    group_size GroupSize: u32,
    /// Anchor: samples of one agent in one task that share it have the same prompt, in whatever episode and turn.
    anchor Anchor: Text<'a>,
    /// Samples that share the anchor; at least 1.
    anchor_size AnchorSize: u32,
    /// Advantage over its group; the unit depends on the estimator. Null is `Some(None)`: not to be trained on.
    #[serde(deserialize_with = "present")]
    advantage Advantage: Option<f64>,
    /// Mean reward of the group.
    group_mean GroupMean: f64,
    /// Standard deviation of the group's rewards; at least 0.
    group_std GroupStd: f64,
}

/// Tells a null from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Option<f64>>, D::Error> {
    Option::<f64>::deserialize(deserializer).map(Some)
}

impl Sample<'_> {
    /// Checks that the fields a stage needs are there.
    ///
    /// # Errors
    /// 65 naming the first one that is missing.
    pub fn require(&self, line: &Line, fields: &[Field]) -> Result<()> {
        match fields.iter().find(|field| !field.is_in(self)) {
            Some(field) => Err(self
                .failure(line, format!("`{}` is missing", field.key()))
                .hint("docs/stream-format.md has a table of what each stage needs")),
            None => Ok(()),
        }
    }

    /// A failure at this sample: `stdin:1042: 12.7/1/planner/3: cause` (65).
    pub fn failure(&self, line: &Line, cause: impl std::fmt::Display) -> Failure {
        match self.id.as_deref() {
            Some("") | None => line.failure(cause),
            Some(id) => line.failure(format!("{id}: {cause}")),
        }
    }

    /// Returns true if the sample comes from parallel episodes rather than from branches of one state.
    pub fn is_parallel(&self) -> bool {
        self.sampling_mode == Some(SamplingMode::Parallel)
    }
}
