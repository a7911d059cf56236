//! The credit of a sample: its own reward, its return, or the reward of its whole episode.
//!
//! - The return of a sample at turn t is r + gamma r(t+1) + gamma^2 r(t+2) + …, where r is the sample's
//!   reward and r(t') the reward of its agent's executed sample at turn t'. In tree sampling the executed
//!   path consists of the selected samples, one per agent and turn. Siblings share the rewards after their
//!   turn, because other continuations were not played. Subtracting their mean cancels the shared part, so
//!   `return` only matters with other groupings, with `raw` and `remax`, and in parallel sampling, where each
//!   branch continues separately.
//! - Trajectory-level GRPO (DeepSeekMath, arXiv 2402.03300, compares K answers to one question), where an
//!   answer is an episode of many turns and agents. Parallel sampling plays K episodes of a task. An
//!   episode's reward is the sum of gamma^t r over all its samples; mean and standard deviation are over the
//!   K episodes, each counted once; all samples of an episode get its advantage. A tree has a single executed
//!   path, with nothing to compare, so it is refused. `episode-own` sums only the rewards of the sample's
//!   agent, and `gigpo` adds a second comparison (`anchors.rs`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use record::failure::{Failure, Result};
use record::line::End;
use record::read::Line;
use record::sample::{Field, Sample};
use record::stage::choice;
use record::text::Text;

use crate::arguments::Credit;

/// An episode's name, and in parallel sampling its branch, because parallel episodes share a name.
pub type EpisodeKey = (String, Option<u32>);

/// Identifies a sample by episode, agent and turn.
#[derive(Clone, Debug)]
pub struct CreditKey {
    pub episode: EpisodeKey,
    pub agent: String,
    pub turn: u32,
}

/// By turn: the executed sample's reward and line number.
type Turns = BTreeMap<u32, (f64, u64)>;

/// The executed samples of all episodes, as far as `--credit` needs them.
#[derive(Debug)]
pub struct Credits {
    credit: Credit,
    gamma: f64,
    /// True if every group is there, so that an agent without a sample in a turn skipped it.
    complete: bool,
    /// By episode, then agent.
    executed: HashMap<EpisodeKey, BTreeMap<String, Turns>>,
    /// By episode and depth: the only node, for streams with joint actions.
    nodes: HashMap<(String, usize), String>,
}

impl Credits {
    /// An empty state; `gamma` is the discount per turn.
    pub fn new(credit: Credit, gamma: f64) -> Self {
        Credits { credit, gamma, complete: true, executed: HashMap::new(), nodes: HashMap::new() }
    }

    /// Reads in the `end` lines whether a stage after `rollout` dropped groups or samples without a reward. `rollout` itself
    /// drops the last groups of an episode alone.
    pub fn are_complete(&mut self, ends: &[&End]) {
        let is_unscored = |end: &End| end.counts.get("samples_unscored").is_some_and(|count| count != 0);
        let has_lost = |end: &&&End| {
            end.allowed.is_some()
                || end.stage != "rollout" && (!end.dropped_groups().is_empty() || is_unscored(end))
        };
        self.complete = !ends.iter().any(|end| has_lost(&end));
    }

