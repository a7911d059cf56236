//! One step of the stage: the lines up to an `end`, grouped.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use record::failure::{Failure, Result};
use record::gather::{Gather, Released};
use record::read::{Kind, Line, Reader};
use record::sample::{Field, Sample};
use record::splice::{json, splice};
use record::stage;
use record::stream::Stream;
use record::write::Writer;
use serde_json::Value;

use crate::arguments::{Arguments, Incomplete, Unscored};
use crate::count::Count;
use crate::pending::{Member, Pending};

/// What every grouping needs of a sample.
const NEEDED: &[Field] =
    &[Field::Id, Field::Episode, Field::Turn, Field::Agent, Field::Branch, Field::Branches];

/// The lines up to an `end`.
pub struct Segment<'a> {
    arguments: &'a Arguments,
    stream: Stream,
    gather: Gather<Pending>,
    count: Count,
}

impl<'a> Segment<'a> {
    /// An empty segment.
    pub fn new(arguments: &'a Arguments) -> Self {
        Segment {
            arguments,
            stream: Stream::new("group", arguments.allow_incomplete),
            gather: Gather::default(),
            count: Count::default(),
        }
    }

    /// Reads the stream to its end and writes each group as soon as it and all before it are whole.
    pub fn read<R: Read, W: Write>(&mut self, reader: &mut Reader<R>, writer: &mut Writer<W>) -> Result<()> {
        while let Some(line) = reader.next()? {
            self.line(line)?;
            while let Some(released) = self.gather.release() {
                self.write(released, writer)?;
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
        let by = self.arguments.by;
        let counts = self.count.fields(by, self.stream.ends());
        let outcome = self.stream.close(writer, outcome, counts, timing);
        if outcome.is_ok() && !self.arguments.quiet {
            stage::note("group", self.count.sentence(by));
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

    fn sample(&mut self, line: Line) -> Result<()> {
        let by = self.arguments.by;
        let sample = Sample::parse(&line)?;
        sample.require(&line, NEEDED)?;
        sample.require(&line, by.fields())?;
        if by.siblings() && !sample.is_parallel() {
            sample.require(&line, &[Field::PromptIds])?;
        }
        self.stream.sample(&sample, &line)?;
        self.count.samples += 1;
        self.check_reward(&sample, &line)?;
        let parts = by.parts(&sample);
        let key = parts.join("/");
        let Some(pending) = self.gather.group(&key, || Pending::new(key.clone(), parts.clone())) else {
            return Err(sample.failure(&line, format!("group {key} already has all its branches")));
        };
        if pending.members.is_empty() {
            self.count.groups += 1;
        }
        pending.push(sample, line, &parts, by.siblings())?;
        if by.siblings() && pending.is_whole() {
            self.gather.close(&key);
        }
        Ok(())
    }

    fn check_reward(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        match (sample.reward, sample.rewards) {
            (Some(Some(_)), _) | (None, Some(_)) => Ok(()),
            (None, None) => Err(sample
                .failure(line, "`reward` is missing")
                .hint("a sample that was not scored says so: \"reward\":null")),
            (Some(None), _) => {
                self.count.unscored += 1;
                if self.arguments.unscored != Unscored::Error {
                    return Ok(());
                }
                Err(sample.failure(line, "reward is null: the sample was not scored").hint(
                    "--unscored drop-sample leaves such samples out, --unscored drop-group their groups",
                ))
            }
        }
    }

    fn write<W: Write>(&mut self, released: Released<Pending>, writer: &mut Writer<W>) -> Result<()> {
        match released {
            Released::Line(text) => writer.raw(&text),
            Released::Group { group, whole } => self.write_group(group, whole, writer),
        }
    }

    fn write_group<W: Write>(
        &mut self,
        mut group: Pending,
        whole: bool,
        writer: &mut Writer<W>,
    ) -> Result<()> {
        if self.arguments.by.siblings() && !whole {
            if group.is_parallel() {
                self.count.short += 1;
            } else if self.arguments.incomplete == Incomplete::Drop {
                self.count.dropped_incomplete += 1;
                return Ok(());
            } else {
                return Err(incomplete(&group));
            }
        }
        let scored = group.members.iter().filter(|member| member.scored).count();
        if scored < group.members.len() && self.arguments.unscored == Unscored::DropGroup || scored == 0 {
            self.count.dropped_unscored += 1;
            return Ok(());
        }
        group.members.retain(|member| member.scored);
        self.count.parallel += u64::from(group.is_parallel());
        self.count.flat += u64::from(group.is_flat());
        let additions = [("group", json(&group.key)?), ("group_size", json(&group.members.len())?)];
        for Member { text, place, id, .. } in &group.members {
            let decorated =
                splice(text, &additions).map_err(|failure| failure.at(format!("{place}: {id}")))?;
            writer.raw(&decorated)?;
        }
        self.count.written += group.members.len() as u64;
        Ok(())
    }
}

fn incomplete(group: &Pending) -> Failure {
    let place = group.members.first().map_or("stdin", |member| &member.place);
    Failure::data(format!("{place}: group {}: the stream ended with {}", group.key, group.what_is_missing()))
        .hint("a filter must drop whole groups; --incomplete drop leaves such groups out and counts them")
}
