//! `report compare RUN…`: compares methods over their seeds, with the difference of each to the first, seed
//! by seed.
//!
//! A seed decides tasks, samples and the start of all methods alike, so methods are compared within seeds:
//! the interval is Student's, for the mean of the differences. Success is taken at the last evaluation that
//! all runs have, because a run in progress is not comparable with a finished one, or at equal tokens.

use std::collections::{BTreeMap, BTreeSet};

use record::failure::{Failure, Result};
use record::read::VERSION;
use record::stage::{note, printable};
use record::write::{self, Writer};
use serde::Serialize;
use serde_json::{Value, json};

use crate::arguments::{Compare, TableFormat};
use crate::evaluate::interval::{MeanOfSeeds, mean_of_differences, mean_of_rates, mean_of_seeds};
use crate::methods::{self, MethodRuns};
use crate::metrics;
use crate::outputs;
use crate::run_directory::RunDirectory;
use crate::run_summary::{RunSummary, Success, held_out, held_out_returns};
use crate::table::{aligned, or_dash, percent, percents};

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
    teaching: Option<f64>,
    gap: Option<f64>,
}

/// Sums a method up from the summaries of all runs; a number is there if every run of it has it.
pub fn sum_up(method: &MethodRuns, summaries: &[&RunSummary], runs: &[RunDirectory]) -> Compared {
    let of = |value: &dyn Fn(&RunSummary) -> Option<f64>| -> Vec<f64> {
        let values: Option<Vec<f64>> = method.runs.iter().map(|&run| value(summaries[run])).collect();
        values.unwrap_or_default()
    };
    let mean = |values: Vec<f64>| mean_of_seeds(&values).map(|found| found.mean);
    let success = |pick: fn(&RunSummary) -> Option<Success>| {
        mean_of_rates(&of(&|summary| pick(summary).map(|success| success.value)))
    };
    Compared {
        name: method.name.clone(),
        seeds: method.runs.iter().filter_map(|&run| methods::seed(&runs[run])).collect(),
        steps: mean(method.runs.iter().map(|&run| runs[run].steps().count() as f64).collect())
            .unwrap_or_default(),
        first: success(|summary| summary.first),
        best: success(|summary| summary.best),
        now: success(|summary| summary.now),
        tokens: mean(of(&|summary| Some(summary.tokens))).unwrap_or_default(),
        teaching: mean(of(&|summary| summary.teaching)),
        gap: of(&|summary| summary.gap).into_iter().reduce(f64::max),
    }
}

/// A run as far as it is compared.
struct RunCurve {
    name: String,
    seed: String,
    evaluations: Vec<Success>,
    /// Mean returns of the evaluations.
    returns: Vec<Success>,
    /// Tokens generated at each training step.
    tokens: BTreeMap<u64, f64>,
    /// The run's `--token-budget`.
    budget: Option<f64>,
}

impl RunCurve {
    fn of(run: &RunDirectory) -> Result<RunCurve> {
        let metrics = metrics::run_metrics(run);
        let evaluations = held_out(&metrics);
        if evaluations.is_empty() {
            return Err(Failure::data(format!("{}: the run has no evaluation", run.name))
                .hint("methods are compared on held-out tasks: leave --eval-every above 0"));
        }
        let mut tokens = BTreeMap::new();
        for metric in metrics.iter().filter(|one| one.split == "train" && one.name == "completion_tokens") {
            *tokens.entry(metric.step).or_default() += metric.value;
        }
        let budget =
            run.settings.get("token_budget").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let (name, seed) = (run.name.clone(), methods::seed(run).unwrap_or_default());
        Ok(RunCurve { name, seed, evaluations, returns: held_out_returns(&metrics), tokens, budget })
    }

    /// Tokens generated in the steps before `step`.
    fn tokens_before(&self, step: u64) -> f64 {
        self.tokens.range(..step).fold(0.0, |sum, (_, tokens)| sum + tokens)
    }

    /// Tokens generated up to the last evaluation.
    fn evaluated_tokens(&self) -> f64 {
        self.evaluations.last().map_or(0.0, |last| self.tokens_before(last.step + 1))
    }
}

/// Where runs are compared.
#[derive(Clone, Copy)]
enum Comparison {
    /// After the same training step.
    Step(u64),
    /// At the first evaluation after so many tokens: the last one of a run that `pipeline.sh --token-budget` ended.
    Tokens(f64),
}

