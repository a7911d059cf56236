//! The charts of how runs learn: success, what it cost, and what `rollout` and `update` measured by role and by policy. Several runs
//! are drawn together, a color for each method and a dash for each role or policy.

use std::collections::BTreeSet;

use crate::chart::series::{RunMetrics, over_seeds};
use crate::chart::{Chart, Color, Point, Series};
use crate::methods::MethodRuns;
use crate::metrics::{MEASURE, Metric};

/// The metrics column whose values are a chart's curves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Agent,
    Policy,
}

impl Column {
    fn of(self, metric: &Metric) -> &str {
        match self {
            Column::Agent => &metric.agent,
            Column::Policy => &metric.policy,
        }
    }
}

/// Runs that are drawn together.
pub struct Drawn<'a> {
    pub runs: &'a [RunMetrics<'a>],
    /// The runs that are seeds of one method.
    pub methods: &'a [MethodRuns],
    agents: Vec<&'a str>,
    policies: Vec<&'a str>,
    /// What dashes tell apart where colors tell methods apart.
    pub dashed: Vec<&'a str>,
}

/// Metrics by role or policy, in the order of the page: name, title, note, metric, column, and how it is drawn.
type Row = (&'static str, &'static str, &'static str, &'static str, Column, fn(Chart) -> Chart);

const ROWS: &[Row] = &[
    (
        "cut-answers",
        "Answers cut at the token limit",
        "Share of a role’s candidates that end by --max-tokens and not by themselves. What is cut is rarely right: above 20 % raise the limit first.",
        "completions_cut",
        Column::Agent,
        Chart::share,
    ),
    (
        "reward",
        "Reward by role",
        "Mean over all candidates of a step, chosen or not.",
        "reward",
        Column::Agent,
        plain,
    ),
    (
        "reward-spread",
        "Spread of rewards by role",
        "Standard deviation over all candidates of a step. Without spread there is nothing to learn from.",
        "reward_std",
        Column::Agent,
        plain,
    ),
    (
        "variance-within-state",
        "Variance of rewards within a state",
        "The share of a role’s variance that lies between candidates for one prompt. Near 0 the task decides what the role earns, and not what it says.",
        "variance_within_state",
        Column::Agent,
        Chart::share,
    ),
    (
        "advantage-share",
        "Share of the advantage by role",
        "Σ|A| over tokens. Where one policy plays several roles, its update listens most to the role with the largest share.",
        "advantage_mass",
        Column::Agent,
        among_several,
    ),
    (
        "advantage-success",
        "Advantage against success",
        "Correlation of the played candidates’ advantage with the success of their episodes. Near 0, what a role is taught has little to do with solving the task.",
        "advantage_success",
        Column::Agent,
        plain,
    ),
    (
        "anchor-size",
        "Anchor size by role",
        "Samples of a task that share a prompt, which GiGPO compares. Near 1 it compares nothing.",
        "anchor_size",
        Column::Agent,
        plain,
    ),
    (
        "completion-length",
        "Completion length by role",
        "Mean tokens, the stop token included.",
        "completion_length",
        Column::Agent,
        plain,
    ),
    (
        "gradient-norm",
        "Gradient norm",
        "Before clipping, mean over the step’s optimizer steps.",
        "grad_norm",
        Column::Policy,
        plain,
    ),
    (
        "gradient-cosine",
        "Agreement of two roles",
        "The cosine of their gradients, where they share a policy, at the first and every tenth step. Below 0 they pull apart.",
        "grad_cosine",
        Column::Policy,
        plain,
    ),
    (
        "entropy",
        "Entropy",
        "Of the next token, in nats. A fall to 0 ends exploration.",
        "entropy",
        Column::Policy,
        plain,
    ),
    (
        "loss",
        "Loss",
        "Near 0 by construction when every step is on-policy: it shows trouble, not progress.",
        "loss",
        Column::Policy,
        plain,
    ),
    (
        "clipped",
        "Share of clipped tokens",
        "0 with one optimizer step a batch; more minibatches move the policy while it learns.",
        "clip_ratio",
        Column::Policy,
        Chart::share,
    ),
    ("kl", "KL to the reference", "Only with update --kl.", "kl", Column::Policy, plain),
    (
        "agreement",
        "Sampler against trainer",
        "Largest difference of a token’s log-probability between rollout and update, nats. Above 0.01 the two disagree about the policy; 0: they compute the same bits.",
        "sampling/logp_difference_max",
        Column::Policy,
        logarithmic,
    ),
];

fn plain(chart: Chart) -> Chart {
    chart
}

/// A single role has all of it, which says nothing.
fn among_several(mut chart: Chart) -> Chart {
    if chart.series.iter().flat_map(|series| &series.points).all(|point| point.y == 1.0) {
        chart.series.clear();
    }
    chart.share()
}

