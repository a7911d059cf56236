//! Statistics of a stream, counted from its `sample` and `episode` lines: environments, agents, groups.
//!
//! From `end` lines come only the number of groups expected and the reasons why some are missing, so that the
//! two can be checked against each other.

use std::collections::BTreeMap;

use record::failure::Result;
use record::line::{self, End, Episode};
use record::read::{Kind, Line};
use record::sample::Sample;
use serde_json::Value;

use crate::credit::StepCredit;

/// Running mean and standard deviation (Welford's method).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunningStats {
    count: u64,
    mean: f64,
    squares: f64,
}

impl RunningStats {
    pub fn push(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// The mean; `None` without numbers.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Σ (x - mean)².
    pub fn squares(&self) -> f64 {
        self.squares
    }

    /// The sample standard deviation (n - 1); `None` below two numbers.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).max(0.0).sqrt())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskStats {
    /// Episodes begun; one that could not be scored is among them and is not solved.
    pub episodes: u64,
    pub solved: u64,
    /// Returns of the episodes that were scored.
    pub returns: RunningStats,
}

impl TaskStats {
    /// The share of its episodes that solved it.
    pub fn rate(&self) -> f64 {
        self.solved as f64 / self.episodes as f64
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    pub samples: u64,
    pub tokens: u64,
    /// Completions cut off by the token limit.
    pub cut: u64,
}

impl AnswerCounts {
    fn take(&mut self, sample: &Sample) {
        self.samples += 1;
        self.tokens += count(sample.completion_ids.as_ref());
        self.cut += u64::from(sample.finish_reason.as_deref() == Some("length"));
    }

    pub fn cut_share(&self) -> f64 {
        self.cut as f64 / self.samples.max(1) as f64
    }
}

#[derive(Debug, Default)]
pub struct EnvironmentStats {
    /// By task name.
    pub tasks: BTreeMap<String, TaskStats>,
    /// Components of the executed candidates' rewards, by agent, name and task.
    pub components: BTreeMap<String, BTreeMap<String, BTreeMap<String, RunningStats>>>,
    /// Episodes that could not be scored.
    pub errors: u64,
    /// Episodes solved, by the turn that solved them, from turn 0.
    pub solved_at_turn: BTreeMap<u32, u64>,
    /// Turns begun.
    pub turns: RunningStats,
    pub answers: BTreeMap<String, AnswerCounts>,
    /// Tokens of the prompts, each counted once a group.
    pub prompt_tokens: u64,
    /// Samples seen; 0 where a filter dropped them, and then nothing is known about tokens.
    pub samples: u64,
    /// The most candidates of any turn. Above 1, the executed candidate was chosen by score.
    pub most_candidates: u32,
}

impl EnvironmentStats {
    /// Episodes begun.
    pub fn episodes(&self) -> u64 {
        self.tasks.values().map(|task| task.episodes).sum()
    }

    pub fn solved(&self) -> u64 {
        self.tasks.values().map(|task| task.solved).sum()
    }

    /// Tokens generated; `None` if the samples were dropped.
    pub fn completion_tokens(&self) -> Option<u64> {
        (self.samples > 0).then(|| self.answers.values().map(|answers| answers.tokens).sum())
    }

    /// The share of answers that the token limit cut off; `None` if the samples were dropped.
    pub fn cut(&self) -> Option<f64> {
        let cut: u64 = self.answers.values().map(|answers| answers.cut).sum();
        (self.samples > 0).then(|| cut as f64 / self.samples as f64)
    }

    fn sample(&mut self, sample: &Sample) {
        self.samples += 1;
        let agent = sample.agent.as_deref().unwrap_or_default();
        entry(&mut self.answers, agent).take(sample);
        if !sample.is_parallel() {
            self.most_candidates = self.most_candidates.max(sample.branches.unwrap_or(1));
        }
        if sample.is_parallel() || sample.branch.unwrap_or_default() == 0 {
            self.prompt_tokens += count(sample.prompt_ids.as_ref());
        }
        let is_executed = sample.is_parallel() || sample.selected == Some(true) || sample.branches == Some(1);
        if let Some(components) = sample.reward_components.as_ref().filter(|_| is_executed) {
            let (by_name, task) = (entry(&mut self.components, agent), sample.task.as_deref());
            for (name, value) in components {
                entry(entry(by_name, name), task.unwrap_or_default()).push(*value);
            }
        }
    }

