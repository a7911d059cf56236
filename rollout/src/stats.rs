//! Statistics of a rollout for `counts` of its `end` line: groups expected, written and dropped by reason;
//! episodes by environment; rewards by agent.
//!
//! Expected groups are counted when requested, written and dropped ones when that happens, so that the
//! two sums check each other. Floating-point sums follow the order of the output, so they are the same
//! for any number of threads.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::episode::Stop;
use crate::episode::group::Group;

/// Where an episode can fail, in the order of `dropped_groups`.
const BOUNDARIES: [&str; 4] = ["policy", "env", "sandbox", "task"];

#[derive(Clone, Debug, Default, PartialEq)]
struct EnvironmentStats {
    episodes: u64,
    solved: u64,
    errors: u64,
    /// Solved episodes by the turn that solved them, from 0.
    solved_at_turn: Vec<u64>,
    /// Sum of the rewards of the episodes without errors.
    reward: f64,
}

impl EnvironmentStats {
    fn add(&mut self, other: &EnvironmentStats) {
        self.episodes += other.episodes;
        self.errors += other.errors;
        self.reward += other.reward;
        for (turn, &solved) in other.solved_at_turn.iter().enumerate() {
            self.add_solved(turn, solved);
        }
    }

    fn add_solved(&mut self, turn: usize, episodes: u64) {
        self.solved += episodes;
        self.solved_at_turn.resize(self.solved_at_turn.len().max(turn + 1), 0);
        self.solved_at_turn[turn] += episodes;
    }

    fn to_json(&self) -> Value {
        let scored = self.episodes - self.errors;
        json!({
            "episodes": self.episodes,
            "solved": self.solved,
            "errors": self.errors,
            "solved_at_turn": self.solved_at_turn,
            "reward": (scored > 0).then_some(self.reward / scored as f64),
        })
    }
}

/// Statistics of an agent over one or more groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentStats {
    /// True if a server or an opponent played it; prompt tokens of those are counted here.
    served: bool,
    served_prompt_tokens: u64,
    groups: u64,
    samples: u64,
    completion_tokens: u64,
    cut: u64,
    reward: f64,
    squared_reward: f64,
    /// Count and sum by name.
    components: BTreeMap<String, (u64, f64)>,
}

impl AgentStats {
    pub fn of(group: &Group, served: bool) -> AgentStats {
        let mut agent = AgentStats { groups: 1, served, ..AgentStats::default() };
        for member in &group.members {
            let usage = member.candidate.usage;
            agent.samples += 1;
            agent.completion_tokens += usage.completion.unwrap_or(member.candidate.ids.len() as u64);
            agent.served_prompt_tokens += usage.prompt.unwrap_or(0);
            agent.cut += u64::from(!member.candidate.stopped);
            agent.reward += member.reward;
            agent.squared_reward += member.reward * member.reward;
            for (name, value) in &member.outcome.components {
                agent.add_component(name, 1, *value);
            }
        }
        agent
    }

    fn add(&mut self, other: &AgentStats) {
        self.served |= other.served;
        self.served_prompt_tokens += other.served_prompt_tokens;
        self.groups += other.groups;
        self.samples += other.samples;
        self.completion_tokens += other.completion_tokens;
        self.cut += other.cut;
        self.reward += other.reward;
        self.squared_reward += other.squared_reward;
        for (name, &(count, sum)) in &other.components {
            self.add_component(name, count, sum);
        }
    }

    fn add_component(&mut self, name: &str, count: u64, sum: f64) {
        let own = self.components.entry(name.to_owned()).or_default();
        own.0 += count;
        own.1 += sum;
    }

    fn to_json(&self) -> Value {
        let count = self.samples as f64;
        let mean = self.reward / count;
        let deviation = ((self.squared_reward - count * mean * mean).max(0.0) / (count - 1.0)).sqrt();
        let components: BTreeMap<&String, f64> =
            self.components.iter().map(|(name, (count, sum))| (name, sum / *count as f64)).collect();
        json!({
            "groups": self.groups,
            "samples": self.samples,
            "completion_tokens": self.completion_tokens,
            "cut": self.cut,
            "reward": mean,
            "reward_std": (self.samples > 1).then_some(deviation),
            "reward_components": components,
        })
    }
}

/// The statistics of a task or of a whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tasks played.
    pub tasks: u64,
    /// Groups requested: one for each acting agent, at each turn of each episode.
    pub groups_expected: u64,
    /// Prompt tokens; a prompt that several branches share counts once.
    pub prompt_tokens: u64,
    /// Prompts after the first turn with an answer in them that go on from its tokens.
    pub continued: u64,
    /// Prompts after the first turn with an answer in them that were rendered and tokenized anew.
    pub rendered: u64,
    /// Candidates that have marks of tool calls, and none could be read.
    pub unread_calls: u64,
    /// Nodes with scored joint actions.
    pub nodes: u64,
    pub joint_actions: u64,
    /// With `--fill`: tasks that teach, and completion tokens of those that do not.
    pub teaching: u64,
    /// See `teaching`.
    pub tokens_not_teaching: u64,
    /// True if agents were paid for what others did, and no sample has this pay.
    pub has_unpaid: bool,
    /// The first error that prevented scoring an episode.
    pub first_error: Option<String>,
    dropped: BTreeMap<&'static str, u64>,
    environments: BTreeMap<String, EnvironmentStats>,
    /// By whether they are frozen, and by agent: in self-play an agent is both.
    agents: BTreeMap<(bool, String), AgentStats>,
}

