//! A run directory: the settings of `pipeline.sh`, and the streams of every committed step.
//!
//! Only committed steps are read (`steps/NNNNNN/done`), so a run in progress or a killed one gives the metrics of its finished
//! part. Nothing is locked or written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::line::{self, End, Metrics};
use record::read::{Kind, Line, Reader};
use record::sample::Sample;
use serde_json::{Map, Value};

use crate::episodes::{EpisodeLimits, EpisodeSampler, EpisodeSet};
use crate::stats::{Environments, GroupStats, StreamStats};

/// A training step.
#[derive(Debug)]
pub struct TrainingStep {
    /// From 1.
    pub number: u64,
    /// Stats of its samples and episodes.
    pub stats: StreamStats,
    /// How its groups add up.
    pub groups: GroupStats,
    /// The `metrics` lines of its updates, by policy.
    pub metrics: BTreeMap<String, Metrics>,
    /// The `end` of `update`.
    pub update: Option<End>,
}

/// An evaluation on held-out tasks.
#[derive(Debug)]
pub struct Evaluation {
    /// The training step after which it was made; 0 is before the first.
    pub step: u64,
    /// Stats of its episodes.
    pub environments: Environments,
    /// Its `end` lines.
    pub ends: Vec<End>,
}

/// Everything the report shows of a run.
#[derive(Debug)]
pub struct RunDirectory {
    /// The name of its directory.
    pub name: String,
    /// The settings of `pipeline.sh`, and the build.
    pub settings: Map<String, Value>,
    /// The committed steps.
    pub steps: Vec<TrainingStep>,
    /// The evaluations.
    pub evaluations: Vec<Evaluation>,
    /// A step that was begun and is not committed: in progress, or stopped.
    pub begun: Option<u64>,
    /// Sampled episodes of some steps.
    pub episode_sets: Vec<EpisodeSet>,
}

impl RunDirectory {
    /// Reads a run directory.
    ///
    /// # Errors
    /// No run directory (2 where there is nothing at the path, else 65), a broken stream in it (65), I/O (74).
    pub fn read(directory: &Path, name: String, limits: EpisodeLimits) -> Result<RunDirectory> {
        let settings = settings(directory)?;
        let (committed, begun) = steps(directory)?;
        let (mut steps, mut evaluations, mut episode_sets) = (Vec::new(), Vec::new(), Vec::new());
        let shown = limits.shown(&committed);
        for number in committed {
            let mut sampler = EpisodeSampler::new(number, false, limits, &shown);
            steps.push(step(directory, number, &mut sampler)?);
            episode_sets.extend(sampler.close());
        }
        let found = numbered(&directory.join("eval"), "step-", ".jsonl")?;
        let shown = limits.shown(&found.keys().copied().collect::<Vec<u64>>());
        for (number, path) in found {
            let mut sampler = EpisodeSampler::new(number, true, limits, &shown);
            evaluations.push(evaluation(directory, number, &path, &mut sampler)?);
            episode_sets.extend(sampler.close());
        }
        episode_sets.sort_by_key(|set| (set.step, set.held_out));
        Ok(RunDirectory { name, settings, steps, evaluations, begun, episode_sets })
    }
}

fn settings(directory: &Path) -> Result<Map<String, Value>> {
    let path = directory.join("run.json");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let no_run = |failure: fn(String) -> Failure, cause| {
            failure(format!("{}: {cause}", directory.display())).hint(
                "a run directory is what ./pipeline.sh --run DIR makes: it holds run.json, steps/ and eval/",
            )
        };
        match error.kind() {
            _ if !directory.exists() => no_run(Failure::usage, "no such directory"),
            ErrorKind::NotADirectory => no_run(Failure::data, "not a directory"),
            ErrorKind::NotFound => no_run(Failure::data, "not a run directory: there is no run.json"),
            _ => Failure::io(format!("{}: {error}", path.display())),
        }
    })?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::data(format!("{}: {error}", path.display()))
            .hint("pipeline.sh wrote this file as a JSON object")
    })
}

/// The names in a folder that are numbers, with what follows them stripped; nothing where there is no folder.
fn numbered(folder: &Path, prefix: &str, suffix: &str) -> Result<BTreeMap<u64, PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Failure::io(format!("{}: {error}", folder.display()))),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::io(format!("{}: {error}", folder.display())))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.insert(number, path);
        }
    }
    Ok(found)
}

/// The committed steps from 1 (step 0 is the starting point and has no samples), and one that was begun after them.
fn steps(directory: &Path) -> Result<(Vec<u64>, Option<u64>)> {
    let found = numbered(&directory.join("steps"), "", "")?;
    let (committed, begun): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, path)| path.join("done").exists());
    let committed = committed.into_iter().map(|(number, _)| number).filter(|&number| number > 0);
    Ok((committed.collect(), begun.first().map(|(number, _)| *number)))
}

fn step(directory: &Path, number: u64, sampler: &mut EpisodeSampler) -> Result<TrainingStep> {
    let folder = directory.join("steps").join(format!("{number:06}"));
    let mut stats = StreamStats::default();
    read(directory, &folder.join("samples.jsonl"), |line, sample| {
        sampler.take(line, sample)?;
        stats.take(line, sample)
    })?;
    let groups = stats.close();
    let (mut metrics, mut update) = (BTreeMap::new(), None);
    read(directory, &folder.join("metrics.jsonl"), |line, _| {
        match line.kind {
            Kind::Metrics => {
                let read: Metrics = line::parse(line)?;
                metrics.insert(read.policy.clone(), read);
            }
            Kind::End => update = Some(line::parse(line)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(TrainingStep { number, stats, groups, metrics, update })
}

fn evaluation(directory: &Path, step: u64, path: &Path, sampler: &mut EpisodeSampler) -> Result<Evaluation> {
    let mut environments = Environments::default();
    let mut ends = Vec::new();
    read(directory, path, |line, sample| {
        sampler.take(line, sample)?;
        if line.kind == Kind::End {
            ends.push(line::parse(line)?);
        }
        environments.take(line, sample)
    })?;
    Ok(Evaluation { step, environments, ends })
}

/// Opens a file for reading.
///
/// # Errors
/// 74 with the path.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
}

/// Shows every line of a file to `visit`, samples parsed. Messages name the file by its path in the run directory.
fn read(
    directory: &Path,
    path: &Path,
    mut visit: impl FnMut(&Line, Option<&Sample>) -> Result<()>,
) -> Result<()> {
    let name = path.strip_prefix(directory).unwrap_or(path).display().to_string();
    let mut reader = Reader::new(&name, open(path)?);
    while let Some(line) = reader.next()? {
        let sample = (line.kind == Kind::Sample).then(|| Sample::parse(&line)).transpose()?;
        visit(&line, sample.as_ref())?;
    }
    Ok(())
}
