//! The page: the metrics and episodes of the runs as one HTML file that needs no network.
//!
//! The data is JSON inside the page, drawn by `page/*.js`: a reader can point at a value, hide a curve and step through an
//! episode. Style, program and data are inlined.

use std::collections::{BTreeSet, HashMap};

use record::failure::Result;
use record::splice::json;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::episodes::{self, EpisodeSet};
use crate::index::EpisodeIndex;
use crate::metrics::Metric;
use crate::run::RunDirectory;
use crate::summary::Summary;

const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = concat!(include_str!("page/style.css"), include_str!("page/episodes.css"));
const PROGRAM: &str = concat!(
    include_str!("page/data.js"),
    include_str!("page/chart.js"),
    include_str!("page/sections.js"),
    include_str!("page/list.js"),
    include_str!("page/episodes.js"),
    include_str!("page/main.js"),
);

/// Bytes of episodes in a page.
const EPISODES: usize = 3 << 20;
/// The most steps that a page draws of a run; of a longer one every second, third, … is drawn.
const STEPS: usize = 2000;

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
    /// What series name by number.
    names: Vec<&'a str>,
    /// The steps that are drawn: those of every series that does not name its own.
    drawn: Vec<u64>,
    series: Vec<Series>,
    episode_sets: &'a [EpisodeSet],
}

/// The values of one metric over the steps. Names are numbers into `names`.
#[derive(Serialize)]
struct Series {
    /// split, environment, policy, agent, metric.
    of: [usize; 5],
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<u64>>,
    values: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lows: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    highs: Vec<Option<f64>>,
}

/// The episodes of a stream, for the list of all of them.
#[derive(Serialize)]
struct StreamIndex<'a> {
    step: u64,
    held_out: bool,
    #[serde(flatten)]
    index: &'a EpisodeIndex,
}

/// The page about runs and their metrics.
///
/// # Errors
/// 65: the data cannot be written as JSON.
pub fn of(runs: &mut [RunDirectory], metrics: &[(String, Vec<Metric>)]) -> Result<String> {
    let budget = EPISODES / runs.len().max(1);
    let left_out = runs.iter_mut().map(|run| episodes::fit(&mut run.episode_sets, budget)).sum();
    let data = Data {
        version: record::stage::build(),
        runs: runs.iter().zip(metrics).map(|(run, (_, metrics))| run_data(run, metrics)).collect(),
        episodes_left_out: left_out,
    };
    // Apart from the rest: it is parsed when a reader first looks for an episode.
    let index: Vec<Vec<StreamIndex>> = runs
        .iter()
        .map(|run| {
            let mut streams: Vec<&Summary> = run.streams.iter().collect();
            streams.sort_by_key(|stream| (stream.step, stream.held_out));
            let of = streams.into_iter().map(|stream| StreamIndex {
                step: stream.step,
                held_out: stream.held_out,
                index: &stream.index,
            });
            of.collect()
        })
        .collect();
    let title: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    // A text of a run may hold `</script>`; inside a JSON text `<` can be written as an escape.
    let (data, index) = (json(&data)?.replace('<', "\\u003c"), json(&index)?.replace('<', "\\u003c"));
    let mut rest = FRAME;
    let mut page = String::with_capacity(data.len() + index.len() + (1 << 17));
    for (place, text) in [
        ("{{title}}", escaped(&title.join(", ")).as_str()),
        ("{{style}}", STYLE),
        ("{{data}}", &data),
        ("{{index}}", &index),
        ("{{program}}", PROGRAM),
    ] {
        let (before, after) = rest.split_once(place).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

fn run_data<'a>(run: &'a RunDirectory, metrics: &'a [Metric]) -> RunData<'a> {
    let steps = run.steps().count();
    let drawn_every = steps.div_ceil(STEPS).max(1);
    let drawn: BTreeSet<u64> = run.steps().rev().step_by(drawn_every).map(|step| step.step).collect();
    let (mut names, mut known) = (Vec::new(), HashMap::new());
    let mut number = |name: &'a str| {
        *known.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let (mut series, mut places) = (Vec::<Series>::new(), HashMap::new());
    for metric in metrics.iter().filter(|metric| metric.split == "test" || drawn.contains(&metric.step)) {
        let of = [&*metric.split, &metric.environment, &metric.policy, &metric.agent, &metric.name]
            .map(&mut number);
        let place = *places.entry(of).or_insert_with(|| {
            let (steps, values) = (Some(Vec::new()), Vec::new());
            series.push(Series { of, steps, values, lows: Vec::new(), highs: Vec::new() });
            series.len() - 1
        });
        let one = &mut series[place];
        one.steps.get_or_insert_default().push(metric.step);
        one.values.push(rounded(metric.value));
        one.lows.push(metric.interval.map(|(low, _)| rounded(low)));
        one.highs.push(metric.interval.map(|(_, high)| rounded(high)));
    }
    let drawn: Vec<u64> = drawn.into_iter().collect();
    for one in &mut series {
        if one.steps.as_ref() == Some(&drawn) {
            one.steps = None;
        }
        if one.lows.iter().all(Option::is_none) {
            (one.lows, one.highs) = (Vec::new(), Vec::new());
        }
    }
    RunData {
        name: &run.name,
        settings: &run.settings,
        steps,
        drawn_every,
        last: run.steps().next_back().map(|step| step.step),
        begun: run.begun,
        equal_prompts: run.steps().all(|step| step.equal_prompts),
        names,
        drawn,
        series,
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
