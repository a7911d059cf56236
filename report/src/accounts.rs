//! The accounts of one stream, from its own lines: what was asked, answered, compared, dropped and earned.
//!
//! Everything is counted again from `sample` and `episode` lines; of `end` lines only what no line can tell is taken
//! (how many groups were expected, and why some are missing). The two can therefore be held against each other.

use std::collections::BTreeMap;

use record::failure::Result;
use record::line::{self, End, Episode};
use record::read::{Kind, Line};
use record::sample::Sample;
use serde_json::Value;

use crate::moments::Moments;

/// What one environment's episodes came to.
#[derive(Debug, Default)]
pub struct Environment {
    /// Episodes begun.
    pub episodes: u64,
    /// Of them, those that could not be scored.
    pub errors: u64,
    /// Episodes solved at each turn, from turn 0.
    pub solved_at_turn: Vec<u64>,
    /// Turns begun.
    pub turns: Moments,
    /// Rewards of the executed paths.
    pub reward: Moments,
}

impl Environment {
    /// Episodes solved.
    pub fn solved(&self) -> u64 {
        self.solved_at_turn.iter().sum()
    }
}

/// What one agent said and earned.
#[derive(Debug, Default)]
pub struct Agent {
    /// Rewards of its samples.
    pub reward: Moments,
    /// Rewards by component.
    pub components: BTreeMap<String, Moments>,
    /// Samples.
    pub samples: u64,
    /// Groups, and those of them whose members all earned the same.
    pub groups: u64,
    /// See [`Agent::groups`].
    pub flat: u64,
    /// Tokens of its prompts, each counted once a group.
    pub prompt_tokens: u64,
    /// Tokens that it generated.
    pub completion_tokens: u64,
    /// Completions cut at the token limit.
    pub cut: u64,
}

/// A group as far as it has been read.
#[derive(Debug)]
struct Group {
    agent: String,
    prompt: Vec<u32>,
    reward: Option<f64>,
    members: u32,
    wanted: Option<u32>,
    flat: bool,
    one_prompt: bool,
}

/// How the groups of a stream add up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// Groups that the agents of all episodes and turns should have made; none where the stream does not say.
    pub expected: Option<u64>,
    /// Groups in the stream.
    pub seen: u64,
    /// Of them, those whose members all earned the same.
    pub flat: u64,
    /// Groups left out, by stage and reason.
    pub dropped: BTreeMap<String, u64>,
    /// Groups without exactly as many members as branches.
    pub uneven: u64,
    /// Groups whose members have prompts of their own.
    pub mixed_prompts: u64,
    /// Whether members are asked to share a prompt: not in the ablation groupings and in parallel sampling.
    pub equal_prompts: bool,
}

impl Groups {
    /// Groups left out for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped.values().sum()
    }
}

/// The accounts of one stream.
#[derive(Debug, Default)]
pub struct Accounts {
    /// By name.
    pub environments: BTreeMap<String, Environment>,
    /// By name.
    pub agents: BTreeMap<String, Agent>,
    /// Every `end` line, outermost.
    pub ends: Vec<End>,
    open: BTreeMap<String, Group>,
}

impl Accounts {
    /// Takes a line in.
    ///
    /// # Errors
    /// 65 when it breaks the record.
    pub fn take(&mut self, line: &Line) -> Result<()> {
        match line.kind {
            Kind::Episode => self.episode(&line::parse(line)?),
            Kind::End => self.ends.push(line::parse(line)?),
            _ => {}
        }
        Ok(())
    }

    /// Takes a sample in, parsed from a line that [`Accounts::take`] leaves to the caller.
    pub fn sample(&mut self, sample: &Sample) {
        let name = sample.agent.as_deref().unwrap_or_default();
        if !self.agents.contains_key(name) {
            self.agents.insert(name.to_owned(), Agent::default());
        }
        let Some(agent) = self.agents.get_mut(name) else { return };
        agent.samples += 1;
        agent.completion_tokens += sample.completion_ids.as_ref().map_or(0, Vec::len) as u64;
        agent.cut += u64::from(sample.finish_reason.as_deref() == Some("length"));
        if let Some(reward) = sample.reward.flatten() {
            agent.reward.push(reward);
        }
        for (component, value) in sample.reward_components.iter().flatten() {
            match agent.components.get_mut(component) {
                Some(moments) => moments.push(*value),
                None => agent.components.entry(component.clone()).or_default().push(*value),
            }
        }
        self.member(sample, name);
    }

