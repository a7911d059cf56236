//! The stage: gathers groups, and adds `advantage`, `group_mean` and `group_std`.

use std::collections::HashMap;

use record::decorate::{self, Decorate, Output};
use record::failure::{Failure, Result};
use record::line::{End, Joint};
use record::read::Line;
use record::sample::{Field, Sample};
use record::splice;
use record::stage::{choice, counted};
use serde_json::{Value, json};

use crate::arguments::{Arguments, Credit};
use crate::credit::{CreditKey, Credits};
use crate::estimator::{Estimator, EstimatorConfig};
use crate::statistics::Statistics;
use crate::tree::JointTree;

type Group = decorate::Group<Data>;

/// What is kept of a sample until its group is complete.
#[derive(Debug)]
pub struct Data {
    /// `group_size`.
    size: u32,
    /// Its own reward.
    reward: f64,
    /// Its agent, under `--credit tree`.
    agent: Option<String>,
    /// The baseline of `remax`.
    baseline: f64,
    /// Where it stands, if it is credited with more than its own reward.
    key: Option<CreditKey>,
}

/// The stage and what it has seen.
pub struct Advantages {
    arguments: Arguments,
    method: EstimatorConfig,
    credits: Credits,
    /// Under `--credit tree`.
    tree: JointTree,
    /// Groups whose members are all credited with the same, and those of them left out.
    flat: u64,
    dropped: u64,
}

impl Advantages {
    /// A stage that has seen nothing.
    pub fn new(arguments: Arguments, method: EstimatorConfig) -> Self {
        let credits = Credits::new(arguments.credit, arguments.gamma());
        let tree = JointTree::new(arguments.gamma(), arguments.joint(), arguments.team_weight);
        Advantages { arguments, method, credits, tree, flat: 0, dropped: 0 }
    }

    /// The recorded reward, or with `--team-weight` the weighted sum of its parts.
    fn reward(&self, sample: &Sample, line: &Line) -> Result<f64> {
        if sample.reward == Some(None) {
            return Err(sample
                .failure(line, "reward is null: the sample was not scored")
                .hint("group leaves such samples out with --unscored drop-sample or drop-group"));
        }
        match (self.arguments.team_weight, sample.rewards, sample.reward.flatten()) {
            (Some(weight), Some(rewards), _) => Ok(weight * rewards.team + rewards.local),
            (Some(_), None, _) => Err(sample
                .failure(line, "`rewards` is missing, and --team-weight makes the reward of its parts")
                .hint("without --team-weight the recorded `reward` is used")),
            (None, _, Some(reward)) => Ok(reward),
            (None, _, None) => {
                Err(sample.failure(line, "`reward` is missing").hint("--team-weight 1 makes it of `rewards`"))
            }
        }
    }

    /// The returns of the members over the tree.
    fn returns(&mut self, group: &Group) -> Result<Vec<f64>> {
        let mut values = Vec::with_capacity(group.members.len());
        let mut first = None;
        for member in &group.members {
            let agent = member.data.agent.as_deref().unwrap_or_default();
            let (value, actions) = self.tree.value(&member.id, agent).map_err(|failure| {
                // A fault of the tree names its own place.
                if self.tree.has(&member.id) { failure } else { failure.at(member.line.place()) }
            })?;
            if *first.get_or_insert(actions) != actions {
                let first = first.unwrap_or_default();
                let cause = format!(
                    "{}: it is part of {actions} joint actions, but others of its group of {first}",
                    member.name()
                );
                return Err(
                    Failure::data(cause).hint("joint lines were lost on the way, or two runs were joined")
                );
            }
            values.push(value);
        }
        Ok(values)
    }

    fn baseline(&self, sample: &Sample, line: &Line) -> Result<f64> {
        match sample.baseline {
            Some(baseline) => Ok(baseline),
            None if self.method.estimator != Estimator::Remax => Ok(0.0),
            None => Err(sample.failure(line, "`baseline` is missing, and remax compares with nothing else").hint(
                "add to each sample the reward of the greedy completion of its prompt, or use --estimator rloo",
            )),
        }
    }
}

impl Decorate for Advantages {
    type Data = Data;

    fn require(&self, sample: &Sample, line: &Line) -> Result<()> {
        sample.require(line, &[Field::Id])?;
        if self.arguments.credit == Credit::Tree {
            sample.require(line, &[Field::Agent])?;
        }
        sample
            .require(line, &[Field::Group, Field::GroupSize])
            .map_err(|failure| failure.hint("put group before advantage: … | group | advantage"))
    }

    fn key(&self, sample: &Sample) -> Option<String> {
        sample.group.as_deref().map(str::to_owned)
    }

