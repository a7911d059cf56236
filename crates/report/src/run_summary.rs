//! The numbers of a run that a reader wants first: success before, at its best and now; tokens; informative
//! groups; sums that must agree; and advice if the run learns nothing. The page, `--watch` and `report
//! compare` show them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::chart::series::RunMetrics;
use crate::evaluate::interval::Interval;
use crate::metrics::Metric;
use crate::run_directory::RunDirectory;

/// Share of cut answers from which on they are mentioned.
pub const MANY_CUT: f64 = 0.2;
/// Advice if all answers are cut: more tokens do not help a model that never ends an answer.
pub const ENDLESS: &str =
    "no answer ends by itself, as with a base model: try --stop TEXT, or a policy with a chat template";

/// Success (or the mean return) of an evaluation over all environments: the only one, or their mean, which
/// has no interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Success {
    /// After which training step.
    pub step: u64,
    pub value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// Counts and times of the last step.
#[derive(Debug, PartialEq, Serialize)]
pub struct Loop {
    step: u64,
    episodes: f64,
    tokens: f64,
    rollout_seconds: f64,
    samples: f64,
    groups: f64,
    flat: f64,
    optimizer_steps: f64,
    update_seconds: f64,
}

/// Groups of a whole run, and the check that their counts add up.
#[derive(Debug, PartialEq, Serialize)]
pub struct GroupTotals {
    /// Groups that agents, turns and episodes should have made; `None` if the grouping has no fixed number.
    expected: Option<f64>,
    /// Steps that say how many.
    steps: usize,
    /// Steps at which seen and dropped groups do not add up to the expected ones.
    off: Vec<u64>,
    seen: f64,
    flat: f64,
    dropped: f64,
    /// By stage and reason.
    reasons: BTreeMap<String, f64>,
    uneven: f64,
    mixed: f64,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct RunSummary {
    pub first: Option<Success>,
    /// See [`best`].
    pub best: Option<Success>,
    pub now: Option<Success>,
    /// The last training step's.
    pub training: Option<Success>,
    /// Mean return of the first and of the last evaluation; `None` where it is success.
    pub returns: Option<[Success; 2]>,
    pub tokens: f64,
    /// The share of groups that were not flat; `None` without groups.
    pub teaching: Option<f64>,
    /// The largest difference of a log-probability between sampler and trainer, nats.
    pub gap: Option<f64>,
    /// The share of answers that the token limit cut, at the last step, else at the last evaluation.
    pub cut: Option<f64>,
    /// Advice if the run learns nothing, the first to try first: neither success nor a higher return than at first.
    pub advice: Vec<String>,
    #[serde(rename = "loop")]
    pub pipe: Option<Loop>,
    /// Sums that must add up.
    pub group_totals: Option<GroupTotals>,
}

/// Success of every evaluation, in order.
pub fn held_out(metrics: &[Metric]) -> Vec<Success> {
    over_environments(metrics, "test", "success")
}

/// Mean return of every evaluation, in order.
pub fn held_out_returns(metrics: &[Metric]) -> Vec<Success> {
    over_environments(metrics, "test", "episode_reward")
}

/// Returns true if every return is success itself.
pub fn are_success(returns: &[Success], success: &[Success]) -> bool {
    returns.iter().zip(success).all(|(one, other)| (one.value - other.value).abs() < 1e-9)
}

/// The best of them: the highest success, of equals the highest return, of equals the first.
fn best(all: &[Success], returns: &[Success]) -> Option<Success> {
    let paid = |one: &Success| returns.iter().find(|paid| paid.step == one.step).map(|paid| paid.value);
    let key = |one: &Success| (one.value, paid(one));
    all.iter().copied().reduce(|best, one| if key(&one) > key(&best) { one } else { best })
}

fn over_environments(metrics: &[Metric], split: &str, name: &str) -> Vec<Success> {
    let mut steps: BTreeMap<u64, Vec<&Metric>> = BTreeMap::new();
    let of = |metric: &&Metric| metric.split == split && metric.name == name && metric.agent.is_empty();
    for metric in metrics.iter().filter(of) {
        steps.entry(metric.step).or_default().push(metric);
    }
    let mean = |(step, all): (u64, Vec<&Metric>)| Success {
        step,
        value: all.iter().map(|metric| metric.value).sum::<f64>() / all.len() as f64,
        interval: all.first().filter(|_| all.len() == 1).and_then(|metric| metric.interval),
    };
    steps.into_iter().map(mean).collect()
}

pub fn summarize(run: &RunMetrics, metrics: &[Metric]) -> RunSummary {
    let evaluations = held_out(metrics);
    let training = over_environments(metrics, "train", "success").pop();
    let mut returns = held_out_returns(metrics);
    if are_success(&returns, &evaluations) {
        returns.clear();
    }
    let all = |name| run.all("train", name).iter();
    let (groups, flat) = (total(run, "groups"), total(run, "groups_flat"));
    let gap = all("sampling/logp_difference_max").map(|metric| metric.value).reduce(f64::max);
    let (cut, pipe) = (cut(run), pipe(run));
    let now = evaluations.last().copied();
    let is_flat = pipe.as_ref().is_some_and(|pipe| pipe.groups == pipe.flat);
    let lowest = |last: &Success| last.interval.map_or(last.value, |(low, _)| low);
    // Before there is a second evaluation, training tells.
    let earned = over_environments(metrics, "train", "episode_reward");
    let compared = if returns.len() > 1 { &returns } else { &earned };
    let learns =
        compared.first().zip(compared.last()).is_some_and(|(first, last)| lowest(last) > first.value);
    let is_zero = now.or(training).is_some_and(|success| success.value == 0.0) && !learns;
    RunSummary {
        first: evaluations.first().copied(),
        best: best(&evaluations, &returns),
        now,
        training,
        returns: returns.first().copied().zip(returns.last().copied()).map(|(first, last)| [first, last]),
        tokens: all("completion_tokens").map(|metric| metric.value).sum(),
        teaching: (groups > 0.0).then(|| 1.0 - flat / groups),
        gap,
        cut,
        advice: if is_flat || is_zero { advice(run.run, cut, is_flat) } else { Vec::new() },
        group_totals: group_totals(run),
        pipe,
    }
}

/// The share of answers that were cut: of all roles, each weighed by its samples.
fn cut(run: &RunMetrics) -> Option<f64> {
    let of = |split: &'static str| {
        let shares = run.all(split, "completions_cut");
        let step = shares.last()?.step;
        let (mut cut, mut samples) = (0.0, 0.0);
        for share in shares.iter().filter(|share| share.step == step) {
            let count = run.sum_at(step, split, "samples", |one| {
                one.agent == share.agent && one.environment == share.environment
            });
            (cut, samples) = (cut + share.value * count, samples + count);
        }
        (samples > 0.0).then(|| cut / samples)
    };
    of("train").or_else(|| of("test"))
}

