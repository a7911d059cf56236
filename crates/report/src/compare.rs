//! `report compare RUN…`: compares methods over their seeds, with the difference of each to the first, seed
//! by seed.
//!
//! A seed decides tasks, samples and the start of all methods alike, so methods are compared within seeds:
//! the interval is Student's, for the mean of the differences. Success is taken at the last evaluation that
//! all runs have, so that a run in progress is not compared with a finished one.

use std::collections::{BTreeMap, BTreeSet};

use record::failure::{Failure, Result};
use record::read::VERSION;
use record::stage::{note, printable};
use record::write::{self, Writer};
use serde::Serialize;
use serde_json::json;

use crate::arguments::{Compare, TableFormat};
use crate::episodes::EpisodeLimits;
use crate::evaluate::interval::{MeanOfSeeds, mean_of_differences, mean_of_rates, mean_of_seeds};
use crate::evaluate::print::{aligned, percent};
use crate::facts::{Facts, Success, best, held_out};
use crate::methods::{self, MethodRuns};
use crate::metrics::{self, Metric};
use crate::run::RunDirectory;
use crate::stage;

/// A method over its runs, for the page.
#[derive(Debug, PartialEq, Serialize)]
pub struct Compared {
    name: String,
    seeds: Vec<String>,
    steps: f64,
    first: Option<MeanOfSeeds>,
    best: Option<MeanOfSeeds>,
    now: Option<MeanOfSeeds>,
    tokens: f64,
    taught: Option<f64>,
    gap: Option<f64>,
}

/// Sums a method up from the facts of all runs; a number is there if every run of it has it.
pub fn sum_up(method: &MethodRuns, facts: &[&Facts], runs: &[RunDirectory]) -> Compared {
    let of = |value: &dyn Fn(&Facts) -> Option<f64>| -> Vec<f64> {
        let values: Option<Vec<f64>> = method.runs.iter().map(|&run| value(facts[run])).collect();
        values.unwrap_or_default()
    };
    let mean = |values: Vec<f64>| mean_of_seeds(&values).map(|found| found.mean);
    let success = |pick: fn(&Facts) -> Option<Success>| {
        mean_of_rates(&of(&|facts| pick(facts).map(|success| success.value)))
    };
    Compared {
        name: method.name.clone(),
        seeds: method.runs.iter().filter_map(|&run| methods::seed(&runs[run])).collect(),
        steps: mean(method.runs.iter().map(|&run| runs[run].steps().count() as f64).collect())
            .unwrap_or_default(),
        first: success(|facts| facts.first),
        best: success(|facts| facts.best),
        now: success(|facts| facts.now),
        tokens: mean(of(&|facts| Some(facts.tokens))).unwrap_or_default(),
        taught: mean(of(&|facts| facts.taught)),
        gap: of(&|facts| facts.gap).into_iter().reduce(f64::max),
    }
}

/// A run as far as it is compared.
struct RunSuccess {
    seed: String,
    evaluations: Vec<Success>,
    tokens: f64,
}

/// A method with the compared values of its runs.
struct Side {
    method: MethodRuns,
    first: Option<MeanOfSeeds>,
    now: Option<MeanOfSeeds>,
    best: Option<MeanOfSeeds>,
    tokens: f64,
    by_seed: BTreeMap<String, f64>,
    by_folder: Vec<(String, String)>,
}

/// The difference of a method to the first, over the seeds that both have.
struct Paired {
    seeds: Vec<String>,
    found: MeanOfSeeds,
}

/// Compares the runs and prints the result.
///
/// # Errors
/// No run directory (2, 65), a broken stream, a run without an evaluation, no evaluation after the same step (65), I/O (74).
pub fn run(arguments: &Compare) -> Result<()> {
    // The number of episodes that a page keeps of a stream, so that both use the cache.
    let limits = EpisodeLimits { steps: 1, episodes: 2 };
    let runs = stage::read(&arguments.runs, limits, &[])?;
    let found: Vec<RunSuccess> = runs
        .iter()
        .map(|run| {
            let metrics = metrics::of(run);
            let evaluations = held_out(&metrics);
            if evaluations.is_empty() {
                return Err(Failure::data(format!("{}: the run has no evaluation", run.name))
                    .hint("methods are compared on held-out tasks: leave --eval-every above 0"));
            }
            Ok(RunSuccess {
                seed: methods::seed(run).unwrap_or_default(),
                evaluations,
                tokens: tokens(&metrics),
            })
        })
        .collect::<Result<_>>()?;
    let step = common_step(&found).ok_or_else(|| {
        Failure::data("the runs have no evaluation after the same step")
            .hint("compare runs with the same --eval-every")
    })?;
    let sides: Vec<Side> =
        methods::of(&runs).into_iter().map(|method| side(method, &runs, &found, step)).collect();
    let pairs: Vec<Option<Paired>> = sides.iter().skip(1).map(|side| paired(side, &sides[0])).collect();
    if !arguments.quiet {
        let last = |run: &RunSuccess| run.evaluations.last().map(|success| success.step);
        if found.iter().any(|run| last(run) != Some(step)) {
            note(
                "report",
                format_args!("some runs go on after step {step}; success is compared where all of them are"),
            );
        }
    }
    match arguments.format {
        TableFormat::Json => print_json(&sides, &pairs, step),
        TableFormat::Table => print_table(&sides, &pairs, step),
    }
}

