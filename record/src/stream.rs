//! What makes a stream whole: no sample twice, and an `end` that says `ok` for every shard seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};

use crate::failure::{Failure, Result};
use crate::line::{self, End};
use crate::read::Line;
use crate::sample::Sample;

/// The bookkeeping of one stream.
pub struct Stream {
    stage: &'static str,
    allow_incomplete: bool,
    ids: HashMap<String, u64>,
    shards: BTreeSet<String>,
    ends: Vec<End>,
}

impl Stream {
    /// The stream that `stage` reads; with `allow_incomplete` a stream without a good `end` is none the worse.
    pub fn new(stage: &'static str, allow_incomplete: bool) -> Self {
        Stream { stage, allow_incomplete, ids: HashMap::new(), shards: BTreeSet::new(), ends: Vec::new() }
    }

    /// Counts a sample in.
    ///
    /// # Errors
    /// 65 when its id was seen before.
    pub fn sample(&mut self, sample: &Sample, line: &Line) -> Result<()> {
        if let Some(id) = &sample.id
            && let Some(first) = self.ids.insert(id.clone(), line.number)
        {
            return Err(sample.failure(line, format!("this id was already on line {first}")));
        }
        if let Some(shard) = &sample.shard
            && !self.shards.contains(shard)
        {
            self.shards.insert(shard.clone());
        }
        Ok(())
    }

    /// Consumes an `end` line.
    ///
    /// # Errors
    /// 65 when it cannot be read.
    pub fn end(&mut self, line: &Line) -> Result<()> {
        self.ends.push(line::parse(line)?);
        Ok(())
    }

    /// The stage's own `end` line, and whether the stream was whole. `ok` is the stage's own success.
    /// Write the line first, then return the verdict.
    pub fn finish(
        self,
        ok: bool,
        counts: Map<String, Value>,
        timing: BTreeMap<String, Value>,
    ) -> (End, Result<()>) {
        let verdict = self.verdict();
        let shard = match self.ends.as_slice() {
            [only] => only.shard.clone(),
            _ => None,
        };
        let end = End {
            stage: self.stage.to_owned(),
            ok: ok && verdict.is_ok(),
            step: self.ends.first().and_then(|end| end.step),
            shard,
            counts,
            after: self.ends,
            timing,
            ..End::default()
        };
        (end, verdict)
    }

    fn verdict(&self) -> Result<()> {
        if self.allow_incomplete {
            return Ok(());
        }
        if let Some(bad) = self.ends.iter().find(|end| !end.ok) {
            return Err(Failure::data(format!("stage {} before this one did not succeed", bad.stage)));
        }
        if self.ends.is_empty() {
            return Err(Failure::data("stdin ended without an `end` line"));
        }
        Ok(())
    }
}