/// A logarithmic axis has no place for 0: where all values are 0 it is linear.
fn logarithmic(mut chart: Chart) -> Chart {
    chart.log = chart.series.iter().flat_map(|series| &series.points).any(|point| point.y > 0.0);
    chart
}

impl<'a> Drawn<'a> {
    /// Runs and their methods.
    pub fn new(runs: &'a [RunMetrics<'a>], methods: &'a [MethodRuns]) -> Self {
        let distinct = |split: &'a str, name: &'a str, column: Column| -> Vec<&'a str> {
            let values: BTreeSet<&str> =
                runs.iter().flat_map(|run| run.values(split, name, |metric| column.of(metric))).collect();
            values.into_iter().collect()
        };
        let agents = distinct("train", "samples", Column::Agent);
        let policies = distinct("train", "loss", Column::Policy);
        let policies =
            if policies.is_empty() { distinct("train", "groups", Column::Policy) } else { policies };
        let mut dashed = Vec::new();
        for values in [&agents, &policies] {
            let is_drawn = values.len() > 1 || agents.len() > 1;
            let new = values.iter().filter(|_| is_drawn).filter(|value| !dashed.contains(*value));
            let new: Vec<&str> = new.copied().collect();
            dashed.extend(new);
        }
        Drawn { runs, methods, agents, policies, dashed }
    }

    /// True if several runs are drawn together.
    pub fn has_several(&self) -> bool {
        self.runs.len() > 1
    }

    /// The large charts: success against steps and tokens.
    pub fn success(&self) -> Vec<Chart> {
        let has_seeds = self.methods.iter().any(|method| method.runs.len() > 1);
        let band = if has_seeds {
            "the band is from the lowest seed to the highest, or the 95 % interval of a single run"
        } else {
            "the band is the 95 % interval"
        };
        let training = if self.has_several() { "" } else { " In training: sampled, while it learns." };
        let held_out = format!(
            "Held out: the policy alone, most likely tokens, on tasks that it never trains on; {band}.{training}"
        );
        let both = |metric| {
            let mut series = self.of_success(metric, "test", "held out", false);
            if !self.has_several() {
                series.extend(self.of_success(metric, "train", "in training", false));
            }
            series
        };
        let success = both("success");
        let mut returns = both("episode_reward");
        if success.iter().zip(&returns).all(|(one, other)| one.points == other.points) {
            returns.clear();
        }
        let cost = self.of_success("success", "test", "held out", true);
        let mut cost = Chart::new(
            "success-cost",
            "Success by tokens",
            "The same held-out success against the tokens generated in training so far: runs of different widths compare at equal cost.",
            cost,
        )
        .share();
        cost.x = "tokens";
        let mut charts = vec![
            Chart::new("success", "Success", held_out, success).share(),
            cost,
            Chart::new(
                "return",
                "Mean return",
                "The reward of an episode's executed path, on the tasks of the success above.",
                returns,
            ),
        ];
        if self.has_several() {
            let mut series = self.of_success("success", "train", "in training", false);
            series.iter_mut().for_each(|series| series.thin = false);
            let note = "Sampled, while it learns.";
            charts.push(Chart::new("success-in-training", "Success in training", note, series).share());
        }
        charts.retain(|chart| !chart.series.is_empty());
        charts
    }

    /// The small charts, by role and by policy.
    pub fn measured(&self) -> Vec<Chart> {
        let chart = |(name, title, note, metric, column, with): &Row| {
            with(Chart::new(name, *title, *note, self.curves(metric, *column)))
        };
        let charts = self.of_measures().into_iter().chain(ROWS.iter().map(chart));
        charts.filter(|chart| !chart.series.is_empty()).collect()
    }

    /// A chart for each number of `measure` lines.
    fn of_measures(&self) -> Vec<Chart> {
        let splits = [("train", "in training"), ("test", "held out")];
        let names = |(split, _): &(&'static str, &'static str)| {
            self.runs.iter().flat_map(|run| run.names(split, MEASURE)).collect::<Vec<&str>>()
        };
        let names: BTreeSet<&str> = splits.iter().flat_map(names).collect();
        let chart = |name: &&'a str| {
            let mut series = Vec::new();
            for (place, (split, what)) in splits.into_iter().enumerate() {
                for (index, method) in self.methods.iter().enumerate() {
                    let curves = method.runs.iter().map(|&run| self.runs[run].points(split, name, |_| true));
                    let (points, several) = (over_seeds(curves.collect()), self.has_several());
                    let named = if several { format!("{}, {what}", method.name) } else { what.to_owned() };
                    let color = Color::Of(if several { index } else { place });
                    let method = several.then_some(index);
                    series.push(Series { method, dash: place, ..Series::new(named, color, points) });
                }
            }
            series.retain(|series| !series.points.is_empty());
            let name = name.trim_start_matches(MEASURE);
            let title = name.replace(['_', '-'], " ");
            let first = title.chars().next().map(char::to_uppercase).into_iter().flatten();
            let title: String = first.chain(title.chars().skip(1)).collect();
            Chart::new(&format!("measure-{name}"), title, "What a `measure` line of the stream says.", series)
        };
        names.iter().map(chart).collect()
    }

    /// A curve for each method and value of a column. One run: a color for each value. Several: a color for each method and a dash for
    /// each value, the same in all charts.
    fn curves(&self, metric: &'a str, column: Column) -> Vec<Series> {
        // What `update` measures by agent is drawn so, and the policies of several agents as a whole.
        let by_agent = self.runs.iter().any(|run| !run.values("train", metric, |one| &one.agent).is_empty());
        let of = |column, values: &[&'a str]| -> Vec<(Column, &'a str)> {
            values.iter().map(|value| (column, *value)).collect()
        };
        let mut values = match by_agent || column == Column::Agent {
            true => of(Column::Agent, &self.agents),
            false => of(Column::Policy, &self.policies),
        };
        if by_agent && column == Column::Policy {
            values.extend(of(Column::Policy, &self.policies));
        }
        let mut series: Vec<Series> = Vec::new();
        for (index, method) in self.methods.iter().enumerate() {
            for (place, (column, value)) in values.iter().enumerate() {
                let curves = method
                    .runs
                    .iter()
                    .map(|&run| self.runs[run].points("train", metric, |metric| column.of(metric) == *value));
                let points = over_seeds(curves.collect());
                // A policy of one agent is that agent's curve.
                if by_agent && *column == Column::Policy && series.iter().any(|drawn| drawn.points == points)
                {
                    continue;
                }
                let dash = match self.has_several() {
                    true if values.len() == 1 => 0,
                    true => self.dashed.iter().position(|dashed| dashed == value).unwrap_or(0),
                    false => place,
                };
                series.push(match self.has_several() {
                    true => Series {
                        method: Some(index),
                        dash,
                        ..Series::new(
                            if values.len() > 1 {
                                format!("{}, {value}", method.name)
                            } else {
                                method.name.clone()
                            },
                            Color::Of(index),
                            points,
                        )
                    },
                    false => Series { dash, ..Series::new(*value, Color::Of(place), points) },
                });
            }
        }
        series
    }

    fn of_success(&self, metric: &'a str, split: &'a str, what: &str, on_tokens: bool) -> Vec<Series> {
        let environments: BTreeSet<&str> = self
            .runs
            .iter()
            .flat_map(|run| {
                ["test", "train"]
                    .into_iter()
                    .flat_map(|split| run.values(split, metric, |one| &one.environment))
            })
            .collect();
        let is_thin = split == "train";
        let mut series = Vec::new();
        for (index, method) in self.methods.iter().enumerate() {
            for (place, environment) in environments.iter().enumerate() {
                let curves = method.runs.iter().map(|&run| {
                    let of = |metric: &Metric| metric.agent.is_empty() && metric.environment == *environment;
                    let mut points = self.runs[run].points(split, metric, of);
                    if is_thin {
                        points.iter_mut().for_each(|point| (point.low, point.high) = (None, None));
                    }
                    if on_tokens { spent(&self.runs[run], points) } else { points }
                });
                let mut points = over_seeds(curves.collect());
                if is_thin {
                    points.iter_mut().for_each(|point| (point.low, point.high) = (None, None));
                }
                let several = self.has_several();
                let named = [
                    several.then_some(method.name.as_str()),
                    (environments.len() > 1).then_some(*environment),
                    (!several).then_some(what),
                ];
                let name = named.into_iter().flatten().collect::<Vec<&str>>().join(", ");
                let color = if several { index } else { place * 2 + usize::from(is_thin) };
                let dash = match (several, is_thin) {
                    (true, _) => place,
                    (false, thin) => usize::from(thin),
                };
                let method = several.then_some(index);
                series.push(Series {
                    method,
                    dash,
                    thin: is_thin,
                    ..Series::new(name, Color::Of(color), points)
                });
            }
        }
        series
    }
}

/// Points with the tokens generated in training so far in place of the step.
fn spent(run: &RunMetrics, mut points: Vec<Point>) -> Vec<Point> {
    let tokens = run.all("train", "completion_tokens");
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    let (mut place, mut so_far) = (0, 0.0);
    for point in &mut points {
        while let Some(metric) = tokens.get(place).filter(|metric| metric.step as f64 <= point.x) {
            so_far += metric.value;
            place += 1;
        }
        point.x = so_far;
    }
    points
}
