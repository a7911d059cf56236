//! The stage: collects groups, and adds `advantage`, `group_mean` and `group_std`.

use std::collections::HashMap;

use record::decorate::{self, Decorate, Output};
use record::failure::Result;
use record::line::{End, Joint};
use record::read::Line;
use record::sample::{Field, Sample};
use record::splice;
use record::stage::{choice, counted};
use record::stream::with_earlier;
use serde_json::{Value, json};

use crate::anchors::AnchorReturns;
use crate::arguments::{Arguments, Credit, Cut};
use crate::baselines::Baselines;
use crate::credit::{CreditKey, Credits};
use crate::estimator::{Estimator, EstimatorConfig};
use crate::gate::Gate;
use crate::more::{More, more};
use crate::score::Scored;
use crate::tree::JointTree;
use crate::whiten::{Whiten, Whitening};

pub(crate) type Group = decorate::Group<Data>;
pub(crate) type Member = decorate::Member<Data>;

/// The data of a sample that its group needs.
#[derive(Debug)]
pub struct Data {
    pub(crate) size: u32,
    /// True if the token limit cut the answer.
    pub(crate) cut: bool,
    /// The sample's reward.
    pub(crate) reward: f64,
    /// The agent, kept only for `--credit tree`.
    pub(crate) agent: Option<String>,
    /// The baseline of `remax` and `rae`.
    pub(crate) baseline: f64,
    /// Its place in its episode, unless its own reward is all that `--credit` needs.
    pub(crate) key: Option<CreditKey>,
    /// Data that only some flags need.
    pub(crate) more: Option<Box<More>>,
}

/// The stage and its counts.
pub struct Advantages {
    pub(crate) arguments: Arguments,
    pub(crate) method: EstimatorConfig,
    pub(crate) credits: Credits,
    /// For `--credit tree`.
    pub(crate) tree: JointTree,
    /// For `--credit gigpo`.
    pub(crate) anchors: AnchorReturns,
    pub(crate) gate: Option<Gate>,
    pub(crate) baselines: Option<Baselines>,
    pub(crate) whitening: Option<Whitening>,
    /// Groups scored but not written yet, by name.
    scored: HashMap<String, Scored>,
    /// Counts of flat groups, of dropped ones among them, and of both the ones that the gate made flat.
    flat: u64,
    dropped: u64,
    gated: u64,
    dropped_gated: u64,
    /// Cut answers, and groups that have no others.
    cut: u64,
    dropped_cut: u64,
}

impl Advantages {
    pub fn new(arguments: Arguments, method: EstimatorConfig) -> Self {
        let (credit, gamma, over) = (arguments.credit, arguments.gamma(), arguments.whiten());
        Advantages {
            credits: Credits::new(credit, gamma),
            tree: JointTree::new(gamma, arguments.joint(), arguments.team_weight),
            anchors: AnchorReturns::new(gamma),
            gate: arguments.gate.as_deref().map(|component| Gate::new(component, credit)),
            baselines: arguments.baselines.as_deref().map(|folder| Baselines::new(folder, arguments.decay())),
            whitening: (over != Whiten::None).then(|| Whitening::new(over, method.epsilon)),
            scored: HashMap::new(),
            flat: 0,
            dropped: 0,
            gated: 0,
            dropped_gated: 0,
            cut: 0,
            dropped_cut: 0,
            arguments,
            method,
        }
    }

    /// The recorded reward, or the weighted sum of its parts with `--team-weight`.
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