/// The last step after which all runs have an evaluation.
fn common_step(runs: &[RunSuccess]) -> Option<u64> {
    let steps =
        |run: &RunSuccess| -> BTreeSet<u64> { run.evaluations.iter().map(|success| success.step).collect() };
    runs.iter().map(steps).reduce(|all, one| &all & &one)?.into_iter().next_back()
}

fn tokens(metrics: &[Metric]) -> f64 {
    let of = |metric: &&Metric| metric.split == "train" && metric.name == "completion_tokens";
    metrics.iter().filter(of).map(|metric| metric.value).sum()
}

fn side(method: MethodRuns, runs: &[RunDirectory], found: &[RunSuccess], step: u64) -> Side {
    let all = || method.runs.iter().map(|&run| &found[run]);
    let at = |run: &RunSuccess| {
        let success = run.evaluations.iter().find(|success| success.step == step);
        success.map_or(f64::NAN, |success| success.value)
    };
    let values = |of: &dyn Fn(&RunSuccess) -> f64| mean_of_rates(&all().map(of).collect::<Vec<f64>>());
    let until = |run: &RunSuccess| -> Vec<Success> {
        run.evaluations.iter().copied().filter(|success| success.step <= step).collect()
    };
    Side {
        first: values(&|run| run.evaluations[0].value),
        now: values(&at),
        best: values(&|run| best(&until(run)).map_or(f64::NAN, |success| success.value)),
        tokens: values(&|run| run.tokens).map_or(0.0, |found| found.mean),
        by_seed: all().map(|run| (run.seed.clone(), at(run))).collect(),
        by_folder: method.runs.iter().map(|&run| (found[run].seed.clone(), runs[run].name.clone())).collect(),
        method,
    }
}

/// `side` minus `base`, seed by seed; `None` without a common seed.
fn paired(side: &Side, base: &Side) -> Option<Paired> {
    let pairs = side.by_seed.iter().filter_map(|(seed, value)| Some((seed, value - base.by_seed.get(seed)?)));
    let (seeds, differences): (Vec<String>, Vec<f64>) =
        pairs.map(|(seed, difference)| (seed.clone(), difference)).unzip();
    Some(Paired { seeds, found: mean_of_differences(&differences)? })
}

fn print_table(sides: &[Side], pairs: &[Option<Paired>], step: u64) -> Result<()> {
    let heads = [
        "method",
        "seeds",
        "first",
        &format!("at step {step}"),
        "SD",
        "95 % interval",
        "best until then",
        "tokens",
    ];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for side in sides {
        let mean = |of: &Option<MeanOfSeeds>| of.map_or("-".to_owned(), |found| percent(found.mean));
        let now =
            side.now.unwrap_or(MeanOfSeeds { count: 0, mean: f64::NAN, deviation: None, interval: None });
        table.push(vec![
            side.method.name.clone(),
            side.method.runs.len().to_string(),
            mean(&side.first),
            percent(now.mean),
            now.deviation.map_or("-".to_owned(), points),
            now.interval
                .map_or("-".to_owned(), |(low, high)| format!("{:.1} to {}", 100.0 * low, percent(high))),
            mean(&side.best),
            format!("{:.0}", side.tokens),
        ]);
    }
    let mut text = aligned(&table, 1);
    for (side, pair) in sides.iter().skip(1).zip(pairs) {
        let name = format!("{} against {}", side.method.name, sides[0].method.name);
        let told = match pair {
            None => format!("{name}: no seed in common"),
            Some(Paired { seeds, found }) => {
                let interval =
                    found.interval.map_or(", one pair has no interval".to_owned(), |(low, high)| {
                        let deviation = found.deviation.map_or(String::new(), points);
                        format!(", SD {deviation}, 95 % interval {:+.1} to {:+.1}", 100.0 * low, 100.0 * high)
                    });
                let plural = if seeds.len() == 1 { "seed" } else { "seeds" };
                format!(
                    "{name}: {:+.1} points{interval}, paired over {plural} {}",
                    100.0 * found.mean,
                    seeds.join(", ")
                )
            }
        };
        text += &format!("{}\n", printable(&told));
    }
    write::stdout(text.as_bytes())
}

fn points(deviation: f64) -> String {
    format!("{:.1}", 100.0 * deviation)
}

fn print_json(sides: &[Side], pairs: &[Option<Paired>], step: u64) -> Result<()> {
    let mut writer = Writer::stdout();
    for (place, side) in sides.iter().enumerate() {
        let runs: Vec<_> =
            side.by_folder.iter().map(|(seed, name)| json!({"seed": seed, "run": name})).collect();
        let pair = place.checked_sub(1).and_then(|place| pairs[place].as_ref());
        let against = pair.map(|pair| {
            json!({"method": sides[0].method.name, "seeds": pair.seeds, "value": pair.found.mean,
                "deviation": pair.found.deviation, "interval": pair.found.interval})
        });
        let line = json!({"type": "comparison", "v": VERSION, "method": side.method.name, "step": step, "runs": runs,
            "first": side.first, "success": side.now, "best": side.best, "tokens": side.tokens,
            "by_seed": side.by_seed, "against": against});
        if let Some(line) = line.as_object() {
            writer.object(line)?;
        }
    }
    writer.flush()
}