    fn episode(&mut self, episode: &Episode) {
        let task = self.tasks.entry(episode.task.clone()).or_default();
        task.episodes += 1;
        self.errors += u64::from(episode.stop == "error");
        self.turns.push(f64::from(episode.turns));
        if let Some(reward) = episode.reward {
            task.returns.push(reward);
        }
        if episode.success {
            task.solved += 1;
            *self.solved_at_turn.entry(episode.turns.saturating_sub(1)).or_default() += 1;
        }
    }
}

/// The episodes of a stream by environment.
#[derive(Debug, Default)]
pub struct Environments {
    by_name: BTreeMap<String, EnvironmentStats>,
    /// The training step that the last episode names.
    pub step: Option<u64>,
}

impl Environments {
    /// Adds a line; `sample` is its parsed form if it is a sample.
    pub fn take(&mut self, line: &Line, sample: Option<&Sample>) -> Result<()> {
        if let Some(sample) = sample {
            entry(&mut self.by_name, sample.env.as_deref().unwrap_or_default()).sample(sample);
        } else if line.kind == Kind::Episode {
            let episode: Episode = line::parse(line)?;
            self.step = episode.step.or(self.step);
            entry(&mut self.by_name, &episode.env).episode(&episode);
        }
        Ok(())
    }

    /// Environments with an episode, by name.
    pub fn played(&self) -> impl Iterator<Item = (&str, &EnvironmentStats)> {
        self.by_name.iter().filter(|(_, stats)| !stats.tasks.is_empty()).map(|(name, stats)| (&**name, stats))
    }

    /// The stats of one environment, if it has an episode.
    pub fn get(&self, name: &str) -> Option<&EnvironmentStats> {
        self.by_name.get(name).filter(|stats| !stats.tasks.is_empty())
    }
}

#[derive(Debug, Default)]
pub struct AgentStats {
    pub reward: RunningStats,
    pub components: BTreeMap<String, RunningStats>,
    pub answers: AnswerCounts,
    pub groups: u64,
    /// Groups whose members all earned the same.
    pub flat: u64,
    /// Groups with advantages by turn: those in which all are 0, and all.
    pub untaught: BTreeMap<u32, (u64, u64)>,
    /// Sizes of its samples' anchors.
    pub anchors: RunningStats,
    /// Tokens of its prompts, each counted once a group.
    pub prompt_tokens: u64,
    /// Σ (reward - mean of its group)².
    pub within: f64,
    /// True if any of its samples is from parallel sampling.
    pub is_parallel: bool,
}

impl AgentStats {
    /// The share of the variance of its rewards that lies between candidates for one state; none without
    /// variance, and in parallel sampling, where members of a group are in different states.
    pub fn within_share(&self) -> Option<f64> {
        let all = self.reward.squares();
        (all > 1e-12 && !self.is_parallel).then(|| (self.within / all).min(1.0))
    }

    /// The share of its groups in which all advantages are 0; `None` without advantages.
    pub fn untaught_share(&self) -> Option<f64> {
        let (untaught, all) =
            self.untaught.values().fold((0, 0), |sum, turn| (sum.0 + turn.0, sum.1 + turn.1));
        (all > 0).then(|| untaught as f64 / all as f64)
    }
}

/// A group as far as it has been read.
#[derive(Debug)]
struct Group {
    agent: String,
    prompt: Vec<u32>,
    reward: Option<f64>,
    rewards: RunningStats,
    members: u32,
    branches: Option<u32>,
    flat: bool,
    /// True if a member has an advantage other than 0; `None` while no member has any.
    taught: Option<bool>,
    turn: u32,
    one_prompt: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupStats {
    /// The number of groups expected from all episodes and turns; `None` if the stream does not say.
    pub expected: Option<u64>,
    pub seen: u64,
    /// The groups among them with equal rewards.
    pub flat: u64,
    /// Groups dropped, by stage and reason.
    pub dropped: BTreeMap<String, u64>,
    /// Groups with fewer or more members than branches.
    pub uneven: u64,
    /// Groups whose members have different prompts.
    pub mixed_prompts: u64,
    /// True if members should share a prompt: not in ablation groupings or parallel sampling.
    pub equal_prompts: bool,
}

/// Statistics of the stream of one training step.
#[derive(Debug, Default)]
pub struct StreamStats {
    pub environments: Environments,
    pub agents: BTreeMap<String, AgentStats>,
    pub credits: StepCredit,
    /// The `end` lines, outermost.
    pub ends: Vec<End>,
    open: BTreeMap<String, Group>,
}

impl StreamStats {
    /// Adds a line; `sample` is its parsed form if it is a sample.
    pub fn take(&mut self, line: &Line, sample: Option<&Sample>) -> Result<()> {
        if let Some(sample) = sample {
            self.sample(sample);
            self.credits.sample(sample);
        } else if line.kind == Kind::End {
            self.ends.push(line::parse(line)?);
        } else if line.kind == Kind::Episode {
            self.credits.episode(&line::parse(line)?);
        }
        self.environments.take(line, sample)
    }