fn advice(run: &RunDirectory, cut: Option<f64>, is_flat: bool) -> Vec<String> {
    let mut advice = Vec::new();
    if let Some(cut) = cut.filter(|cut| *cut >= MANY_CUT) {
        let limit = run.settings.get("max_tokens").and_then(Value::as_str).unwrap_or_default();
        let limit = if limit.is_empty() { String::new() } else { format!(" of {limit} tokens") };
        advice.push(if cut == 1.0 {
            format!("All answers were cut at the limit{limit}: {ENDLESS}. Otherwise raise --max-tokens.")
        } else {
            format!(
                "Raise --max-tokens first: {:.0} % of the answers were cut at the limit{limit}, and what is cut is rarely right.",
                100.0 * cut
            )
        });
    }
    if is_flat {
        advice.push(
            "All groups of the last step are flat: the candidates of a group earn the same, so there is nothing to learn from. \
             Where all fail, try an easier task, more --branches, a higher --temperature, or a --warmup; where all \
             succeed, a harder task."
                .to_owned(),
        );
    } else {
        advice.push(
            "No task is solved. Try an easier task, a --warmup on demonstrations, or a larger model."
                .to_owned(),
        );
    }
    advice
}

/// Over all steps.
fn total<'a>(run: &RunMetrics<'a>, name: &'a str) -> f64 {
    run.all("train", name).iter().filter(|metric| metric.is_total()).map(|metric| metric.value).sum()
}

fn pipe(run: &RunMetrics) -> Option<Loop> {
    let step = run.run.steps().next_back()?.step;
    let groups = run.sum_at(step, "train", "groups", Metric::is_total);
    let of_agents = |metric: &Metric| !metric.agent.is_empty();
    let any = |_: &Metric| true;
    (groups > 0.0).then(|| Loop {
        step,
        episodes: run.sum_at(step, "train", "episodes", any),
        tokens: run.sum_at(step, "train", "completion_tokens", of_agents),
        rollout_seconds: run.sum_at(step, "timing", "rollout/seconds", any),
        samples: run.sum_at(step, "train", "samples", of_agents),
        groups,
        flat: run.sum_at(step, "train", "groups_flat", Metric::is_total),
        optimizer_steps: run.sum_at(step, "train", "optimizer_steps", any),
        update_seconds: run.sum_at(step, "timing", "update/seconds", any),
    })
}

fn group_totals(run: &RunMetrics) -> Option<GroupTotals> {
    let steps = |name| -> BTreeMap<u64, f64> {
        let all = run.all("train", name).iter().filter(|metric| metric.is_total());
        all.map(|metric| (metric.step, metric.value)).collect()
    };
    let (expected, seen, dropped) = (steps("groups_expected"), steps("groups"), steps("groups_dropped"));
    if seen.is_empty() {
        return None;
    }
    let at = |of: &BTreeMap<u64, f64>, step: &u64| of.get(step).copied().unwrap_or_default();
    let is_off = |(step, expected): &(&u64, &f64)| **expected != at(&seen, step) + at(&dropped, step);
    let reasons = run.names("train", "groups_dropped/").into_iter();
    Some(GroupTotals {
        expected: (!expected.is_empty()).then(|| expected.values().sum()),
        steps: expected.len(),
        off: expected.iter().filter(is_off).map(|(step, _)| *step).collect(),
        seen: seen.values().sum(),
        flat: total(run, "groups_flat"),
        dropped: dropped.values().sum(),
        reasons: reasons
            .map(|name| (name.trim_start_matches("groups_dropped/").to_owned(), total(run, name)))
            .collect(),
        uneven: total(run, "groups_uneven"),
        mixed: total(run, "groups_mixed_prompts"),
    })
}
