//! The result of an evaluation as text: a table for people, lines of JSON for programs, one short line for a
//! log.

use std::collections::BTreeSet;

use record::failure::{Failure, Result};
use record::read::VERSION;
use record::stage::printable;
use record::write::{self, Writer};
use serde_json::{Map, Value, json};

use crate::evaluate::Evaluated;
use crate::evaluate::measure::{self, Difference, Measured, Rate, difference};
use crate::run_summary::MANY_CUT;
use crate::stats::{AnswerCounts, EnvironmentStats};
use crate::table::{aligned, numbers, or_dash, percent, percents};

const HEADS: [&str; 12] = [
    "stream",
    "environment",
    "tasks",
    "episodes",
    "solved",
    "success",
    "95 % interval",
    "return",
    "95 % interval",
    "turns",
    "tokens/episode",
    "cut",
];

/// Every stream and environment with its result.
fn rows(streams: &[Evaluated]) -> impl Iterator<Item = (&Evaluated, &str, &EnvironmentStats, Measured)> {
    streams.iter().flat_map(|stream| {
        let played = stream.environments.played();
        played.map(move |(environment, stats)| (stream, environment, stats, measure::measure(stats)))
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
    stats: &EnvironmentStats,
) -> Result<Option<Difference>> {
    let Some(base) = base else { return Ok(None) };
    match base.environments.get(environment).and_then(|other| difference(stats, other)) {
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
    let mut table = vec![HEADS.map(str::to_owned).to_vec()];
    let mut notes = Vec::new();
    for (stream, environment, stats, measured) in rows(streams) {
        let episodes = stats.episodes();
        let tokens = stats.completion_tokens().map(|tokens| tokens as f64 / episodes as f64);
        table.push(vec![
            stream.name.clone(),
            environment.to_owned(),
            stats.tasks.len().to_string(),
            episodes.to_string(),
            stats.solved().to_string(),
            percent(measured.success.value),
            or_dash(measured.success.interval, percents),
            or_dash(measured.returns, |returns| format!("{:.2}", returns.value)),
            or_dash(measured.returns.and_then(|returns| returns.interval), numbers),
            or_dash(stats.turns.mean(), |turns| format!("{turns:.2}")),
            or_dash(tokens, |tokens| format!("{tokens:.1}")),
            or_dash(stats.cut(), percent),
        ]);
        let place = format!("{}, {environment}", stream.name);
        for (k, rate) in &measured.pass {
            notes.push(format!("{place}: pass@{k} {}", in_percent(rate)));
        }
        for (agent, components) in &measured.components {
            let parts = components.iter().map(|(name, rate)| format!("{name} {}", with_interval(rate)));
            notes.push(format!("{place}: {agent}: {}", parts.collect::<Vec<String>>().join(", ")));
        }
        if let Some(found) = against(base, stream, environment, stats)? {
            let interval = found.interval.map_or(String::new(), |(low, high)| {
                format!(" (95 % interval {:+.1} to {:+.1})", 100.0 * low, 100.0 * high)
            });
            let base = base.map_or("", |base| &base.name);
            let points = 100.0 * found.value;
            let returns = found.returns.filter(|_| found.pays_in_parts);
            let returns = returns.map_or(String::new(), |returns| {
                let ends = returns.interval.map(|(low, high)| format!(" ({low:+.2} to {high:+.2})"));
                format!(", return {:+.2}{}", returns.value, ends.unwrap_or_default())
            });
            notes.push(format!(
                "{place}: {points:+.1} points{interval}{returns} against {base} on {} tasks",
                found.tasks
            ));
            notes.push(format!(
                "{place}: solves where {base} fails {}, fails where it solves {}",
                in_percent(&found.helped),
                in_percent(&found.hurt)
            ));
        }
    }
    let mut text = aligned(&table, 2);
    notes.iter().for_each(|note| text += &format!("{}\n", printable(note)));
    write::stdout(text.as_bytes())
}

fn in_percent(rate: &Rate) -> String {
    let interval = rate.interval.map(|ends| format!(" (95 % interval {})", percents(ends)));
    percent(rate.value) + &interval.unwrap_or_default()
}

/// A number with its interval: `1.25 (0.75 to 1.75)`.
pub fn with_interval(rate: &Rate) -> String {
    let interval = rate.interval.map(|ends| format!(" ({})", numbers(ends)));
    format!("{:.2}{}", rate.value, interval.unwrap_or_default())
}

/// One `evaluation` line for each stream and environment.
pub fn json(streams: &[Evaluated], base: Option<&Evaluated>) -> Result<()> {
    let mut writer = Writer::stdout();
    for (stream, environment, stats, measured) in rows(streams) {
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
        put("type", json!("evaluation"));
        put("v", json!(VERSION));
        if let Some(step) = stream.environments.step {
            put("step", json!(step));
        }
        put("stream", json!(stream.name));
        put("env", json!(environment));
        put("tasks", json!(stats.tasks.len()));
        put("episodes", json!(stats.episodes()));
        put("solved", json!(stats.solved()));
        put("errors", json!(stats.errors));
        put("success", json!(measured.success.value));
        put("success_interval", json!(measured.success.interval));
        put("interval_method", json!(measured.method));
        put("pass_at", json!(measured.pass));
        put("reward", json!(measured.returns.map(|returns| returns.value)));
        put("reward_interval", json!(measured.returns.and_then(|returns| returns.interval)));
        put("reward_components", json!(measured.components));
        put("turns", json!(stats.turns.mean()));
        let known = stats.samples > 0;
        put("completion_tokens", json!(stats.completion_tokens()));
        let by_agent = |of: fn(&AnswerCounts) -> Value| -> Value {
            let all = stats.answers.iter().map(|(agent, answers)| (agent.clone(), of(answers)));
            if known { Value::Object(all.collect()) } else { Value::Null }
        };
        put("completion_tokens_by_agent", by_agent(|answers| json!(answers.tokens)));
        put("prompt_tokens", json!(known.then_some(stats.prompt_tokens)));
        put("completions_cut", json!(stats.cut()));
        put("completions_cut_by_agent", by_agent(|answers| json!(answers.cut_share())));
        if let Some(found) = against(base, stream, environment, stats)? {
            let base = base.map(|base| &base.name);
            let difference = json!({"stream": base, "tasks": found.tasks, "value": found.value, "interval": found.interval,
                                    "helped": found.helped, "hurt": found.hurt, "reward": found.returns});
            put("against", difference);
        }
        writer.object(&line)?;
    }
    writer.flush()
}

/// A short line for each stream and environment, for a log; of several environments with their names.
pub fn line(streams: &[Evaluated]) -> Result<()> {
    let mut text = String::new();
    let played = streams.iter().flat_map(|stream| stream.environments.played());
    let is_mixed = played.map(|(environment, _)| environment).collect::<BTreeSet<_>>().len() > 1;
    for (_, environment, stats, measured) in rows(streams) {
        if is_mixed {
            text += &format!("{environment} ");
        }
        let (solved, episodes) = (stats.solved(), stats.episodes());
        let success = measured.success.value;
        text += &match stats.tasks.len() as u64 {
            tasks if tasks == episodes => format!("{success:.3} ({solved}/{episodes})"),
            tasks => format!("{success:.3} over {tasks} distinct tasks ({solved}/{episodes} episodes)"),
        };
        if let Some((low, high)) = measured.success.interval {
            text += &format!(", 95 % interval {low:.3} to {high:.3}");
        }
        if let Some(returns) = measured.partial_returns() {
            text += &format!(", return {}", with_interval(&returns));
        }
        if let Some(tokens) = stats.completion_tokens() {
            text += &format!(", {:.1} tokens an episode", tokens as f64 / episodes as f64);
        }
        if let Some(cut) = stats.cut().filter(|cut| *cut >= MANY_CUT) {
            text += &format!(", {:.0} % of answers cut", 100.0 * cut);
        }
        text.push('\n');
    }
    write::stdout(text.as_bytes())
}
