//! The outcome gate (verl-recipe, pull request 125): if all members of a group agree in one component, such
//! as success, the group teaches nothing, even if shaped rewards differ.
//!
//! The component is credited like the reward: summed over the path under `--credit return` and `episode`, and
//! averaged over the joint actions that follow under `tree`. Left out: the advantage of a gated group (0),
//! and whether it is dropped.

use std::collections::BTreeMap;

use record::failure::Result;
use record::line::{Joint, JointRewards};
use record::read::Line;
use record::sample::Sample;

use crate::arguments::Credit;
use crate::components;
use crate::credit::{CreditKey, Credits};
use crate::tree::{JointTree, Reduction};

/// Under `--credit tree`, this component describes joint actions.
const SUCCESS: &str = "success";

/// One component of all samples, credited like the reward.
#[derive(Debug)]
pub struct Gate {
    component: String,
    credit: Credit,
    credits: Credits,
    tree: JointTree,
}

impl Gate {
    pub fn new(component: &str, credit: Credit) -> Self {
        let tree = JointTree::new(1.0, Reduction::Mean, None);
        Gate { component: component.to_owned(), credit, credits: Credits::new(credit, 1.0), tree }
    }

    /// Adds a sample, and returns its component; 0 under `--credit tree`, which reads
    /// components of joint actions.
    ///
    /// # Errors
    /// 65: the sample lacks the component.
    pub fn take(&mut self, sample: &Sample, line: &Line) -> Result<f64> {
        if self.credit == Credit::Tree {
            return Ok(0.0);
        }
        let value = components::of(sample, line, &self.component)?;
        self.credits.take(sample, line, value)?;
        Ok(value)
    }

    /// Adds a joint action.
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

    /// The credit of the sample `id`, in units of the component.
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
