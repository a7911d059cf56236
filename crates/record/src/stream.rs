//! Checks that a stream is complete: no duplicate samples, and an `end` line with `ok` for every shard seen.
//!
//! A truncated stream consists of valid lines, and by the time a shell notices that the producer died (`pipefail`) the
//! last stage has already committed. So each stream ends with an `end` line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;

use serde_json::{Map, Value};

use crate::check::parse_shard;
use crate::failure::{Failure, Result};
use crate::gather::{ByFingerprint, fingerprint};
use crate::line::{self, End, Joint};
use crate::read::Line;
use crate::sample::Sample;
use crate::write::Writer;

/// The bookkeeping of one stream, from its first line to its `end`.
#[derive(Debug)]
pub struct Stream {
    stage: &'static str,
    allow_incomplete: bool,
    every_shard: bool,
    every_sample: bool,
    every_group: bool,
    tasks: u64,
    samples: u64,
    /// Members of each group that names its size, and that size.
    groups: HashMap<String, (u32, u32)>,
    /// Line numbers by fingerprint: of ids, and of (episode, node, turn, agent, branch).
    ids: ByFingerprint<u64>,
    candidates: ByFingerprint<u64>,
    /// The shards of the samples of each training step.
    parts: BTreeMap<Option<u64>, Vec<Option<String>>>,
    ends: Vec<End>,
}

impl Stream {
    /// The stream that `stage` reads; with `allow_incomplete` one without a good `end` is accepted.
    pub fn new(stage: &'static str, allow_incomplete: bool) -> Self {
        Stream {
            stage,
            allow_incomplete,
            every_shard: false,
            every_sample: false,
            every_group: false,
            tasks: 0,
            samples: 0,
            groups: HashMap::new(),
            ids: ByFingerprint::default(),
            candidates: ByFingerprint::default(),
            parts: BTreeMap::new(),
            ends: Vec::new(),
        }
    }

    /// Requires all n shards of an `i/n`, not only those seen. For stages that commit something: a machine that died
    /// early leaves no line at all.
    #[must_use]
    pub fn every_shard(mut self) -> Self {
        self.every_shard = true;
        self
    }

    /// Requires the number of samples that the earlier stages counted. A filter that drops samples leaves
    /// valid lines and a valid `end`, and only the count reveals it.
    #[must_use]
    pub fn every_sample(mut self) -> Self {
        self.every_sample = true;
        self
    }

    /// Requires all members of each group, and that every group that was requested was seen or dropped for a reason.
    #[must_use]
    pub fn every_group(mut self) -> Self {
        self.every_group = true;
        self
    }

    /// Counts a task in, which nobody has played yet.
    pub fn task(&mut self) {
        self.tasks += 1;
    }

    /// Counts a sample in.
    ///
    /// # Errors
    /// 65 when its id, or its (episode, node, turn, agent, branch), was there before.
    pub fn sample(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        self.samples += 1;
        if let (true, Some(group), Some(size)) = (self.every_group, &sample.group, sample.group_size) {
            match self.groups.get_mut(&**group) {
                Some((members, _)) => *members += 1,
                None => drop(self.groups.insert(group.to_string(), (1, size))),
            }
        }
        if let Some(id) = &sample.id {
            self.name(id, line)?;
        }
        if let (Some(episode), Some(turn), Some(agent), Some(branch)) =
            (&sample.episode, sample.turn, &sample.agent, sample.branch)
        {
            let node = sample.node.as_deref().unwrap_or_default();
            let name = fingerprint((&**episode, node, &**agent, turn, branch));
            if let Some(first) = self.candidates.insert(name, line.number) {
                let cause = format!(
                    "branch {branch} of {agent} at turn {turn} of episode {episode} was already on line {first}"
                );
                return Err(sample.failure(line, cause).hint("siblings have different branches"));
            }
        }
        let (shards, shard) = (self.parts.entry(sample.step).or_default(), sample.shard.as_deref());
        if !shards.iter().any(|known| known.as_deref() == shard) {
            shards.push(shard.map(str::to_owned));
        }
        Ok(())
    }

