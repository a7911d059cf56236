//! The page: the metrics and episodes of the runs as one HTML file that needs no network.
//!
//! The data is JSON inside the page, drawn by `page/*.js`: a reader can point at a value, hide a curve and step through an
//! episode. Style, program and data are inlined.

use std::collections::BTreeSet;

use record::failure::Result;
use record::splice::json;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::episodes::{self, EpisodeSet};
use crate::metrics::Metric;
use crate::run::RunDirectory;

const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = concat!(include_str!("page/style.css"), include_str!("page/episodes.css"));
const PROGRAM: &str = concat!(
    include_str!("page/data.js"),
    include_str!("page/chart.js"),
    include_str!("page/sections.js"),
    include_str!("page/episodes.js"),
    include_str!("page/main.js"),
);

/// Bytes of episodes in a page.
const EPISODES: usize = 3 << 20;
/// The most steps that a page draws of a run; of a longer one every second, third, … is drawn.
const STEPS: usize = 600;

#[derive(Serialize)]
struct Data<'a> {
    version: &'static str,
    runs: Vec<RunData<'a>>,
    episodes_left_out: usize,
}

#[derive(Serialize)]
struct RunData<'a> {
    name: &'a str,
    settings: &'a Map<String, Value>,
    steps: usize,
    drawn_every: usize,
    last: Option<u64>,
    begun: Option<u64>,
    equal_prompts: bool,
    /// Rows of a table without its column of runs: columns that repeat are numbers into `names`.
    names: Vec<&'a str>,
    metrics: Vec<Row>,
    episode_sets: &'a [EpisodeSet],
}

/// step, split, environment, policy, agent, metric, value, low, high.
type Row = (u64, usize, usize, usize, usize, usize, f64, Option<f64>, Option<f64>);

/// The page about runs and their metrics.
///
/// # Errors
/// 65: the data cannot be written as JSON.
pub fn of(runs: &mut [RunDirectory], metrics: &[(String, Vec<Metric>)]) -> Result<String> {
    let mut left_out = 0;
    let budget = EPISODES / runs.len().max(1);
    for run in runs.iter_mut() {
        left_out += episodes::fit(&mut run.episode_sets, budget)?;
    }
    let data = Data {
        version: record::stage::build(),
        runs: runs.iter().zip(metrics).map(|(run, (_, metrics))| run_data(run, metrics)).collect(),
        episodes_left_out: left_out,
    };
    let title: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    // A text of a run may hold `</script>`; inside a JSON text `<` can be written as an escape.
    let data = json(&data)?.replace('<', "\\u003c");
    let mut page = FRAME.to_owned();
    for (place, text) in [
        ("{{title}}", escaped(&title.join(", ")).as_str()),
        ("{{style}}", STYLE),
        ("{{program}}", PROGRAM),
        ("{{data}}", &data),
    ] {
        page = page.replacen(place, text, 1);
    }
    Ok(page)
}

fn run_data<'a>(run: &'a RunDirectory, metrics: &'a [Metric]) -> RunData<'a> {
    let drawn_every = run.steps.len().div_ceil(STEPS).max(1);
    let drawn: BTreeSet<u64> = run.steps.iter().rev().step_by(drawn_every).map(|step| step.number).collect();
    let mut names: Vec<&str> = Vec::new();
    let mut number = |name: &'a str| {
        names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let metrics = metrics
        .iter()
        .filter(|metric| metric.split == "test" || drawn.contains(&metric.step))
        .map(|metric| {
            let (low, high) = metric.interval.map_or((None, None), |(low, high)| (Some(low), Some(high)));
            (
                metric.step,
                number(metric.split),
                number(&metric.environment),
                number(&metric.policy),
                number(&metric.agent),
                number(&metric.name),
                rounded(metric.value),
                low.map(rounded),
                high.map(rounded),
            )
        })
        .collect();
    RunData {
        name: &run.name,
        settings: &run.settings,
        steps: run.steps.len(),
        drawn_every,
        last: run.steps.last().map(|step| step.number),
        begun: run.begun,
        equal_prompts: run.steps.iter().all(|step| step.groups.equal_prompts),
        names,
        metrics,
        episode_sets: &run.episode_sets,
    }
}

/// Six digits, as many as anybody reads off a curve.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
