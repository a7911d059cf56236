//! `report roles`: the effect of a credit rule on each agent, from the record alone.
//!
//! It reads a stream after `advantage` and shows by agent where learning fails: groups with nothing to learn
//! from, an agent that takes all of the advantage, advantages that point nowhere, candidates of a state that
//! all earn the same. With `--against` it compares two rules on one record. The numbers are those that
//! `report` draws of each step. Left out: what needs the policy (entropy, clipping, gradients), which
//! `update` measures.

use std::collections::HashMap;
use std::path::Path;

use record::failure::{Failure, Result};
use record::read::{Kind, Line, Reader};
use record::sample::{Field, Sample};
use record::write::{self, Writer};
use serde_json::{Map, json};

use crate::arguments::{Roles, TableFormat};
use crate::credit::StepCredit;
use crate::metrics;
use crate::run_directory;
use crate::stats::StreamStats;
use crate::table::{aligned, or_dash};

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
    let metrics = metrics::role_metrics(&stats);
    let mut names: Vec<&str> = Vec::new();
    metrics.iter().for_each(|metric| {
        if !names.contains(&metric.name.as_str()) {
            names.push(&metric.name);
        }
    });
    let value = |agent: &str, name: &str| {
        metrics.iter().find(|metric| metric.agent == agent && metric.name == name).map(|metric| metric.value)
    };
    let agents = || stats.agents.keys().map(String::as_str);
    if arguments.format == TableFormat::Json {
        let mut writer = Writer::stdout();
        for agent in agents() {
            let mut line = Map::from_iter([("agent".to_owned(), json!(agent))]);
            line.extend(names.iter().map(|name| ((*name).to_owned(), json!(value(agent, name)))));
            writer.object(&line)?;
        }
        return writer.flush();
    }
    // A metric a line, an agent a column.
    let cell = |value: f64| match value.fract() == 0.0 && value.abs() > 1.0 {
        true => format!("{value:.0}"),
        false => format!("{value:.3}"),
    };
    let mut rows: Vec<Vec<String>> = vec![[""].into_iter().chain(agents()).map(str::to_owned).collect()];
    for name in &names {
        let cells = agents().map(|agent| or_dash(value(agent, name), cell));
        rows.push([(*name).to_owned()].into_iter().chain(cells).collect());
    }
    write::stdout(aligned(&rows, 1).as_bytes())
}

fn open(path: &Path) -> Result<Reader<record::file::InputFile>> {
    let input = run_directory::open_stream(path)?;
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
            found.extend(sample.advantage.flatten().map(|advantage| (id, advantage)));
        }
    }
    Ok(found)
}