impl Comparison {
    /// At `wanted` tokens; else at the runs' smallest budget; without budgets at the last common step.
    fn choose(wanted: Option<u64>, runs: &[RunCurve]) -> Result<Comparison> {
        let most = runs.iter().map(RunCurve::evaluated_tokens).reduce(f64::min).unwrap_or_default();
        if let Some(wanted) = wanted {
            return match runs.iter().find(|run| run.evaluated_tokens() < wanted as f64) {
                None => Ok(Comparison::Tokens(wanted as f64)),
                Some(short) => Err(Failure::usage(format!(
                    "--at-tokens {wanted}: {} generated {} tokens up to its last evaluation",
                    short.name,
                    short.evaluated_tokens()
                ))
                .hint(format!("the most that all runs have is --at-tokens {most}"))),
            };
        }
        if let Some(budgets) = runs.iter().map(|run| run.budget).collect::<Option<Vec<f64>>>() {
            return Ok(Comparison::Tokens(budgets.into_iter().fold(most, f64::min)));
        }
        let steps = |run: &RunCurve| run.evaluations.iter().map(|one| one.step).collect::<BTreeSet<u64>>();
        let common = runs.iter().map(steps).reduce(|all, one| &all & &one);
        common.and_then(|steps| steps.into_iter().next_back()).map(Comparison::Step).ok_or_else(|| {
            Failure::data("the runs have no evaluation after the same step")
                .hint("compare at equal tokens with --at-tokens N, or runs with the same --eval-every")
        })
    }

    /// The evaluations of a run up to the compared one, which is the last.
    fn evaluations<'a>(&self, run: &'a RunCurve) -> &'a [Success] {
        let count = match *self {
            Comparison::Step(step) => run.evaluations.partition_point(|one| one.step <= step),
            Comparison::Tokens(tokens) => {
                let is_before = |one: &Success| run.tokens_before(one.step + 1) < tokens;
                run.evaluations.partition_point(is_before) + 1
            }
        };
        &run.evaluations[..count.clamp(1, run.evaluations.len())]
    }
}

/// The compared evaluation of a run.
struct RunResult {
    seed: String,
    name: String,
    step: u64,
    tokens: f64,
    first: f64,
    success: f64,
    returns: Option<f64>,
    best: f64,
}

impl RunResult {
    fn of(run: &RunCurve, at: Comparison) -> RunResult {
        let evaluations = at.evaluations(run);
        let last = evaluations[evaluations.len() - 1];
        RunResult {
            seed: run.seed.clone(),
            name: run.name.clone(),
            step: last.step,
            tokens: run.tokens_before(last.step + 1),
            first: evaluations[0].value,
            success: last.value,
            returns: run.returns.iter().find(|one| one.step == last.step).map(|one| one.value),
            best: evaluations.iter().map(|one| one.value).fold(f64::NAN, f64::max),
        }
    }
}

/// A method with the results of its runs.
struct MethodResult {
    name: String,
    runs: Vec<RunResult>,
}

impl MethodResult {
    fn mean(&self, of: fn(&RunResult) -> f64) -> Option<MeanOfSeeds> {
        mean_of_rates(&self.runs.iter().map(of).collect::<Vec<f64>>())
    }

    fn mean_return(&self) -> Option<MeanOfSeeds> {
        mean_of_seeds(&self.runs.iter().map(|run| run.returns).collect::<Option<Vec<f64>>>()?)
    }

    /// Returns true if a run earns more or less than its success.
    fn pays_in_parts(&self) -> bool {
        self.runs.iter().any(|run| run.returns.is_some_and(|earned| (earned - run.success).abs() > 1e-9))
    }

    fn tokens(&self) -> f64 {
        self.runs.iter().map(|run| run.tokens).sum::<f64>() / self.runs.len() as f64
    }

    /// Success and return minus those of `base`, seed by seed; `None` without a common seed.
    fn minus<'a>(&'a self, base: &'a MethodResult) -> Option<Paired> {
        let pair = |run: &'a RunResult| Some((run, base.runs.iter().find(|other| other.seed == run.seed)?));
        let mut pairs: Vec<(&RunResult, &RunResult)> = self.runs.iter().filter_map(pair).collect();
        pairs.sort_by(|one, other| one.0.seed.cmp(&other.0.seed));
        let success: Vec<f64> = pairs.iter().map(|(own, other)| own.success - other.success).collect();
        let earned: Option<Vec<f64>> =
            pairs.iter().map(|(own, other)| Some(own.returns? - other.returns?)).collect();
        Some(Paired {
            seeds: pairs.iter().map(|(own, _)| own.seed.clone()).collect(),
            difference: mean_of_differences(&success)?,
            returns: earned.and_then(|earned| mean_of_seeds(&earned)),
        })
    }
}

/// The difference of a method to the first, over the seeds that both have.
struct Paired {
    seeds: Vec<String>,
    difference: MeanOfSeeds,
    returns: Option<MeanOfSeeds>,
}

