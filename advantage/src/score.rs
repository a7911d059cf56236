//! Scores groups: chooses the units to compare, computes their credits and advantages,
//! and detects flat groups.

use std::collections::HashMap;

use record::failure::{Failure, Result};

use crate::arguments::{Arguments, Credit, Cut};
use crate::estimator::{Estimator, Units};
use crate::more::more;
use crate::stage::{Advantages, Group, Member};
use crate::statistics::Statistics;

/// A group with its advantages.
pub struct Scored {
    /// One per member; none for a cut answer that counts nowhere.
    pub advantages: Vec<Option<f64>>,
    /// Statistics of the units' credits.
    pub statistics: Statistics,
    /// True if there is nothing to learn from the group.
    pub flat: bool,
    /// True if the gate closed the group.
    pub gated: bool,
    /// True if all answers are cut and count nowhere.
    pub cut: bool,
}

impl Advantages {
    /// The members' returns in the tree of joint actions.
    fn returns(&mut self, members: &[&Member]) -> Result<Vec<f64>> {
        let mut values = Vec::with_capacity(members.len());
        let mut first = None;
        for member in members {
            let agent = member.data.agent.as_deref().unwrap_or_default();
            let (value, actions) = self.tree.value(&member.id, agent).map_err(|failure| {
                // A fault of the tree names its own place.
                if self.tree.has(&member.id) { failure } else { failure.at(member.line.location()) }
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

    /// The members that are compared.
    pub(crate) fn kept<'a>(&self, group: &'a Group) -> Vec<&'a Member> {
        let drops = self.arguments.cut == Cut::Drop;
        group.members.iter().filter(|member| !(drops && member.data.cut)).collect()
    }

    /// The units of a group: its members, or its episodes if those are compared, each represented by its
    /// first member. Also returns the index of each member's unit.
    fn compared<'a>(&self, kept: &[&'a Member]) -> (Vec<&'a Member>, Vec<usize>) {
        let Arguments { credit, .. } = self.arguments;
        let is_apart = !credit.is_of_episodes() || self.arguments.counts_calls();
        let by_agent = credit == Credit::EpisodeOwn || self.baselines.is_some();
        let (mut units, mut indices) = (Vec::new(), Vec::new());
        let mut episodes = HashMap::new();
        for &member in kept {
            let index = match &member.data.key {
                Some(key) if !is_apart => {
                    let agent = by_agent.then_some(key.agent.as_str());
                    *episodes.entry((&key.episode, agent)).or_insert(units.len())
                }
                _ => units.len(),
            };
            if index == units.len() {
                units.push(member);
            }
            indices.push(index);
        }
        (units, indices)
    }

    /// The credits of a group's units.
    fn values(&mut self, units: &[&Member]) -> Result<Vec<f64>> {
        let values = match self.arguments.credit {
            Credit::Tree => self.returns(units)?,
            _ => units
                .iter()
                .map(|unit| self.credits.value(unit.data.reward, unit.data.key.as_ref()))
                .collect::<Result<Vec<f64>>>()?,
        };
        let negative = values.iter().position(|&value| value < 0.0);
        if let Some(index) = negative.filter(|_| self.method.estimator == Estimator::MaxRl) {
            let cause = format!("{}: its credit is {}", units[index].name(), values[index]);
            return Err(Failure::data(format!(
                "{cause}, and max-rl divides by a mean of what is not negative"
            ))
            .hint("shift the rewards so that the least is 0, or use --estimator grpo"));
        }
        Ok(values)
    }

