//! The page: charts, summaries and episodes of the runs as one HTML file that needs no network.
//!
//! The data is JSON inside the page, drawn by `page/*.js`: a reader can point at a value, hide a curve and
//! step through an episode. Style, program and data are inlined.

use std::collections::HashMap;

use record::failure::Result;
use record::splice::json;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::chart::learning::Drawn;
use crate::chart::series::RunMetrics;
use crate::chart::{Chart, Color, Kind, ValueUnit, detail};
use crate::compare::{self, Compared};
use crate::episode_index::EpisodeIndex;
use crate::episodes::{self, EpisodeSet};
use crate::methods::{self, MethodRuns};
use crate::metrics::Metric;
use crate::run_directory::RunDirectory;
use crate::run_summary::{self, RunSummary};
use crate::stream_summary::StreamSummary;

const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = concat!(include_str!("page/style.css"), include_str!("page/episodes.css"));
const PROGRAM: &str = concat!(
    include_str!("page/data.js"),
    include_str!("page/axis.js"),
    include_str!("page/chart.js"),
    include_str!("page/export.js"),
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
    episodes_left_out: usize,
    runs: Vec<RunData<'a>>,
    methods: Vec<MethodData<'a>>,
    /// What dashes tell apart.
    dashes: Vec<&'a str>,
    success: Vec<PageChart>,
    measured: Vec<PageChart>,
    /// The horizontal places of series, each list once.
    xs: Vec<Vec<f64>>,
}

#[derive(Serialize)]
struct MethodData<'a> {
    #[serde(flatten)]
    compared: &'a Compared,
    runs: &'a [usize],
}

#[derive(Serialize)]
struct RunData<'a> {
    name: &'a str,
    settings: &'a Map<String, Value>,
    /// Defaults of the settings that have another value.
    defaults: Option<&'a Map<String, Value>>,
    steps: usize,
    drawn_every: usize,
    last: Option<u64>,
    begun: Option<u64>,
    equal_prompts: bool,
    summary: RunSummary,
    groups: Vec<PageChart>,
    rewards: Vec<PageChart>,
    cost: Vec<PageChart>,
    episode_sets: &'a [EpisodeSet],
}

/// A chart with its points as columns.
#[derive(Serialize)]
struct PageChart {
    name: String,
    title: String,
    note: String,
    kind: Kind,
    x: &'static str,
    unit: ValueUnit,
    log: bool,
    series: Vec<PageSeries>,
}

#[derive(Serialize)]
struct PageSeries {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<usize>,
    color: Color,
    dash: usize,
    thin: bool,
    /// Index of the list of places on the page.
    x: usize,
    y: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    low: Vec<Option<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    high: Vec<Option<f64>>,
}

/// The lists of places of all series, each once.
#[derive(Default)]
struct Places {
    lists: Vec<Vec<f64>>,
    known: HashMap<Vec<u64>, usize>,
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
pub fn render(runs: &mut [RunDirectory], metrics: &[(String, Vec<Metric>)]) -> Result<String> {
    let budget = EPISODES / runs.len().max(1);
    let left_out = runs.iter_mut().map(|run| episodes::fit(&mut run.episode_sets, budget)).sum();
    let methods = methods::group_runs(runs);
    let tables: Vec<RunMetrics> =
        runs.iter().zip(metrics).map(|(run, (_, metrics))| RunMetrics::new(run, metrics, STEPS)).collect();
    let drawn = Drawn::new(&tables, &methods);
    let mut places = Places::default();
    let run_data: Vec<RunData> = tables
        .iter()
        .zip(metrics)
        .map(|(table, (_, metrics))| run_data(table, metrics, &mut places))
        .collect();
    let summaries: Vec<&RunSummary> = run_data.iter().map(|run| &run.summary).collect();
    let compared: Vec<Compared> =
        methods.iter().map(|method| compare::sum_up(method, &summaries, runs)).collect();
    let data = Data {
        version: record::stage::build(),
        episodes_left_out: left_out,
        methods: methods
            .iter()
            .zip(&compared)
            .map(|(MethodRuns { runs, .. }, compared)| MethodData { compared, runs })
            .collect(),
        dashes: drawn.dashed.clone(),
        success: drawn.success().into_iter().map(|chart| places.page_chart(chart)).collect(),
        measured: drawn.measured().into_iter().map(|chart| places.page_chart(chart)).collect(),
        runs: run_data,
        xs: places.lists,
    };
    // Apart from the rest: it is parsed when a reader first looks for an episode.
    let index: Vec<Vec<StreamIndex>> = runs
        .iter()
        .map(|run| {
            let mut streams: Vec<&StreamSummary> = run.streams.iter().collect();
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

fn run_data<'a>(table: &RunMetrics<'a>, metrics: &[Metric], places: &mut Places) -> RunData<'a> {
    let run = table.run;
    let mut charts = |charts: Vec<Chart>| {
        charts.into_iter().map(|chart| places.page_chart(chart)).collect::<Vec<PageChart>>()
    };
    RunData {
        name: &run.name,
        settings: &run.settings,
        defaults: run.defaults.as_ref(),
        steps: run.steps().count(),
        drawn_every: table.drawn_every,
        last: run.steps().next_back().map(|step| step.step),
        begun: run.begun,
        equal_prompts: run.steps().all(|step| step.equal_prompts),
        summary: run_summary::summarize(table, metrics),
        groups: charts(detail::groups(table)),
        rewards: charts(detail::rewards(table)),
        cost: charts(detail::cost(table)),
        episode_sets: &run.episode_sets,
    }
}

impl Places {
    fn page_chart(&mut self, chart: Chart) -> PageChart {
        let Chart { name, title, note, kind, x, unit, log, series } = chart;
        let series = series.into_iter().map(|series| {
            let places = series.points.iter().map(|point| point.x).collect();
            let ends = |of: fn(&crate::chart::Point) -> Option<f64>| {
                let ends: Vec<_> = series.points.iter().map(|point| of(point).map(rounded)).collect();
                if ends.iter().all(Option::is_none) { Vec::new() } else { ends }
            };
            PageSeries {
                x: self.number(places),
                y: series.points.iter().map(|point| rounded(point.y)).collect(),
                low: ends(|point| point.low),
                high: ends(|point| point.high),
                name: series.name,
                method: series.method,
                color: series.color,
                dash: series.dash,
                thin: series.thin,
            }
        });
        let series = series.collect();
        PageChart { name, title, note, kind, x, unit, log, series }
    }

    fn number(&mut self, places: Vec<f64>) -> usize {
        let key = places.iter().map(|place| place.to_bits()).collect();
        *self.known.entry(key).or_insert_with(|| {
            self.lists.push(places);
            self.lists.len() - 1
        })
    }
}

/// Rounds to six digits, more than can be read off a curve.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
