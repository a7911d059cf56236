//! Reads all of stdin: each policy's samples, and the `end` lines.
//!
//! Training starts, and allocates, only after stdin closes: the stages before this one may still use the machine.

use std::collections::HashMap;
use std::io::{Read, Write};

use policy::ownership::Ownership;
use record::failure::{Failure, Result};
use record::line::End;
use record::read::{Kind, Reader};
use record::sample::{Field, Sample};
use record::stream::Stream;
use serde_json::Value;

use crate::output::Output;
use crate::samples::{Needs, Samples};

/// The samples of the stream, by policy.
#[derive(Default)]
pub struct SampleReader {
    /// The samples of each policy, in the order of [`Ownership::owners`].
    pub samples: Vec<Samples>,
    /// Samples read.
    pub read: u64,
    /// Samples that no policy of this call owns.
    pub passed: u64,
    /// The agents of those, in order of first appearance.
    pub unowned: Vec<String>,
    /// Whether rollout says that it computed in f32.
    pub sampled_in_f32: bool,
    /// Members of each group that names its size, and that size.
    groups: HashMap<String, (u32, u32)>,
}

/// These `end` lines, and those that they were made from.
fn with_earlier(ends: &[End]) -> Vec<&End> {
    ends.iter().flat_map(|end| [end].into_iter().chain(with_earlier(&end.after))).collect()
}

/// Whether every rollout that these lines come from says that it computed in f32.
pub fn sampled_in_f32(ends: &[End]) -> bool {
    let mut dtypes = with_earlier(ends).into_iter().filter_map(|end| end.extra.get("dtype")).peekable();
    dtypes.peek().is_some() && dtypes.all(|dtype| dtype == "float32")
}

/// Checks that no stage saw fewer groups than were requested, dropped ones included, unless it was told to accept that.
fn check_expected(ends: &[End]) -> Result<()> {
    let count = |end: &End, name: &str| end.counts.get(name).and_then(Value::as_u64);
    let dropped = |end: &End| -> u64 {
        let reasons = end.counts.get("dropped_groups").and_then(Value::as_object);
        reasons.into_iter().flatten().filter_map(|(_, groups)| groups.as_u64()).sum()
    };
    for end in ends.iter().filter(|end| end.allowed.is_none()) {
        check_expected(&end.after)?;
        let (Some(expected), Some(groups)) = (count(end, "groups_expected"), count(end, "groups")) else {
            continue;
        };
        let found = groups + dropped(end) + with_earlier(&end.after).into_iter().map(dropped).sum::<u64>();
        if found < expected {
            return Err(Failure::data(format!("stage {} saw {found} of {expected} groups", end.stage))
                .hint("lines were lost before it; --allow-incomplete trains on what is there"));
        }
    }
    Ok(())
}

impl SampleReader {
    /// A reader that has read nothing.
    pub fn new(ownership: &Ownership) -> SampleReader {
        let samples = ownership.owners().iter().map(|_| Samples::default()).collect();
        SampleReader { samples, ..SampleReader::default() }
    }

    /// Reads to the end of the input; `copy` receives every line but `end` lines unchanged.
    pub fn read<R: Read, W: Write>(
        &mut self,
        reader: &mut Reader<R>,
        stream: &mut Stream,
        ownership: &Ownership,
        needs: Needs,
        copy: Option<&mut Output<W>>,
    ) -> Result<()> {
        let mut copy = copy;
        let Some(mut line) = reader.next()? else { return Ok(()) };
        loop {
            match line.kind {
                Kind::End => stream.end(&line)?,
                Kind::Sample => {
                    let sample = Sample::parse(&line)?;
                    stream.sample(&sample, &line)?;
                    sample.require(&line, &[Field::Agent])?;
                    self.read += 1;
                    if let (Some(group), Some(size)) = (&sample.group, sample.group_size) {
                        self.groups.entry(group.clone()).or_insert((0, size)).0 += 1;
                    }
                    let agent = sample.agent.as_deref().unwrap_or_default();
                    match ownership.of(agent) {
                        Some(owner) => self.samples[owner].push(&sample, &line, needs)?,
                        None => self.pass(agent),
                    }
                }
                _ => {}
            }
            if let Some(output) = copy.as_deref_mut().filter(|_| line.kind != Kind::End) {
                output.raw(&line.text)?;
            }
            if !reader.read_into(&mut line)? {
                return Ok(());
            }
        }
    }

    /// Checks that every group has its members, and that every group that was requested was seen or dropped for a reason.
    pub fn check_groups(&self, ends: &[End]) -> Result<()> {
        if let Some((group, (members, size))) = self.groups.iter().filter(|(_, (n, size))| n != size).min() {
            return Err(Failure::data(format!("group {group} has {members} of its {size} members"))
                .hint("a filter must drop whole groups; --allow-incomplete trains on what is there"));
        }
        check_expected(ends)
    }

    /// Samples that a policy of this call owns.
    pub fn owned(&self) -> usize {
        self.samples.iter().map(|samples| samples.rows.len()).sum()
    }

    fn pass(&mut self, agent: &str) {
        self.passed += 1;
        if !self.unowned.iter().any(|known| known == agent) {
            self.unowned.push(agent.to_owned());
        }
    }
}
