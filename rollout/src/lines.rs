//! The bytes of `sample`, `episode` and `error` lines.
//!
//! Written on the thread that made them, straight into a buffer. What the siblings of a group share (prompt,
//! prompt tokens, sampling) is turned into JSON once and copied; the thread that orders the output only moves
//! bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::ErrorLine;
use record::read::VERSION;
use record::sample::{Rewards, Sampling};
use serde::Serialize;
use serde_json::Map;
use serde_json::value::RawValue;

use crate::episode::{Episode, Group, Member, Stop};

/// What all lines of a run have in common.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// The training step.
    pub step: u64,
    /// This shard, `i/n`.
    pub shard: String,
    /// Candidates a group.
    pub branches: u32,
    /// Whether the episodes of a task run side by side, each with one branch.
    pub side_by_side: bool,
    /// JSON of `sampling`.
    sampling: Box<RawValue>,
}

impl Stamp {
    /// Prepares the common part.
    ///
    /// # Errors
    /// A sampling parameter that JSON cannot hold.
    pub fn new(
        step: u64,
        shard: String,
        branches: u32,
        side_by_side: bool,
        sampling: &Sampling,
    ) -> Result<Stamp> {
        Ok(Stamp { step, shard, branches, side_by_side, sampling: raw(sampling)? })
    }
}

/// Which policy speaks for an agent, as samples name it.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// The policy's label.
    pub policy: Arc<str>,
    /// The version that was read.
    pub version: Arc<str>,
}

/// The task that lines are about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The environment.
    pub env: &'a str,
    /// The task.
    pub task: &'a str,
}

/// One `sample` line, in the order of its fields.
#[derive(Serialize)]
struct SampleLine<'a> {
    r#type: &'static str,
    v: u64,
    step: u64,
    shard: &'a str,
    env: &'a str,
    task: &'a str,
    episode: &'a str,
    turn: u32,
    agent: &'a str,
    branch: u32,
    branches: u32,
    id: &'a str,
    parent: Option<&'a str>,
    selected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_mode: Option<&'static str>,
    policy: &'a str,
    policy_version: &'a str,
    sampling: &'a RawValue,
    prompt: &'a RawValue,
    completion: &'a str,
    prompt_ids: &'a RawValue,
    completion_ids: &'a [u32],
    completion_logprobs: &'a [f32],
    finish_reason: &'static str,
    reward: f64,
    rewards: &'a Rewards,
    reward_components: &'a BTreeMap<String, f64>,
    terminated: bool,
    truncated: bool,
}

/// Appends the lines of `group`, in branch order. `prompt_ids` are the tokens that all its members continue.
///
/// # Errors
/// A log-probability that is not finite: the model computed nonsense, and nothing can be trained on it.
pub fn group(
    bytes: &mut Vec<u8>,
    stamp: &Stamp,
    about: About<'_>,
    episode: &Episode,
    group: &Group,
    speaker: &Speaker,
    prompt: &Prompt,
) -> Result<()> {
    let identity = episode.identity();
    let agent = episode.agents()[group.agent].as_str();
    for member in &group.members {
        let id = identity.sample(group.turn, agent, member.branch);
        check_logprobs(&id, member)?;
        let line = SampleLine {
            r#type: "sample",
            v: VERSION,
            step: stamp.step,
            shard: &stamp.shard,
            env: about.env,
            task: about.task,
            episode: &identity.name,
            turn: group.turn,
            agent,
            branch: member.branch,
            branches: stamp.branches,
            id: &id,
            parent: group.parent.as_deref(),
            selected: member.selected,
            sampling_mode: stamp.side_by_side.then_some("parallel"),
            policy: &speaker.policy,
            policy_version: &speaker.version,
            sampling: &stamp.sampling,
            prompt: &prompt.messages_json,
            completion: &member.candidate.text,
            prompt_ids: &prompt.ids_json,
            completion_ids: &member.candidate.ids,
            completion_logprobs: &member.candidate.logprobs,
            finish_reason: if member.candidate.stopped { "stop" } else { "length" },
            reward: member.reward,
            rewards: &member.outcome.rewards,
            reward_components: &member.outcome.components,
            terminated: member.outcome.terminated,
            truncated: member.truncated,
        };
        push(bytes, &line)?;
    }
    Ok(())
}

/// Appends the `error` line, where there is one, and the `episode` line of an episode that has ended.
///
/// # Errors
/// None that a finite reward can cause.
pub fn ending(bytes: &mut Vec<u8>, stamp: &Stamp, about: About<'_>, ended: &Ended<'_>) -> Result<()> {
    let mut extra = Map::new();
    if stamp.side_by_side {
        extra.insert("branch".to_owned(), ended.branch.into());
    }
    if let Stop::Error(fault) = ended.stop {
        let error = ErrorLine {
            step: Some(stamp.step),
            shard: Some(stamp.shard.clone()),
            task: Some(about.task.to_owned()),
            episode: ended.name.to_owned(),
            boundary: fault.boundary.to_owned(),
            message: fault.message.clone(),
            extra: extra.clone(),
            ..ErrorLine::default()
        };
        push(bytes, &error)?;
    }
    let line = record::line::Episode {
        step: Some(stamp.step),
        shard: Some(stamp.shard.clone()),
        env: about.env.to_owned(),
        task: about.task.to_owned(),
        episode: ended.name.to_owned(),
        success: *ended.stop == Stop::Success,
        turns: ended.turns,
        reward: ended.reward.filter(|_| !matches!(ended.stop, Stop::Error(_))),
        stop: ended.stop.name().to_owned(),
        extra,
        ..record::line::Episode::default()
    };
    push(bytes, &line)
}

/// What an `episode` line says; an episode whose task was refused has no more than this.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// `STEP.INDEX`.
    pub name: &'a str,
    /// Which of the episodes of its task, when they run side by side.
    pub branch: u32,
    /// Turns begun.
    pub turns: u32,
    /// Sum of the rewards of the selected samples.
    pub reward: Option<f64>,
    /// How it ended.
    pub stop: &'a Stop,
}

/// A prompt in both shapes, made once for all candidates that continue it.
#[derive(Debug)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    messages_json: Box<RawValue>,
    ids_json: Box<RawValue>,
}

impl Prompt {
    /// The prompt whose messages are `messages_json` and whose tokens are `ids`.
    ///
    /// # Errors
    /// None that integers can cause.
    pub fn new(messages_json: Box<RawValue>, ids: Vec<u32>) -> Result<Prompt> {
        let ids_json = raw(&ids)?;
        Ok(Prompt { ids, messages_json, ids_json })
    }
}

/// `value` as JSON.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(Failure::work)
}

fn push(bytes: &mut Vec<u8>, line: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *bytes, line).map_err(Failure::work)?;
    bytes.push(b'\n');
    Ok(())
}

/// serde_json would write NaN as `null`.
fn check_logprobs(id: &str, member: &Member) -> Result<()> {
    let logprobs = &member.candidate.logprobs;
    if let Some(position) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
        return Err(Failure::work(format!(
            "{id}: the log-probability of token {position} is {}",
            logprobs[position]
        ))
        .hint("the weights of the policy hold NaN or infinity, or have diverged: see `policy check`"));
    }
    if logprobs.len() != member.candidate.ids.len() {
        return Err(Failure::work(format!(
            "{id}: {} tokens came with {} log-probabilities",
            member.candidate.ids.len(),
            logprobs.len()
        )));
    }
    Ok(())
}
