//! The outcome gate (verl-recipe, pull request 125): a group whose members agree in one component, such as success, teaches
//! nothing, whatever shaping says of them.
//!
//! The component is credited as the reward is: under `--credit return` and `episode` summed over the path, under `tree`
//! over the joint actions that follow, in the mean. Left out: what a gated group is worth (0) and whether it is dropped.

use std::collections::BTreeMap;

use record::failure::Result;
use record::line::{Joint, JointRewards};
use record::read::Line;
use record::sample::Sample;

use crate::arguments::Credit;
use crate::components;
use crate::credit::{CreditKey, Credits};
use crate::tree::{JointTree, Reduction};

/// Under `--credit tree` the component of this name is that of the joint actions.
const SUCCESS: &str = "success";

/// The component of all samples, as credits.
#[derive(Debug)]
pub struct Gate {
    component: String,
    credit: Credit,
    credits: Credits,
    tree: JointTree,
}

impl Gate {
    /// Nothing seen yet.
    pub fn new(component: &str, credit: Credit) -> Self {
        let tree = JointTree::new(1.0, Reduction::Mean, None);
        Gate { component: component.to_owned(), credit, credits: Credits::new(credit, 1.0), tree }
    }

    /// Takes in a sample; returns its component, which under `--credit tree` nobody asks for.
    ///
    /// # Errors
    /// 65: the sample has no such component.
    pub fn take(&mut self, sample: &Sample, line: &Line) -> Result<f64> {
        if self.credit == Credit::Tree {
            return Ok(0.0);
        }
        let value = components::of(sample, line, &self.component)?;
        self.credits.take(sample, line, value)?;
        Ok(value)
    }

    /// Takes in a joint action.
    ///
    /// # Errors
    /// 65: it has no such component.
    pub fn joint(&mut self, joint: &Joint, line: &Line) -> Result<()> {
        let agents = joint.rewards.iter().flat_map(|rewards| rewards.local.keys());
        let of = |name: &str| joint.reward_components.get(name).copied();
        let own: BTreeMap<String, f64> = agents
            .filter_map(|agent| Some((agent.clone(), of(&format!("{agent}.{}", self.component))?)))
            .collect();
        let solved = (self.component == SUCCESS).then_some(f64::from(u8::from(joint.success)));
        let common = of(&self.component).or(solved);
        if common.is_none() && own.is_empty() {
            let cause = format!("{}: `reward_components` has no {}", joint.id, self.component);
            return Err(line.failure(cause).hint("what was not scored is not 0"));
        }
        let mean = own.values().sum::<f64>() / own.len().max(1) as f64;
        let (reward, local) = match common {
            Some(common) => (common, BTreeMap::new()),
            None => (mean, own),
        };
        let rewards = Some(JointRewards { team: 0.0, local });
        self.tree.take(Joint { reward: Some(reward), rewards, ..joint.clone() }, line)
    }

    /// What the sample `id` is credited with, in units of the component.
    ///
    /// # Errors
    /// 65: a turn or a joint action is missing.
    pub fn value(&mut self, id: &str, agent: &str, own: f64, key: Option<&CreditKey>) -> Result<f64> {
        if self.credit == Credit::Tree {
            return Ok(self.tree.value(id, agent)?.0);
        }
        self.credits.value(own, key)
    }
}
