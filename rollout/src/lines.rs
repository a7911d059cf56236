//! The bytes of `sample`, `served`, `joint`, `episode` and `error` lines.
//!
//! Lines are serialized on the thread that made them, so that the writer only moves bytes. Data that the
//! samples of a group share (prompt, prompt tokens, sampling) is serialized once and copied.

use std::collections::BTreeMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::{self, ErrorLine};
use record::read::VERSION;
use record::sample::Rewards;
use serde::Serialize;
use serde_json::Map;
use serde_json::value::RawValue;

use crate::episode::group::{Group, Member};
use crate::episode::joint::{JointAction, Node};
use crate::episode::{Episode, Stop};
use crate::prompts::Prompt;

/// Fields that all lines of a run share.
#[derive(Clone, Debug)]
pub struct RunMetadata {
    /// The training step.
    pub step: u64,
    /// This shard, `i/n`.
    pub shard: String,
    /// Candidates per group.
    pub branches: u32,
    /// True if a task is played as `branches` episodes of one branch each (parallel sampling).
    pub parallel: bool,
}

/// How samples identify the policy that generated them.
#[derive(Clone, Debug)]
pub struct PolicyLabel {
    /// Field `policy`.
    pub name: Arc<str>,
    /// Field `policy_version`: the loaded version, or the model of a server.
    pub version: Arc<str>,
    /// True if a server plays it, or nobody.
    pub served: bool,
}

/// The task and run that lines belong to.
#[derive(Clone, Copy, Debug)]
pub struct TaskRef<'a> {
    /// Fields shared by all lines.
    pub metadata: &'a RunMetadata,
    /// The environment.
    pub env: &'a str,
    pub task: &'a str,
    /// `STEP.INDEX`, shared by the parallel episodes of the task.
    pub episode: &'a str,
}

/// How an episode ended. If its task was refused, it has no other lines.
#[derive(Clone, Copy, Debug)]
pub struct EpisodeEnd<'a> {
    /// Index of the parallel episode.
    pub branch: u32,
    /// Turns begun.
    pub turns: u32,
    /// Sum of the rewards of the selected samples.
    pub reward: Option<f64>,
    /// Each agent's rewards, if some were paid for the actions of others.
    pub returns: Option<&'a BTreeMap<String, f64>>,
    /// The reason for the end.
    pub stop: &'a Stop,
}

/// One `sample` line; the fields are in output order.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    completion: &'a str,
    prompt_ids: &'a RawValue,
    completion_ids: &'a [u32],
    completion_logprobs: &'a [f32],
    finish_reason: &'static str,
    reward: f64,
    rewards: &'a Rewards,
    reward_components: &'a BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a RawValue>,
    terminated: bool,
    truncated: bool,
}

/// One `served` line; the fields are in output order.
#[derive(Serialize)]
struct ServedLine<'a> {
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
    id: &'a str,
    parent: Option<&'a str>,
    selected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_mode: Option<&'static str>,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_version: Option<&'a str>,
    prompt: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    completion: &'a str,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    finish_reason: &'static str,
    reward: f64,
    rewards: &'a Rewards,
    reward_components: &'a BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a RawValue>,
    terminated: bool,
    truncated: bool,
}

