//! A run directory: the settings of `pipeline.sh`, and the streams of every committed step.
//!
//! Only committed steps are read (`steps/NNNNNN/done`), so a run in progress or a killed one gives the
//! metrics of its finished part. Nothing is locked; only `report.cache/` is written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use record::failure::{Failure, Result};
use record::file;
use record::line::{self, End, Metrics};
use record::read::{Kind, Line, Reader};
use record::sample::Sample;
use serde_json::{Map, Value};

use crate::boards::Boards;
use crate::episode_index::Indexer;
use crate::episodes::{EpisodeContext, EpisodeSampler, EpisodeSet, spread};
use crate::metrics;
use crate::run_files::{committed_steps, current_path, numbered_files, stream_path};
use crate::stats::{Environments, GroupStats, StreamStats};
use crate::stream_summary::{Cache, StreamSummary};
use crate::vocabulary::Vocabularies;

#[derive(Debug)]
pub struct TrainingStep {
    /// From 1.
    pub number: u64,
    pub stats: StreamStats,
    /// How its groups add up.
    pub groups: GroupStats,
    /// The `metrics` lines of its updates, by policy.
    pub metrics: BTreeMap<String, Metrics>,
    /// The `end` of `update`.
    pub update: Option<End>,
    /// The numbers of `measure` lines, by name.
    pub measures: BTreeMap<String, f64>,
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
    /// The numbers of `measure` lines, by name.
    pub measures: BTreeMap<String, f64>,
}

/// Everything the report shows of a run.
#[derive(Debug)]
pub struct RunDirectory {
    /// The name of its directory.
    pub name: String,
    /// The settings of `pipeline.sh`, and the build.
    pub settings: Map<String, Value>,
    /// Defaults of the values that differ from them; `None` if the run does not record them.
    pub defaults: Option<Map<String, Value>>,
    /// The evaluations, then the committed steps.
    pub streams: Vec<StreamSummary>,
    /// A step that was begun and is not committed: in progress, or stopped.
    pub begun: Option<u64>,
    pub episode_sets: Vec<EpisodeSet>,
    /// Vocabularies of its policies.
    pub vocabularies: Rc<RefCell<Vocabularies>>,
}

/// What there is to read of a run: a reader who waits for news compares it.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Committed steps.
    pub committed: usize,
    pub evaluations: usize,
    /// A step that was begun and is not committed.
    pub begun: Option<u64>,
    /// The bytes of its stream.
    pub bytes: u64,
}

impl RunDirectory {
    /// Reads a run directory, or the stream of a file as its only step.
    ///
    /// # Errors
    /// No run directory (2 if the path does not exist, else 65), a broken stream in it (65), an episode that
    /// is `wanted` and missing (2), I/O (74).
    pub fn read(
        directory: &Path,
        name: String,
        shown_steps: usize,
        wanted: &[String],
    ) -> Result<RunDirectory> {
        let mut run = RunDirectory {
            name,
            settings: Map::new(),
            defaults: None,
            streams: Vec::new(),
            begun: None,
            episode_sets: Vec::new(),
            vocabularies: Rc::default(),
        };
        if directory.is_file() {
            let mut sampler = EpisodeSampler::new(0, false, wanted, EpisodeContext::default());
            let folder = directory.parent().unwrap_or(directory);
            run.streams = vec![summarize_step(folder, 0, &[directory], &mut sampler)?];
            run.episode_sets = vec![sampler.close()];
        } else {
            run.read_steps(directory, shown_steps, wanted)?;
        }
        run.episode_sets.retain(|set| !set.episodes.is_empty());
        Ok(run)
    }

    fn read_steps(&mut self, directory: &Path, shown_steps: usize, wanted: &[String]) -> Result<()> {
        self.settings = settings(directory)?;
        // A page without it is a page without marks.
        let defaults = file::read(&directory.join("defaults.json")).ok();
        self.defaults = defaults.and_then(|text| serde_json::from_slice(&text).ok());
        self.vocabularies = Rc::new(RefCell::new(Vocabularies::of(directory)));
        let (committed, begun) = committed_steps(directory)?;
        self.begun = begun;
        let cache = Cache::of(directory);
        let evaluations = numbered_files(&directory.join("eval"), "step-", ".jsonl")?;
        let shown = spread(&evaluations.keys().copied().collect::<Vec<u64>>(), shown_steps);
        for (&step, path) in &evaluations {
            let read = |sampler: &mut EpisodeSampler| summarize_evaluation(directory, step, path, sampler);
            self.add(&cache, (step, true), &[path], shown.contains(&step), wanted, read)?;
        }
        let shown = spread(&committed, shown_steps);
        for step in committed {
            let folder = directory.join("steps").join(format!("{step:06}"));
            let (samples, metrics) = (stream_path(&folder, "samples.jsonl"), folder.join("metrics.jsonl"));
            let files = [&*samples, &*metrics];
            let read = |sampler: &mut EpisodeSampler| summarize_step(directory, step, &files, sampler);
            self.add(&cache, (step, false), &files, shown.contains(&step), wanted, read)?;
        }
        let has = |name: &String| self.streams.iter().any(|stream| stream.index.has(stream.step, name));
        if let Some(unknown) = wanted.iter().find(|name| !has(name)) {
            return Err(Failure::usage(format!(
                "--show {unknown}: {} has no such episode",
                directory.display()
            ))
            .hint("episodes are called STEP.NUMBER, as in 12.7; the page lists them"));
        }
        self.episode_sets.sort_by_key(|set| (set.step, set.held_out));
        Ok(())
    }