    /// Returns true if the gate is closed: all units agree in its component.
    fn is_gated(&mut self, units: &[&Member]) -> Result<bool> {
        let Some(gate) = &mut self.gate else { return Ok(false) };
        let mut first = None;
        for unit in units {
            let agent = unit.data.agent.as_deref().unwrap_or_default();
            let own = more(unit).gate;
            let value = gate.value(&unit.id, agent, own, unit.data.key.as_ref())?;
            if *first.get_or_insert(value) != value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Scores a group. Flags that need the complete stream must have seen all of it.
    pub(crate) fn score(&mut self, group: &Group) -> Result<Scored> {
        if !group.complete {
            return Err(incomplete(group));
        }
        let kept = self.kept(group);
        let (members, indices) = self.compared(&kept);
        let units = self.units(&kept, (&members, &indices))?;
        let statistics = self.method.statistics(&units.values);
        let estimator = self.method.estimator;
        let gated = self.is_gated(&members)?;
        let mut advantages = match gated {
            true => vec![0.0; kept.len()],
            false => {
                let advantages = self.method.advantages(&units, &statistics);
                indices.iter().map(|&index| advantages[index]).collect()
            }
        };
        if self.arguments.credit == Credit::Gigpo && !gated {
            self.add_anchors(&kept, &mut advantages);
        }
        if self.arguments.cut == Cut::Zero {
            let cut = kept.iter().zip(&mut advantages).filter(|(member, _)| member.data.cut);
            cut.for_each(|(_, advantage)| *advantage = 0.0);
        }
        let is_still = || advantages.iter().all(|&advantage| advantage == 0.0);
        let flat = match estimator {
            Estimator::Gdpo => units.components.iter().all(|values| self.method.statistics(values).flat),
            Estimator::Rae => is_still(),
            _ if self.arguments.credit == Credit::Gigpo => is_still(),
            _ => statistics.flat,
        };
        let (flat, mut own) =
            (flat || gated || is_still() && self.arguments.cut == Cut::Zero, advantages.iter());
        let is_kept = |member: &Member| self.arguments.cut != Cut::Drop || !member.data.cut;
        let of = |member| is_kept(member).then(|| own.next().copied()).flatten();
        let advantages = group.members.iter().map(of).collect();
        Ok(Scored { advantages, statistics, flat, gated, cut: kept.is_empty() })
    }

    /// The inputs of the estimator.
    fn units(&mut self, kept: &[&Member], (members, indices): (&[&Member], &[usize])) -> Result<Units> {
        let mut units = Units { values: self.values(members)?, ..Units::default() };
        units.baselines = members.iter().map(|unit| unit.data.baseline).collect();
        if let Some(baselines) = &self.baselines {
            units.baselines = members.iter().map(|unit| baselines.of(&more(unit).role)).collect();
        }
        units.tokens = vec![0.0; members.len()];
        for (member, &index) in kept.iter().zip(indices) {
            units.tokens[index] += member.data.more.as_ref().map_or(0, |more| more.tokens) as f64;
        }
        let component = |index: usize| members.iter().map(|unit| more(unit).components[index]).collect();
        units.components = (0..self.method.weights.len()).map(component).collect();
        Ok(units)
    }

    /// Adds the advantages of the second comparison of GiGPO.
    fn add_anchors(&mut self, kept: &[&Member], advantages: &mut [f64]) {
        let weight = self.arguments.anchor_weight();
        for (member, advantage) in kept.iter().zip(advantages) {
            let Some(key) = &member.data.key else { continue };
            let (value, statistics) = self.anchors.of(&more(member).anchor, key);
            let units = Units { values: vec![value], ..Units::default() };
            *advantage += weight * self.method.advantages(&units, &statistics)[0];
        }
    }

    /// Adds the credits of a group to the baselines of the next step.
    pub(crate) fn count(&mut self, group: &Group) -> Result<()> {
        let (units, _) = self.compared(&self.kept(group));
        let values = self.values(&units)?;
        let is_of_episodes = self.arguments.credit.is_of_episodes();
        for (unit, value) in units.into_iter().zip(values) {
            let episode = unit.data.key.as_ref().filter(|_| is_of_episodes).map(|key| &key.episode);
            if let Some(baselines) = &mut self.baselines {
                baselines.count(&more(unit).role, episode, value);
            }
        }
        Ok(())
    }
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
