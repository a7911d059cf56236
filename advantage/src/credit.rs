//! What a sample is credited with: its own reward, its return, or what its whole episode earned.
//!
//! - The return of a sample at turn t is r + gamma r(t+1) + gamma^2 r(t+2) + …, where r is its own reward and r(t') that of
//!   its agent's executed sample at turn t'. In tree sampling the executed path is that of the selected samples, one an
//!   agent and turn, and siblings share what follows: nothing else is known about states that were not executed. What
//!   they share cancels where their mean is subtracted, so `return` matters with other groupings, with `raw` and
//!   `remax`, and in parallel sampling, where each branch has a path of its own.
//! - Trajectory-level GRPO (DeepSeekMath, arXiv 2402.03300, compares K answers to one question) where an answer is an
//!   episode of many turns and agents: parallel sampling plays K episodes of one task, each earns the sum of gamma^t r
//!   over all its samples, mean and standard deviation are those of the K episodes, each counted once, and all samples
//!   of an episode share its advantage. A tree has one executed path and nothing to compare it with, so it is refused.
//!   `episode-own` sums the rewards of the sample's own agent, and `gigpo` adds a second comparison (`anchors.rs`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use record::failure::{Failure, Result};
use record::read::Line;
use record::sample::{Field, Sample};
use record::stage::choice;
use record::text::Text;

use crate::arguments::Credit;

/// The name of an episode, and in parallel sampling its branch: parallel episodes share their name.
pub type EpisodeKey = (String, Option<u32>);

/// Identifies a sample by episode, agent and turn.
#[derive(Clone, Debug)]
pub struct CreditKey {
    /// Its episode.
    pub episode: EpisodeKey,
    /// Its agent.
    pub agent: String,
    /// Its turn.
    pub turn: u32,
}

/// By turn the reward of the executed sample, and the line it was on.
type Turns = BTreeMap<u32, (f64, u64)>;

/// The executed samples of all episodes, as far as `--credit` needs them.
#[derive(Debug)]
pub struct Credits {
    credit: Credit,
    gamma: f64,
    /// By episode and agent.
    executed: HashMap<EpisodeKey, BTreeMap<String, Turns>>,
    /// By episode and depth the node of its one path, if it has joint actions.
    nodes: HashMap<(String, usize), String>,
}

impl Credits {
    /// Nothing seen yet; `gamma` is the discount a turn.
    pub fn new(credit: Credit, gamma: f64) -> Self {
        Credits { credit, gamma, executed: HashMap::new(), nodes: HashMap::new() }
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
                    .hint("rollout --sampling parallel plays whole episodes; group --by episode puts those of a task together"));
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

    /// What a sample with `reward` is credited with.
    ///
    /// # Errors
    /// 65: a turn of its path or episode is missing.
    pub fn value(&self, reward: f64, key: Option<&CreditKey>) -> Result<f64> {
        let Some(key) = key else { return Ok(reward) };
        let agents = self.executed.get(&key.episode);
        if self.credit == Credit::Return {
            let Some(turns) = agents.and_then(|agents| agents.get(&key.agent)) else {
                return Ok(reward);
            };
            let later = turns.range((Bound::Excluded(key.turn), Bound::Unbounded));
            let from = u64::from(key.turn) + 1;
            let after = add_discounted(0.0, later, from, self.gamma, self.gamma);
            return Ok(reward + after.map_err(|hole| missing(&key.episode, &key.agent, hole))?);
        }
        // GiGPO discounts what is compared by prompt, and not the episode.
        let gamma = if self.credit == Credit::Gigpo { 1.0 } else { self.gamma };
        let own = |agent: &String| self.credit != Credit::EpisodeOwn || *agent == key.agent;
        agents.into_iter().flatten().filter(|(agent, _)| own(agent)).try_fold(0.0, |total, (agent, turns)| {
            add_discounted(total, turns.iter(), 0, 1.0, gamma)
                .map_err(|hole| missing(&key.episode, agent, hole))
        })
    }
}

/// The failure for a turn that was not executed, though the one after it was.
fn missing((episode, branch): &EpisodeKey, agent: &str, (missing, next): (u64, u32)) -> Failure {
    let branch = branch.map_or(String::new(), |branch| format!(", branch {branch}"));
    Failure::data(format!(
        "episode {episode}{branch}: no executed sample of {agent} at turn {missing}, but one at turn {next}"
    ))
    .hint("a return needs the whole path: was a group dropped on the way? --credit turn needs none")
}

/// `total` plus discounted rewards by turn, the first of which is that of turn `from` times `discount`.
///
/// # Errors
/// The first turn that is missing, and the one that is there in its place.
fn add_discounted<'a>(
    mut total: f64,
    turns: impl Iterator<Item = (&'a u32, &'a (f64, u64))>,
    from: u64,
    mut discount: f64,
    gamma: f64,
) -> std::result::Result<f64, (u64, u32)> {
    for (expected, (&turn, &(reward, _))) in (from..).zip(turns) {
        if u64::from(turn) != expected {
            return Err((expected, turn));
        }
        total += discount * reward;
        discount *= gamma;
    }
    Ok(total)
}
