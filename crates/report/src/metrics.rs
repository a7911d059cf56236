//! The metrics of a run as one tidy table: a number per row, and columns that name its subject. The page, the
//! CSV file and the TensorBoard events are three views of it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use record::line::End;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evaluate::interval::Interval;
use crate::evaluate::measure::{self, Rate};
use crate::run_directory::{Evaluation, RunDirectory, TrainingStep};
use crate::stats::{StreamStats, ends_of};

/// One number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Metric {
    /// The training step.
    pub step: u64,
    /// `train`, `test`, or `timing` for what two equal runs may differ in.
    pub split: Cow<'static, str>,
    /// The environment; empty where the number is of all.
    pub environment: String,
    /// The policy; empty where the number is of all.
    pub policy: String,
    /// The agent; empty where the number is of all.
    pub agent: String,
    pub name: String,
    pub value: f64,
    /// The 95 % interval, where it has one.
    pub interval: Option<Interval>,
}

impl Metric {
    /// Returns true if it is of all agents and policies.
    pub fn is_total(&self) -> bool {
        self.agent.is_empty() && self.policy.is_empty()
    }
}

/// A metric as JSON: an array, without names.
type Row = (u64, Cow<'static, str>, String, String, String, String, f64, Option<Interval>);

impl From<Row> for Metric {
    fn from((step, split, environment, policy, agent, name, value, interval): Row) -> Self {
        Metric { step, split, environment, policy, agent, name, value, interval }
    }
}

impl From<Metric> for Row {
    fn from(metric: Metric) -> Self {
        let Metric { step, split, environment, policy, agent, name, value, interval } = metric;
        (step, split, environment, policy, agent, name, value, interval)
    }
}

/// Fields of a `metrics` line that are names, not measurements.
const NAMES: &[&str] = &["step", "v", "check"];

/// The names of components of rewards begin with it.
pub const COMPONENT: &str = "component/";

/// The names of numbers of `measure` lines begin with it.
pub const MEASURE: &str = "measure/";

/// What `update` measures of each agent.
const BY_AGENT: &[&str] = &["entropy", "clip_ratio", "grad_norm"];

/// Turns with a metric of their own; a stream may name any number of them.
const TURNS: u32 = 256;

/// All metrics of a run, by step.
pub fn run_metrics(run: &RunDirectory) -> Vec<Metric> {
    let mut metrics: Vec<Metric> =
        run.streams.iter().flat_map(|stream| stream.metrics.iter().cloned()).collect();
    metrics.sort_by_key(|metric| metric.step);
    metrics
}

/// Gathers the metrics of one step and split.
struct Rows {
    like: Metric,
    rows: Vec<Metric>,
}

impl Rows {
    fn new(step: u64, split: &'static str) -> Self {
        Rows { like: Metric { step, split: split.into(), ..Metric::default() }, rows: Vec::new() }
    }

    fn put(&mut self, name: &str, value: impl Into<Option<f64>>) {
        self.put_rate(name, value.into().map(|value| Rate { value, interval: None }));
    }

    fn put_rate(&mut self, name: &str, rate: Option<Rate>) {
        if let Some(Rate { value, interval }) = rate.filter(|rate| rate.value.is_finite()) {
            self.rows.push(Metric { name: name.to_owned(), value, interval, ..self.like.clone() });
        }
    }

    fn count(&mut self, name: &str, value: u64) {
        self.put(name, value as f64);
    }
}

pub fn evaluation_metrics(evaluation: &Evaluation) -> Vec<Metric> {
    let mut rows = Rows::new(evaluation.step, "test");
    for (name, stats) in evaluation.environments.played() {
        let measured = measure::measure(stats);
        rows.like.environment = name.to_owned();
        rows.put_rate("success", Some(measured.success));
        rows.count("tasks", stats.tasks.len() as u64);
        rows.count("episodes", stats.episodes());
        rows.count("errors", stats.errors);
        rows.put("turns", stats.turns.mean());
        rows.put_rate("episode_reward", measured.returns);
        rows.put("completion_tokens", stats.completion_tokens().map(|tokens| tokens as f64));
        for (agent, answers) in &stats.answers {
            rows.like.agent.clone_from(agent);
            rows.count("samples", answers.samples);
            rows.count("completion_tokens", answers.tokens);
            rows.put("completions_cut", answers.cut_share());
        }
        for (agent, components) in measured.components {
            rows.like.agent = agent;
            for (name, rate) in components {
                rows.put_rate(&format!("{COMPONENT}{name}"), Some(rate));
            }
        }
        rows.like.agent.clear();
    }
    rows.like.environment.clear();
    put_measures(&evaluation.measures, &mut rows);
    let seconds =
        ends_of(&evaluation.ends, "rollout").filter_map(|end| end.timing.get("seconds")?.as_f64()).sum();
    let mut timing = Rows::new(evaluation.step, "timing");
    timing.put("evaluation_seconds", Some(seconds).filter(|&seconds| seconds > 0.0));
    rows.rows.extend(timing.rows);
    rows.rows
}

pub fn step_metrics(step: &TrainingStep) -> Vec<Metric> {
    let mut rows = Rows::new(step.number, "train");
    for (name, environment) in step.stats.environments.played() {
        let measured = measure::measure(environment);
        rows.like.environment = name.to_owned();
        rows.put_rate("success", Some(measured.success));
        rows.count("episodes", environment.episodes());
        rows.count("errors", environment.errors);
        rows.put("turns", environment.turns.mean());
        rows.put_rate("episode_reward", measured.returns);
        let last = environment.solved_at_turn.keys().next_back().copied();
        for turn in (0..TURNS).take_while(|turn| last.is_some_and(|last| *turn <= last)) {
            let solved = environment.solved_at_turn.get(&turn).copied().unwrap_or_default();
            rows.count(&format!("solved_at_turn/{turn}"), solved);
        }
    }
    rows.like.environment.clear();
    put_measures(&step.measures, &mut rows);
    put_groups(step, &mut rows);
    put_agents(&step.stats, &mut rows);
    put_rule(&step.stats.ends, &mut rows);
    for (name, metrics) in &step.metrics {
        rows.like.policy.clone_from(name);
        for (name, value) in metrics.values.iter().filter(|(name, _)| !NAMES.contains(&name.as_str())) {
            rows.put(name, value.as_f64());
        }
    }
    rows.like.policy.clear();
    step.metrics.values().for_each(|metrics| put_policy_by_agent(&metrics.values, &mut rows));
    rows.rows.extend(time_metrics(step));
    rows.rows
}

/// What a program measured of the stream.
fn put_measures(measures: &BTreeMap<String, f64>, rows: &mut Rows) {
    for (name, &value) in measures {
        rows.put(&format!("{MEASURE}{name}"), value);
    }
}

fn put_groups(step: &TrainingStep, rows: &mut Rows) {
    let groups = &step.groups;
    rows.put("groups_expected", groups.expected.map(|expected| expected as f64));
    rows.count("groups", groups.seen);
    rows.count("groups_flat", groups.flat);
    rows.count("groups_dropped", groups.dropped.values().sum());
    for (reason, &count) in &groups.dropped {
        rows.count(&format!("groups_dropped/{reason}"), count);
    }
    rows.count("groups_uneven", groups.uneven);
    rows.count("groups_mixed_prompts", groups.mixed_prompts);
}

/// The metrics of a stream's agents, as of one step.
pub fn role_metrics(stats: &StreamStats) -> Vec<Metric> {
    let mut rows = Rows::new(stats.environments.step.unwrap_or_default(), "train");
    put_agents(stats, &mut rows);
    rows.rows
}

fn put_agents(stats: &StreamStats, rows: &mut Rows) {
    for (name, agent) in &stats.agents {
        rows.like.agent.clone_from(name);
        rows.put("reward", agent.reward.mean());
        rows.put("reward_std", agent.reward.deviation());
        let answers = agent.answers;
        rows.count("samples", answers.samples);
        rows.count("groups", agent.groups);
        rows.count("groups_flat", agent.flat);
        rows.put("flat", agent.untaught_share());
        // With one turn it is the same once more.
        for (turn, (untaught, all)) in agent.untaught.range(..TURNS).filter(|_| agent.untaught.len() > 1) {
            rows.put(&format!("flat/{turn}"), *untaught as f64 / *all as f64);
        }
        rows.count("prompt_tokens", agent.prompt_tokens);
        rows.count("completion_tokens", answers.tokens);
        rows.put("completion_length", answers.tokens as f64 / answers.samples.max(1) as f64);
        rows.put("completions_cut", answers.cut_share());
        rows.put("variance_within_state", agent.within_share());
        rows.put("anchor_size", agent.anchors.mean());
        if let Some((credit, share)) = stats.credits.get(name) {
            rows.put("advantage_mass", share);
            rows.put("advantage_mean", credit.advantage.mean());
            rows.put("advantage_std", credit.advantage.deviation());
            rows.put("advantage_largest", credit.largest());
            rows.put("advantage_success", credit.correlation());
            rows.put("advantage_cosine", credit.cosine());
        }
        for (component, stats) in &agent.components {
            rows.put(&format!("{COMPONENT}{component}"), stats.mean());
        }
    }
    rows.like.agent.clear();
}

/// The health of a rule: tasks of a refill, and RAE's baselines with their lag behind the step's rewards.
fn put_rule(ends: &[End], rows: &mut Rows) {
    for fill in ends_of(ends, "rollout").filter_map(|end| end.counts.get("fill")) {
        for name in ["teaching", "played", "tokens_not_teaching"] {
            rows.put(&format!("fill/{name}"), fill[name].as_f64());
        }
    }
    let baselines =
        ends_of(ends, "advantage").filter_map(|end| end.counts.get("baselines")?["roles"].as_object());
    for (role, of_role) in baselines.flatten() {
        let (environment, agent) = role.split_once('/').unwrap_or(("", role));
        (rows.like.environment, rows.like.agent) = (environment.to_owned(), agent.to_owned());
        let baseline = of_role["baseline"].as_f64();
        rows.put("baseline", baseline);
        rows.put(
            "baseline_lag",
            of_role["mean"].as_f64().zip(baseline).map(|(mean, baseline)| mean - baseline),
        );
    }
    (rows.like.environment, rows.like.agent) = Default::default();
}

/// What `update` measured of each agent: a policy that one agent plays is measured as a whole, of several it
/// says `by_agent`.
fn put_policy_by_agent(values: &Map<String, Value>, rows: &mut Rows) {
    let agents = values.get("agents").and_then(Value::as_array);
    let by_agent = values.get("by_agent").and_then(Value::as_object);
    let alone = agents.filter(|agents| agents.len() == 1).and_then(|agents| agents[0].as_str());
    let measured = by_agent
        .into_iter()
        .flatten()
        .filter_map(|(agent, values)| Some((agent.as_str(), values.as_object()?)));
    for (agent, values) in measured.chain(alone.map(|agent| (agent, values))) {
        agent.clone_into(&mut rows.like.agent);
        for name in BY_AGENT {
            rows.put(name, values.get(*name).and_then(Value::as_f64));
        }
    }
    rows.like.agent.clear();
}

/// Where the time of a step went, in seconds. `group` and `advantage` mostly wait for `rollout`, so their
/// `seconds` are left out.
fn time_metrics(step: &TrainingStep) -> Vec<Metric> {
    let mut rows = Rows::new(step.number, "timing");
    for end in ends_of(&step.stats.ends, "rollout") {
        for (name, value) in end.timing.iter().filter(|(name, _)| name.ends_with("seconds")) {
            rows.put(&format!("rollout/{name}"), value.as_f64());
        }
    }
    if let Some(end) = &step.update {
        let timing = |name: &str| end.timing.get(name)?.as_f64();
        if let (Some(all), Some(reading)) = (timing("seconds"), timing("reading_seconds")) {
            rows.put("update/seconds", (all - reading).max(0.0));
        }
    }
    for (policy, metrics) in &step.metrics {
        rows.like.policy.clone_from(policy);
        for name in ["training_seconds", "unique_tokens_per_second"] {
            rows.put(&format!("update/{name}"), metrics.timing.get(name).and_then(|value| value.as_f64()));
        }
    }
    // Shards and policies that share a name add up.
    let mut sums: Vec<Metric> = Vec::new();
    for row in rows.rows {
        match sums.iter_mut().find(|sum| sum.name == row.name && sum.policy == row.policy) {
            Some(sum) => sum.value += row.value,
            None => sums.push(row),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_have_refills_and_the_lag_of_baselines() {
        let end = json!({
            "type": "end", "v": 1, "stage": "advantage", "ok": true,
            "counts": {"baselines": {"file": "000002.json", "roles": {"e/tool": {"baseline": 0.25, "mean": 0.75, "episodes": 4}}}},
            "after": [{"type": "end", "v": 1, "stage": "rollout", "ok": true,
                       "counts": {"fill": {"wanted": 2, "teaching": 3, "played": 8, "tokens_not_teaching": 40}}}],
        });
        let mut rows = Rows::new(2, "train");
        put_rule(&[serde_json::from_value(end).unwrap()], &mut rows);
        let found: Vec<(&str, &str, f64)> =
            rows.rows.iter().map(|row| (row.name.as_str(), row.agent.as_str(), row.value)).collect();
        let expected = [
            ("fill/teaching", "", 3.0),
            ("fill/played", "", 8.0),
            ("fill/tokens_not_teaching", "", 40.0),
            ("baseline", "tool", 0.25),
            ("baseline_lag", "tool", 0.5),
        ];
        assert_eq!(found, expected);
    }
}
