//! The figures of an evaluation as text: a table for people, lines of JSON for programs, one short line for a log.

use std::io::Write;

use record::failure::{Failure, Result};
use record::read::VERSION;
use record::write::Writer;
use serde_json::{Map, Value, json};

use crate::evaluate::Evaluated;
use crate::evaluate::interval::Interval;
use crate::evaluate::measure::{self, Measured};
use crate::evaluate::outcomes::Outcomes;
use crate::evaluate::paired::{Difference, difference};

const HEADS: [&str; 9] = [
    "stream",
    "environment",
    "tasks",
    "episodes",
    "solved",
    "success",
    "95 % interval",
    "turns",
    "tokens/episode",
];

/// Every stream and environment with what it came to.
fn rows(streams: &[Evaluated]) -> impl Iterator<Item = (&Evaluated, &str, &Outcomes, Measured)> {
    streams.iter().flat_map(|stream| {
        let outcomes = stream.environments.outcomes.iter();
        outcomes.map(move |(environment, outcomes)| {
            (stream, environment.as_str(), outcomes, measure::of(outcomes))
        })
    })
}

/// The difference to the base's episodes of the same environment.
///
/// # Errors
/// 65 where they have no task in common.
fn against(
    base: Option<&Evaluated>,
    stream: &Evaluated,
    environment: &str,
    outcomes: &Outcomes,
) -> Result<Option<Difference>> {
    let Some(base) = base else { return Ok(None) };
    let other = base.environments.outcomes.get(environment);
    match other.and_then(|other| difference(outcomes, other)) {
        Some(difference) => Ok(Some(difference)),
        None => Err(Failure::data(format!(
            "{}: {environment}: has no task in common with {}",
            stream.name, base.name
        ))
        .hint("a difference is taken task by task: play both on the same tasks")),
    }
}

/// A table with a row for each stream and environment.
///
/// # Errors
/// 65 where `base` shares no task with a stream; 74 when writing fails.
pub fn table(streams: &[Evaluated], base: Option<&Evaluated>) -> Result<()> {
    let mut table = vec![HEADS.map(str::to_owned)];
    let mut notes = Vec::new();
    for (stream, environment, outcomes, measured) in rows(streams) {
        let episodes = outcomes.episodes();
        let tokens = outcomes.completion_tokens().map(|tokens| tokens as f64 / episodes as f64);
        table.push([
            stream.name.clone(),
            environment.to_owned(),
            outcomes.tasks.len().to_string(),
            episodes.to_string(),
            outcomes.solved().to_string(),
            measured.success.map_or("-".to_owned(), percent),
            measured
                .interval
                .map_or("-".to_owned(), |(low, high)| format!("{:.1} to {}", 100.0 * low, percent(high))),
            outcomes.turns.mean().map_or("-".to_owned(), |turns| format!("{turns:.2}")),
            tokens.map_or("-".to_owned(), |tokens| format!("{tokens:.1}")),
        ]);
        let place = format!("{}, {environment}", stream.name);
        for pass in &measured.pass {
            let interval = pass.interval.map_or(String::new(), percents);
            notes.push(format!("{place}: pass@{} {}{interval}", pass.k, percent(pass.value)));
        }
        if let Some(found) = against(base, stream, environment, outcomes)? {
            let interval = found.interval.map_or(String::new(), |(low, high)| {
                format!(" (95 % interval {:+.1} to {:+.1})", 100.0 * low, 100.0 * high)
            });
            let base = base.map_or("", |base| &base.name);
            let points = 100.0 * found.value;
            notes.push(format!(
                "{place}: {points:+.1} points{interval} against {base} on {} tasks",
                found.tasks
            ));
        }
    }
    let mut text = aligned(&table);
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    put(&text)
}

/// Columns under their heads: the names to the left, numbers to the right.
fn aligned(table: &[[String; 9]]) -> String {
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in table {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| match column {
                0 | 1 => format!("{cell:<0$}", width(column)),
                _ => format!("{cell:>0$}", width(column)),
            })
            .collect();
        text += &format!("{}\n", cells.join("  "));
    }
    text
}

/// One `evaluation` line for each stream and environment.
///
/// # Errors
/// As [`table`].
pub fn json(streams: &[Evaluated], base: Option<&Evaluated>) -> Result<()> {
    let mut writer = Writer::stdout();
    for (stream, environment, outcomes, measured) in rows(streams) {
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
        put("type", json!("evaluation"));
        put("v", json!(VERSION));
        if let Some(step) = stream.step {
            put("step", json!(step));
        }
        put("stream", json!(stream.name));
        put("env", json!(environment));
        put("tasks", json!(outcomes.tasks.len()));
        put("episodes", json!(outcomes.episodes()));
        put("solved", json!(outcomes.solved()));
        put("errors", json!(outcomes.errors));
        put("success", json!(measured.success));
        put("success_interval", json!(measured.interval));
        put("interval_method", json!(measured.method));
        let pass = measured
            .pass
            .iter()
            .map(|pass| (pass.k.to_string(), json!({"value": pass.value, "interval": pass.interval})));
        put("pass_at", Value::Object(pass.collect()));
        put("reward", json!(outcomes.reward.mean()));
        put("turns", json!(outcomes.turns.mean()));
        let known = outcomes.samples > 0;
        put("completion_tokens", json!(outcomes.completion_tokens()));
        put("completion_tokens_by_agent", json!(known.then_some(&outcomes.tokens)));
        put("prompt_tokens", json!(known.then_some(outcomes.prompt_tokens)));
        if let Some(found) = against(base, stream, environment, outcomes)? {
            let base = base.map(|base| &base.name);
            let difference = json!({"stream": base, "tasks": found.tasks, "value": found.value, "interval": found.interval});
            put("against", difference);
        }
        writer.object(&line)?;
    }
    writer.flush()
}

/// A short line for each stream and environment, as a log shows it.
///
/// # Errors
/// 74 when writing fails.
pub fn line(streams: &[Evaluated]) -> Result<()> {
    let mut text = String::new();
    for (_, _, outcomes, measured) in rows(streams) {
        let (solved, episodes) = (outcomes.solved(), outcomes.episodes());
        text += &format!("{:.3} ({solved}/{episodes})", measured.success.unwrap_or_default());
        if let Some((low, high)) = measured.interval {
            text += &format!(", 95 % interval {low:.3} to {high:.3}");
        }
        if let Some(tokens) = outcomes.completion_tokens() {
            text += &format!(", {:.1} tokens an episode", tokens as f64 / episodes as f64);
        }
        text.push('\n');
    }
    put(&text)
}

fn percent(rate: f64) -> String {
    format!("{:.1} %", 100.0 * rate)
}

fn percents((low, high): Interval) -> String {
    format!(" (95 % interval {:.1} to {})", 100.0 * low, percent(high))
}

fn put(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::closed(),
        _ => Failure::io(format!("writing the output: {error}")),
    })
}