    /// Checks a joint action, and that its id is unique.
    ///
    /// # Errors
    /// 65 if it breaks a rule or its id was already used.
    pub fn joint(&mut self, line: &Line) -> Result<Joint> {
        let joint = Joint::parse(line)?;
        self.name(&joint.id, line)?;
        Ok(joint)
    }

    fn name(&mut self, id: &str, line: &Line) -> Result<()> {
        match self.ids.insert(fingerprint(id), line.number) {
            None => Ok(()),
            Some(first) => Err(line
                .failure(format!("{id}: this id was already on line {first}"))
                .hint("an id is unique in a stream: was a file given twice, or were two runs joined?")),
        }
    }

    /// Consumes an `end` line.
    pub fn end(&mut self, line: &Line) -> Result<()> {
        let end: End = line::parse(line)?;
        if let Some(shard) = end.shard.as_deref().filter(|shard| parse_shard(shard).is_none()) {
            return Err(line.failure(format!("shard is `{shard}`, not i/n with i below n")));
        }
        self.ends.push(end);
        Ok(())
    }

    /// The `end` lines consumed so far.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Writes the stage's `end` line and returns the first failure of the stage, else of the stream. Writes
    /// nothing after a closed pipe or a signal.
    ///
    /// # Errors
    /// `outcome`'s; 65 when the stream was not whole; 74 when the line cannot be written.
    pub fn close<W: Write>(
        self,
        writer: &mut Writer<W>,
        outcome: Result<()>,
        counts: Map<String, Value>,
        timing: BTreeMap<String, Value>,
    ) -> Result<()> {
        if outcome.as_ref().is_err_and(|failure| failure.is_closed() || failure.is_interruption()) {
            return outcome;
        }
        let verdict = self.whole();
        let allowed = self.verdict().err().filter(|_| verdict.is_ok());
        let outcome = outcome.and(verdict);
        let end = End {
            stage: self.stage.to_owned(),
            ok: outcome.is_ok(),
            step: common(self.ends.iter().map(|end| end.step)).flatten(),
            error: outcome.as_ref().err().map(|failure| failure.message.clone()),
            allowed: allowed.map(|failure| failure.message),
            shard: common(self.ends.iter().map(|end| end.shard.clone())).flatten(),
            counts,
            after: self.ends,
            timing,
            ..End::default()
        };
        let written = writer.end(&end).and_then(|()| writer.flush());
        outcome.and(written)
    }

    /// Checks that the stream is complete.
    ///
    /// # Errors
    /// 65, naming the missing part or the earlier stage that failed; never with `allow_incomplete`.
    pub fn whole(&self) -> Result<()> {
        if self.allow_incomplete { Ok(()) } else { self.verdict() }
    }

    fn verdict(&self) -> Result<()> {
        if let Some(bad) = self.ends.iter().find_map(End::failed) {
            let why = bad.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
            return Err(Failure::data(format!("stage {} before this one did not succeed{why}", bad.stage))
                .hint("fix that stage; --allow-incomplete accepts a partial stream"));
        }
        if self.samples == 0 && self.tasks > 0 {
            return Err(Failure::data("stdin holds tasks and no samples")
                .hint("rollout plays them: envs tasks plan-path --count 32 | rollout --policy DIR | group"));
        }
        if self.ends.is_empty() {
            return Err(missing("stdin ended without an `end` line"));
        }
        for (step, shard) in self.parts() {
            let covered = self.ends.iter().any(|end| {
                let same_step = step.is_none() || end.step.is_none() || step == end.step;
                same_step && covers(end, shard)
            });
            if !covered {
                let of = shard.map_or(String::new(), |shard| format!(" for shard {shard}"));
                let at = step.map_or(String::new(), |step| format!(" of step {step}"));
                return Err(missing(&format!("stdin ended without an `end` line{of}{at}")));
            }
        }
        if self.every_shard {
            self.check_every_shard()?;
        }
        let written: Option<u64> = self.ends.iter().map(samples_written).sum();
        if let Some(written) = written.filter(|&written| self.every_sample && self.samples < written) {
            return Err(Failure::data(format!(
                "stdin has {} of the {written} samples that the stages before this one wrote",
                self.samples
            ))
            .hint("if a filter drops samples on purpose, say so to the next stage: --allow-incomplete"));
        }
        if self.every_group { self.check_every_group() } else { Ok(()) }
    }