    fn join(&mut self, group: &Group, sample: Sample, line: &Line) -> Result<Data> {
        let reward = self.reward(&sample, line)?;
        let baseline = self.baseline(&sample, line)?;
        let key = self.credits.take(&sample, line, reward)?;
        let size = sample.group_size.unwrap_or_default();
        if let Some(first) = group.members.first()
            && first.data.size != size
        {
            let (other, first) = (first.data.size, first.name());
            let cause = format!("group_size is {size}, but {other} on {first} of the same group");
            return Err(sample.failure(line, cause).hint("were two runs joined after they were grouped?"));
        }
        let agent = sample.agent.filter(|_| self.arguments.credit == Credit::Tree).map(String::from);
        Ok(Data { size, reward, agent, baseline, key })
    }

    fn joint(&mut self, joint: Joint, line: &Line) -> Result<()> {
        if self.arguments.credit == Credit::Tree { self.tree.take(joint, line) } else { Ok(()) }
    }

    fn next_part(&mut self) {
        *self = Advantages::new(self.arguments, self.method);
    }

    fn is_complete(&self, group: &Group) -> bool {
        group.members.first().is_some_and(|first| group.members.len() == first.data.size as usize)
    }

    fn needs_whole_stream(&self) -> bool {
        self.arguments.credit != Credit::Turn
    }

    fn decorate(&mut self, group: Group, output: &mut Output) -> Result<()> {
        if !group.complete {
            return Err(incomplete(&group));
        }
        let (units, indices) = compared(&group, self.arguments.credit);
        let values = match self.arguments.credit {
            Credit::Tree => self.returns(&group)?,
            _ => units
                .iter()
                .map(|unit| self.credits.value(unit.reward, unit.key.as_ref()))
                .collect::<Result<Vec<f64>>>()?,
        };
        let baselines: Vec<f64> = units.iter().map(|unit| unit.baseline).collect();
        let statistics = Statistics::of(&values, self.method.std);
        self.flat += u64::from(statistics.flat);
        if statistics.flat && self.arguments.drop_flat {
            self.dropped += 1;
            return Ok(());
        }
        let advantages = self.method.advantages(&values, &baselines, &statistics);
        let (mean, deviation) = (splice::json(&statistics.mean), splice::json(&statistics.deviation));
        for (member, index) in group.members.iter().zip(indices) {
            let advantage = splice::json(&advantages[index]);
            let (mean, deviation) = (mean.clone(), deviation.clone());
            output
                .add(member, &[("advantage", advantage), ("group_mean", mean), ("group_std", deviation)])?;
        }
        Ok(())
    }

    fn counts(&self, stats: &decorate::StageStats, _ends: &[End]) -> Value {
        let mut counts = json!({
            "estimator": choice(&self.method.estimator),
            "credit": choice(&self.arguments.credit),
            "samples": stats.samples,
            "samples_written": stats.written,
            "groups": stats.groups,
            "groups_flat": self.flat,
            "dropped_groups": {"flat": self.dropped},
        });
        if self.arguments.credit == Credit::Tree {
            counts["joint"] = choice(&self.arguments.joint()).into();
            counts["joint_actions"] = self.tree.len().into();
        }
        counts
    }

    fn summary(&self, stats: &decorate::StageStats) -> String {
        let (samples, groups) = (counted(stats.samples, "sample"), counted(stats.groups, "group"));
        let mut text =
            format!("{samples}, {groups} by {}, {} flat", choice(&self.method.estimator), self.flat);
        if self.dropped > 0 {
            text += &format!(" and left out ({})", counted(stats.samples - stats.written, "sample"));
        }
        text
    }
}

/// What is compared in a group: its members, or under `--credit episode` its episodes, each represented by its first
/// member. And for each member the index of its unit.
fn compared(group: &Group, credit: Credit) -> (Vec<&Data>, Vec<usize>) {
    let (mut units, mut indices) = (Vec::new(), Vec::new());
    let mut episodes = HashMap::new();
    for data in group.members.iter().map(|member| &member.data) {
        let index = match &data.key {
            Some(key) if credit == Credit::Episode => *episodes.entry(&key.episode).or_insert(units.len()),
            _ => units.len(),
        };
        if index == units.len() {
            units.push(data);
        }
        indices.push(index);
    }
    (units, indices)
}

fn incomplete(group: &Group) -> Failure {
    let (place, size) = match group.members.first() {
        Some(first) => (first.name(), first.data.size),
        None => ("stdin".to_owned(), 0),
    };
    let (key, count) = (&group.key, group.members.len());
    Failure::data(format!("{place}: group {key}: the stream ended with {count} of {size} members"))
        .hint("filter before group, which counts the members, or drop whole groups")
}
