//! Answers that ended at the token limit. They are rarely right, so a larger limit is the first thing to try.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use record::failure::Result;
use serde_json::Value;

use crate::disk;
use crate::kind::PolicyKind;
use crate::settings::Settings;
use crate::values::joined;

/// A smaller share is worth no warning.
const MANY: f64 = 0.2;

/// The `end` lines of `rollout` that a step's metrics repeat.
pub fn rollouts(metrics: &Path) -> Result<Vec<Value>> {
    ends(metrics, "rollout")
}

/// The `end` lines of a stage that a step's metrics repeat.
fn ends(metrics: &Path, name: &str) -> Result<Vec<Value>> {
    let text = fs::read_to_string(metrics).map_err(|error| disk::failed("read", metrics, &error))?;
    let ends = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut stages: Vec<Value> = ends.filter(|line| line["type"] == "end").collect();
    let mut found = Vec::new();
    while let Some(mut stage) = stages.pop() {
        if let Value::Array(before) = stage["after"].take() {
            stages.extend(before);
        }
        if stage["stage"] == name {
            found.push(stage);
        }
    }
    Ok(found)
}

/// The agents whose candidates earned the same in every group while others' did not, under a rule that compares an agent's rewards alone.
pub fn without_choice(metrics: &Path) -> Result<Vec<String>> {
    // In a tree the later rewards of a return are of the executed candidate, and cancel.
    let is_by_turn = |end: &Value| ["turn", "return"].map(Value::from).contains(&end["counts"]["credit"]);
    if !ends(metrics, "advantage")?.iter().all(is_by_turn) {
        return Ok(Vec::new());
    }
    let mut deviations: BTreeMap<String, f64> = BTreeMap::new();
    for end in rollouts(metrics)? {
        for (agent, counts) in end["counts"]["agents"].as_object().into_iter().flatten() {
            *deviations.entry(agent.clone()).or_default() += counts["reward_std"].as_f64().unwrap_or(0.0);
        }
    }
    let is_flat = |(_, deviation): &(&String, &f64)| **deviation == 0.0;
    let flat: Vec<String> = deviations.iter().filter(is_flat).map(|(agent, _)| agent.clone()).collect();
    Ok(if flat.len() < deviations.len() { flat } else { Vec::new() })
}

/// Counts of a step's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutAnswers {
    /// By agent: all answers, and those that the limit cut off.
    pub agents: BTreeMap<String, (u64, u64)>,
}

impl CutAnswers {
    /// Counts the answers in a step's metrics; 0 if a user's program does not report them.
    pub fn count(metrics: &Path) -> Result<CutAnswers> {
        let mut all = CutAnswers::default();
        for end in rollouts(metrics)? {
            for (name, agent) in end["counts"]["agents"].as_object().into_iter().flatten() {
                let (samples, cut) = all.agents.entry(name.clone()).or_default();
                *samples += agent["samples"].as_u64().unwrap_or_default();
                *cut += agent["cut"].as_u64().unwrap_or_default();
            }
        }
        Ok(all)
    }

    /// The share of cut answers, if it is worth a warning.
    pub fn many(&self) -> Option<f64> {
        let sum = |count: fn(&(u64, u64)) -> u64| self.agents.values().map(count).sum::<u64>();
        let share = sum(|agent| agent.1) as f64 / sum(|agent| agent.0).max(1) as f64;
        Some(share).filter(|share| *share >= MANY)
    }

    /// The share of each agent, if they differ.
    fn by_agent(&self) -> String {
        let percent = |(name, (samples, cut)): (&String, &(u64, u64))| {
            (name.clone(), format!("{:.0} %", 100.0 * *cut as f64 / (*samples).max(1) as f64))
        };
        let shares: Vec<(String, String)> = self.agents.iter().map(percent).collect();
        if shares.iter().all(|(_, share)| *share == shares[0].1) {
            return String::new();
        }
        let shares: Vec<String> = shares.iter().map(|(name, share)| format!("{name} {share}")).collect();
        format!(" ({})", shares.join(", "))
    }

