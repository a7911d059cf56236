//! The figures of a run as one tidy table: a number a row, and columns that say what it is of. The page, the CSV file
//! and the TensorBoard events are three views of it.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::accounts::stages;
use crate::evaluate::interval::{Interval, wilson};
use crate::evaluate::measure;
use crate::run::{Evaluation, Run, Step};

/// One number.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// The training step.
    pub step: u64,
    /// `train`, `test`, or `timing` for what two equal runs may differ in.
    pub split: &'static str,
    /// The environment, the policy and the agent that it is of; empty where it is of all.
    pub environment: String,
    /// See [`Figure::environment`].
    pub policy: String,
    /// See [`Figure::environment`].
    pub agent: String,
    /// Its name.
    pub metric: String,
    /// The number.
    pub value: f64,
    /// The 95 % interval, where it has one.
    pub interval: Option<Interval>,
}

/// Fields of a `metrics` line that name something rather than measure it.
const NAMES: &[&str] = &["step", "v", "check"];

/// All figures of a run, by step.
pub fn of(run: &Run) -> Vec<Figure> {
    let mut figures: Vec<Figure> = run.evaluations.iter().flat_map(of_evaluation).collect();
    figures.extend(run.steps.iter().flat_map(of_step));
    figures.sort_by_key(|figure| figure.step);
    figures
}

/// Gathers the figures of one step and split.
struct Rows {
    like: Figure,
    rows: Vec<Figure>,
}

impl Rows {
    fn new(step: u64, split: &'static str) -> Self {
        Rows { like: Figure { step, split, ..Figure::default() }, rows: Vec::new() }
    }

    fn put(&mut self, metric: &str, value: impl Into<Option<f64>>) {
        self.put_with(metric, value, None);
    }

    fn put_with(&mut self, metric: &str, value: impl Into<Option<f64>>, interval: Option<Interval>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.rows.push(Figure { metric: metric.to_owned(), value, interval, ..self.like.clone() });
        }
    }

    fn count(&mut self, metric: &str, value: u64) {
        self.put(metric, value as f64);
    }
}

fn of_evaluation(evaluation: &Evaluation) -> Vec<Figure> {
    let mut rows = Rows::new(evaluation.step, "test");
    for (name, outcomes) in &evaluation.environments.outcomes {
        let measured = measure::of(outcomes);
        rows.like.environment.clone_from(name);
        rows.put_with("success", measured.success, measured.interval);
        rows.count("tasks", outcomes.tasks.len() as u64);
        rows.count("episodes", outcomes.episodes());
        rows.count("errors", outcomes.errors);
        rows.put("turns", outcomes.turns.mean());
        rows.put("episode_reward", outcomes.reward.mean());
        rows.put("completion_tokens", outcomes.completion_tokens().map(|tokens| tokens as f64));
        for (agent, &tokens) in &outcomes.tokens {
            rows.like.agent.clone_from(agent);
            rows.count("completion_tokens", tokens);
        }
        rows.like.agent.clear();
    }
    let seconds =
        stages(&evaluation.ends, "rollout").filter_map(|end| end.timing.get("seconds")?.as_f64()).sum();
    let mut timing = Rows::new(evaluation.step, "timing");
    timing.put("evaluation_seconds", Some(seconds).filter(|&seconds| seconds > 0.0));
    rows.rows.extend(timing.rows);
    rows.rows
}

fn of_step(step: &Step) -> Vec<Figure> {
    let mut rows = Rows::new(step.number, "train");
    for (name, environment) in &step.accounts.environments {
        let (solved, episodes) = (environment.solved(), environment.episodes);
        rows.like.environment.clone_from(name);
        rows.put_with("success", solved as f64 / episodes.max(1) as f64, wilson(solved, episodes));
        rows.count("episodes", episodes);
        rows.count("errors", environment.errors);
        rows.put("turns", environment.turns.mean());
        rows.put("episode_reward", environment.reward.mean());
        for (turn, &solved) in environment.solved_at_turn.iter().enumerate() {
            rows.count(&format!("solved_at_turn/{turn}"), solved);
        }
    }
    rows.like.environment.clear();
    of_groups(step, &mut rows);
    of_agents(step, &mut rows);
    for (name, metrics) in &step.metrics {
        rows.like.policy.clone_from(name);
        for (metric, value) in metrics.values.iter().filter(|(metric, _)| !NAMES.contains(&metric.as_str())) {
            rows.put(metric, value.as_f64());
        }
    }
    rows.rows.extend(of_times(step));
    rows.rows
}

fn of_groups(step: &Step, rows: &mut Rows) {
    let groups = &step.groups;
    rows.put("groups_expected", groups.expected.map(|expected| expected as f64));
    rows.count("groups", groups.seen);
    rows.count("groups_flat", groups.flat);
    rows.count("groups_dropped", groups.dropped());
    for (reason, &count) in &groups.dropped {
        rows.count(&format!("groups_dropped/{reason}"), count);
    }
    rows.count("groups_uneven", groups.uneven);
    rows.count("groups_mixed_prompts", groups.mixed_prompts);
}

fn of_agents(step: &Step, rows: &mut Rows) {
    for (name, agent) in &step.accounts.agents {
        rows.like.agent.clone_from(name);
        rows.put("reward", agent.reward.mean());
        rows.put("reward_std", agent.reward.deviation());
        rows.count("samples", agent.samples);
        rows.count("groups", agent.groups);
        rows.count("groups_flat", agent.flat);
        rows.count("prompt_tokens", agent.prompt_tokens);
        rows.count("completion_tokens", agent.completion_tokens);
        rows.put("completion_length", agent.completion_tokens as f64 / agent.samples.max(1) as f64);
        rows.put("completions_cut", agent.cut as f64 / agent.samples.max(1) as f64);
        for (component, moments) in &agent.components {
            rows.put(&format!("component/{component}"), moments.mean());
        }
    }
    rows.like.agent.clear();
}

/// Where the time of a step went, in seconds. `group` and `advantage` work while `rollout` does and wait for it most
/// of the time, so their own `seconds` say nothing and are left out.
fn of_times(step: &Step) -> Vec<Figure> {
    let mut rows = Rows::new(step.number, "timing");
    for end in stages(&step.accounts.ends, "rollout") {
        for (name, value) in end.timing.iter().filter(|(name, _)| name.ends_with("seconds")) {
            rows.put(&format!("rollout/{name}"), value.as_f64());
        }
    }
    let number = |values: &Map<String, Value>, name: &str| values.get(name).and_then(Value::as_f64);
    if let Some(end) = &step.update {
        let timing = |name: &str| end.timing.get(name).and_then(Value::as_f64);
        if let (Some(all), Some(reading)) = (timing("seconds"), timing("reading_seconds")) {
            rows.put("update/seconds", (all - reading).max(0.0));
        }
    }
    for (policy, metrics) in &step.metrics {
        rows.like.policy.clone_from(policy);
        rows.put("update/training_seconds", number(&metrics.timing, "training_seconds"));
        rows.put("update/unique_tokens_per_second", number(&metrics.timing, "unique_tokens_per_second"));
    }
    // Shards and policies that share a name add up.
    let mut sums: Vec<Figure> = Vec::new();
    for row in rows.rows {
        match sums.iter_mut().find(|sum| sum.metric == row.metric && sum.policy == row.policy) {
            Some(sum) => sum.value += row.value,
            None => sums.push(row),
        }
    }
    sums
}
