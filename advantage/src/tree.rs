//! Returns over the tree of joint actions (MAGRPO, arXiv 2508.04652, section 4; CoMLRL's trainer).
//!
//! The return of joint action j for an agent is R_j = r_j + gamma^t · mean of R over the joint actions of its
//! child node, t turns later. r_j is α·team plus the agent's local reward, or only the team's share if the
//! agent does not act. A sample's credit is the mean (or sum) of the returns of its joint actions.
//!
//! Left out: the choice of joint actions to score and follow (`rollout --joint`, `--expand`).

use std::collections::{BTreeMap, HashMap};

use clap::ValueEnum;
use record::failure::{Failure, Result};
use record::line::Joint;
use record::read::Line;

/// The sum, bit-identical for any order.
fn total(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.iter().sum()
}

/// How a sample combines the returns of its joint actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reduction {
    /// Their mean
    Mean,
    /// Their sum, as CoMLRL does: with rollout --joint cross its scale grows with K^(N-1)
    Sum,
}

/// A joint action of the stream.
#[derive(Debug)]
struct Action {
    place: String,
    id: String,
    /// The episode, and in parallel sampling its branch.
    episode: (String, Option<u32>),
    parent: Option<String>,
    turn: u32,
    /// True if nothing follows: it ended the episode, or met the turn limit.
    ends: bool,
    /// The reward of agents that do not act here.
    others: f64,
    /// The reward of each acting agent.
    own: BTreeMap<String, f64>,
}

/// The joint actions of a stream. Credits need the complete stream.
#[derive(Debug)]
pub struct JointTree {
    gamma: f64,
    reduction: Reduction,
    team_weight: Option<f64>,
    actions: Vec<Action>,
    by_id: HashMap<String, usize>,
    /// The joint actions that each sample is part of, by sample id.
    of_sample: HashMap<String, Vec<usize>>,
    /// The return of every joint action, by agent; computed on first use.
    returns: HashMap<String, Vec<f64>>,
    /// The joint actions with children before parents; computed on first use.
    order: Vec<usize>,
}

impl JointTree {
    /// An empty tree; `gamma` is the discount per turn, `team_weight` replaces the recorded one.
    pub fn new(gamma: f64, reduction: Reduction, team_weight: Option<f64>) -> Self {
        let (actions, order) = (Vec::new(), Vec::new());
        let (by_id, of_sample, returns) = (HashMap::new(), HashMap::new(), HashMap::new());
        JointTree { gamma, reduction, team_weight, actions, by_id, of_sample, returns, order }
    }

    /// Number of joint actions.
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Adds a joint action.
    ///
    /// # Errors
    /// 65: it was not scored, or a part of its reward is missing.
    pub fn take(&mut self, joint: Joint, line: &Line) -> Result<()> {
        let refuse = |cause: &str| line.failure(format!("{}: {cause}", joint.id));
        let local = joint.rewards.as_ref().map(|rewards| &rewards.local);
        let values = || local.into_iter().flat_map(BTreeMap::values);
        let count = values().count();
        let base = match (self.team_weight, &joint.rewards, joint.reward) {
            (Some(weight), Some(rewards), _) => weight * rewards.team,
            (Some(_), None, _) => {
                return Err(refuse("`rewards` is missing, and --team-weight makes the reward of its parts"));
            }
            (None, _, None) => return Err(refuse("reward is null: the joint action was not scored")),
            (None, _, Some(reward)) => reward,
        };
        // The recorded reward is the mean over agents. Subtracting the mean of their local rewards
        // leaves the team's share.
        let mean = match self.team_weight {
            None if count > 0 => values().sum::<f64>() / count as f64,
            _ => 0.0,
        };
        let alone = count == 1 && self.team_weight.is_none();
        let earned =
            |(agent, own): (&String, &f64)| (agent.clone(), if alone { base } else { base + (own - mean) });
        let index = self.actions.len();
        for member in &joint.members {
            self.of_sample.entry(member.clone()).or_default().push(index);
        }
        self.by_id.insert(joint.id.clone(), index);
        self.actions.push(Action {
            place: line.location(),
            episode: (joint.episode, joint.branch),
            turn: joint.turn,
            ends: joint.terminated || joint.truncated,
            others: base - mean,
            own: local.into_iter().flatten().map(earned).collect(),
            parent: joint.parent,
            id: joint.id,
        });
        Ok(())
    }

