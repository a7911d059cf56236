//! What a whole episode earned, and which members of a group are parts of one: trajectory-level GRPO.
//!
//! GRPO (DeepSeekMath, arXiv 2402.03300) compares K answers to one question. Where an answer is an episode of many turns and
//! agents, the answers are the K episodes that parallel sampling plays of one task: each earns the sum of gamma^t r over
//! all its samples, mean and standard deviation are those of the K episodes, each counted once however many samples it
//! has, and all samples of an episode share its advantage.
//!
//! In tree sampling there is one executed path and nothing to compare it with, so a tree is refused.

use std::collections::{BTreeMap, HashMap};

use record::failure::{Failure, Result};
use record::read::Line;
use record::sample::{Field, Sample};

/// One of the episodes played side by side: the name that they share, and which of them it is.
pub type Trajectory = (String, u32);

/// What the samples of each episode earned, by agent and turn.
#[derive(Debug)]
pub struct Trajectories {
    gamma: f64,
    earned: HashMap<Trajectory, BTreeMap<String, BTreeMap<u32, f64>>>,
}

impl Trajectories {
    /// None yet; `gamma` is the discount a turn.
    pub fn new(gamma: f64) -> Self {
        Trajectories { gamma, earned: HashMap::new() }
    }

    /// Notes a sample that earned `reward` and says of which episode it is.
    ///
    /// # Errors
    /// 65: a field is missing, the sample is of a tree, or the agent has acted at this turn before.
    pub fn note(&mut self, sample: &Sample, line: &Line, reward: f64) -> Result<Trajectory> {
        sample.require(line, &[Field::Episode, Field::Agent, Field::Turn, Field::Branch])?;
        if !sample.is_parallel() {
            return Err(sample
                .failure(line, "--credit episode compares whole episodes, and this sample is of a tree")
                .hint("rollout --sampling parallel plays whole episodes; group --by episode puts those of a task together"));
        }
        let trajectory = (sample.episode.clone().unwrap_or_default(), sample.branch.unwrap_or_default());
        let agent = sample.agent.clone().unwrap_or_default();
        let turns = self.earned.entry(trajectory.clone()).or_default().entry(agent).or_default();
        if turns.insert(sample.turn.unwrap_or_default(), reward).is_some() {
            return Err(sample.failure(line, "this agent has already acted at this turn of this episode"));
        }
        Ok(trajectory)
    }

    /// The discounted rewards of all agents in an episode.
    ///
    /// # Errors
    /// 65: a turn of an agent is missing.
    pub fn total(&self, trajectory: &Trajectory) -> Result<f64> {
        let mut total = 0.0;
        for (agent, turns) in self.earned.get(trajectory).into_iter().flatten() {
            let mut discount = 1.0;
            for (expected, (&turn, reward)) in (0..).zip(turns) {
                if turn != expected {
                    let (episode, branch) = trajectory;
                    return Err(Failure::data(format!(
                        "episode {episode}, branch {branch}: no sample of {agent} at turn {expected}, but one at turn {turn}"
                    ))
                    .hint("a whole episode needs all its samples: were some dropped on the way? --credit turn needs none"));
                }
                total += discount * reward;
                discount *= self.gamma;
            }
        }
        Ok(total)
    }
}

/// For each member its place among the different `trajectories`, which are numbered in the order of their first members,
/// and the first member of each.
pub fn distinct<'a>(trajectories: impl Iterator<Item = &'a Trajectory>) -> (Vec<usize>, Vec<usize>) {
    let mut numbers: HashMap<&Trajectory, usize> = HashMap::new();
    let (mut places, mut firsts) = (Vec::new(), Vec::new());
    for (member, trajectory) in trajectories.enumerate() {
        let next = numbers.len();
        let number = *numbers.entry(trajectory).or_insert(next);
        if number == next {
            firsts.push(member);
        }
        places.push(number);
    }
    (places, firsts)
}
