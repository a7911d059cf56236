//! The summary of one stream: its metrics, an index of its episodes, and a few episodes with all candidates.
//!
//! A stream of a committed step does not change, so its summary is kept in `RUN/report.cache/` and read back
//! while size and time of the stream's files are the same. Reading a stream again gives the same bytes; a
//! folder that cannot be written, or a summary that cannot be read, costs time and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use record::failure::{Failure, Result};
use record::file;
use record::splice::json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::episode_index::EpisodeIndex;
use crate::episodes::EpisodeSet;
use crate::metrics::Metric;
use crate::run_files::current_path;

/// Changes whenever a summary of an earlier build would not do.
const FORMAT: u32 = 7;

/// A stream, summed up.
#[derive(Debug, Serialize, Deserialize)]
pub struct StreamSummary {
    /// The training step; of an evaluation the one after which it was made, 0 before the first.
    pub step: u64,
    /// True if the stream is an evaluation's.
    pub held_out: bool,
    /// True if members of its groups should share a prompt.
    pub equal_prompts: bool,
    /// When it was written, in seconds since 1970.
    #[serde(skip)]
    pub wall: f64,
    pub metrics: Vec<Metric>,
    pub index: EpisodeIndex,
}

/// The folder with the summaries of a run.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// The files of a stream as they were when it was summed up.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    format: u32,
    build: String,
    /// Bytes and time of last change, in nanoseconds since 1970, of each file.
    files: Vec<(u64, u64)>,
}

impl Cache {
    /// The summaries of the run in `directory`.
    pub fn of(directory: &Path) -> Self {
        Cache { folder: directory.join("report.cache") }
    }

    /// The summary called `name` of the stream in `files`, from the cache or from `read`, and its episodes if
    /// `shown`.
    pub fn get(
        &self,
        name: &str,
        files: &[&Path],
        shown: bool,
        read: impl FnOnce() -> Result<(StreamSummary, EpisodeSet)>,
    ) -> Result<(StreamSummary, Option<EpisodeSet>)> {
        let key = Key::of(files)?;
        let path = self.folder.join(format!("{name}.json"));
        let wall =
            key.files.iter().map(|(_, nanoseconds)| *nanoseconds).max().unwrap_or_default() as f64 / 1e9;
        if let Some((summary, set)) = load(&path, &key, shown) {
            return Ok((StreamSummary { wall, ..summary }, set));
        }
        let (summary, set) = read()?;
        let summary = StreamSummary { wall, ..summary };
        // Without the cache the next report takes longer, nothing else.
        let _ = self.store(&path, &key, &summary, &set);
        Ok((summary, shown.then_some(set)))
    }

    /// Three lines: the key, the summary, the episodes.
    fn store(&self, path: &Path, key: &Key, summary: &StreamSummary, set: &EpisodeSet) -> Result<()> {
        let text = format!("{}\n{}\n{}\n", json(key)?, json(summary)?, json(set)?);
        fs::create_dir_all(&self.folder)?;
        file::replace(path, text.as_bytes())
    }
}

impl Key {
    fn of(files: &[&Path]) -> Result<Key> {
        let stamp = |path: &&Path| {
            let found =
                fs::metadata(current_path(path)).and_then(|found| Ok((found.len(), found.modified()?)));
            let (bytes, time) = found.map_err(|error| Failure::io(format!("{}: {error}", path.display())))?;
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((bytes, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
        };
        Ok(Key {
            format: FORMAT,
            build: record::stage::build().to_owned(),
            files: files.iter().map(stamp).collect::<Result<Vec<_>>>()?,
        })
    }
}

/// The summary at `path`, and its episodes if `shown`; none unless it has this key.
fn load(path: &Path, key: &Key, shown: bool) -> Option<(StreamSummary, Option<EpisodeSet>)> {
    let text = String::from_utf8(file::read(path).ok()?).ok()?;
    let mut lines = text.lines();
    if serde_json::from_str::<Key>(lines.next()?).ok()? != *key {
        return None;
    }
    let summary = serde_json::from_str(lines.next()?).ok()?;
    let set = lines.next()?;
    let set = if shown { Some(serde_json::from_str(set).ok()?) } else { None };
    Some((summary, set))
}

/// A value as the JSON that stands for it.
pub fn raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    RawValue::from_string(json(value)?).map_err(Failure::data)
}
