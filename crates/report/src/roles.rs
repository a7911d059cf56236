//! `report roles`: what a credit rule does to each agent, from the record alone.
//!
//! It reads a stream after `advantage` and shows by agent where learning fails: groups with nothing to learn from, an agent
//! that takes all of the advantage, advantages that point nowhere, candidates of a state that all earn the same. With
//! `--against` it compares two rules on one record. The numbers are those that `report` draws of each step. Left out: what
//! needs the policy (entropy, clipping, gradients), which `update` measures.

use std::collections::HashMap;
use std::path::Path;

use record::failure::{Failure, Result};
use record::read::{Kind, Line, Reader};
use record::sample::{Field, Sample};
use serde_json::{Map, Value, json};

use crate::arguments::{ResultFormat, Roles};
use crate::credit::StepCredit;
use crate::metrics;
use crate::run;
use crate::stats::StreamStats;
use crate::table::aligned;

/// Reads the streams and prints what each agent's samples are worth.
///
/// # Errors
/// 65: a bad line, or no samples with groups; 74: I/O.
pub fn run(arguments: &Roles) -> Result<()> {
    let mut stats = StreamStats::default();
    if let Some(path) = &arguments.against {
        stats.credits = StepCredit::against(advantages(open(path)?)?);
    }
    let stats = match &arguments.file {
        Some(path) => read(open(path)?, stats)?,
        None => read(Reader::stdin(), stats)?,
    };
    if stats.agents.is_empty() {
        return Err(
            Failure::data("the stream has no samples").hint("report roles reads what advantage writes")
        );
    }
    let mut agents: Vec<(&String, Map<String, Value>)> =
        stats.agents.keys().map(|agent| (agent, Map::new())).collect();
    let mut names: Vec<String> = Vec::new();
    for metric in metrics::of_roles(&stats) {
        if !names.contains(&metric.name) {
            names.push(metric.name.clone());
        }
        if let Some((_, values)) = agents.iter_mut().find(|(agent, _)| **agent == metric.agent) {
            values.insert(metric.name, json!(metric.value));
        }
    }
    let text = match arguments.format {
        ResultFormat::Table => table(&names, &agents),
        _ => agents.iter().map(|(agent, values)| json_line(agent, &names, values)).collect(),
    };
    record::write::stdout(text.as_bytes())
}

fn open(path: &Path) -> Result<Reader<record::file::InputFile>> {
    let input = run::open(path)?;
    Ok(Reader::new(&path.display().to_string(), input))
}

fn read<R: std::io::Read>(mut reader: Reader<R>, mut stats: StreamStats) -> Result<StreamStats> {
    while let Some(line) = reader.next()? {
        let sample = grouped(&line)?;
        stats.take(&line, sample.as_ref())?;
    }
    stats.close();
    Ok(stats)
}

/// The sample of a line, which must have what `advantage` writes.
fn grouped<'a>(line: &'a Line) -> Result<Option<Sample<'a>>> {
    if line.kind != Kind::Sample {
        return Ok(None);
    }
    let sample = Sample::parse(line)?;
    sample.require(line, &[Field::Id, Field::Agent])?;
    sample
        .require(line, &[Field::Group])
        .map_err(|failure| failure.hint("report roles reads what advantage writes"))?;
    Ok(Some(sample))
}

/// The advantages of a stream by sample.
fn advantages<R: std::io::Read>(mut reader: Reader<R>) -> Result<HashMap<String, f64>> {
    let mut found = HashMap::new();
    while let Some(line) = reader.next()? {
        if let Some(sample) = grouped(&line)? {
            let id = sample.id.as_deref().unwrap_or_default().to_owned();
            found.extend(sample.advantage.map(|advantage| (id, advantage)));
        }
    }
    Ok(found)
}

fn json_line(agent: &str, names: &[String], values: &Map<String, Value>) -> String {
    let mut line = Map::from_iter([("agent".to_owned(), json!(agent))]);
    line.extend(names.iter().map(|name| (name.clone(), values.get(name).cloned().unwrap_or_default())));
    format!("{}\n", Value::Object(line))
}

/// A metric a line, an agent a column.
fn table(names: &[String], agents: &[(&String, Map<String, Value>)]) -> String {
    let cell = |value: Option<&Value>| match value.and_then(Value::as_f64) {
        Some(value) if value.fract() == 0.0 && value.abs() > 1.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.3}"),
        None => "-".to_owned(),
    };
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(agents.iter().map(|(agent, _)| (*agent).clone()));
    for name in names {
        let cells = agents.iter().map(|(_, values)| cell(values.get(name)));
        rows.push([name.clone()].into_iter().chain(cells).collect());
    }
    aligned(&rows, 1)
}