/// Compares the runs and prints the result.
///
/// # Errors
/// No run directory (2, 65), `--at-tokens` above what a run generated (2), a broken stream, a run without an
/// evaluation, no evaluation after the same step (65), I/O (74).
pub fn run(arguments: &Compare) -> Result<()> {
    let runs = outputs::read_runs(&arguments.runs, 1, &[])?;
    let curves = runs.iter().map(RunCurve::of).collect::<Result<Vec<RunCurve>>>()?;
    let at = Comparison::choose(arguments.at_tokens, &curves)?;
    let results = |method: MethodRuns| MethodResult {
        runs: method.runs.iter().map(|&run| RunResult::of(&curves[run], at)).collect(),
        name: method.name,
    };
    let methods: Vec<MethodResult> = methods::group_runs(&runs).into_iter().map(results).collect();
    let goes_on = |run: &RunCurve| at.evaluations(run).len() < run.evaluations.len();
    if !arguments.quiet && curves.iter().any(goes_on) {
        let place = match at {
            Comparison::Step(step) => format!("step {step}"),
            Comparison::Tokens(tokens) => format!("{tokens} tokens"),
        };
        note(
            "report",
            format_args!("some runs go on after {place}; success is compared where all of them are"),
        );
    }
    match arguments.format {
        TableFormat::Json => print_json(&methods, at),
        TableFormat::Table => print_table(&methods, at),
    }
}

fn print_table(methods: &[MethodResult], at: Comparison) -> Result<()> {
    let place = match at {
        Comparison::Step(step) => format!("at step {step}"),
        Comparison::Tokens(tokens) => format!("at {tokens} tokens"),
    };
    let heads =
        ["method", "seeds", "first", &place, "SD", "95 % interval", "best until then", "return", "tokens"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let pays = methods.iter().any(MethodResult::pays_in_parts);
    for method in methods {
        let success = method.mean(|run| run.success);
        table.push(vec![
            method.name.clone(),
            method.runs.len().to_string(),
            or_dash(method.mean(|run| run.first), |first| percent(first.mean)),
            or_dash(success, |success| percent(success.mean)),
            or_dash(success.and_then(|success| success.deviation), points),
            or_dash(success.and_then(|success| success.interval), percents),
            or_dash(method.mean(|run| run.best), |best| percent(best.mean)),
            or_dash(method.mean_return().filter(|_| pays), |returns| format!("{:.2}", returns.mean)),
            format!("{:.0}", method.tokens()),
        ]);
    }
    let mut text = aligned(&table, 1);
    for method in &methods[1..] {
        let difference = method.minus(&methods[0]).map_or("no seed in common".to_owned(), |paired| {
            let Paired { seeds, difference, returns } = paired;
            let interval = match (difference.deviation, difference.interval) {
                (Some(deviation), Some((low, high))) => format!(
                    ", SD {}, 95 % interval {:+.1} to {:+.1}",
                    points(deviation),
                    100.0 * low,
                    100.0 * high
                ),
                _ => ", one pair has no interval".to_owned(),
            };
            let plural = if seeds.len() == 1 { "seed" } else { "seeds" };
            let mean = 100.0 * difference.mean;
            let returns = returns.filter(|_| pays).map_or(String::new(), |returns| {
                let ends = returns.interval.map(|(low, high)| format!(" ({low:+.2} to {high:+.2})"));
                format!(", return {:+.2}{}", returns.mean, ends.unwrap_or_default())
            });
            format!("{mean:+.1} points{interval}{returns}, paired over {plural} {}", seeds.join(", "))
        });
        let names = format!("{} against {}", method.name, methods[0].name);
        text += &format!("{}\n", printable(&format!("{names}: {difference}")));
    }
    write::stdout(text.as_bytes())
}

fn points(deviation: f64) -> String {
    format!("{:.1}", 100.0 * deviation)
}

fn print_json(methods: &[MethodResult], at: Comparison) -> Result<()> {
    let (step, tokens) = match at {
        Comparison::Step(step) => (Some(step), None),
        Comparison::Tokens(tokens) => (None, Some(tokens)),
    };
    let mut writer = Writer::stdout();
    let pays = methods.iter().any(MethodResult::pays_in_parts);
    for (place, method) in methods.iter().enumerate() {
        let run = |run: &RunResult| {
            json!({"seed": run.seed, "run": run.name, "step": run.step, "tokens": run.tokens, "success": run.success,
                "return": run.returns.filter(|_| pays)})
        };
        let paired = (place > 0).then(|| method.minus(&methods[0])).flatten();
        let against = paired.map(|Paired { seeds, difference, returns }| {
            json!({"method": methods[0].name, "seeds": seeds, "value": difference.mean,
                "deviation": difference.deviation, "interval": difference.interval, "return": returns.filter(|_| pays)})
        });
        let line = json!({"type": "comparison", "v": VERSION, "method": method.name, "step": step, "at_tokens": tokens,
            "runs": method.runs.iter().map(run).collect::<Vec<Value>>(), "first": method.mean(|run| run.first),
            "success": method.mean(|run| run.success), "best": method.mean(|run| run.best),
            "return": method.mean_return().filter(|_| pays), "tokens": method.tokens(), "against": against});
        if let Some(line) = line.as_object() {
            writer.object(line)?;
        }
    }
    writer.flush()
}
