//! Baselines by role: role-conditioned advantage estimation (RAE) of SPIRAL, arXiv 2506.24119, section 3.3.
//!
//! b is a moving average of an agent's rewards in an environment, and A = R - b. After n episodes with mean
//! m, b becomes d^n b + (1 - d^n) m; it is 0 at step 0. SPIRAL updates b after each episode. Here all samples
//! of a step use the b from before the step, so that the result depends neither on the order of lines nor on
//! the number of processes.
//!
//! Baselines are stored in a folder, one file a step (`000012.json`: `{"ENV/AGENT": [b, episodes so far]}`),
//! which the next step reads. Repeating a step reads the same file, and writes the same bytes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::credit::EpisodeKey;

/// By role: the baseline, and the number of episodes in it.
type Table = BTreeMap<String, (f64, u64)>;

/// Larger rewards and numbers of episodes are signs of a damaged file.
const LARGEST: f64 = 1e30;
const MOST: u64 = 1 << 53;

/// The baselines of a step, and the rewards that update them.
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

    /// Begins `step` with its first sample: reads the baselines of the step before.
    ///
    /// # Errors
    /// 2: there are none; 65: the file is damaged, or `step` differs from the other samples'.
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
        let text = record::file::read(&path).map_err(|error| {
            Failure::usage(format!("--baselines: {}: {error}", path.display())).hint(format!(
                "step {step} begins with the baselines that step {before} wrote; only step 0 begins with 0, and for a run \
                 whose first step is {step} write {{}} to that file"
            ))
        })?;
        let wrong = |cause: String| {
            Failure::data(format!("{}: {cause}", path.display()))
                .hint("its form is {\"ENV/AGENT\": [baseline, episodes]}")
        };
        self.before = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let is_one =
            |baseline: f64, episodes: u64| baseline.abs() <= LARGEST && (1..=MOST).contains(&episodes);
        match self.before.iter().find(|(_, (baseline, episodes))| !is_one(*baseline, *episodes)) {
            Some((role, (baseline, episodes))) => {
                Err(wrong(format!("{role:?}: [{baseline:?}, {episodes}] is no baseline of so many episodes")))
            }
            None => Ok(()),
        }
    }

    /// The baseline of `role` (`ENV/AGENT`) at the start of the step.
    pub fn of(&self, role: &str) -> f64 {
        self.before.get(role).map_or(0.0, |(baseline, _)| *baseline)
    }

    /// Adds a reward of `role`. With an `episode`, counts that episode only once.
    pub fn count(&mut self, role: &str, episode: Option<&EpisodeKey>, earned: f64) {
        if episode.is_none_or(|episode| self.seen.insert((episode.clone(), role.to_owned()))) {
            self.earned.entry(role.to_owned()).or_default().push(earned);
        }
    }

    /// Writes the baselines for the next step.
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

    /// The baselines used, and the file written, for the `end` line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_baselines_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let begun = |text: &str| {
            std::fs::write(file(folder.path(), 0), text).unwrap();
            Baselines::new(folder.path(), 0.9).begin(1)
        };
        begun("{}").unwrap();
        begun(r#"{"e/a": [-0.25, 3]}"#).unwrap();
        for damaged in [
            "",
            "{",
            "null",
            "{} {}",
            r#"{"e/a": [0.5]}"#,
            r#"{"e/a": [1e300, 3]}"#,
            r#"{"e/a": [0.5, 0]}"#,
            r#"{"e/a": [0.5, 18446744073709551615]}"#,
        ] {
            assert_eq!(begun(damaged).unwrap_err().code, 65, "{damaged}");
        }
        std::fs::remove_file(file(folder.path(), 0)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(file(folder.path(), 0)).status().unwrap().success());
        assert_eq!(Baselines::new(folder.path(), 0.9).begin(1).unwrap_err().code, 2, "no file");
    }
}
