//! The accounts of a rollout, for its `end` line: which groups should have been made, which were, which were not and
//! why; how each environment's episodes went; what each agent earned.
//!
//! Groups are counted where they are asked for and, apart from that, where they are written or given up, so the two
//! sums are held against each other and not against themselves. Sums of numbers with fractions are taken in the
//! order of the output, which makes them the same for any number of threads.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::episode::{Group, Stop};

/// Where an episode can break off, in the order in which the reasons are listed.
const BOUNDARIES: [&str; 4] = ["policy", "env", "sandbox", "task"];

/// What one environment's episodes came to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Environment {
    episodes: u64,
    errors: u64,
    solved_at_turn: Vec<u64>,
}

/// What one agent said and earned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agent {
    groups: u64,
    samples: u64,
    completion_tokens: u64,
    cut: u64,
    reward: f64,
    squares: f64,
    components: BTreeMap<String, (u64, f64)>,
}

impl Agent {
    /// The account of one group.
    pub fn of(group: &Group) -> Agent {
        let mut agent = Agent { groups: 1, ..Agent::default() };
        for member in &group.members {
            agent.samples += 1;
            agent.completion_tokens += member.candidate.ids.len() as u64;
            agent.cut += u64::from(!member.candidate.stopped);
            agent.reward += member.reward;
            agent.squares += member.reward * member.reward;
            for (name, value) in &member.outcome.components {
                let (count, sum) = agent.components.entry(name.clone()).or_default();
                *count += 1;
                *sum += value;
            }
        }
        agent
    }

    fn add(&mut self, other: &Agent) {
        self.groups += other.groups;
        self.samples += other.samples;
        self.completion_tokens += other.completion_tokens;
        self.cut += other.cut;
        self.reward += other.reward;
        self.squares += other.squares;
        for (name, (count, sum)) in &other.components {
            let mine = self.components.entry(name.clone()).or_default();
            mine.0 += count;
            mine.1 += sum;
        }
    }

    fn fields(&self) -> Value {
        let count = self.samples as f64;
        let mean = self.reward / count;
        let deviation = ((self.squares - count * mean * mean).max(0.0) / (count - 1.0)).sqrt();
        let components: Map<String, Value> = self
            .components
            .iter()
            .map(|(name, (count, sum))| (name.clone(), json!(sum / *count as f64)))
            .collect();
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

/// The accounts of a task or of a whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Groups asked for: one for each agent that acts, at each turn of each episode.
    pub expected: u64,
    dropped: BTreeMap<&'static str, u64>,
    environments: BTreeMap<String, Environment>,
    agents: BTreeMap<String, Agent>,
}

impl Account {
    /// Counts groups that were asked for and given up at a boundary.
    pub fn drop(&mut self, boundary: &'static str, groups: u64) {
        *self.dropped.entry(boundary).or_default() += groups;
    }

    /// Groups given up.
    pub fn dropped(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Counts an episode that ended after `turns`.
    pub fn episode(&mut self, environment: &str, turns: u32, stop: &Stop) {
        let environment = self.environments.entry(environment.to_owned()).or_default();
        environment.episodes += 1;
        environment.errors += u64::from(matches!(stop, Stop::Error(_)));
        if *stop == Stop::Success {
            let turn = turns.saturating_sub(1) as usize;
            let turns = environment.solved_at_turn.len().max(turn + 1);
            environment.solved_at_turn.resize(turns, 0);
            environment.solved_at_turn[turn] += 1;
        }
    }

    /// Counts what an agent did. Call it in the order of the output.
    pub fn agent(&mut self, name: &str, agent: &Agent) {
        self.agents.entry(name.to_owned()).or_default().add(agent);
    }

    /// Adds `other`. Call it in the order of the output.
    pub fn add(&mut self, other: &Account) {
        self.expected += other.expected;
        for (boundary, count) in &other.dropped {
            *self.dropped.entry(boundary).or_default() += count;
        }
        for (name, theirs) in &other.environments {
            let mine = self.environments.entry(name.clone()).or_default();
            mine.episodes += theirs.episodes;
            mine.errors += theirs.errors;
            let turns = mine.solved_at_turn.len().max(theirs.solved_at_turn.len());
            mine.solved_at_turn.resize(turns, 0);
            mine.solved_at_turn
                .iter_mut()
                .zip(&theirs.solved_at_turn)
                .for_each(|(mine, theirs)| *mine += theirs);
        }
        for (name, theirs) in &other.agents {
            self.agents.entry(name.clone()).or_default().add(theirs);
        }
    }

    /// `dropped_groups` of the `end` line.
    pub fn dropped_fields(&self) -> Value {
        let count = |boundary: &str| json!(self.dropped.get(boundary).copied().unwrap_or(0));
        Value::Object(BOUNDARIES.iter().map(|&boundary| (boundary.to_owned(), count(boundary))).collect())
    }

    /// `environments` of the `end` line.
    pub fn environment_fields(&self) -> Value {
        let of = |environment: &Environment| {
            json!({
                "episodes": environment.episodes,
                "solved": environment.solved_at_turn.iter().sum::<u64>(),
                "errors": environment.errors,
                "solved_at_turn": environment.solved_at_turn,
            })
        };
        Value::Object(
            self.environments.iter().map(|(name, environment)| (name.clone(), of(environment))).collect(),
        )
    }

    /// `agents` of the `end` line.
    pub fn agent_fields(&self) -> Value {
        Value::Object(self.agents.iter().map(|(name, agent)| (name.clone(), agent.fields())).collect())
    }
}