    /// Returns true if the sample `id` is part of a joint action.
    pub fn has(&self, id: &str) -> bool {
        self.of_sample.contains_key(id)
    }

    /// The credit of the sample `id` of `agent`, and the number of its joint actions.
    ///
    /// # Errors
    /// 65: it is part of no joint action, or the tree is incomplete.
    pub fn value(&mut self, id: &str, agent: &str) -> Result<(f64, usize)> {
        let Some(actions) = self.of_sample.get(id).cloned() else {
            return Err(Failure::data(format!("{id}: no joint action has this sample"))
                .hint("--credit tree needs the `joint` lines of rollout --joint aligned or cross"));
        };
        if !self.returns.contains_key(agent) {
            let returns = self.returns_of(agent)?;
            self.returns.insert(agent.to_owned(), returns);
        }
        let returns = &self.returns[agent];
        let own: Vec<f64> = actions.iter().map(|&action| returns[action]).collect();
        let count = if self.reduction == Reduction::Sum { 1.0 } else { own.len() as f64 };
        Ok((total(&own) / count, own.len()))
    }

    /// The return of every joint action for `agent`.
    fn returns_of(&mut self, agent: &str) -> Result<Vec<f64>> {
        if self.order.is_empty() {
            self.order = self.children_first()?;
        }
        let mut returns = vec![0.0; self.actions.len()];
        // Discounted returns of the children, which come earlier in the order.
        let mut later = vec![Vec::new(); self.actions.len()];
        for &index in &self.order {
            let action = &self.actions[index];
            let after = std::mem::take(&mut later[index]);
            let after = if after.is_empty() { 0.0 } else { total(&after) / after.len() as f64 };
            returns[index] = action.own.get(agent).copied().unwrap_or(action.others) + after;
            if let Some(parent) = self.parent(action) {
                let turns = action.turn - self.actions[parent].turn;
                later[parent].push(self.gamma.powf(f64::from(turns)) * returns[index]);
            }
        }
        Ok(returns)
    }

    fn parent(&self, action: &Action) -> Option<usize> {
        self.by_id.get(action.parent.as_ref()?).copied()
    }

    /// The indices of all joint actions, children before parents.
    fn children_first(&self) -> Result<Vec<usize>> {
        let mut children = vec![0_usize; self.actions.len()];
        for action in &self.actions {
            let Some(id) = &action.parent else { continue };
            let refuse = |cause: String| Failure::data(format!("{}: {}: {cause}", action.place, action.id));
            let Some(parent) = self.parent(action) else {
                return Err(refuse(format!(
                    "no joint action {id} is in the stream, and this one follows from it"
                ))
                .hint("a filter must keep whole episodes, joint lines included"));
            };
            if action.turn < self.actions[parent].turn {
                return Err(refuse(format!("it follows from {id}, which is of a later turn")));
            }
            children[parent] += 1;
        }
        self.check_siblings(&children)?;
        let mut ready: Vec<usize> = (0..self.actions.len()).filter(|&index| children[index] == 0).collect();
        let mut order = Vec::with_capacity(self.actions.len());
        while let Some(index) = ready.pop() {
            order.push(index);
            if let Some(parent) = self.parent(&self.actions[index]) {
                children[parent] -= 1;
                if children[parent] == 0 {
                    ready.push(parent);
                }
            }
        }
        match children.iter().position(|&open| open > 0) {
            None => Ok(order),
            Some(index) => {
                let Action { place, id, .. } = &self.actions[index];
                Err(Failure::data(format!("{place}: {id}: this joint action follows from itself")))
            }
        }
    }

    /// Refuses a node with children for only some of its joint actions, since the returns
    /// of the others are unknown.
    fn check_siblings(&self, children: &[usize]) -> Result<()> {
        let mut first: HashMap<_, usize> = HashMap::new();
        for (index, action) in self.actions.iter().enumerate().filter(|(_, action)| !action.ends) {
            let other = *first.entry((&action.episode, &action.parent)).or_insert(index);
            if (children[other] > 0) != (children[index] > 0) {
                let (with, without) = if children[index] > 0 { (index, other) } else { (other, index) };
                let (with, Action { place, id, .. }) = (&self.actions[with].id, &self.actions[without]);
                return Err(Failure::data(format!(
                    "{place}: {id}: nothing follows from this joint action, but from {with} of the same node"
                ))
                .hint("rollout --expand all or ends=M follows every one; on one path use --credit turn or return"));
            }
        }
        Ok(())
    }
}
