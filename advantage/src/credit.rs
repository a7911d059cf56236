//! What a sample is credited with beyond its own reward: what its agent earned on the executed path after it.
//!
//! The return of a sample at turn t is r + gamma r(t+1) + gamma^2 r(t+2) + …, where r is its own reward and r(t') that
//! of its agent's executed sample at turn t'. In tree sampling the executed path is that of the selected samples, one
//! an agent and turn, and siblings share what follows: nothing else is known about a state that was not gone on from.
//! What they share cancels where their mean is subtracted, so `return` changes something with other groupings, with
//! `raw` and `remax`, and in parallel sampling, where each branch has a path of its own.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use record::failure::{Failure, Result};
use record::read::Line;
use record::sample::{Field, Sample};

/// Where a sample stands: its path and its turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    path: Path,
    turn: u32,
}

/// The executed samples of one agent in one episode; in parallel sampling of one branch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Path {
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
    /// No paths yet; `gamma` is the discount a turn.
    pub fn new(gamma: f64) -> Self {
        Paths { gamma, executed: HashMap::new() }
    }

    /// Notes a sample that earned `reward` and says where it stands.
    ///
    /// # Errors
    /// 65: a field is missing, or a second candidate of one turn was executed.
    pub fn note(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Place> {
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
                return Err(sample
                    .failure(
                        line,
                        format!("selected, but so is the candidate of the same turn on line {first}"),
                    )
                    .hint("an episode goes on from one candidate of a turn"));
            }
        }
        Ok(Place { path, turn })
    }

    /// The discounted rewards of the executed path after `place`.
    ///
    /// # Errors
    /// 65: the path has a hole.
    pub fn after(&self, place: &Place) -> Result<f64> {
        let Some(turns) = self.executed.get(&place.path) else { return Ok(0.0) };
        let mut total = 0.0;
        let mut discount = 1.0;
        let later = turns.range((Bound::Excluded(place.turn), Bound::Unbounded));
        for (expected, (&turn, (reward, _))) in (u64::from(place.turn) + 1..).zip(later) {
            if u64::from(turn) != expected {
                let Path { episode, agent, .. } = &place.path;
                return Err(Failure::data(format!(
                    "episode {episode} has no executed sample of {agent} at turn {expected}, but one at turn {turn}"
                ))
                .hint("a return needs the whole path: was a group dropped on the way? --credit turn needs none"));
            }
            discount *= self.gamma;
            total += discount * reward;
        }
        Ok(total)
    }
}
