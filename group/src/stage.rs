//! The stage: groups samples, and adds `group` and `group_size`.

use std::borrow::Cow;

use record::decorate::{self, Decorate, Output};
use record::failure::{Failure, Result};
use record::line::End;
use record::read::Line;
use record::sample::{Field, Sample};
use record::splice;
use record::stage::{choice, counted};
use serde_json::{Value, json};

use crate::anchors::Anchors;
use crate::arguments::{Arguments, Incomplete, Unscored};
use crate::key::By;
use crate::siblings::Common;

/// Fields that every grouping needs.
const NEEDED: &[Field] =
    &[Field::Id, Field::Episode, Field::Turn, Field::Agent, Field::Branch, Field::Branches];

type Group = decorate::Group<Data>;

/// The data of a sample that its group needs.
#[derive(Debug)]
pub struct Data {
    branch: u32,
    /// `reward`, or the sum of `rewards` if only those are given; `None` if the sample was not scored.
    reward: Option<f64>,
    scored: bool,
    /// Only in the first member: the parts of the group key, and the fields that its siblings share.
    first: Option<(Vec<String>, Common)>,
    /// The anchor's index, with `--anchor`.
    anchor: Option<usize>,
}

/// The stage and its counts beyond samples and groups.
pub struct Grouping {
    arguments: Arguments,
    anchors: Anchors,
    /// Samples with a null reward.
    unscored: u64,
    /// Groups whose members all have the same reward.
    flat: u64,
    /// Groups of parallel sampling, whose members have different prompts.
    parallel: u64,
    /// Groups among them with fewer members than episodes, because some episodes ended earlier.
    short: u64,
    /// Groups dropped because branches were missing, and because members were not scored.
    dropped_incomplete: u64,
    dropped_unscored: u64,
}

impl Grouping {
    pub fn new(arguments: Arguments) -> Self {
        Grouping {
            arguments,
            anchors: Anchors::default(),
            unscored: 0,
            flat: 0,
            parallel: 0,
            short: 0,
            dropped_incomplete: 0,
            dropped_unscored: 0,
        }
    }

    /// The number of groups that earlier stages report, including dropped ones. `None` if they do not report
    /// it, or count other units than this grouping.
    fn expected(&self, ends: &[End]) -> Option<u64> {
        if !self.arguments.by.siblings() || self.parallel > 0 || ends.is_empty() {
            return None;
        }
        let of = |end: &End, key: &str| end.counts.get(key).and_then(Value::as_u64);
        let told = |end: &End| Some(of(end, "groups")? + of(end, "dropped_groups")?);
        ends.iter().map(|end| of(end, "groups_expected").or_else(|| told(end))).sum()
    }

    /// The number of groups that earlier stages report as dropped.
    fn dropped_before(ends: &[End]) -> u64 {
        let of = |end: &End| end.dropped_groups().into_iter().map(|(_, count)| count).sum::<u64>();
        ends.iter().map(|end| of(end) + Self::dropped_before(&end.after)).sum()
    }

    fn is_parallel(&self, group: &Group) -> bool {
        self.arguments.by.siblings() && common(group).is_some_and(|common| common.parallel)
    }

    /// Returns true if siblings are missing; parallel sampling allows that.
    fn is_cut(&self, group: &Group) -> bool {
        self.arguments.by.siblings() && !group.complete && !self.is_parallel(group)
    }

    /// Returns true if it is left out because some members were not scored.
    fn is_unscored(&self, group: &Group) -> bool {
        let scored = group.members.iter().filter(|member| member.data.scored).count();
        scored < group.members.len() && self.arguments.unscored == Unscored::DropGroup || scored == 0
    }

    fn check_reward(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        match (sample.reward, sample.rewards) {
            (Some(Some(_)), _) | (None, Some(_)) => Ok(()),
            (None, None) => Err(sample
                .failure(line, "`reward` is missing")
                .hint("a sample that was not scored says so: \"reward\":null")),
            (Some(None), _) => {
                self.unscored += 1;
                if self.arguments.unscored != Unscored::Error {
                    return Ok(());
                }
                Err(sample.failure(line, "reward is null: the sample was not scored").hint(
                    "--unscored drop-sample leaves such samples out, --unscored drop-group their groups; in a run: ./pipeline.sh \
                     --flags group='--unscored drop-sample'",
                ))
            }
        }
    }
}

impl Decorate for Grouping {
    type Data = Data;

    fn require(&self, sample: &Sample, line: &Line) -> Result<()> {
        sample.require(line, NEEDED)?;
        if self.arguments.anchor.is_some() {
            sample.require(line, &[Field::Task, Field::PromptIds])?;
        }
        match self.arguments.by {
            By::Task => sample.require(line, &[Field::Task]),
            By::AgentTurn if !sample.is_parallel() => sample.require(line, &[Field::PromptIds]),
            _ => Ok(()),
        }
    }

    fn key(&self, sample: &Sample) -> Option<String> {
        Some(self.arguments.by.parts(sample).join("/"))
    }

    fn join(&mut self, group: &Group, sample: Sample, line: &Line) -> Result<Data> {
        self.check_reward(&sample, line)?;
        let parts = self.arguments.by.parts(&sample);
        let first = match group.members.first() {
            None => Some((parts.into_iter().map(Cow::into_owned).collect(), Common::of(&sample))),
            Some(first) => {
                let name = || format!("{} on {}", first.id, first.line.location());
                if let Some((names, common)) = &first.data.first {
                    if parts != *names {
                        let cause =
                            format!("group {} is also the name of the group of {}", group.key, name());
                        return Err(sample.failure(line, cause).hint(
                            "the names of episodes and agents are joined by `/`: rename one that contains it",
                        ));
                    }
                    if self.arguments.by.siblings() {
                        common.check(&sample, line, name)?;
                    }
                }
                None
            }
        };
        let parts_sum = sample.rewards.map(|rewards| rewards.team + rewards.local);
        Ok(Data {
            branch: sample.branch.unwrap_or_default(),
            reward: sample.reward.flatten().or(parts_sum),
            scored: sample.reward.map_or(sample.rewards.is_some(), |reward| reward.is_some()),
            first,
            anchor: self.arguments.anchor.map(|_| self.anchors.of(&sample)),
        })
    }