    fn member(&mut self, sample: &Sample, agent: &str) {
        let key = sample.group.clone().unwrap_or_else(|| {
            let episode = sample.episode.as_deref().unwrap_or_default();
            format!("{episode}/{agent}/{}", sample.turn.unwrap_or_default())
        });
        let prompt = sample.prompt_ids.as_deref().unwrap_or_default();
        let reward = sample.reward.flatten();
        let Some(group) = self.open.get_mut(&key) else {
            let group = Group {
                agent: agent.to_owned(),
                prompt: prompt.to_vec(),
                reward,
                members: 1,
                wanted: sample.branches,
                flat: true,
                one_prompt: true,
            };
            self.open.insert(key, group);
            return;
        };
        group.members += 1;
        group.flat &= group.reward == reward;
        group.one_prompt &= group.prompt == prompt;
    }

    fn episode(&mut self, episode: &Episode) {
        let environment = self.environments.entry(episode.env.clone()).or_default();
        environment.episodes += 1;
        environment.errors += u64::from(episode.stop == "error");
        environment.turns.push(f64::from(episode.turns));
        if let Some(reward) = episode.reward {
            environment.reward.push(reward);
        }
        if episode.success {
            let turn = episode.turns.saturating_sub(1) as usize;
            let turns = environment.solved_at_turn.len().max(turn + 1);
            environment.solved_at_turn.resize(turns, 0);
            environment.solved_at_turn[turn] += 1;
        }
    }

    /// Ends the reading: hands every group to its agent and says how the groups add up.
    pub fn close(&mut self) -> Groups {
        let mut groups = Groups { equal_prompts: true, ..Groups::default() };
        for end in stages(&self.ends, "group") {
            groups.equal_prompts &= end.counts.get("equal_prompts").and_then(Value::as_bool).unwrap_or(true);
        }
        groups.expected = self.expected();
        for stage in ["rollout", "group", "advantage"] {
            for end in stages(&self.ends, stage) {
                for (reason, count) in dropped(end) {
                    *groups.dropped.entry(format!("{stage}: {reason}")).or_default() += count;
                }
            }
        }
        for group in std::mem::take(&mut self.open).into_values() {
            groups.seen += 1;
            groups.flat += u64::from(group.flat);
            groups.uneven += u64::from(group.wanted.is_some_and(|wanted| wanted != group.members));
            groups.mixed_prompts += u64::from(!group.one_prompt);
            if let Some(agent) = self.agents.get_mut(&group.agent) {
                agent.groups += 1;
                agent.flat += u64::from(group.flat);
                agent.prompt_tokens += group.prompt.len() as u64;
            }
        }
        groups
    }

    fn expected(&self) -> Option<u64> {
        let mut ends = stages(&self.ends, "group").peekable();
        ends.peek()?;
        ends.map(|end| end.counts.get("groups_expected")?.as_u64()).sum()
    }
}

/// The `end` lines of one stage, however deep.
pub fn stages<'a>(ends: &'a [End], stage: &'a str) -> impl Iterator<Item = &'a End> {
    let mut open: Vec<&End> = ends.iter().rev().collect();
    std::iter::from_fn(move || {
        let end = open.pop()?;
        open.extend(end.after.iter().rev());
        Some(end)
    })
    .filter(move |end| end.stage == stage)
}

/// Groups that a stage left out, by reason; a plain number has no reason to name.
fn dropped(end: &End) -> Vec<(String, u64)> {
    match end.counts.get("dropped_groups") {
        Some(Value::Object(reasons)) => reasons
            .iter()
            .filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))
            .filter(|(_, count)| *count > 0)
            .collect(),
        Some(count) => count
            .as_u64()
            .filter(|&count| count > 0)
            .map(|count| ("dropped".to_owned(), count))
            .into_iter()
            .collect(),
        None => Vec::new(),
    }
}