    /// What there is to read now.
    pub fn snapshot(directory: &Path) -> Result<Snapshot> {
        let (committed, begun) = committed_steps(directory)?;
        let samples = |step| directory.join("steps").join(format!("{step:06}")).join("samples.jsonl");
        Ok(Snapshot {
            committed: committed.len(),
            evaluations: numbered_files(&directory.join("eval"), "step-", ".jsonl")?.len(),
            bytes: begun
                .and_then(|step| std::fs::metadata(samples(step)).ok())
                .map_or(0, |facts| facts.len()),
            begun,
        })
    }

    /// Adds a stream, and its sampled episodes if `shown`; one that holds a wanted episode is read again for
    /// it.
    fn add(
        &mut self,
        cache: &Cache,
        (step, held_out): (u64, bool),
        files: &[&Path],
        shown: bool,
        wanted: &[String],
        read: impl Fn(&mut EpisodeSampler) -> Result<StreamSummary>,
    ) -> Result<()> {
        let boards = || match files[0].parent() {
            Some(folder) if !held_out => Boards::of_step(&self.settings, &stream_path(folder, "tasks.jsonl")),
            _ => Boards::of_evaluation(&self.settings),
        };
        let sample = |wanted: &[String]| -> Result<(StreamSummary, EpisodeSet)> {
            let context = EpisodeContext { boards: boards(), vocabularies: Rc::clone(&self.vocabularies) };
            let mut sampler = EpisodeSampler::new(step, held_out, wanted, context);
            let summary = read(&mut sampler)?;
            Ok((summary, sampler.close()))
        };
        let name = format!("{}-{step:06}", if held_out { "eval" } else { "step" });
        let (summary, mut set) = cache.get(&name, files, shown, || sample(&[]))?;
        if wanted.iter().any(|name| summary.index.has(step, name)) {
            set = Some(sample(wanted)?.1);
        }
        self.streams.push(summary);
        self.episode_sets.extend(set);
        Ok(())
    }

    /// The committed training steps.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = &StreamSummary> {
        self.streams.iter().filter(|stream| !stream.held_out)
    }
}

/// Opens a stream that the command line names.
pub fn open_stream(path: &Path) -> Result<file::InputFile> {
    if !path.join("run.json").is_file() {
        return file::open(path).map_err(|error| Failure::named_file(path, &error));
    }
    let evaluations = numbered_files(&path.join("eval"), "step-", ".jsonl")?;
    let step = committed_steps(path)?.0.last().copied();
    let samples = step.map(|step| stream_path(&path.join(format!("steps/{step:06}")), "samples.jsonl"));
    let streams = evaluations.into_values().next_back().into_iter().chain(samples);
    let streams: Vec<String> = streams.map(|path| path.display().to_string()).collect();
    Err(Failure::usage(format!("{}: a run, and not a stream", path.display())).hint(
        match streams.is_empty() {
            true => "it holds no stream yet".to_owned(),
            false => format!("name a stream in it, such as {}", streams.join(" or ")),
        },
    ))
}

fn runs_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let runs = entries.filter(|path| path.join("run.json").is_file());
    let mut runs: Vec<String> = runs.map(|path| path.display().to_string()).collect();
    runs.sort();
    runs
}

