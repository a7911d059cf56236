//! A run directory: what `pipeline.sh` was told, and the streams of every step that it committed.
//!
//! Only committed steps are read (`steps/NNNNNN/done`), so a run in progress or one that was killed gives the same
//! figures as its finished part. Nothing is locked and nothing is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::line::{self, End, Metrics};
use record::read::Kind;
use serde_json::{Map, Value};

use crate::accounts::{Accounts, Groups};
use crate::evaluate::outcomes::Environments;
use crate::stream::{self, Seen};
use crate::trees::{Collector, Limits, Tree};

/// A training step.
#[derive(Debug)]
pub struct Step {
    /// From 1.
    pub number: u64,
    /// What its stream of samples says.
    pub accounts: Accounts,
    /// How its groups add up.
    pub groups: Groups,
    /// What its updates measured, by policy.
    pub metrics: BTreeMap<String, Metrics>,
    /// The `end` of `update`.
    pub update: Option<End>,
}

/// An evaluation on held-out tasks.
#[derive(Debug)]
pub struct Evaluation {
    /// The training step after which it was made; 0 is before the first.
    pub step: u64,
    /// What its episodes came to.
    pub environments: Environments,
    /// Its `end` lines.
    pub ends: Vec<End>,
}

/// Everything that is shown of a run.
#[derive(Debug)]
pub struct Run {
    /// What the run is called: the name of its directory.
    pub name: String,
    /// What `pipeline.sh` was told, and the build.
    pub settings: Map<String, Value>,
    /// The committed steps.
    pub steps: Vec<Step>,
    /// The evaluations.
    pub evaluations: Vec<Evaluation>,
    /// A step that was begun and is not committed: in progress, or stopped.
    pub begun: Option<u64>,
    /// Sampled episodes of some steps.
    pub trees: Vec<Tree>,
}

impl Run {
    /// Reads a run directory.
    ///
    /// # Errors
    /// No run directory (2 where there is nothing at the path, else 65), a broken stream in it (65), I/O (74).
    pub fn read(directory: &Path, name: String, limits: Limits) -> Result<Run> {
        let settings = settings(directory)?;
        let (committed, begun) = steps(directory)?;
        let mut run =
            Run { name, settings, steps: Vec::new(), evaluations: Vec::new(), begun, trees: Vec::new() };
        // Step 0 is the starting point: committed, and without samples.
        let committed: Vec<u64> = committed.into_iter().filter(|&number| number > 0).collect();
        let shown = limits.shown(&committed);
        for number in committed {
            let mut collector = shown.contains(&number).then(|| Collector::new(number, false, limits));
            run.steps.push(step(directory, number, collector.as_mut())?);
            run.trees.extend(collector.and_then(Collector::close));
        }
        let found = evaluations(directory)?;
        let shown = limits.shown(&found.keys().copied().collect::<Vec<u64>>());
        for (number, path) in found {
            let mut collector = shown.contains(&number).then(|| Collector::new(number, true, limits));
            run.evaluations.push(evaluation(directory, number, &path, collector.as_mut())?);
            run.trees.extend(collector.and_then(Collector::close));
        }
        run.trees.sort_by_key(|tree| (tree.step, tree.held_out));
        Ok(run)
    }
}

/// What a path that is no run directory is told.
fn no_run(directory: &Path, cause: &str) -> Failure {
    let hint = "a run directory is what ./pipeline.sh --run DIR makes: it holds run.json, steps/ and eval/";
    let message = format!("{}: {cause}", directory.display());
    match directory.exists() {
        true => Failure::data(message).hint(hint),
        false => Failure::usage(message).hint(hint),
    }
}

fn settings(directory: &Path) -> Result<Map<String, Value>> {
    if !directory.is_dir() {
        return Err(no_run(
            directory,
            if directory.exists() { "not a directory" } else { "no such directory" },
        ));
    }
    let path = directory.join("run.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(no_run(directory, "not a run directory: there is no run.json"));
        }
        Err(error) => return Err(Failure::io(format!("{}: {error}", path.display()))),
    };
    serde_json::from_str(&text).map_err(|error| {
        Failure::data(format!("{}: {error}", path.display()))
            .hint("pipeline.sh wrote this file as a JSON object")
    })
}

/// The names in a folder that are numbers, with what follows them stripped; nothing where there is no folder.
fn numbered(folder: &Path, prefix: &str, suffix: &str) -> Result<BTreeMap<u64, PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
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

/// The committed steps, and one that was begun after them.
fn steps(directory: &Path) -> Result<(Vec<u64>, Option<u64>)> {
    let mut committed = Vec::new();
    let mut begun = None;
    for (number, path) in numbered(&directory.join("steps"), "", "")? {
        if path.join("done").exists() {
            committed.push(number);
        } else {
            begun = begun.or(Some(number));
        }
    }
    Ok((committed, begun))
}

fn evaluations(directory: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    numbered(&directory.join("eval"), "step-", ".jsonl")
}

/// A file of the run as messages name it.
fn called(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).unwrap_or(path).display().to_string()
}

fn step(directory: &Path, number: u64, mut collector: Option<&mut Collector>) -> Result<Step> {
    let folder = directory.join("steps").join(format!("{number:06}"));
    let mut accounts = Accounts::default();
    let samples = folder.join("samples.jsonl");
    stream::read(&samples, &called(directory, &samples), |seen| {
        if let Some(collector) = collector.as_deref_mut() {
            collector.take(&seen)?;
        }
        match seen {
            Seen::Sample(sample) => accounts.sample(sample),
            Seen::Other(line) => accounts.take(line)?,
        }
        Ok(())
    })?;
    let groups = accounts.close();
    let (metrics, update) = metrics(directory, &folder.join("metrics.jsonl"))?;
    Ok(Step { number, accounts, groups, metrics, update })
}

fn metrics(directory: &Path, path: &Path) -> Result<(BTreeMap<String, Metrics>, Option<End>)> {
    let (mut metrics, mut update) = (BTreeMap::new(), None);
    stream::read(path, &called(directory, path), |seen| {
        let Seen::Other(line) = seen else { return Ok(()) };
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
    Ok((metrics, update))
}

fn evaluation(
    directory: &Path,
    step: u64,
    path: &Path,
    mut collector: Option<&mut Collector>,
) -> Result<Evaluation> {
    let mut environments = Environments::default();
    let mut ends = Vec::new();
    stream::read(path, &called(directory, path), |seen| {
        if let Some(collector) = collector.as_deref_mut() {
            collector.take(&seen)?;
        }
        match seen {
            Seen::Sample(sample) => environments.sample(sample),
            Seen::Other(line) if line.kind == Kind::End => ends.push(line::parse(line)?),
            Seen::Other(line) => drop(environments.take(line)?),
        }
        Ok(())
    })?;
    Ok(Evaluation { step, environments, ends })
}
