//! The chassis of a stage that adds keys to samples, such as `group` and `advantage`.
//!
//! A stage implements [`Decorate`]: which samples it must see together, and which keys each of them gets. The chassis does
//! the rest of docs/stream-format.md: it checks every sample, passes other lines through in their places, writes a group as soon as
//! it and all before it are complete, splices the keys in, and closes the stream with `end` and a summary.
//! Left out: replacing keys and dropping lines by content, which are filters (`jq` is one).

use std::io::{Read, Write};
use std::time::Instant;

use serde_json::{Map, Value};

use crate::failure::Result;
use crate::gather::{Gather, Gathered};
use crate::line::{End, Joint};
use crate::read::{Kind, Line, Reader};
use crate::sample::Sample;
use crate::splice::Splicer;
use crate::stage;
use crate::stream::Stream;
use crate::write::Writer;

/// The flags of every decorating stage, to be flattened into its arguments.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Flags {
    /// Accept an incomplete stream: without an `end` line, with one that is not ok, or with fewer lines than it counts
    #[arg(long)]
    pub allow_incomplete: bool,

    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,

    /// Process one part of the input after another, each up to its `end` line, and answer each with an `end` line
    #[arg(long)]
    pub resident: bool,
}

/// A stage that adds keys to samples, by default to each by itself.
pub trait Decorate {
    /// The stage's notes on a sample until its group is written.
    type Data;

    /// Checks that a sample has the fields that the stage needs.
    fn require(&self, sample: &Sample, line: &Line) -> Result<()>;

    /// The group of a sample, whose members are decorated together; `None` if the sample is decorated alone.
    fn key(&self, _sample: &Sample) -> Option<String> {
        None
    }

    /// Takes a sample into its group, whose members so far are in `group`.
    ///
    /// # Errors
    /// 65: the sample does not fit the group.
    fn join(&mut self, group: &Group<Self::Data>, sample: Sample, line: &Line) -> Result<Self::Data>;

    /// Sees a joint action, which passes through.
    fn joint(&mut self, _joint: Joint, _line: &Line) -> Result<()> {
        Ok(())
    }

    /// Returns true if `group`, which has members, has all of them.
    fn is_complete(&self, _group: &Group<Self::Data>) -> bool {
        true
    }

    /// Resets the stage for the next part of a stream (`--resident`).
    fn next_part(&mut self) {}

    /// Returns true if the stage must see the whole stream before it can decorate any group.
    fn needs_whole_stream(&self) -> bool {
        false
    }

    /// Sees all groups of a whole stream before the first of them is decorated; only of a stage that
    /// [needs it](Decorate::needs_whole_stream).
    fn whole(&mut self, _groups: &[&Group<Self::Data>], _ends: &[End]) -> Result<()> {
        Ok(())
    }

    /// All lines are decorated and written, but for `end`.
    ///
    /// # Errors
    /// 74: the stage's separate files could not be written.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Writes the members of a group with their new keys; members that are not written are dropped.
    fn decorate(&mut self, group: Group<Self::Data>, output: &mut Output) -> Result<()>;

    /// Checks, at the end of a whole stream, what the stages before say of it in their `end` lines.
    ///
    /// # Errors
    /// 65: something that they announce is missing.
    fn check(&self, _stats: &StageStats, _ends: &[End]) -> Result<()> {
        Ok(())
    }

    /// The `counts` of the stage's `end` line, an object; `ends` are the `end` lines that it read.
    fn counts(&self, stats: &StageStats, ends: &[End]) -> Value;

    fn summary(&self, stats: &StageStats) -> String;
}

/// The samples that a stage decorates together.
#[derive(Debug)]
pub struct Group<D> {
    /// Its name, see [`Decorate::key`].
    pub key: String,
    /// In the order of arrival.
    pub members: Vec<Member<D>>,
    /// True if all members came before the stream ended, see [`Decorate::is_complete`].
    pub complete: bool,
}

/// A sample of a group.
#[derive(Debug)]
pub struct Member<D> {
    /// The line as it came.
    pub line: Line,
    /// The sample's `id`, or nothing.
    pub id: String,
    /// The stage's notes on it.
    pub data: D,
}

impl<D> Member<D> {
    /// The sample as messages name it, `stdin:17: 12.7/1/planner/3`.
    pub fn name(&self) -> String {
        let place = self.line.location();
        if self.id.is_empty() { place } else { format!("{place}: {}", self.id) }
    }
}

/// The decorated lines of a group.
#[derive(Debug, Default)]
pub struct Output {
    lines: Vec<String>,
    splicer: Splicer,
}

impl Output {
    /// Writes `member` with additional keys, each with its value as JSON text (see [`json`](crate::splice::json)).
    ///
    /// # Errors
    /// 65 with the member's place and id: a key is already present, or a value could not be written.
    pub fn add<D>(&mut self, member: &Member<D>, keys: &[(&str, Result<String>)]) -> Result<()> {
        let decorated = keys
            .iter()
            .map(|(key, value)| Ok((*key, value.as_ref().map_err(Clone::clone)?)))
            .collect::<Result<Vec<_>>>()
            .and_then(|keys| self.splicer.splice(&member.line.text, &keys))
            .map_err(|failure| failure.at(member.name()))?;
        self.lines.push(decorated);
        Ok(())
    }
}