    fn sample(&mut self, sample: &Sample) {
        let name = sample.agent.as_deref().unwrap_or_default();
        let agent = entry(&mut self.agents, name);
        agent.answers.take(sample);
        agent.is_parallel |= sample.is_parallel();
        sample.anchor_size.into_iter().for_each(|size| agent.anchors.push(f64::from(size)));
        let reward = sample.reward.flatten();
        if let Some(reward) = reward {
            agent.reward.push(reward);
        }
        for (component, value) in sample.reward_components.iter().flatten() {
            entry(&mut agent.components, component).push(*value);
        }
        let key = sample.group.as_deref().map(str::to_owned).unwrap_or_else(|| {
            let (episode, node) = (sample.episode.as_deref(), sample.node.as_deref());
            let at = format!("{}/{}", episode.unwrap_or_default(), node.unwrap_or_default());
            format!("{at}/{name}/{}", sample.turn.unwrap_or_default())
        });
        let prompt = sample.prompt_ids.as_deref().unwrap_or_default();
        let group = self.open.entry(key).or_insert_with(|| Group {
            agent: name.to_owned(),
            prompt: prompt.to_vec(),
            reward,
            rewards: RunningStats::default(),
            members: 0,
            branches: sample.branches,
            flat: true,
            taught: None,
            turn: sample.turn.unwrap_or_default(),
            one_prompt: true,
        });
        group.members += 1;
        reward.into_iter().for_each(|reward| group.rewards.push(reward));
        group.flat &= group.reward == reward;
        if let Some(advantage) = sample.advantage.flatten() {
            group.taught = Some(group.taught.unwrap_or(false) || advantage != 0.0);
        }
        group.one_prompt &= group.prompt == prompt;
    }

    /// Closes the groups at the end of the stream: counts each for its agent.
    pub fn close(&mut self) -> GroupStats {
        let mut groups = GroupStats { equal_prompts: true, ..GroupStats::default() };
        let mut expected = Vec::new();
        for end in ends_of(&self.ends, "group") {
            groups.equal_prompts &= end.counts.get("equal_prompts").and_then(Value::as_bool).unwrap_or(true);
            expected.push(end.counts.get("groups_expected").and_then(Value::as_u64));
        }
        if !expected.is_empty() {
            groups.expected = expected.into_iter().sum();
        }
        for stage in ["rollout", "group", "advantage"] {
            for end in ends_of(&self.ends, stage) {
                for (reason, count) in end.dropped_groups() {
                    *groups.dropped.entry(format!("{stage}: {reason}")).or_default() += count;
                }
            }
        }
        for group in std::mem::take(&mut self.open).into_values() {
            groups.seen += 1;
            // What was compared may be more than the turn's reward; that counts only where no rule has scored.
            let is_flat = group.taught.map_or(group.flat, |taught| !taught);
            groups.flat += u64::from(is_flat);
            groups.uneven += u64::from(group.branches.is_some_and(|branches| branches != group.members));
            groups.mixed_prompts += u64::from(!group.one_prompt);
            let agent = entry(&mut self.agents, &group.agent);
            agent.groups += 1;
            agent.flat += u64::from(is_flat);
            if let Some(taught) = group.taught {
                let turn = agent.untaught.entry(group.turn).or_default();
                *turn = (turn.0 + u64::from(!taught), turn.1 + 1);
            }
            agent.within += group.rewards.squares();
            agent.prompt_tokens += group.prompt.len() as u64;
        }
        groups
    }
}

/// The `end` lines of one stage, however deep.
pub fn ends_of<'a>(ends: &'a [End], stage: &'a str) -> impl Iterator<Item = &'a End> {
    let mut open: Vec<&End> = ends.iter().rev().collect();
    std::iter::from_fn(move || {
        let end = open.pop()?;
        open.extend(end.after.iter().rev());
        Some(end)
    })
    .filter(move |end| end.stage == stage)
}

fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, key: &str) -> &'a mut V {
    map.entry(key.to_owned()).or_default()
}

fn count<T>(list: Option<&Vec<T>>) -> u64 {
    list.map_or(0, Vec::len) as u64
}

#[cfg(test)]
mod tests {
    use super::RunningStats;

    #[test]
    fn mean_and_deviation() {
        let mut stats = RunningStats::default();
        assert_eq!((stats.mean(), stats.deviation()), (None, None));
        stats.push(2.0);
        assert_eq!((stats.mean(), stats.deviation()), (Some(2.0), None));
        for value in [4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            stats.push(value);
        }
        assert_eq!(stats.mean(), Some(5.0));
        let deviation = stats.deviation().unwrap();
        assert!((deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12, "{deviation}");
    }
}