    fn needs_whole_stream(&self) -> bool {
        self.arguments.anchor.is_some()
    }

    /// Adds the samples that will be written to their anchors.
    fn whole(&mut self, groups: &[&Group], _ends: &[End]) -> Result<()> {
        let written = groups.iter().filter(|group| !self.is_cut(group) && !self.is_unscored(group));
        let scored = written.flat_map(|group| &group.members).filter(|member| member.data.scored);
        let anchors: Vec<usize> = scored.filter_map(|member| member.data.anchor).collect();
        anchors.into_iter().for_each(|anchor| self.anchors.join(anchor));
        Ok(())
    }

    fn next_part(&mut self) {
        *self = Grouping::new(self.arguments);
    }

    /// Only siblings record how many they are. Duplicate branches were refused earlier.
    fn is_complete(&self, group: &Group) -> bool {
        let siblings = common(group).filter(|_| self.arguments.by.siblings());
        siblings.is_some_and(|common| group.members.len() == common.branches as usize)
    }

    fn decorate(&mut self, mut group: Group, output: &mut Output) -> Result<()> {
        if self.is_cut(&group) {
            if self.arguments.incomplete == Incomplete::Error {
                return Err(incomplete(&group));
            }
            self.dropped_incomplete += 1;
            return Ok(());
        }
        let parallel = self.is_parallel(&group);
        self.short += u64::from(parallel && !group.complete);
        if self.is_unscored(&group) {
            self.dropped_unscored += 1;
            return Ok(());
        }
        group.members.retain(|member| member.data.scored);
        self.parallel += u64::from(parallel);
        let same = |pair: &[decorate::Member<Data>]| pair[0].data.reward == pair[1].data.reward;
        self.flat += u64::from(group.members.windows(2).all(same));
        let keys = [("group", splice::json(&group.key)), ("group_size", splice::json(&group.members.len()))];
        for member in &group.members {
            let anchor = member.data.anchor.map(|anchor| self.anchors.anchor(anchor));
            let anchor = anchor
                .map(|(name, size)| [("anchor", splice::json(&name)), ("anchor_size", splice::json(&size))]);
            let keys: Vec<_> = keys.iter().cloned().chain(anchor.into_iter().flatten()).collect();
            output.add(member, &keys)?;
        }
        Ok(())
    }

    fn check(&self, stats: &decorate::StageStats, ends: &[End]) -> Result<()> {
        let (dropped, seen) = (Self::dropped_before(ends), stats.groups);
        match self.expected(ends).filter(|&expected| seen + dropped < expected) {
            Some(expected) => Err(Failure::data(format!(
                "stdin has {}, not the {expected} expected, {dropped} of which were dropped before",
                counted(seen, "group")
            ))
            .hint("if a filter drops groups on purpose, say so: --allow-incomplete")),
            None => Ok(()),
        }
    }

    fn counts(&self, stats: &decorate::StageStats, ends: &[End]) -> Value {
        let mut counts = json!({
            "by": choice(&self.arguments.by),
            "equal_prompts": self.arguments.by.siblings() && self.parallel == 0,
            "samples": stats.samples,
            "samples_written": stats.written,
            "samples_unscored": self.unscored,
            "groups_expected": self.expected(ends),
            "groups": stats.groups,
            "groups_flat": self.flat,
            "groups_short": self.short,
            "dropped_groups": {"incomplete": self.dropped_incomplete, "unscored": self.dropped_unscored},
        });
        if self.arguments.anchor.is_some() {
            counts["anchors"] = self.anchors.len().into();
        }
        counts
    }

    fn summary(&self, stats: &decorate::StageStats) -> String {
        let (samples, groups) = (counted(stats.samples, "sample"), counted(stats.groups, "group"));
        let mut text = format!("{samples}, {groups} by {}, {} flat", choice(&self.arguments.by), self.flat);
        if self.parallel > 0 {
            text += &format!(", {} of parallel episodes ({} short)", self.parallel, self.short);
        }
        if self.unscored > 0 {
            text += &format!(", {} unscored", counted(self.unscored, "sample"));
        }
        let (incomplete, unscored) = (self.dropped_incomplete, self.dropped_unscored);
        if incomplete + unscored > 0 {
            let dropped = incomplete + unscored;
            text += &format!(", {dropped} dropped ({incomplete} incomplete, {unscored} unscored)");
        }
        text
    }
}

/// The fields that the siblings of a group share.
fn common(group: &Group) -> Option<&Common> {
    let (_, common) = group.members.first()?.data.first.as_ref()?;
    Some(common)
}

fn incomplete(group: &Group) -> Failure {
    let place = group.members.first().map_or_else(|| "stdin".to_owned(), |member| member.line.location());
    let present = group.members.iter().map(|member| member.data.branch).collect();
    let missing = common(group).map_or(String::new(), |common| common.missing(&present));
    Failure::data(format!("{place}: group {}: the stream ended with {missing}", group.key))
        .hint("a filter must drop whole groups; --incomplete drop leaves such groups out and counts them")
}
