//! The charts of how runs learn: success, what it cost, and what `rollout` and `update` measured by role and
//! by policy. Several runs are drawn together, a color for each method and a dash for each role or policy.

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
    /// Roles and policies, told apart by dashes where colors tell methods apart.
    pub dashed: Vec<&'a str>,
}

/// Name, metric, column, how it is drawn, title, note.
type Row = (&'static str, &'static str, Column, fn(Chart) -> Chart, &'static str, &'static str);

/// The charts of metrics by role or policy, in the order of the page.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("cut-answers", "completions_cut", Column::Agent, Chart::share, "Answers cut at the token limit",
     "Share of a role’s candidates that end by --max-tokens and not by themselves. What is cut is rarely right: above 20 % raise the limit first."),
    ("reward", "reward", Column::Agent, plain, "Reward by role",
     "Mean over all candidates of a step, chosen or not."),
    ("reward-spread", "reward_std", Column::Agent, plain, "Spread of rewards by role",
     "Standard deviation over all candidates of a step. Without spread there is nothing to learn from."),
    ("variance-within-state", "variance_within_state", Column::Agent, Chart::share, "Variance of rewards within a state",
     "The share of a role’s variance that lies between candidates for one prompt. Near 0 the task decides what the role earns, and not what it says."),
    ("advantage-share", "advantage_mass", Column::Agent, among_several, "Share of the advantage by role",
     "Σ|A| over tokens. Where one policy plays several roles, its update listens most to the role with the largest share."),
    ("advantage-success", "advantage_success", Column::Agent, plain, "Advantage against success",
     "Correlation of the played candidates’ advantage with the success of their episodes. Near 0, what a role is taught has little to do with solving the task."),
    ("anchor-size", "anchor_size", Column::Agent, plain, "Anchor size by role",
     "Samples of a task that share a prompt, which GiGPO compares. Near 1 it compares nothing."),
    ("completion-length", "completion_length", Column::Agent, plain, "Completion length by role",
     "Mean tokens, the stop token included."),
    ("gradient-norm", "grad_norm", Column::Policy, plain, "Gradient norm",
     "Before clipping, mean over the step’s optimizer steps."),
    ("gradient-cosine", "grad_cosine", Column::Policy, plain, "Agreement of two roles",
     "The cosine of their gradients, where they share a policy, at the first and every tenth step. Below 0 they pull apart."),
    ("entropy", "entropy", Column::Policy, plain, "Entropy",
     "Of the next token, in nats. A fall to 0 ends exploration."),
    ("loss", "loss", Column::Policy, plain, "Loss",
     "Near 0 by construction when every step is on-policy: it shows trouble, not progress."),
    ("clipped", "clip_ratio", Column::Policy, Chart::share, "Share of clipped tokens",
     "0 with one optimizer step a batch; more minibatches move the policy while it learns."),
    ("kl", "kl", Column::Policy, plain, "KL to the reference",
     "Only with update --kl."),
    ("agreement", "sampling/logp_difference_max", Column::Policy, logarithmic, "Sampler against trainer",
     "Largest difference of a token’s log-probability between rollout and update, nats. Above 0.01 the two disagree about the policy; 0: they compute the same bits."),
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
        let chart = |(name, metric, column, draw, title, note): &Row| {
            draw(Chart::new(name, *title, *note, self.curves(metric, *column)))
        };
        let charts = self.of_measures().into_iter().chain(ROWS.iter().map(chart));
        charts.filter(|chart| !chart.series.is_empty()).collect()
    }

    /// A chart for each number of `measure` lines.
    fn of_measures(&self) -> Vec<Chart> {
        let splits = [("train", "in training"), ("test", "held out")];
        let names: BTreeSet<&str> = splits
            .iter()
            .flat_map(|(split, _)| self.runs.iter().flat_map(move |run| run.names(split, MEASURE)))
            .collect();
        let chart = |name: &&'a str| {
            let mut series = Vec::new();
            for (place, (split, label)) in splits.into_iter().enumerate() {
                let curves =
                    self.method_curves(|run| run.points(split, name, |_| true)).into_iter().enumerate();
                series.extend(
                    curves.map(|(method, points)| self.series(method, label, (place, place), points)),
                );
            }
            let name = name.trim_start_matches(MEASURE);
            let mut title = name.replace(['_', '-'], " ");
            if let Some(first) = title.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            Chart::new(&format!("measure-{name}"), title, "What a `measure` line of the stream says.", series)
        };
        names.iter().map(chart).collect()
    }

    /// The mean curve of each method over its seeds.
    fn method_curves(&self, points: impl Fn(&RunMetrics<'a>) -> Vec<Point>) -> Vec<Vec<Point>> {
        let seeds = |method: &MethodRuns| method.runs.iter().map(|&run| points(&self.runs[run])).collect();
        self.methods.iter().map(|method| over_seeds(seeds(method))).collect()
    }

    /// A curve called `label`. With several runs it has the color of its method, which stands before the
    /// label; otherwise color `place`.
    fn series(
        &self,
        method: usize,
        label: &str,
        (place, dash): (usize, usize),
        points: Vec<Point>,
    ) -> Series {
        if !self.has_several() {
            return Series { dash, ..Series::new(label, Color::Of(place), points) };
        }
        let names = [self.methods[method].name.as_str(), label].into_iter().filter(|name| !name.is_empty());
        let name = names.collect::<Vec<&str>>().join(", ");
        Series { method: Some(method), dash, ..Series::new(name, Color::Of(method), points) }
    }

    /// A curve for each method and value of a column, with the same dash for a value in all charts.
    fn curves(&self, metric: &'a str, column: Column) -> Vec<Series> {
        // What `update` measures by agent is drawn so, and the policies of several agents as a whole.
        let by_agent = self.runs.iter().any(|run| !run.values("train", metric, |one| &one.agent).is_empty());
        let mut values: Vec<(Column, &str)> = Vec::new();
        if by_agent || column == Column::Agent {
            values.extend(self.agents.iter().map(|agent| (Column::Agent, *agent)));
        }
        if column == Column::Policy {
            values.extend(self.policies.iter().map(|policy| (Column::Policy, *policy)));
        }
        let mut series: Vec<Series> = Vec::new();
        for (place, (column, value)) in values.iter().enumerate() {
            let of_value = |metric: &Metric| column.of(metric) == *value;
            let curves = self.method_curves(|run| run.points("train", metric, of_value));
            for (method, points) in curves.into_iter().enumerate() {
                // A policy of one agent is that agent's curve.
                if by_agent && *column == Column::Policy && series.iter().any(|one| one.points == points) {
                    continue;
                }
                let (label, dash) = match self.has_several() {
                    true if values.len() == 1 => ("", 0),
                    true => (*value, self.dashed.iter().position(|dashed| dashed == value).unwrap_or(0)),
                    false => (*value, place),
                };
                series.push(self.series(method, label, (place, dash), points));
            }
        }
        series.sort_by_key(|one| one.method);
        series
    }

    /// A curve for each method and environment. Curves of training are thin and have no band.
    fn of_success(&self, metric: &'a str, split: &'a str, label: &str, on_tokens: bool) -> Vec<Series> {
        let environments: BTreeSet<&str> = (self.runs.iter())
            .flat_map(|run| ["test", "train"].map(|split| run.values(split, metric, |one| &one.environment)))
            .flatten()
            .collect();
        let thin = split == "train";
        let mut series = Vec::new();
        for (place, environment) in environments.iter().enumerate() {
            let of = |metric: &Metric| metric.agent.is_empty() && metric.environment == *environment;
            let curves = self.method_curves(|run| {
                let points = run.points(split, metric, of);
                if on_tokens { spent(run, points) } else { points }
            });
            let environment = if environments.len() > 1 { *environment } else { "" };
            let label = if self.has_several() { "" } else { label };
            let labels = [environment, label].into_iter().filter(|name| !name.is_empty());
            let label = labels.collect::<Vec<&str>>().join(", ");
            let dash = if self.has_several() { place } else { usize::from(thin) };
            for (method, mut points) in curves.into_iter().enumerate() {
                if thin {
                    points.iter_mut().for_each(|point| (point.low, point.high) = (None, None));
                }
                let place = place * 2 + usize::from(thin);
                series.push(Series { thin, ..self.series(method, &label, (place, dash), points) });
            }
        }
        series.sort_by_key(|one| one.method);
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