    /// The part of a step's line about them; `solves` is true if any episode was solved.
    pub fn said(&self, settings: &Settings, solves: bool) -> String {
        let Some(share) = self.many() else { return String::new() };
        let (percent, limit) = (100.0 * share, joined(&settings.max_tokens));
        let advice = if solves { String::new() } else { format!(": {}", remedy(share, settings)) };
        format!(", {percent:.0} % of answers cut at {limit} tokens{}{advice}", self.by_agent())
    }

    /// The first advice if nothing is learned.
    pub fn advice(&self, settings: &Settings) -> String {
        let Some(share) = self.many() else { return String::new() };
        let (percent, limit) = (100.0 * share, joined(&settings.max_tokens));
        let remedy = remedy(share, settings);
        format!("{percent:.0} % of the last step's answers were cut at {limit} tokens: {remedy}; ")
    }
}

/// Advice if many answers are cut. A model that never ends its answer was not trained to.
pub fn remedy(share: f64, settings: &Settings) -> &'static str {
    match share >= 1.0 && settings.kind != PolicyKind::Tiny {
        true => {
            "no answer ends by itself: name a text that ends it, such as --stop $'\\n', or take a model with a chat template \
             that it was trained with"
        }
        false => "raise --max-tokens first",
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
        let settings = |words: &[&str]| Settings::new(words).unwrap();
        let (tiny, model) =
            (settings(&["--max-tokens", "32"]), settings(&["--max-tokens", "32", "--model", "smollm2"]));
        assert_eq!(count(1).agents, BTreeMap::from([("a".to_owned(), (6, 1)), ("b".to_owned(), (4, 0))]));
        assert_eq!((count(1).said(&tiny, false), count(1).advice(&tiny)), (String::new(), String::new()));
        assert_eq!(count(2).said(&tiny, true), ", 20 % of answers cut at 32 tokens (a 33 %, b 0 %)");
        assert_eq!(
            count(6).said(&model, false),
            ", 60 % of answers cut at 32 tokens (a 100 %, b 0 %): raise --max-tokens first"
        );
        assert!(
            count(6)
                .advice(&tiny)
                .starts_with("60 % of the last step's answers were cut at 32 tokens: raise")
        );
        // A base model never stops.
        let all = CutAnswers { agents: BTreeMap::from([("a".to_owned(), (6, 6)), ("b".to_owned(), (4, 4))]) };
        assert!(
            all.said(&model, false)
                .starts_with(", 100 % of answers cut at 32 tokens: no answer ends by itself")
        );
        assert!(all.advice(&model).contains("--stop") && !all.advice(&model).contains("--max-tokens"));
        assert!(all.said(&tiny, false).ends_with("raise --max-tokens first"));
        fs::write(&file, "{\"type\":\"end\",\"stage\":\"update\"}\n").unwrap();
        assert_eq!(CutAnswers::count(&file).unwrap().many(), None, "nobody counted");
    }

    #[test]
    fn an_agent_whose_candidates_earn_alike_is_named_where_others_differ() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        let named = |credit: &str, planner: f64, solver: f64| {
            let agents =
                serde_json::json!({"planner": {"reward_std": planner}, "solver": {"reward_std": solver}});
            let rollout =
                serde_json::json!({"type": "end", "stage": "rollout", "counts": {"agents": agents}});
            let advantage = serde_json::json!({"type": "end", "stage": "advantage", "counts": {"credit": credit}, "after": [rollout]});
            fs::write(&file, format!("{advantage}\n")).unwrap();
            without_choice(&file).unwrap()
        };
        assert_eq!([named("turn", 0.0, 0.2), named("return", 0.0, 0.2)], [["planner"], ["planner"]]);
        for other in [named("turn", 0.1, 0.2), named("turn", 0.0, 0.0), named("episode", 0.0, 0.2)] {
            assert!(other.is_empty(), "{other:?}");
        }
    }
}