/// The chassis' counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageStats {
    /// Samples read.
    pub samples: u64,
    /// Samples written.
    pub written: u64,
    /// Groups seen.
    pub groups: u64,
}

/// Runs `stage` from stdin to stdout, with `--resident` once for each part of stdin.
///
/// # Errors
/// 65: a line or a group is refused, or the stream is incomplete; 74: I/O; 130, 143: a signal; or an error of
/// the stage.
pub fn run(name: &'static str, flags: Flags, mut stage: impl Decorate) -> Result<()> {
    let mut writer = Writer::stdout();
    Reader::stdin().each_part(flags.resident, |reader| {
        run_part(name, flags, &mut stage, reader, &mut writer)?;
        stage.next_part();
        Ok(())
    })
}

fn run_part<R: Read, W: Write>(
    name: &'static str,
    flags: Flags,
    stage: &mut impl Decorate,
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
) -> Result<()> {
    let started = Instant::now();
    let stream = Stream::new(name, flags.allow_incomplete).every_sample();
    let (gather, stats, output) = (Gather::default(), StageStats::default(), Output::default());
    let mut chassis = Chassis { flags, stage, stream, gather, stats, output };
    let outcome = chassis.read(reader, writer);
    let Chassis { stage, stream, stats, .. } = chassis;
    let counts = match stage.counts(&stats, stream.ends()) {
        Value::Object(counts) => counts,
        _ => Map::new(),
    };
    stream.close(writer, outcome, counts, stage::timing(started))?;
    if !flags.quiet {
        stage::note(stage::name(), stage.summary(&stats));
    }
    Ok(())
}

struct Chassis<'a, S: Decorate> {
    flags: Flags,
    stage: &'a mut S,
    stream: Stream,
    gather: Gather<Group<S::Data>>,
    stats: StageStats,
    output: Output,
}

impl<S: Decorate> Chassis<'_, S> {
    fn read<R: Read, W: Write>(&mut self, reader: &mut Reader<R>, writer: &mut Writer<W>) -> Result<()> {
        while let Some(line) = reader.next()? {
            match line.kind {
                Kind::Sample => self.sample(line)?,
                Kind::End => {
                    self.stream.end(&line)?;
                    if self.flags.resident {
                        break;
                    }
                }
                Kind::Joint => {
                    let joint = self.stream.joint(&line)?;
                    self.stage.joint(joint, &line)?;
                    self.gather.line(line.text);
                }
                kind => {
                    if kind == Kind::Task {
                        self.stream.task();
                    }
                    self.gather.line(line.text);
                }
            }
            if !self.stage.needs_whole_stream() {
                while let Some(entry) = self.gather.release() {
                    self.write(entry, writer)?;
                }
            }
            if reader.would_block() {
                writer.flush()?;
            }
        }
        self.stream.whole()?;
        if !self.flags.allow_incomplete {
            self.stage.check(&self.stats, self.stream.ends())?;
        }
        let rest: Vec<Gathered<Group<S::Data>>> = std::mem::take(&mut self.gather).rest().collect();
        if self.stage.needs_whole_stream() {
            let groups: Vec<&Group<S::Data>> = rest.iter().filter_map(Gathered::group).collect();
            self.stage.whole(&groups, self.stream.ends())?;
        }
        for entry in rest {
            self.write(entry, writer)?;
        }
        self.stage.finish()
    }

    fn sample(&mut self, line: Line) -> Result<()> {
        let sample = Sample::parse(&line)?;
        self.stage.require(&sample, &line)?;
        self.stream.sample(&sample, &line)?;
        self.stats.samples += 1;
        let key = self.stage.key(&sample).unwrap_or_else(|| line.number.to_string());
        let begin = || Group { key: key.clone(), members: Vec::new(), complete: false };
        let Some(group) = self.gather.group(&key, begin) else {
            return Err(sample
                .failure(&line, format!("group {key} already has all its members"))
                .hint("was a file given twice, or were two runs joined?"));
        };
        let id = sample.id.as_deref().unwrap_or_default().to_owned();
        let data = self.stage.join(group, sample, &line)?;
        self.stats.groups += u64::from(group.members.is_empty());
        group.members.push(Member { line, id, data });
        if self.stage.is_complete(group) {
            group.complete = true;
            self.gather.close(&key);
        }
        Ok(())
    }

    fn write<W: Write>(&mut self, entry: Gathered<Group<S::Data>>, writer: &mut Writer<W>) -> Result<()> {
        let group = match entry {
            Gathered::Line(text) => return writer.raw(&text),
            Gathered::Group(group) => group,
        };
        let outcome = self.stage.decorate(group, &mut self.output);
        let lines = std::mem::take(&mut self.output.lines);
        for line in &lines {
            writer.raw(line)?;
        }
        outcome?;
        self.stats.written += lines.len() as u64;
        Ok(())
    }
}