impl Stats {
    /// Counts groups that were requested and then dropped at a boundary.
    pub fn drop_groups(&mut self, boundary: &'static str, groups: u64) {
        *self.dropped.entry(boundary).or_default() += groups;
    }

    /// Counts an episode that ended after `turns` and earned `reward`.
    pub fn add_episode(&mut self, environment: &str, turns: u32, reward: Option<f64>, stop: &Stop) {
        let environment = self.environments.entry(environment.to_owned()).or_default();
        environment.episodes += 1;
        match stop {
            Stop::Error(error) => {
                environment.errors += 1;
                let first = || format!("{}: {}", error.boundary, error.message);
                self.first_error.get_or_insert_with(first);
            }
            _ => environment.reward += reward.unwrap_or_default(),
        }
        if *stop == Stop::Success {
            environment.add_solved(turns.saturating_sub(1) as usize, 1);
        }
    }

    /// Adds an agent's statistics. Call it in the order of the output.
    pub fn add_agent(&mut self, name: &str, agent: &AgentStats) {
        self.agents.entry((agent.served, name.to_owned())).or_default().add(agent);
    }

    /// Adds `other`. Call it in the order of the output.
    pub fn add(&mut self, other: &Stats) {
        self.tasks += other.tasks;
        self.groups_expected += other.groups_expected;
        self.prompt_tokens += other.prompt_tokens;
        self.continued += other.continued;
        self.rendered += other.rendered;
        self.unread_calls += other.unread_calls;
        self.nodes += other.nodes;
        self.joint_actions += other.joint_actions;
        self.teaching += other.teaching;
        self.tokens_not_teaching += other.tokens_not_teaching;
        self.has_unpaid |= other.has_unpaid;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        for (boundary, &count) in &other.dropped {
            self.drop_groups(boundary, count);
        }
        for (name, theirs) in &other.environments {
            self.environments.entry(name.clone()).or_default().add(theirs);
        }
        for ((_, name), theirs) in &other.agents {
            self.add_agent(name, theirs);
        }
    }

    /// Groups expected, written and dropped.
    pub fn groups(&self) -> (u64, u64, u64) {
        let written = self.agents.values().map(|agent| agent.groups).sum();
        (self.groups_expected, written, self.dropped.values().sum())
    }

    /// Episodes begun.
    pub fn episodes(&self) -> u64 {
        self.environments.values().map(|environment| environment.episodes).sum()
    }

    /// Episodes that could not be scored.
    pub fn errors(&self) -> u64 {
        self.environments.values().map(|environment| environment.errors).sum()
    }

    /// Counts these statistics' task as teaching, or its tokens as not teaching.
    pub fn set_teaching(&mut self, teaches: bool) {
        self.teaching = u64::from(teaches);
        let tokens = self.agents.values().filter(|agent| !agent.served).map(|agent| agent.completion_tokens);
        self.tokens_not_teaching = if teaches { 0 } else { tokens.sum() };
    }

    /// Samples written.
    pub fn samples(&self) -> u64 {
        self.agents.values().map(|agent| agent.samples).sum()
    }

    /// `counts` of the `end` line.
    pub fn counts(&self) -> Map<String, Value> {
        let played = |served: bool| self.agents.iter().filter(move |((frozen, _), _)| *frozen == served);
        let of_agents =
            |count: fn(&AgentStats) -> u64| played(false).map(|(_, agent)| count(agent)).sum::<u64>();
        // Later stages never see the groups of agents played by servers and opponents.
        let served: u64 = played(true).map(|(_, agent)| agent.groups).sum();
        let dropped =
            BOUNDARIES.map(|name| (name.to_owned(), self.dropped.get(name).copied().unwrap_or(0).into()));
        let agents = played(false).map(|((_, name), agent)| (name.clone(), agent.to_json()));
        let environments = self.environments.iter().map(|(name, stats)| (name.clone(), stats.to_json()));
        let counts: [(&str, Value); 12] = [
            ("tasks", self.tasks.into()),
            ("episodes", self.episodes().into()),
            ("solved", self.environments.values().map(|environment| environment.solved).sum::<u64>().into()),
            ("errors", self.errors().into()),
            ("groups_expected", (self.groups_expected - served).into()),
            ("groups", of_agents(|agent| agent.groups).into()),
            ("samples", of_agents(|agent| agent.samples).into()),
            ("prompt_tokens", self.prompt_tokens.into()),
            ("completion_tokens", of_agents(|agent| agent.completion_tokens).into()),
            ("dropped_groups", Map::from_iter(dropped).into()),
            ("environments", Map::from_iter(environments).into()),
            ("agents", Map::from_iter(agents).into()),
        ];
        let of_servers = |((_, name), agent): (&(bool, String), &AgentStats)| {
            let mut json = agent.to_json();
            json["prompt_tokens"] = agent.served_prompt_tokens.into();
            (name.clone(), json)
        };
        let servers = (served > 0).then(|| ("served", Map::from_iter(played(true).map(of_servers)).into()));
        let joint = [("nodes", self.nodes.into()), ("joint_actions", self.joint_actions.into())];
        let joint = joint.into_iter().filter(|_| self.nodes > 0);
        let prompts =
            [("prompts_continued", self.continued.into()), ("prompts_rendered_anew", self.rendered.into())];
        let prompts = prompts.into_iter().filter(|_| self.continued + self.rendered > 0);
        let unread = (self.unread_calls > 0).then(|| ("unread_calls", self.unread_calls.into()));
        counts
            .into_iter()
            .chain(joint)
            .chain(prompts)
            .chain(unread)
            .chain(servers)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
