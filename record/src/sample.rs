//! The `sample` line: one candidate of one agent at one turn, every field with its unit and its rule.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::failure::{Failure, Result};
use crate::read::Line;
use crate::tag;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// How the completion was sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// The logits' divisor, above 0.
    pub temperature: f32,
    /// Nucleus size in (0, 1]; 1 keeps every token.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 keeps every token.
    pub top_k: u32,
    /// Whether the most likely token was taken instead of a draw.
    pub greedy: bool,
    /// The seed of the run, below 2^53.
    pub seed: u64,
}

/// The parts of a reward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// What the team gains by this candidate.
    pub team: f64,
    /// What the agent is given for its own part.
    pub local: f64,
}

/// One candidate of one agent at one turn. Absent fields are `None`; fields that are not listed pass through untouched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Sample {
    #[serde(rename = "type", default)]
    pub tag: tag::Sample,
    #[serde(default)]
    pub v: tag::Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Vec<Message>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_logprobs: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Absent: `None`. Present and null, that is not scored: `Some(None)`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub reward: Option<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewards: Option<Rewards>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_components: Option<BTreeMap<String, f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_std: Option<f64>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Option<f64>>, D::Error> {
    Option::<f64>::deserialize(deserializer).map(Some)
}

/// A field that a stage can require.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    Step,
    Task,
    Episode,
    Turn,
    Agent,
    Branch,
    Branches,
    Id,
    Selected,
    PolicyVersion,
    Sampling,
    Prompt,
    Completion,
    PromptIds,
    CompletionIds,
    CompletionLogprobs,
    Reward,
    Rewards,
    Group,
    GroupSize,
    Advantage,
}

impl Field {
    /// The field's key.
    pub fn key(self) -> &'static str {
        match self {
            Field::Step => "step",
            Field::Task => "task",
            Field::Episode => "episode",
            Field::Turn => "turn",
            Field::Agent => "agent",
            Field::Branch => "branch",
            Field::Branches => "branches",
            Field::Id => "id",
            Field::Selected => "selected",
            Field::PolicyVersion => "policy_version",
            Field::Sampling => "sampling",
            Field::Prompt => "prompt",
            Field::Completion => "completion",
            Field::PromptIds => "prompt_ids",
            Field::CompletionIds => "completion_ids",
            Field::CompletionLogprobs => "completion_logprobs",
            Field::Reward => "reward",
            Field::Rewards => "rewards",
            Field::Group => "group",
            Field::GroupSize => "group_size",
            Field::Advantage => "advantage",
        }
    }

    fn is_in(self, sample: &Sample) -> bool {
        match self {
            Field::Step => sample.step.is_some(),
            Field::Task => sample.task.is_some(),
            Field::Episode => sample.episode.is_some(),
            Field::Turn => sample.turn.is_some(),
            Field::Agent => sample.agent.is_some(),
            Field::Branch => sample.branch.is_some(),
            Field::Branches => sample.branches.is_some(),
            Field::Id => sample.id.is_some(),
            Field::Selected => sample.selected.is_some(),
            Field::PolicyVersion => sample.policy_version.is_some(),
            Field::Sampling => sample.sampling.is_some(),
            Field::Prompt => sample.prompt.is_some(),
            Field::Completion => sample.completion.is_some(),
            Field::PromptIds => sample.prompt_ids.is_some(),
            Field::CompletionIds => sample.completion_ids.is_some(),
            Field::CompletionLogprobs => sample.completion_logprobs.is_some(),
            Field::Reward => sample.reward.is_some(),
            Field::Rewards => sample.rewards.is_some(),
            Field::Group => sample.group.is_some(),
            Field::GroupSize => sample.group_size.is_some(),
            Field::Advantage => sample.advantage.is_some(),
        }
    }
}

impl Sample {
    /// The sample in a line, every known field that is present checked.
    ///
    /// # Errors
    /// 65 with the place, the sample's id and the cause.
    pub fn parse(line: &Line) -> Result<Sample> {
        let sample: Sample = serde_json::from_str(&line.text)
            .map_err(|error| Failure::data(format!("{}: {error}", line.place())))?;
        if let (Some(ids), Some(logprobs)) = (&sample.completion_ids, &sample.completion_logprobs)
            && ids.len() != logprobs.len()
        {
            let cause = format!(
                "completion_logprobs has {} values but completion_ids has {}",
                logprobs.len(),
                ids.len()
            );
            return Err(sample.failure(line, cause));
        }
        Ok(sample)
    }

    /// Checks that the fields a stage needs are there.
    ///
    /// # Errors
    /// 65 naming the first one that is missing.
    pub fn require(&self, line: &Line, fields: &[Field]) -> Result<()> {
        match fields.iter().find(|field| !field.is_in(self)) {
            Some(field) => Err(self.failure(line, format!("`{}` is missing", field.key()))),
            None => Ok(()),
        }
    }

    /// A failure at this sample: `stdin:1042: 12.7/1/planner/3: cause` (65).
    pub fn failure(&self, line: &Line, cause: impl std::fmt::Display) -> Failure {
        match &self.id {
            Some(id) => Failure::data(format!("{}: {id}: {cause}", line.place())),
            None => Failure::data(format!("{}: {cause}", line.place())),
        }
    }
}
