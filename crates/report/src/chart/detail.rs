//! The charts of a single run: its groups, what its rewards were made of, its tokens and its time.

use crate::chart::series::{RunMetrics, by_x, totals};
use crate::chart::{Chart, Color, Point, Series, ValueUnit};
use crate::metrics::{COMPONENT, Metric};

fn any(_: &Metric) -> bool {
    true
}

/// Group counts, and the share of flat groups by role.
pub fn groups(run: &RunMetrics) -> Vec<Chart> {
    let (seen, flat) = (
        run.points("train", "groups", Metric::is_total),
        run.points("train", "groups_flat", Metric::is_total),
    );
    let flat_at = by_x(&flat);
    let compared = seen.iter().map(|point| Point { y: point.y - value(&flat_at, point), ..*point }).collect();
    let mut series = vec![
        Series::new("compared", Color::Of(0), compared),
        Series::new("flat: all candidates earned the same", Color::Idle, flat),
    ];
    for (place, name) in run.names("train", "groups_dropped/").into_iter().enumerate() {
        let reason = name.trim_start_matches("groups_dropped/");
        let points = run.points("train", name, Metric::is_total);
        series.push(Series::new(format!("dropped by {reason}"), Color::Of(place + 1), points));
    }
    let shares = run.values("train", "groups", |metric| &metric.agent).into_iter().enumerate();
    let shares = shares.map(|(place, agent)| {
        let points = run.points("train", "flat", |metric| metric.agent == agent);
        Series { dash: place, ..Series::new(agent, Color::Of(place), points) }
    });
    let shares = shares.collect();
    kept(vec![
        Chart::new("groups", "Groups of each step", "", series).bars(ValueUnit::Count),
        Chart::new(
            "flat-groups",
            "Share of flat groups by role",
            "Groups in which all advantages are 0, by the rewards, a gate or the credit rule: they teach nothing.",
            shares,
        )
        .share(),
    ])
}

/// Components of each role's rewards, and at which turn episodes were solved.
pub fn rewards(run: &RunMetrics) -> Vec<Chart> {
    let agents = run.values("train", "samples", |metric| &metric.agent);
    let of_components = |agent: &str, split: &'static str, end: &str, note: &str| {
        let series = run.names(split, COMPONENT).into_iter().enumerate().map(|(place, name)| {
            let points = run.points(split, name, |metric| metric.agent == agent);
            let name = name.trim_start_matches(COMPONENT);
            Series { dash: place, ..Series::new(name, Color::Of(place), points) }
        });
        Chart::new(
            &format!("components-{agent}{end}"),
            format!("Components for {agent}{end}"),
            note,
            series.collect(),
        )
    };
    let mut charts = Vec::new();
    for agent in agents {
        charts.push(of_components(agent, "train", "", "In training: the mean over all candidates."));
        let note = "Of the executed candidates on held-out tasks; the band is the 95 % interval.";
        charts.push(of_components(agent, "test", ", held out", note));
    }
    for environment in run.values("train", "episodes", |metric| &metric.environment) {
        let of = |metric: &Metric| metric.environment == environment;
        let mut names = run.names("train", "solved_at_turn/");
        names.sort_by_key(|name| turn(name));
        let solved: Vec<(&str, Vec<Point>)> =
            names.into_iter().map(|name| (name, run.points("train", name, of))).collect();
        let mut all: Vec<Point> = solved.iter().flat_map(|(_, points)| points).copied().collect();
        all.sort_by(|one, other| one.x.total_cmp(&other.x));
        let (done, errors) = (by_x(&totals(&all)), run.points("train", "errors", of));
        let broken = by_x(&errors);
        let rest = |point: Point| {
            let rest = point.y - value(&done, &point) - value(&broken, &point);
            Point { y: rest.max(0.0), ..point }
        };
        let failed = run.points("train", "episodes", of).into_iter().map(rest).collect();
        let mut series: Vec<Series> = solved
            .into_iter()
            .enumerate()
            .map(|(place, (name, points))| {
                Series::new(format!("turn {}", turn(name) + 1), Color::Of(place), points)
            })
            .collect();
        series.push(Series::new("not solved", Color::Idle, failed));
        let errors = errors.into_iter().filter(|point| point.y > 0.0).collect();
        series.push(Series::new("could not be scored", Color::Bad, errors));
        let title = format!("Episodes of {environment} by the turn that solved them");
        let note = "In training. An earlier turn is a better answer; the rest ran out of turns or ended without success.";
        charts.push(Chart::new(&format!("turns-{environment}"), title, note, series).bars(ValueUnit::Count));
    }
    kept(charts)
}

/// Tokens and seconds of each step.
pub fn cost(run: &RunMetrics) -> Vec<Chart> {
    let agents = run.values("train", "completion_tokens", |metric| &metric.agent).into_iter().enumerate();
    let mut tokens: Vec<Series> = agents
        .map(|(place, agent)| {
            let points = run.points("train", "completion_tokens", |metric| metric.agent == agent);
            Series::new(format!("generated by {agent}"), Color::Of(place), points)
        })
        .collect();
    tokens.push(Series::new("prompts, each once", Color::Idle, run.totals("train", "prompt_tokens", any)));
    let timing = |name: &'static str| run.totals("timing", name, any);
    let training = timing("update/training_seconds");
    let training_at = by_x(&training);
    let publishing = timing("update/seconds")
        .into_iter()
        .map(|p| Point { y: (p.y - value(&training_at, &p)).max(0.0), ..p });
    let time = vec![
        Series::new("rollout", Color::Of(0), timing("rollout/seconds")),
        Series::new("update: training", Color::Of(1), training),
        Series::new("update: opening and publishing", Color::Of(2), publishing.collect()),
    ];
    let threads = [
        ("rollout/model_seconds", "the model"),
        ("rollout/environment_seconds", "environments"),
        ("rollout/text_seconds", "text and lines"),
        ("rollout/waiting_seconds", "waiting"),
    ];
    let threads = threads.into_iter().enumerate();
    let threads =
        threads.map(|(place, (name, what))| Series::new(what, Color::Of(place), timing(name))).collect();
    kept(vec![
        Chart::new("tokens", "Tokens of each step", "", tokens).bars(ValueUnit::Count),
        Chart::new(
            "time",
            "Time of each step",
            "Grouping and advantages are computed while rollout works.",
            time,
        )
        .bars(ValueUnit::Seconds),
        Chart::new(
            "threads",
            "What the threads of rollout did",
            "Summed over threads. Models run in threads of their own, while environments and text go on.",
            threads,
        )
        .bars(ValueUnit::Seconds),
    ])
}

fn value(by_step: &std::collections::BTreeMap<u64, f64>, point: &Point) -> f64 {
    by_step.get(&(point.x as u64)).copied().unwrap_or_default()
}

fn turn(name: &str) -> u64 {
    name.trim_start_matches("solved_at_turn/").parse().unwrap_or_default()
}

fn kept(mut charts: Vec<Chart>) -> Vec<Chart> {
    charts.retain(|chart| !chart.series.is_empty());
    charts
}