    /// Each training step and shard of a sample.
    fn parts(&self) -> impl Iterator<Item = (Option<u64>, Option<&str>)> {
        self.parts.iter().flat_map(|(step, shards)| shards.iter().map(|shard| (*step, shard.as_deref())))
    }

    fn check_every_group(&self) -> Result<()> {
        match self.groups.iter().filter(|(_, (members, size))| members != size).min() {
            Some((group, (members, size))) => {
                Err(Failure::data(format!("group {group} has {members} of its {size} members"))
                    .hint("a filter must drop whole groups; --allow-incomplete accepts a partial stream"))
            }
            None => check_expected(&self.ends),
        }
    }

    fn check_every_shard(&self) -> Result<()> {
        let mut covered = BTreeSet::new();
        for end in &self.ends {
            let mut named = BTreeSet::new();
            shards(end, &mut named);
            if named.is_empty() {
                return Ok(()); // it speaks for the whole stream
            }
            covered.append(&mut named);
        }
        let seen = self.parts().filter_map(|(_, shard)| shard);
        let counts: BTreeSet<u32> =
            seen.chain(covered.iter().copied()).filter_map(|shard| Some(parse_shard(shard)?.1)).collect();
        for count in counts {
            for wanted in (0..count).map(|index| format!("{index}/{count}")) {
                if !covered.contains(wanted.as_str()) {
                    return Err(missing(&format!("stdin ended without an `end` line for shard {wanted}")));
                }
            }
        }
        Ok(())
    }
}

/// Checks that no stage saw fewer groups than were requested, dropped ones included, unless it was told to accept that.
fn check_expected(ends: &[End]) -> Result<()> {
    let count = |end: &End, name: &str| end.counts.get(name).and_then(Value::as_u64);
    for end in ends.iter().filter(|end| end.allowed.is_none()) {
        check_expected(&end.after)?;
        let (Some(expected), Some(groups)) = (count(end, "groups_expected"), count(end, "groups")) else {
            continue;
        };
        let found = groups + dropped(end) + with_earlier(&end.after).into_iter().map(dropped).sum::<u64>();
        if found < expected {
            return Err(Failure::data(format!("stage {} saw {found} of {expected} groups", end.stage))
                .hint("lines were lost before it; --allow-incomplete accepts a partial stream"));
        }
    }
    Ok(())
}

fn dropped(end: &End) -> u64 {
    end.dropped_groups().into_iter().map(|(_, groups)| groups).sum()
}

/// These `end` lines, and those that they were made from.
pub fn with_earlier(ends: &[End]) -> Vec<&End> {
    ends.iter().flat_map(|end| [end].into_iter().chain(with_earlier(&end.after))).collect()
}

/// Samples that the stage of `end` wrote, if it says.
fn samples_written(end: &End) -> Option<u64> {
    ["samples_written", "samples"].iter().find_map(|key| end.counts.get(*key)?.as_u64())
}

fn missing(cause: &str) -> Failure {
    Failure::data(cause).hint(
        "the producer died, or a filter dropped the line: keep other types with \
         jq -c 'select(.type != \"sample\" or …)'; --allow-incomplete accepts a partial stream",
    )
}

/// Returns true if `end` covers `shard`. Without a shard, also in `after`, it covers the stream.
fn covers(end: &End, shard: Option<&str>) -> bool {
    let mut named = BTreeSet::new();
    shards(end, &mut named);
    named.is_empty() || shard.is_none_or(|shard| named.contains(shard))
}

/// The shards that `end` speaks for: the shard it names, else the shards of the `end` lines below it.
fn shards<'a>(end: &'a End, named: &mut BTreeSet<&'a str>) {
    match &end.shard {
        Some(shard) => {
            named.insert(shard);
        }
        None => end.after.iter().for_each(|before| shards(before, named)),
    }
}

/// The one value that all have, if there is one.
fn common<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}