    fn trains_on(&self, member: &Member) -> bool {
        self.arguments.cut == Cut::Keep || !member.data.cut
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
        if self.arguments.cut != Cut::Keep {
            sample.require(line, &[Field::FinishReason])?;
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
        let more = self.more(&sample, line)?;
        if let Some(key) = key.as_ref().filter(|_| self.arguments.credit == Credit::Gigpo) {
            self.anchors.take(key, &sample, reward);
        }
        let size = sample.group_size.unwrap_or_default();
        if let Some(first) = group.members.first()
            && first.data.size != size
        {
            let (other, first) = (first.data.size, first.name());
            let cause = format!("group_size is {size}, but {other} on {first} of the same group");
            return Err(sample.failure(line, cause).hint("were two runs joined after they were grouped?"));
        }
        let cut = sample.finish_reason.as_deref() == Some("length");
        self.cut += u64::from(cut);
        let agent = sample.agent.filter(|_| self.arguments.credit == Credit::Tree).map(String::from);
        Ok(Data { size, cut, reward, agent, baseline, key, more })
    }

    fn joint(&mut self, joint: Joint, line: &Line) -> Result<()> {
        if self.arguments.credit != Credit::Tree {
            return Ok(());
        }
        if let Some(gate) = &mut self.gate {
            gate.joint(&joint, line)?;
        }
        self.tree.take(joint, line)
    }

    fn next_part(&mut self) {
        *self = Advantages::new(self.arguments.clone(), self.method.clone());
    }

    fn is_complete(&self, group: &Group) -> bool {
        group.members.first().is_some_and(|first| group.members.len() == first.data.size as usize)
    }

    fn needs_whole_stream(&self) -> bool {
        self.arguments.credit != Credit::Turn || self.whitening.is_some() || self.baselines.is_some()
    }

    fn whole(&mut self, groups: &[&Group], ends: &[End]) -> Result<()> {
        self.credits.are_complete(&with_earlier(ends));
        if self.arguments.credit == Credit::Gigpo {
            let kept: Vec<&Member> = groups.iter().flat_map(|group| self.kept(group)).collect();
            for member in kept {
                if let Some(key) = &member.data.key {
                    self.anchors.join(&more(member).anchor, key);
                }
            }
            self.anchors.finish(self.method.std, self.method.flat_below);
        }
        if self.baselines.is_some() {
            groups.iter().try_for_each(|group| self.count(group))?;
        }
        let Some(mut whitening) = self.whitening.take() else { return Ok(()) };
        for group in groups {
            let scored = self.score(group)?;
            let counts = !(scored.gated || scored.flat && self.arguments.drop_flat);
            for (member, &advantage) in group.members.iter().zip(&scored.advantages).filter(|_| counts) {
                if let Some(advantage) = advantage.filter(|_| self.trains_on(member)) {
                    whitening.take(&more(member).policy, advantage, more(member).tokens);
                }
            }
            self.scored.insert(group.key.clone(), scored);
        }
        whitening.finish()?;
        self.whitening = Some(whitening);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.baselines.as_mut().map_or(Ok(()), Baselines::write)
    }

    fn decorate(&mut self, group: Group, output: &mut Output) -> Result<()> {
        let scored = match self.scored.remove(&group.key) {
            Some(scored) => scored,
            None => self.score(&group)?,
        };
        let Scored { advantages, statistics, flat, gated, cut } = scored;
        if cut {
            self.dropped_cut += 1;
            return Ok(());
        }
        self.flat += u64::from(flat);
        self.gated += u64::from(gated);
        if flat && self.arguments.drop_flat {
            self.dropped += u64::from(!gated);
            self.dropped_gated += u64::from(gated);
            return Ok(());
        }
        let (mean, deviation) = (splice::json(&statistics.mean), splice::json(&statistics.deviation));
        for (member, advantage) in group.members.iter().zip(advantages) {
            let advantage = advantage.map(|advantage| match &self.whitening {
                Some(whitening) if !gated && self.trains_on(member) => {
                    whitening.of(&more(member).policy, advantage)
                }
                _ => advantage,
            });
            let (mean, deviation) = (mean.clone(), deviation.clone());
            let advantage = splice::json(&advantage);
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
        if self.arguments.cut != Cut::Keep {
            counts["cut"] = choice(&self.arguments.cut).into();
            counts["samples_cut"] = self.cut.into();
            counts["dropped_groups"]["cut"] = self.dropped_cut.into();
        }
        if self.gate.is_some() {
            counts["groups_gated"] = self.gated.into();
            counts["dropped_groups"]["gate"] = self.dropped_gated.into();
        }
        match self.arguments.credit {
            Credit::Tree => {
                counts["joint"] = choice(&self.arguments.joint()).into();
                counts["joint_actions"] = self.tree.len().into();
            }
            Credit::Gigpo => {
                counts["anchors"] = self.anchors.len().into();
                counts["anchor_size_mean"] = (stats.samples as f64 / self.anchors.len().max(1) as f64).into();
            }
            Credit::Episode if self.arguments.counts_calls() => counts["count"] = "calls".into(),
            _ => {}
        }
        if let Some(whitening) = &self.whitening {
            counts["whiten"] =
                json!({"over": choice(&self.arguments.whiten()), "policies": whitening.counts()});
        }
        if let Some(baselines) = &self.baselines {
            counts["baselines"] = baselines.counts();
        }
        counts
    }

    fn summary(&self, stats: &decorate::StageStats) -> String {
        let (samples, groups) = (counted(stats.samples, "sample"), counted(stats.groups, "group"));
        let mut text =
            format!("{samples}, {groups} by {}, {} flat", choice(&self.method.estimator), self.flat);
        if self.gated > 0 {
            text += &format!(" ({} by the gate)", self.gated);
        }
        if self.dropped + self.dropped_gated > 0 {
            text += &format!(" and left out ({})", counted(stats.samples - stats.written, "sample"));
        }
        if self.arguments.cut != Cut::Keep {
            text += &format!("; {} not trained on", counted(self.cut, "cut answer"));
        }
        text
    }
}