impl TaskRef<'_> {
    /// Appends the `served` lines of `group`, which a server or an opponent generated, in branch order.
    pub fn write_served(
        &self,
        bytes: &mut Vec<u8>,
        episode: &Episode,
        group: &Group,
        policy: &PolicyLabel,
        prompt: &Prompt,
    ) -> Result<()> {
        let agent = episode.agents()[group.agent].as_str();
        for member in &group.members {
            let candidate = &member.candidate;
            let line = ServedLine {
                r#type: "served",
                v: VERSION,
                step: self.metadata.step,
                shard: &self.metadata.shard,
                env: self.env,
                task: self.task,
                episode: self.episode,
                turn: group.turn,
                agent,
                branch: member.branch,
                id: &episode.id().sample(&group.node, group.turn, agent, member.branch),
                parent: group.parent.as_deref(),
                selected: member.selected,
                sampling_mode: self.metadata.parallel.then_some("parallel"),
                policy: &policy.name,
                model: policy.served.then_some(&*policy.version),
                policy_version: (!policy.served).then_some(&*policy.version),
                prompt: &prompt.messages_json,
                tools: prompt.tools_json.as_deref(),
                completion: &candidate.text,
                prompt_tokens: candidate.usage.prompt,
                completion_tokens: candidate.usage.completion,
                finish_reason: if candidate.stopped { "stop" } else { "length" },
                reward: member.reward,
                rewards: &member.outcome.rewards,
                reward_components: &member.outcome.components,
                info: info_of(member)?,
                terminated: member.outcome.terminated,
                truncated: member.truncated,
            };
            push(bytes, &line)?;
        }
        Ok(())
    }

    /// Appends the `sample` lines of `group`, in branch order. `sampling` is the JSON of that field.
    ///
    /// # Errors
    /// A log-probability that is not finite: nothing can be trained on it.
    pub fn write_group(
        &self,
        bytes: &mut Vec<u8>,
        episode: &Episode,
        group: &Group,
        policy: &PolicyLabel,
        (prompt, sampling): (&Prompt, &RawValue),
    ) -> Result<()> {
        let agent = episode.agents()[group.agent].as_str();
        for member in &group.members {
            let id = episode.id().sample(&group.node, group.turn, agent, member.branch);
            check_logprobs(&id, member)?;
            let line = SampleLine {
                r#type: "sample",
                v: VERSION,
                step: self.metadata.step,
                shard: &self.metadata.shard,
                env: self.env,
                task: self.task,
                episode: self.episode,
                turn: group.turn,
                node: group.node.name(),
                agent,
                branch: member.branch,
                branches: if self.metadata.parallel {
                    self.metadata.branches
                } else {
                    group.members.len() as u32
                },
                id: &id,
                parent: group.parent.as_deref(),
                selected: member.selected,
                sampling_mode: self.metadata.parallel.then_some("parallel"),
                policy: &policy.name,
                policy_version: &policy.version,
                sampling,
                prompt: &prompt.messages_json,
                tools: prompt.tools_json.as_deref(),
                completion: &member.candidate.text,
                prompt_ids: &prompt.ids_json,
                completion_ids: &member.candidate.ids,
                completion_logprobs: &member.candidate.logprobs,
                finish_reason: if member.candidate.stopped { "stop" } else { "length" },
                reward: member.reward,
                rewards: &member.outcome.rewards,
                reward_components: &member.outcome.components,
                info: info_of(member)?,
                terminated: member.outcome.terminated,
                truncated: member.truncated,
            };
            push(bytes, &line)?;
        }
        Ok(())
    }

    /// Appends the `joint` lines of `group`'s node, in the order of `actions`; `branch`
    /// is the parallel episode's.
    pub fn write_joint(
        &self,
        bytes: &mut Vec<u8>,
        branch: u32,
        group: &Group,
        actions: &[JointAction],
    ) -> Result<()> {
        for action in actions {
            let before = Node(action.path.0.split_last().map_or(Vec::new(), |(_, before)| before.to_vec()));
            let id = |path: &Node| format!("{}/{path}", self.episode);
            let line = line::Joint {
                step: Some(self.metadata.step),
                shard: Some(self.metadata.shard.clone()),
                env: Some(self.env.to_owned()),
                task: Some(self.task.to_owned()),
                episode: self.episode.to_owned(),
                branch: self.metadata.parallel.then_some(branch),
                turn: group.turn,
                node: group.node.name(),
                id: id(&action.path),
                parent: before.name().is_some().then(|| id(&before)),
                members: action.members.clone(),
                reward: Some(action.reward),
                rewards: Some(action.rewards.clone()),
                reward_components: action.outcome.components.clone(),
                selected: action.selected,
                terminated: action.outcome.terminated,
                success: action.outcome.success,
                truncated: action.truncated,
                ..line::Joint::default()
            };
            push(bytes, &line)?;
        }
        Ok(())
    }

    /// Appends the `error` line, if the episode failed, and the `episode` line.
    pub fn write_end(&self, bytes: &mut Vec<u8>, end: &EpisodeEnd<'_>) -> Result<()> {
        let mut extra = Map::new();
        if self.metadata.parallel {
            extra.insert("branch".to_owned(), end.branch.into());
        }
        let (step, shard) = (Some(self.metadata.step), Some(self.metadata.shard.clone()));
        if let Stop::Error(error) = end.stop {
            let line = ErrorLine {
                step,
                shard: shard.clone(),
                task: Some(self.task.to_owned()),
                episode: self.episode.to_owned(),
                boundary: error.boundary.to_owned(),
                message: error.message.clone(),
                extra: extra.clone(),
                ..ErrorLine::default()
            };
            push(bytes, &line)?;
        }
        if let Some(returns) = end.returns.filter(|_| !matches!(end.stop, Stop::Error(_))) {
            extra.insert("returns".to_owned(), serde_json::to_value(returns).map_err(Failure::work)?);
        }
        let line = line::Episode {
            step,
            shard,
            env: self.env.to_owned(),
            task: self.task.to_owned(),
            episode: self.episode.to_owned(),
            success: *end.stop == Stop::Success,
            turns: end.turns,
            reward: end.reward.filter(|_| !matches!(end.stop, Stop::Error(_))),
            stop: end.stop.name().to_owned(),
            extra,
            ..line::Episode::default()
        };
        push(bytes, &line)
    }
}

fn push(bytes: &mut Vec<u8>, line: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *bytes, line).map_err(Failure::work)?;
    bytes.push(b'\n');
    Ok(())
}

/// What the environment told about an action, as it wrote the numbers.
fn info_of(member: &Member) -> Result<Option<&RawValue>> {
    member.outcome.info.as_deref().map(serde_json::from_str).transpose().map_err(Failure::work)
}

/// Refuses NaN and infinity, which serde_json would write as `null`.
fn check_logprobs(id: &str, member: &Member) -> Result<()> {
    let (ids, logprobs) = (&member.candidate.ids, &member.candidate.logprobs);
    if let Some(position) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
        let message = format!("{id}: the log-probability of token {position} is {}", logprobs[position]);
        return Err(Failure::work(message)
            .hint("the policy's weights contain NaN or infinity, or have diverged: see `policy check`"));
    }
    if logprobs.len() != ids.len() {
        let message = format!("{id}: {} tokens but {} log-probabilities", ids.len(), logprobs.len());
        return Err(Failure::work(message));
    }
    Ok(())
}