    /// Adds a sample that earned `reward`. Returns its key if other rewards count, too.
    ///
    /// # Errors
    /// 65: a field is missing, or the sample contradicts others of its episode.
    pub fn take(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Option<CreditKey>> {
        if self.credit == Credit::Turn || self.credit == Credit::Tree {
            return Ok(None);
        }
        sample.require(line, &[Field::Episode, Field::Agent, Field::Turn, Field::Branch])?;
        let parallel = sample.is_parallel();
        match self.credit {
            credit if credit.is_of_episodes() && !parallel => {
                let cause = format!(
                    "--credit {} compares whole episodes, and this sample is of a tree",
                    choice(&credit)
                );
                return Err(sample
                    .failure(line, cause)
                    .hint("rollout --sampling parallel plays whole episodes; group --by episode groups the episodes of a task"));
            }
            Credit::Return if !parallel => {
                sample.require(line, &[Field::Selected])?;
                self.one_path(sample, line)?;
            }
            _ => {}
        }
        let text = |field: &Option<Text>| field.as_deref().unwrap_or_default().to_owned();
        let key = CreditKey {
            episode: (text(&sample.episode), sample.branch.filter(|_| parallel)),
            agent: text(&sample.agent),
            turn: sample.turn.unwrap_or_default(),
        };
        if parallel || sample.selected == Some(true) {
            let agents = self.executed.entry(key.episode.clone()).or_default();
            let turns = agents.entry(key.agent.clone()).or_default();
            if let Some((_, first)) = turns.insert(key.turn, (reward, line.number)) {
                let cause = format!("selected, but so is the candidate of the same turn on line {first}");
                return Err(sample
                    .failure(line, cause)
                    .hint("an episode goes on from one candidate of a turn"));
            }
        }
        Ok(Some(key))
    }

    /// Refuses a tree of joint actions, where a node's future differs from the executed path's.
    fn one_path(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        let Some(node) = &sample.node else { return Ok(()) };
        let episode = sample.episode.as_deref().unwrap_or_default().to_owned();
        let known = self.nodes.entry((episode, node.split('.').count())).or_insert_with(|| node.to_string());
        if *known == **node {
            return Ok(());
        }
        Err(sample
            .failure(line, format!("node {node} is beside node {known}: the episode branches"))
            .hint("--credit tree follows every joint action of rollout --expand all"))
    }

    /// The credit of a sample with `reward`. A turn that its agent skipped adds nothing, and counts in the discount.
    ///
    /// # Errors
    /// 65: a turn of its path or episode is missing, and groups were dropped.
    pub fn value(&self, reward: f64, key: Option<&CreditKey>) -> Result<f64> {
        let Some(key) = key else { return Ok(reward) };
        let agents = self.executed.get(&key.episode);
        if self.credit == Credit::Return {
            let Some(turns) = agents.and_then(|agents| agents.get(&key.agent)) else {
                return Ok(reward);
            };
            let later = turns.range((Bound::Excluded(key.turn), Bound::Unbounded));
            let from = u64::from(key.turn) + 1;
            let after = self.add_discounted(0.0, later, from, self.gamma, self.gamma);
            return Ok(reward + after.map_err(|hole| missing(&key.episode, &key.agent, hole))?);
        }
        // GiGPO discounts only the comparison among equal prompts.
        let gamma = if self.credit == Credit::Gigpo { 1.0 } else { self.gamma };
        let own = |agent: &String| self.credit != Credit::EpisodeOwn || *agent == key.agent;
        agents.into_iter().flatten().filter(|(agent, _)| own(agent)).try_fold(0.0, |total, (agent, turns)| {
            self.add_discounted(total, turns.iter(), 0, 1.0, gamma)
                .map_err(|hole| missing(&key.episode, agent, hole))
        })
    }

    /// Adds discounted rewards to `total`. One at turn `from` is multiplied by `discount`.
    ///
    /// # Errors
    /// The first missing turn, and the turn found in its place.
    fn add_discounted<'a>(
        &self,
        mut total: f64,
        turns: impl Iterator<Item = (&'a u32, &'a (f64, u64))>,
        mut from: u64,
        mut discount: f64,
        gamma: f64,
    ) -> std::result::Result<f64, (u64, u32)> {
        for (&turn, &(reward, _)) in turns {
            let skipped = u64::from(turn) - from;
            if skipped > 0 {
                if !self.complete {
                    return Err((from, turn));
                }
                discount *= gamma.powf(skipped as f64);
            }
            total += discount * reward;
            discount *= gamma;
            from = u64::from(turn) + 1;
        }
        Ok(total)
    }
}

/// The error for a turn without an executed sample, followed by a turn with one.
fn missing((episode, branch): &EpisodeKey, agent: &str, (missing, next): (u64, u32)) -> Failure {
    let branch = branch.map_or(String::new(), |branch| format!(", branch {branch}"));
    Failure::data(format!(
        "episode {episode}{branch}: no executed sample of {agent} at turn {missing}, but one at turn {next}"
    ))
    .hint("a return needs the whole path, and groups were dropped on the way: --credit turn needs none")
}
