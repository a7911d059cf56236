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

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use record::failure::{Failure, Result};
use record::read::Line;
use record::sample::{Field, Sample};

use crate::arguments::Credit;

/// What is known of other samples, as far as `--credit` needs it.
#[derive(Debug)]
pub enum Credits {
    /// Nothing: `turn`.
    Turn,
    /// The executed paths: `return`.
    Return(Paths),
    /// The whole episodes: `episode`.
    Episode(Episodes),
}

/// What a sample is credited as a part of.
#[derive(Debug)]
pub enum Part {
    /// Nothing: its own reward counts.
    Alone,
    /// A path, at a turn.
    Path(Path, u32),
    /// A whole episode.
    Episode(Episode),
}

impl Credits {
    /// Nothing seen yet; `gamma` is the discount a turn.
    pub fn new(credit: Credit, gamma: f64) -> Self {
        match credit {
            Credit::Turn => Credits::Turn,
            Credit::Return => Credits::Return(Paths { gamma, executed: HashMap::new() }),
            Credit::Episode => Credits::Episode(Episodes { gamma, rewards: HashMap::new() }),
        }
    }

    /// Whether values are known only at the end of the stream.
    pub fn need_whole_stream(&self) -> bool {
        !matches!(self, Credits::Turn)
    }

    /// Takes in a sample that earned `reward`.
    ///
    /// # Errors
    /// 65: a field is missing, or the sample contradicts others of its path or episode.
    pub fn take(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Part> {
        match self {
            Credits::Turn => Ok(Part::Alone),
            Credits::Return(paths) => paths.take(sample, line, reward),
            Credits::Episode(episodes) => episodes.take(sample, line, reward),
        }
    }

    /// What a sample with `reward` is credited with.
    ///
    /// # Errors
    /// 65: a turn of its path or episode is missing.
    pub fn value(&self, reward: f64, part: &Part) -> Result<f64> {
        match (self, part) {
            (Credits::Return(paths), Part::Path(path, turn)) => Ok(reward + paths.after(path, *turn)?),
            (Credits::Episode(episodes), Part::Episode(episode)) => episodes.total(episode),
            _ => Ok(reward),
        }
    }
}

/// The executed samples of one agent in one episode; in parallel sampling of one branch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    episode: String,
    agent: String,
    branch: Option<u32>,
}

/// The executed samples of all paths: by turn the reward, and the line it was on.
#[derive(Debug)]
pub struct Paths {
    gamma: f64,
    executed: HashMap<Path, BTreeMap<u32, (f64, u64)>>,
}

impl Paths {
    fn take(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Part> {
        sample.require(line, &[Field::Episode, Field::Agent, Field::Turn, Field::Branch])?;
        let parallel = sample.is_parallel();
        if !parallel {
            sample.require(line, &[Field::Selected])?;
        }
        let path = Path {
            episode: sample.episode.clone().unwrap_or_default(),
            agent: sample.agent.clone().unwrap_or_default(),
            branch: sample.branch.filter(|_| parallel),
        };
        let turn = sample.turn.unwrap_or_default();
        if parallel || sample.selected == Some(true) {
            let turns = self.executed.entry(path.clone()).or_default();
            if let Some((_, first)) = turns.insert(turn, (reward, line.number)) {
                let cause = format!("selected, but so is the candidate of the same turn on line {first}");
                return Err(sample
                    .failure(line, cause)
                    .hint("an episode goes on from one candidate of a turn"));
            }
        }
        Ok(Part::Path(path, turn))
    }

    /// The discounted rewards of `path` after `turn`.
    fn after(&self, path: &Path, turn: u32) -> Result<f64> {
        let Some(turns) = self.executed.get(path) else { return Ok(0.0) };
        let later = turns.range((Bound::Excluded(turn), Bound::Unbounded));
        let later = later.map(|(&turn, &(reward, _))| (turn, reward));
        add_discounted(0.0, later, u64::from(turn) + 1, self.gamma, self.gamma).map_err(|(missing, next)| {
            let Path { episode, agent, .. } = path;
            Failure::data(format!(
                "episode {episode} has no executed sample of {agent} at turn {missing}, but one at turn {next}"
            ))
            .hint("a return needs the whole path: was a group dropped on the way? --credit turn needs none")
        })
    }
}

/// One of several parallel episodes: the name that they share, and its branch.
pub type Episode = (String, u32);

/// What the samples of each episode earned, by agent and turn.
#[derive(Debug)]
pub struct Episodes {
    gamma: f64,
    rewards: HashMap<Episode, BTreeMap<String, BTreeMap<u32, f64>>>,
}

impl Episodes {
    fn take(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Part> {
        sample.require(line, &[Field::Episode, Field::Agent, Field::Turn, Field::Branch])?;
        if !sample.is_parallel() {
            return Err(sample
                .failure(line, "--credit episode compares whole episodes, and this sample is of a tree")
                .hint("rollout --sampling parallel plays whole episodes; group --by episode puts those of a task together"));
        }
        let episode = (sample.episode.clone().unwrap_or_default(), sample.branch.unwrap_or_default());
        let agent = sample.agent.clone().unwrap_or_default();
        let turns = self.rewards.entry(episode.clone()).or_default().entry(agent).or_default();
        if turns.insert(sample.turn.unwrap_or_default(), reward).is_some() {
            return Err(sample.failure(line, "this agent has already acted at this turn of this episode"));
        }
        Ok(Part::Episode(episode))
    }

    /// The discounted rewards of all agents in an episode.
    fn total(&self, episode: &Episode) -> Result<f64> {
        let mut total = 0.0;
        for (agent, turns) in self.rewards.get(episode).into_iter().flatten() {
            let turns = turns.iter().map(|(&turn, &reward)| (turn, reward));
            total = add_discounted(total, turns, 0, 1.0, self.gamma).map_err(|(missing, next)| {
                let (episode, branch) = episode;
                Failure::data(format!(
                    "episode {episode}, branch {branch}: no sample of {agent} at turn {missing}, but one at turn {next}"
                ))
                .hint("a whole episode needs all its samples: were some dropped on the way? --credit turn needs none")
            })?;
        }
        Ok(total)
    }
}

/// `total` plus discounted rewards by turn, the first of which is that of turn `from` times `discount`.
///
/// # Errors
/// The first turn that is missing, and the one that is there in its place.
fn add_discounted(
    mut total: f64,
    turns: impl Iterator<Item = (u32, f64)>,
    from: u64,
    mut discount: f64,
    gamma: f64,
) -> std::result::Result<f64, (u64, u32)> {
    for (expected, (turn, reward)) in (from..).zip(turns) {
        if u64::from(turn) != expected {
            return Err((expected, turn));
        }
        total += discount * reward;
        discount *= gamma;
    }
    Ok(total)
}
