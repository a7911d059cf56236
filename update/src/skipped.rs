//! A policy that has nothing to learn from, on purpose: its step is skipped and reported.
//!
//! If the stages after `rollout` left out every group of a policy, as `advantage --drop-flat` does once all
//! are flat, no data is lost and there is no error: the policy keeps its version. A policy whose agents did
//! not act gets no line.

use std::collections::BTreeMap;

use policy::directory::Version;
use policy::ownership::Ownership;
use record::failure::Result;
use record::line::{End, Metrics};
use record::splice;
use record::stage;
use record::stream::with_earlier;
use serde_json::{Value, json};

/// What the stages before say of groups that are not in the stream.
pub struct DroppedGroups {
    /// Groups that rollout wrote for each agent.
    played: BTreeMap<String, u64>,
    /// Groups that a later stage left out, by reason.
    reasons: BTreeMap<String, u64>,
    /// The training step, where they agree on one.
    pub step: Option<u64>,
}

impl DroppedGroups {
    /// What these `end` lines say.
    pub fn of(ends: &[End]) -> DroppedGroups {
        let mut left_out = DroppedGroups { played: BTreeMap::new(), reasons: BTreeMap::new(), step: None };
        for end in with_earlier(ends) {
            left_out.step = left_out.step.or(end.step);
            if let Some(agents) = end.counts.get("agents").and_then(Value::as_object) {
                for (agent, counts) in agents {
                    *left_out.played.entry(agent.clone()).or_default() +=
                        counts["groups"].as_u64().unwrap_or(0);
                }
            }
            // Groups dropped by rollout were never played to their end.
            for (reason, count) in end.dropped_groups().into_iter().filter(|_| end.stage != "rollout") {
                *left_out.reasons.entry(reason).or_default() += count;
            }
        }
        left_out
    }

    /// Groups that a policy without samples had before they were left out.
    pub fn groups(&self, ownership: &Ownership, policy: usize) -> u64 {
        if self.reasons.is_empty() {
            return 0;
        }
        let own = self.played.iter().filter(|(agent, _)| ownership.of(agent) == Some(policy));
        own.map(|(_, groups)| groups).sum()
    }

    /// Why, in words: `6 flat`.
    pub fn why(&self) -> String {
        let reasons: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.join(", ")
    }

    /// The metrics line of a policy that keeps `version`. All its groups count as flat, as nothing in them can be compared.
    pub fn line(&self, policy: &str, version: &Version, groups: u64) -> Result<String> {
        let values = [
            ("loss", Value::Null),
            ("samples", json!(0)),
            ("groups", json!(groups)),
            ("flat_groups", json!(groups)),
            ("optimizer_steps", json!(0)),
            ("skipped", json!(true)),
            ("dropped_groups", json!(self.reasons)),
        ];
        splice::json(&Metrics {
            step: self.step,
            policy: policy.to_owned(),
            policy_version: Some(version.to_string()),
            values: values.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
            timing: stage::timing(std::time::Instant::now()).into_iter().collect(),
            ..Metrics::default()
        })
    }
}
