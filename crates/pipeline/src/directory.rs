//! The run directory, and which steps are committed. Step N is committed once `steps/NNNNNN/done`
//! exists. That file names the version of every policy; it is written last, by rename. Entries that were
//! not made here are left alone.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::disk;
use crate::evaluation;

/// How long to wait for the processes of a stopped run.
const PATIENCE: Duration = Duration::from_secs(3);

/// The version of each policy, by policy name.
pub type Versions = Vec<(String, String)>;

/// A run directory, and the steps that are committed once the optimizer states are saved.
#[derive(Debug)]
pub struct RunFiles {
    path: PathBuf,
    /// The names of the policies in `policies/` that `done` files record, in order.
    policies: Vec<String>,
    committing: Vec<u64>,
}

impl RunFiles {
    /// Creates or opens a run directory.
    pub fn make(path: &Path) -> Result<RunFiles> {
        disk::make(path)?;
        let path = path.canonicalize().map_err(|error| disk::failed("read", path, &error))?;
        Ok(RunFiles { path, policies: Vec::new(), committing: Vec::new() })
    }

    pub fn make_folders(&self) -> Result<()> {
        ["steps", "eval", "policies"].iter().try_for_each(|folder| disk::make(&self.path.join(folder)))
    }

    /// Sets the policies that `done` files record.
    pub fn with_policies(self, mut policies: Vec<String>) -> RunFiles {
        policies.sort();
        policies.dedup();
        RunFiles { policies, ..self }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    pub fn policy(&self, name: &str) -> PathBuf {
        self.path.join("policies").join(name)
    }

    pub fn step(&self, step: u64) -> PathBuf {
        self.path.join("steps").join(format!("{step:06}"))
    }

    fn done(&self, step: u64) -> PathBuf {
        self.step(step).join("done")
    }

    fn not_yet_done(&self, step: u64) -> PathBuf {
        self.step(step).join("done.tmp")
    }

    /// Takes the run's lock. It belongs to the open file, so a child process that outlives this one keeps it:
    /// a killed one, for example, until its memory is free.
    ///
    /// # Errors
    /// Another process has it (exit 1); it cannot be taken (exit 74).
    pub fn lock(&self) -> Result<File> {
        let path = self.path.join("lock");
        let file = File::options().append(true).create(true).open(&path);
        let file = file.map_err(|error| disk::failed("write", &path, &error))?;
        let asked = Instant::now();
        let mut taken = file.try_lock();
        while matches!(taken, Err(fs::TryLockError::WouldBlock)) && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            taken = file.try_lock();
        }
        match taken {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                Err(Failure::work(format!("{} is in use by another run", self.path.display()))
                    .hint("wait for it, or choose another --run"))
            }
            Err(fs::TryLockError::Error(error)) => {
                Err(Failure::io(format!("{} cannot be locked: {error}", path.display()))
                    .hint("a run directory needs a disk that has locks: choose another --run"))
            }
        }
    }

    /// The steps that have a folder.
    fn steps(&self) -> Result<BTreeSet<u64>> {
        let folder = self.path.join("steps");
        let names = if folder.is_dir() { disk::names(&folder)? } else { Vec::new() };
        let number = |name: &String| name.parse().ok().filter(|step: &u64| format!("{step:06}") == *name);
        Ok(names.iter().filter_map(number).collect())
    }

    /// The committed steps.
    pub fn committed(&self) -> Result<BTreeSet<u64>> {
        Ok(self.steps()?.into_iter().filter(|step| self.done(*step).is_file()).collect())
    }

    /// Refuses a number of steps below the committed ones, which would pass for the run's length.
    pub fn has_at_most(&self, steps: u64) -> Result<()> {
        match self.committed()?.last() {
            Some(&last) if last > steps => {
                let run = self.path.display().to_string();
                Err(Failure::usage(format!("--steps {steps}: {run} has {last} steps already"))
                    .hint(format!("--steps can only grow: --steps {}; or choose another --run", last + 1)))
            }
            _ => Ok(()),
        }
    }

    /// The current version of each policy.
    pub fn versions(&self) -> Result<Versions> {
        let version = |name: &String| {
            let file = self.policy(name).join("current/version.json");
            let version = version_in(&file).ok_or_else(|| {
                Failure::io(format!("cannot read {}", file.display()))
                    .hint("policy check says what is wrong with that policy")
            });
            Ok((name.clone(), version?))
        };
        self.policies.iter().map(version).collect()
    }

    /// Commits a step, now if `settles`, else with the next [`settle`](Self::settle).
    pub fn commit(&mut self, step: u64, versions: &Versions, settles: bool) -> Result<()> {
        let folder = self.step(step);
        // The file stays empty until the streams are on disk. Otherwise, after a power cut, `go_back` could
        // commit a step without its streams.
        disk::write(&self.not_yet_done(step), "")?;
        for name in disk::names(&folder)?.iter().filter(|name| name.contains('.')) {
            let file = folder.join(name);
            match disk::sync(&file) {
                Err(_) if !file.exists() => {} // another process has compressed it
                synced => synced?,
            }
        }
        disk::sync(&folder)?;
        disk::sync(&self.path.join("steps"))?;
        disk::write(&self.not_yet_done(step), &written(step, versions))?;
        self.committing.push(step);
        if settles { self.settle() } else { Ok(()) }
    }

    /// Commits all pending steps, the last first: it is the only one whose optimizer
    /// states are still on disk.
    pub fn settle(&mut self) -> Result<()> {
        for step in &self.committing {
            disk::sync(&self.not_yet_done(*step))?;
        }
        while let Some(step) = self.committing.last() {
            disk::rename(&self.not_yet_done(*step), &self.done(*step))?;
            disk::sync(&self.step(*step))?;
            self.committing.pop();
        }
        Ok(())
    }

    /// Drops the pending steps, because their optimizer states were not saved.
    pub fn forget(&mut self) {
        self.committing.clear();
    }

    /// Rolls back to the last committed step, and returns it. Versions after it are removed;
    /// training repeats their steps.
    ///
    /// # Errors
    /// I/O (exit 74); the committed step's versions or its `done` are missing (exit 65).
    pub fn go_back(&mut self) -> Result<u64> {
        if self.committed()?.is_empty() {
            disk::make(&self.step(0))?;
            self.commit(0, &self.versions()?, true)?;
        }
        let last = self.committed()?.last().copied().unwrap_or_default();
        // With `--resident` a step is committed only after the next step's answer. If the run was killed in
        // between, a pending step is still good if all its optimizer states are on disk.
        let mut newest = last;
        for step in last + 1.. {
            let file = self.not_yet_done(step);
            if !file.is_file() {
                break;
            }
            if self.named_in(&file).is_ok_and(|versions| self.has_states(&versions)) {
                newest = step;
            }
        }
        for step in self.steps()?.into_iter().filter(|step| *step > newest) {
            disk::remove(&self.not_yet_done(step))?;
        }
        // Evaluations of lost versions, and copies of those as the best.
        for (step, file) in evaluation::files_before(self.path(), u64::MAX) {
            if step > newest {
                disk::remove(&file)?;
                disk::remove(&self.path().join(format!("best-{step:06}")))?;
            }
        }
        let waiting: Vec<u64> = (1..=newest).filter(|step| !self.done(*step).is_file()).collect();
        for step in waiting {
            if !self.not_yet_done(step).is_file() {
                let (missing, last) = (self.done(step), last.max(newest));
                return Err(Failure::data(format!(
                    "{} is missing, but step {last} is committed",
                    missing.display()
                ))
                .hint("restore that file (its versions are long gone), or choose another --run"));
            }
            self.committing.push(step);
        }
        self.settle()?;
        let done = self.done(newest);
        for (name, version) in self.named_in(&done)? {
            self.take_back(&name, &version, &done)?;
        }
        Ok(newest)
    }

    /// Makes `version` the current one of a policy.
    fn take_back(&self, name: &str, version: &str, done: &Path) -> Result<()> {
        let (policy, folder) = (self.policy(name), folder_of(version));
        if !policy.join(&folder).is_dir() {
            return Err(Failure::data(format!(
                "{} names {folder} of {name}, which is not there",
                done.display()
            ))
            .hint("choose another --run"));
        }
        let found = version_in(&policy.join(&folder).join("version.json"));
        if found.as_deref() != Some(version) {
            return Err(Failure::data(format!(
                "{} names version {version} of {name}, and {folder} is version {}",
                done.display(),
                found.as_deref().unwrap_or("unknown")
            ))
            .hint("that folder was replaced, or `done` is another run's: choose another --run"));
        }
        let current = policy.join("current");
        if fs::read_link(&current).ok().as_deref() != Some(Path::new(&folder)) {
            disk::link(&folder, &current)?;
        }
        // `update` would resume from a later version that has a state, and delete this one (`--save-every`).
        let step = |name: &str| -> Option<u64> { name.strip_prefix("step-")?.parse().ok() };
        for later in disk::names(&policy)?.iter().filter(|name| step(name) > number_of(version)) {
            let removed = policy.join(format!(".removed-{later}"));
            disk::remove(&removed)?;
            disk::rename(&policy.join(later), &removed)?;
            disk::remove(&removed)?;
        }
        Ok(())
    }

    /// Reads the versions that a `done` file names, and checks that they belong to this run's policies.
    fn named_in(&self, done: &Path) -> Result<Versions> {
        let text = fs::read_to_string(done).map_err(|error| disk::failed("read", done, &error))?;
        let broken = |cause: &str| {
            Failure::data(format!("{}: {cause}", done.display()))
                .hint("restore that file, or choose another --run")
        };
        let line: Map<String, Value> =
            serde_json::from_str(&text).map_err(|_| broken("not a line of JSON"))?;
        let policies = line.get("policies").and_then(Value::as_object);
        let policies = policies.ok_or_else(|| broken("it names no policies"))?;
        let version = |(name, version): (&String, &Value)| {
            if !self.policies.contains(name) {
                return Err(broken(&format!("it names {name}, which is no policy of this run")));
            }
            let version = version.as_str().filter(|version| number_of(version).is_some());
            let version = version.ok_or_else(|| broken(&format!("it names no version of {name}")))?;
            Ok((name.clone(), version.to_owned()))
        };
        let versions: Versions = policies.iter().map(version).collect::<Result<_>>()?;
        if versions.is_empty() { Err(broken("it names no policies")) } else { Ok(versions) }
    }

    /// Returns true if all versions exist with their optimizer states. Version 0 has none.
    fn has_states(&self, versions: &Versions) -> bool {
        versions.iter().all(|(name, version)| {
            let folder = self.policy(name).join(folder_of(version));
            let has_state = number_of(version) == Some(0) || folder.join("trainer_state.json").is_file();
            has_state && version_in(&folder.join("version.json")).as_ref() == Some(version)
        })
    }
}

fn written(step: u64, versions: &Versions) -> String {
    let policies: Vec<String> =
        versions.iter().map(|(name, version)| format!("\"{name}\":\"{version}\"")).collect();
    format!("{{\"step\":{step},\"policies\":{{{}}}}}\n", policies.join(","))
}

/// The step number of a version such as `12:9f2c41d0`.
fn number_of(version: &str) -> Option<u64> {
    version.split_once(':')?.0.parse().ok()
}

fn folder_of(version: &str) -> String {
    format!("step-{:06}", number_of(version).unwrap_or_default())
}

fn version_in(file: &Path) -> Option<String> {
    let value: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    Some(value["version"].as_str()?.to_owned())
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