fn settings(directory: &Path) -> Result<Map<String, Value>> {
    let path = directory.join("run.json");
    let text = file::read(&path).map_err(|error| {
        let no_run = |failure: fn(String) -> Failure, cause| {
            failure(format!("{}: {cause}", directory.display())).hint(
                "a run directory is what ./pipeline.sh --run DIR makes: it holds run.json, steps/ and eval/",
            )
        };
        match error.kind() {
            _ if !directory.exists() => no_run(Failure::usage, "no such directory"),
            ErrorKind::NotADirectory => no_run(Failure::data, "not a directory"),
            ErrorKind::NotFound => {
                let failure = no_run(Failure::data, "not a run directory: there is no run.json");
                match &runs_in(directory)[..] {
                    [] => failure,
                    [run] => failure.hint(format!("its run is {run}")),
                    [first, others @ ..] if others.len() > 7 => failure.hint(format!(
                        "its runs are {first} and {} more: name them all with {}/*",
                        others.len(),
                        directory.display()
                    )),
                    runs => failure.hint(format!("its runs are {}", runs.join(" "))),
                }
            }
            _ => Failure::io(format!("{}: {error}", path.display())),
        }
    })?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::data(format!("{}: {error}", path.display()))
            .hint("pipeline.sh wrote this file as a JSON object")
    })
}

/// The streams of committed steps that `report compress` would compress.
pub fn compressible_streams(directory: &Path) -> Result<Vec<PathBuf>> {
    settings(directory)?;
    let folders = committed_steps(directory)?
        .0
        .into_iter()
        .map(|step| directory.join("steps").join(format!("{step:06}")));
    let files = folders.flat_map(|folder| ["samples.jsonl", "tasks.jsonl"].map(|name| folder.join(name)));
    Ok(files.filter(|file| file.is_file()).collect())
}

/// Sums up the streams of a training step: its samples and, if there is a second file, its metrics. For a
/// stream without a run the samples name the step.
fn summarize_step(
    directory: &Path,
    number: u64,
    files: &[&Path],
    sampler: &mut EpisodeSampler,
) -> Result<StreamSummary> {
    let (mut stats, mut indexer) = (StreamStats::default(), Indexer::default());
    let mut measures = BTreeMap::new();
    read_lines(directory, files[0], |line, sample| {
        take_measures(line, &mut measures)?;
        sampler.take(line, sample)?;
        indexer.take(line, sample)?;
        stats.take(line, sample)
    })?;
    let number = if number > 0 { number } else { stats.environments.step.unwrap_or_default() };
    let groups = stats.close();
    let (mut metrics, mut update) = (BTreeMap::new(), None);
    for file in &files[1..] {
        read_lines(directory, file, |line, _| {
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
    }
    let step = TrainingStep { number, stats, groups, metrics, update, measures };
    Ok(StreamSummary {
        step: number,
        held_out: false,
        equal_prompts: step.groups.equal_prompts,
        wall: 0.0,
        metrics: metrics::step_metrics(&step),
        index: indexer.close(number),
    })
}

fn summarize_evaluation(
    directory: &Path,
    step: u64,
    path: &Path,
    sampler: &mut EpisodeSampler,
) -> Result<StreamSummary> {
    let (mut environments, mut indexer) = (Environments::default(), Indexer::default());
    let (mut ends, mut measures) = (Vec::new(), BTreeMap::new());
    read_lines(directory, path, |line, sample| {
        take_measures(line, &mut measures)?;
        sampler.take(line, sample)?;
        indexer.take(line, sample)?;
        if line.kind == Kind::End {
            ends.push(line::parse(line)?);
        }
        environments.take(line, sample)
    })?;
    Ok(StreamSummary {
        step,
        held_out: true,
        equal_prompts: true,
        wall: 0.0,
        metrics: metrics::evaluation_metrics(&Evaluation { step, environments, ends, measures }),
        index: indexer.close(step),
    })
}

/// Takes the numbers of a `measure` line.
fn take_measures(line: &Line, measures: &mut BTreeMap<String, f64>) -> Result<()> {
    if line.kind == Kind::Measure {
        let values: Map<String, Value> = line::parse(line)?;
        let named = values.into_iter().filter(|(name, _)| !["v", "step"].contains(&name.as_str()));
        measures.extend(named.filter_map(|(name, value)| Some((name, value.as_f64()?))));
    }
    Ok(())
}

/// Shows every line of a file to `visit`, samples parsed. Messages name the file by its path in the run
/// directory.
fn read_lines(
    directory: &Path,
    path: &Path,
    mut visit: impl FnMut(&Line, Option<&Sample>) -> Result<()>,
) -> Result<()> {
    let name = path.strip_prefix(directory).unwrap_or(path).display().to_string();
    let file = file::regular(&current_path(path)).map_err(|error| Failure::io(format!("{name}: {error}")))?;
    let mut reader = Reader::new(&name, file);
    while let Some(line) = reader.next()? {
        let sample = (line.kind == Kind::Sample).then(|| Sample::parse(&line)).transpose()?;
        visit(&line, sample.as_ref())?;
    }
    Ok(())
}
