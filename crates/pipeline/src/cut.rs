//! Answers that ended at the token limit. They are rarely right, so a larger limit is the first thing to try.

use std::fs;
use std::path::Path;

use record::failure::Result;
use serde_json::Value;

use crate::disk;

/// A smaller share is worth no warning.
const MANY: f64 = 0.2;

/// The `end` lines of `rollout` that a step's metrics repeat.
pub fn rollouts(metrics: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(metrics).map_err(|error| disk::failed("read", metrics, &error))?;
    let ends = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut stages: Vec<Value> = ends.filter(|line| line["type"] == "end").collect();
    let mut rollouts = Vec::new();
    while let Some(mut stage) = stages.pop() {
        if let Value::Array(before) = stage["after"].take() {
            stages.extend(before);
        }
        if stage["stage"] == "rollout" {
            rollouts.push(stage);
        }
    }
    Ok(rollouts)
}

/// Counts of a step's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutAnswers {
    /// All answers.
    pub samples: u64,
    /// Answers that the limit cut off.
    pub cut: u64,
}

impl CutAnswers {
    /// Counts the answers in a step's metrics; 0 if a user's program does not report them.
    pub fn count(metrics: &Path) -> Result<CutAnswers> {
        let mut all = CutAnswers::default();
        for end in rollouts(metrics)? {
            for agent in end["counts"]["agents"].as_object().into_iter().flat_map(|agents| agents.values()) {
                all.samples += agent["samples"].as_u64().unwrap_or_default();
                all.cut += agent["cut"].as_u64().unwrap_or_default();
            }
        }
        Ok(all)
    }

    /// The share of cut answers, if it is worth a warning.
    pub fn many(self) -> Option<f64> {
        let share = self.cut as f64 / self.samples.max(1) as f64;
        Some(share).filter(|share| *share >= MANY)
    }

    /// The part of a step's line about them; `solves` is true if any episode was solved.
    pub fn said(self, limit: &str, solves: bool) -> String {
        let advice = if solves { "" } else { ": raise --max-tokens first" };
        let said = |share: f64| format!(", {:.0} % of answers cut at {limit} tokens{advice}", 100.0 * share);
        self.many().map_or(String::new(), said)
    }

    /// The first advice if nothing is learned.
    pub fn advice(self, limit: &str) -> String {
        let said = |share: f64| {
            format!(
                "{:.0} % of the last step's answers were cut at {limit} tokens: raise --max-tokens first; ",
                100.0 * share
            )
        };
        self.many().map_or(String::new(), said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_cut_answers_are_said_and_few_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        let rollout = |cut: u64| {
            format!(
                "{{\"type\":\"end\",\"stage\":\"rollout\",\"counts\":{{\"completion_tokens\":9,\"agents\":{{\"a\":{{\"samples\":6,\"cut\":{cut}}},\
                 \"b\":{{\"samples\":4,\"cut\":0}}}}}}}}"
            )
        };
        let count = |cut: u64| {
            let group = format!("{{\"type\":\"end\",\"stage\":\"group\",\"after\":[{}]}}", rollout(cut));
            let end = format!(
                "{{\"type\":\"metrics\"}}\n{{\"type\":\"end\",\"stage\":\"update\",\"after\":[{group}]}}\n"
            );
            fs::write(&file, end).unwrap();
            CutAnswers::count(&file).unwrap()
        };
        assert_eq!(count(1), CutAnswers { samples: 10, cut: 1 });
        assert_eq!((count(1).said("32", false), count(1).advice("32")), (String::new(), String::new()));
        assert_eq!(count(2).said("32", true), ", 20 % of answers cut at 32 tokens");
        assert_eq!(
            count(6).said("32", false),
            ", 60 % of answers cut at 32 tokens: raise --max-tokens first"
        );
        assert!(count(6).advice("8").starts_with("60 % of the last step's answers were cut at 8 tokens"));
        fs::write(&file, "{\"type\":\"end\",\"stage\":\"update\"}\n").unwrap();
        assert_eq!(CutAnswers::count(&file).unwrap().many(), None, "nobody counted");
    }
}
