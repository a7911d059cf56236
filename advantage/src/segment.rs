//! One step of the stage: the lines up to an `end`, with advantages.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use record::failure::Result;
use record::gather::{Gather, Released};
use record::read::{Kind, Line, Reader};
use record::sample::{Field, Sample};
use record::splice::{json, splice};
use record::stage;
use record::stream::Stream;
use record::write::Writer;
use serde_json::Value;

use crate::arguments::{Arguments, Credit};
use crate::count::Count;
use crate::credit::Paths;
use crate::estimator::{Estimator, Method};
use crate::pending::{Member, Part, Pending};
use crate::statistics::Statistics;
use crate::whole::{Trajectories, distinct};

/// What is known of other samples, as far as `--credit` needs it.
enum Beyond {
    /// Nothing: `turn`.
    Nothing,
    /// The executed paths: `return`.
    Paths(Paths),
    /// The whole episodes: `episode`.
    Trajectories(Trajectories),
}

/// The lines up to an `end`.
pub struct Segment<'a> {
    arguments: &'a Arguments,
    method: Method,
    stream: Stream,
    gather: Gather<Pending>,
    /// What members are credited with beyond their own rewards.
    beyond: Beyond,
    count: Count,
}

impl<'a> Segment<'a> {
    /// An empty segment.
    pub fn new(arguments: &'a Arguments, method: Method) -> Self {
        let beyond = match arguments.credit {
            Credit::Turn => Beyond::Nothing,
            Credit::Return => Beyond::Paths(Paths::new(arguments.gamma())),
            Credit::Episode => Beyond::Trajectories(Trajectories::new(arguments.gamma())),
        };
        Segment {
            arguments,
            method,
            stream: Stream::new("advantage", arguments.allow_incomplete),
            gather: Gather::default(),
            beyond,
            count: Count::default(),
        }
    }

    /// Reads the stream to its end. Writes each group as soon as it and all before it are whole; under
    /// `--credit return` and `episode` only at the end, when paths and episodes are known.
    pub fn read<R: Read, W: Write>(&mut self, reader: &mut Reader<R>, writer: &mut Writer<W>) -> Result<()> {
        while let Some(line) = reader.next()? {
            self.line(line)?;
            if matches!(self.beyond, Beyond::Nothing) {
                while let Some(released) = self.gather.release() {
                    self.write(released, writer)?;
                }
            }
            if reader.would_wait() {
                writer.flush()?;
            }
        }
        self.stream.whole()?;
        for released in std::mem::take(&mut self.gather).rest() {
            self.write(released, writer)?;
        }
        Ok(())
    }

    /// Writes the stage's own `end`.
    pub fn close<W: Write>(
        self,
        writer: &mut Writer<W>,
        outcome: Result<()>,
        timing: BTreeMap<String, Value>,
    ) -> Result<()> {
        let outcome = self.stream.close(writer, outcome, self.count.fields(self.arguments), timing);
        if outcome.is_ok() && !self.arguments.quiet {
            stage::note("advantage", self.count.sentence(self.arguments));
        }
        outcome
    }

    fn line(&mut self, line: Line) -> Result<()> {
        match line.kind {
            Kind::Sample => self.sample(line),
            Kind::End => self.stream.end(&line),
            _ => {
                self.gather.line(line.text);
                Ok(())
            }
        }
    }

