//! The other line types: `task`, `episode`, `joint`, `error`, `metrics` and `end`. Each writes `type` and `v` first; `extra` holds
//! unlisted fields. Construct one with `..Default::default()`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::failure::Result;
use crate::read::{Line, without_line};
use crate::tag;

/// An instance of an environment to play.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    #[serde(rename = "type")]
    pub tag: tag::Task,
    pub v: tag::RecordVersion,
    pub env: String,
    /// The task's name, the same for the same instance.
    pub task: String,
    /// `train` or `test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// The instance: its content, rules, sizes and text encoding.
    pub spec: Value,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How one episode went: exactly one line for every episode started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    #[serde(rename = "type")]
    pub tag: tag::Episode,
    pub v: tag::RecordVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `i/n`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    pub env: String,
    pub task: String,
    /// The episode's name, unique in a run.
    pub episode: String,
    /// True if the episode reached its goal.
    pub success: bool,
    /// Turns started.
    pub turns: u32,
    /// The reward of the executed path; null where it could not be scored.
    pub reward: Option<f64>,
    /// Why it stopped: `success`, `turns`, `terminated`, `threshold`, `error`.
    pub stop: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The rewards of a joint action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JointRewards {
    pub team: f64,
    /// Each agent's local reward, by agent.
    pub local: BTreeMap<String, f64>,
}

/// A joint action of the agents of a stage and its reward; one line per scored joint action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Joint {
    #[serde(rename = "type")]
    pub tag: tag::Joint,
    pub v: tag::RecordVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `i/n`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub episode: String,
    /// In parallel sampling the index of the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    /// Turn within the episode, from 0.
    pub turn: u32,
    /// The node, as on its samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its name, unique in a stream: the episode's and the path of joint actions that ends with it.
    pub id: String,
    /// `id` of the joint action that led to this node; null at the root.
    pub parent: Option<String>,
    /// Ids of the samples that it is made of, one an agent, in the order of the stage.
    pub members: Vec<String>,
    /// Mean over its agents of team weight x `rewards.team` + the agent's `rewards.local`; null if it was not
    /// scored.
    pub reward: Option<f64>,
    /// The parts of `reward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewards: Option<JointRewards>,
    /// Components of the rewards, informative; a component of one agent is named `AGENT.NAME`.
    #[serde(default)]
    pub reward_components: BTreeMap<String, f64>,
    /// True if it was executed.
    #[serde(default)]
    pub selected: bool,
    /// True if the environment ended the episode.
    #[serde(default)]
    pub terminated: bool,
    /// True if it solved the task.
    #[serde(default)]
    pub success: bool,
    /// True if the turn limit ended the episode.
    #[serde(default)]
    pub truncated: bool,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Why an episode could not be scored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorLine {
    #[serde(rename = "type")]
    pub tag: tag::Error,
    pub v: tag::RecordVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `i/n`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub episode: String,
    /// Where it arose: `policy`, `env`, `sandbox`, `task`.
    pub boundary: String,
    /// The cause, one sentence.
    pub message: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An update's measurements: one line per policy and step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    #[serde(rename = "type")]
    pub tag: tag::Metrics,
    pub v: tag::RecordVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    pub policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<String>,
    /// Measurements by name.
    #[serde(flatten)]
    pub values: Map<String, Value>,
    /// Times, host names and builds: the only part that two equal runs may differ in.
    #[serde(default)]
    pub timing: Map<String, Value>,
}

/// The end of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    #[serde(rename = "type")]
    pub tag: tag::End,
    pub v: tag::RecordVersion,
    /// The stage that wrote it.
    pub stage: String,
    /// True if it and every stage before it succeeded.
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `i/n`, where the stream is one shard of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The missing parts of the stream, if the stage was told to accept them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    /// The stage's counts.
    #[serde(default)]
    pub counts: Map<String, Value>,
    /// The `end` lines it consumed.
    #[serde(default)]
    pub after: Vec<End>,
    /// Times, host names and builds.
    #[serde(default)]
    pub timing: BTreeMap<String, Value>,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl End {
    /// Groups that the stage dropped, by reason; a plain number has no reason to name.
    pub fn dropped_groups(&self) -> Vec<(String, u64)> {
        let reasons = match self.counts.get("dropped_groups") {
            Some(Value::Object(reasons)) => reasons.clone(),
            Some(count) => Map::from_iter([("dropped".to_owned(), count.clone())]),
            None => return Vec::new(),
        };
        let counts = reasons.into_iter().filter_map(|(reason, count)| Some((reason, count.as_u64()?)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// The first that did not succeed, of this one and those it was made from; what a stage was told to accept is passed
    /// over.
    pub fn failed(&self) -> Option<&End> {
        match (self.ok, &self.allowed) {
            (false, _) => Some(self),
            (true, Some(_)) => None,
            (true, None) => self.after.iter().find_map(End::failed),
        }
    }
}

/// The struct of a line.
pub fn parse<T: DeserializeOwned>(line: &Line) -> Result<T> {
    serde_json::from_str(&line.text).map_err(|error| line.failure(without_line(&error)))
}
