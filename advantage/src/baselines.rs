//! Baselines of roles: RAE of SPIRAL, arXiv 2506.24119, section 3.3.
//!
//! b is a moving average of what an agent earned in an environment: A = R - b, and after n episodes of mean m
//! b becomes d^n b + (1 - d^n) m, from 0 at step 0. Every sample of a step is compared with the b of its start, so that
//! neither the order of lines nor the number of processes matters; SPIRAL moves b after each episode.
//!
//! They live in a folder, a file a step (`000012.json`: `{"ENV/AGENT": [b, episodes so far]}`), which is read by the
//! next step. A step that is repeated reads what it read before, and writes the same bytes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::credit::EpisodeKey;

/// By role: its baseline, and the episodes that it is made of.
type Table = BTreeMap<String, (f64, u64)>;

/// The baselines of a step, and what its episodes make of them.
#[derive(Debug)]
pub struct Baselines {
    folder: PathBuf,
    decay: f64,
    /// The step, once a sample has named it.
    step: Option<u64>,
    before: Table,
    earned: BTreeMap<String, Vec<f64>>,
    seen: HashSet<(EpisodeKey, String)>,
    after: Table,
}

fn file(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{step:06}.json"))
}

impl Baselines {
    /// Opens the baselines in `folder`; `decay` is the share kept from episode to episode.
    pub fn new(folder: &Path, decay: f64) -> Self {
        let (before, earned, seen, after) = Default::default();
        Baselines { folder: folder.to_owned(), decay, step: None, before, earned, seen, after }
    }

    /// Begins `step`, unless that is done: reads the baselines that the step before left.
    ///
    /// # Errors
    /// 2: there are none; 65: they are no baselines, or `step` is not that of the other samples.
    pub fn begin(&mut self, step: u64) -> Result<()> {
        match self.step {
            Some(begun) if begun == step => return Ok(()),
            Some(begun) => {
                return Err(Failure::data(format!("step is {step}, but {begun} before"))
                    .hint("baselines are of one step: give each step a stream of its own"));
            }
            None => self.step = Some(step),
        }
        let Some(before) = step.checked_sub(1) else { return Ok(()) };
        let path = file(&self.folder, before);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failure::usage(format!("--baselines: {}: {error}", path.display())).hint(format!(
                "step {step} begins with the baselines that step {before} wrote; only step 0 begins with 0, and for a run \
                 whose first step is {step} write {{}} to that file"
            ))
        })?;
        let wrong = |cause: String| {
            Failure::data(format!("{}: {cause}", path.display()))
                .hint("its form is {\"ENV/AGENT\": [baseline, episodes]}")
        };
        self.before = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }

    /// The baseline of `role`, `ENV/AGENT`, at the start of the step.
    pub fn of(&self, role: &str) -> f64 {
        self.before.get(role).map_or(0.0, |(baseline, _)| *baseline)
    }

    /// Counts what `role` earned; of an `episode` that is known to be one, once.
    pub fn count(&mut self, role: &str, episode: Option<&EpisodeKey>, earned: f64) {
        if episode.is_none_or(|episode| self.seen.insert((episode.clone(), role.to_owned()))) {
            self.earned.entry(role.to_owned()).or_default().push(earned);
        }
    }

    /// Writes the baselines that the next step begins with.
    ///
    /// # Errors
    /// 74: the folder or the file cannot be written.
    pub fn write(&mut self) -> Result<()> {
        self.after = self.before.clone();
        for (role, earned) in &mut self.earned {
            earned.sort_by(f64::total_cmp);
            let kept = self.decay.powf(earned.len() as f64);
            let mean = earned.iter().sum::<f64>() / earned.len() as f64;
            let (baseline, episodes) = self.after.entry(role.clone()).or_default();
            *baseline = kept * *baseline + (1.0 - kept) * mean;
            *episodes += earned.len() as u64;
        }
        let path = file(&self.folder, self.step.unwrap_or_default());
        let failed = |error: String| Failure::io(format!("{}: {error}", self.folder.display()));
        std::fs::create_dir_all(&self.folder).map_err(|error| failed(error.to_string()))?;
        let text = serde_json::to_string(&self.after).map_err(|error| failed(error.to_string()))?;
        record::file::replace(&path, (text + "\n").as_bytes())
    }

    /// What was compared with, and the file that was written, for `end`.
    pub fn counts(&self) -> Value {
        let name = file(Path::new(""), self.step.unwrap_or_default());
        let of = |(role, earned): (&String, &Vec<f64>)| {
            let mean = earned.iter().sum::<f64>() / earned.len() as f64;
            (role.clone(), json!({"baseline": self.of(role), "mean": mean, "episodes": earned.len()}))
        };
        let roles: serde_json::Map<String, Value> = self.earned.iter().map(of).collect();
        json!({"file": name.display().to_string(), "roles": roles})
    }
}