    fn sample(&mut self, mut line: Line) -> Result<()> {
        let sample = Sample::parse(&line)?;
        sample.require(&line, &[Field::Id])?;
        sample
            .require(&line, &[Field::Group, Field::GroupSize])
            .map_err(|failure| failure.hint("put group before advantage: … | group | advantage"))?;
        self.stream.sample(&sample, &line)?;
        self.count.samples += 1;
        let reward = self.reward(&sample, &line)?;
        let baseline = self.baseline(&sample, &line)?;
        let part = match &mut self.beyond {
            Beyond::Nothing => Part::Alone,
            Beyond::Paths(paths) => Part::Path(paths.note(&sample, &line, reward)?),
            Beyond::Trajectories(trajectories) => {
                Part::Trajectory(trajectories.note(&sample, &line, reward)?)
            }
        };
        let key = sample.group.clone().unwrap_or_default();
        let size = sample.group_size.unwrap_or_default();
        let Some(pending) = self.gather.group(&key, || Pending::new(key.clone(), size)) else {
            let cause = format!("group {key} already has all its {size} members");
            return Err(sample
                .failure(&line, cause)
                .hint("was a file given twice, or were two runs joined?"));
        };
        self.count.groups += u64::from(pending.members.is_empty());
        let id = sample.id.clone().unwrap_or_default();
        let place = format!("{}: {id}", line.place());
        let text = std::mem::take(&mut line.text);
        pending.push(Member { text, place, reward, baseline, part }, &sample, &line)?;
        if pending.is_whole() {
            self.gather.close(&key);
        }
        Ok(())
    }

    /// The recorded reward, or with `--team-weight` the one that its parts make.
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

    fn baseline(&self, sample: &Sample, line: &Line) -> Result<f64> {
        match sample.baseline {
            Some(baseline) => Ok(baseline),
            None if self.method.estimator != Estimator::Remax => Ok(0.0),
            None => Err(sample.failure(line, "`baseline` is missing, and remax compares with nothing else").hint(
                "add to each sample the reward of the greedy completion of its prompt, or use --estimator rloo",
            )),
        }
    }

    fn write<W: Write>(&mut self, released: Released<Pending>, writer: &mut Writer<W>) -> Result<()> {
        match released {
            Released::Line(text) => writer.raw(&text),
            Released::Group { group, whole: false } if !group.is_whole() => Err(group.incomplete()),
            Released::Group { group, .. } => self.write_group(&group, writer),
        }
    }

    fn write_group<W: Write>(&mut self, group: &Pending, writer: &mut Writer<W>) -> Result<()> {
        // What is compared: the members, or the episodes that they are parts of, each by its first member.
        let trajectories: Vec<_> =
            group.members.iter().filter_map(|member| member.part.trajectory()).collect();
        let (places, compared) = match trajectories.is_empty() {
            true => ((0..group.members.len()).collect(), (0..group.members.len()).collect()),
            false => distinct(trajectories.into_iter()),
        };
        let compared: Vec<&Member> = compared.into_iter().map(|index| &group.members[index]).collect();
        let values = compared.iter().map(|member| self.value(member)).collect::<Result<Vec<f64>>>()?;
        let baselines: Vec<f64> = compared.iter().map(|member| member.baseline).collect();
        let statistics = Statistics::of(&values, self.method.std);
        self.count.flat += u64::from(statistics.flat);
        if statistics.flat && self.arguments.drop_flat {
            self.count.dropped += 1;
            return Ok(());
        }
        let advantages = self.method.advantages(&values, &baselines, &statistics);
        for (member, place) in group.members.iter().zip(places) {
            self.write_member(member, advantages[place], &statistics, writer).map_err(|failure| {
                if failure.code == record::failure::DATA { failure.at(&member.place) } else { failure }
            })?;
        }
        self.count.written += group.members.len() as u64;
        Ok(())
    }

    fn write_member<W: Write>(
        &self,
        member: &Member,
        advantage: f64,
        statistics: &Statistics,
        writer: &mut Writer<W>,
    ) -> Result<()> {
        let additions = [
            ("advantage", json(&advantage)?),
            ("group_mean", json(&statistics.mean)?),
            ("group_std", json(&statistics.deviation)?),
        ];
        writer.raw(&splice(&member.text, &additions)?)
    }

    /// What a member is credited with.
    fn value(&self, member: &Member) -> Result<f64> {
        match (&self.beyond, &member.part) {
            (Beyond::Paths(paths), Part::Path(place)) => Ok(member.reward + paths.after(place)?),
            (Beyond::Trajectories(trajectories), Part::Trajectory(trajectory)) => {
                trajectories.total(trajectory)
            }
            _ => Ok(member.reward),
        }
    }
}
