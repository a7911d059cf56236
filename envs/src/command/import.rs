//! `envs import`: public data sets as task lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use envs::Split;
use envs::import::{Importer, LAYOUTS, find, identity};
use record::failure::{Failure, Result};
use record::stage;
use record::write::{self, Writer};
use serde_json::Value;

/// Turns the records of public data sets into task lines, for `--set data=FILE`.
///
/// Duplicate problems are dropped. A hash of the text names a problem and puts one in eight into the test split, so a
/// problem has the same split in every file. --split puts all problems into one split. --without drops the problems of
/// another import, so that you never train on a benchmark. The solutions of programming problems are run in the sandbox,
/// which takes about a second per problem.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs import train.jsonl > problems.jsonl
  envs import small.jsonl --test-share 0.3 > problems.jsonl
  envs import aime24.jsonl --split test --source aime24 > aime24-tasks.jsonl
  envs import polaris.jsonl --split train --without aime24-tasks.jsonl > train-tasks.jsonl
  envs tasks math --set data=train-tasks.jsonl --count 32
  envs import apps.jsonl > apps-tasks.jsonl
  envs tasks code --set data=apps-tasks.jsonl --count 32
  envs import --layouts")]
pub struct Import {
    /// Files of JSON Lines, or of one JSON array; - is stdin.
    #[arg(value_name = "FILE", required_unless_present = "layouts")]
    files: Vec<PathBuf>,
    /// Layout of the records [default: recognized by the fields of each record].
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// Puts all problems into one split [default: split by a hash].
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// Share of problems in the test split [default: one in eight].
    #[arg(long, value_name = "SHARE", conflicts_with = "split", value_parser = share)]
    test_share: Option<f64>,
    /// Name of the source, kept in each task.
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// Drops the problems of an earlier import (repeatable).
    #[arg(long, value_name = "FILE")]
    without: Vec<PathBuf>,
    /// Only lists the layouts.
    #[arg(long)]
    layouts: bool,
}

impl Import {
    pub fn run(&self) -> Result<()> {
        if self.layouts {
            let mut text = String::new();
            for layout in LAYOUTS {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{:<15} {:<10} {}", layout.name, layout.environment, layout.summary);
            }
            return write::stdout(text.as_bytes());
        }
        let mut importer = Importer {
            layout: self.layout.as_deref().map(find).transpose()?,
            split: self.split,
            test_share: self.test_share,
            source: self.source.clone(),
            ..Importer::default()
        };
        for file in &self.without {
            for (number, record) in records(file)?.into_iter().enumerate() {
                if let Some(problem) = record["spec"]["problem"].as_str() {
                    importer.without.insert(identity(problem));
                } else if record["type"] == "task" {
                    return Err(Failure::data("a task without a problem").at(place(file, number)));
                }
            }
        }
        let mut writer = Writer::stdout();
        let (mut read, mut written) = (0, 0);
        let mut splits = BTreeMap::from(["train", "test"].map(|split| (split, 0_u64)));
        for file in &self.files {
            for (number, record) in records(file)?.iter().enumerate() {
                read += 1;
                let task = importer.task(record).map_err(|failure| failure.at(place(file, number)))?;
                if let Some(task) = task {
                    writer.object(&task)?;
                    written += 1;
                    let split = task.split.as_deref();
                    splits
                        .iter_mut()
                        .filter(|(name, _)| Some(**name) == split)
                        .for_each(|(_, count)| *count += 1);
                }
                if stage::interrupted() {
                    return Err(Failure::interrupted());
                }
            }
        }
        let mut reasons: Vec<(&str, u64)> =
            importer.left_out.iter().map(|(reason, count)| (*reason, *count)).collect();
        reasons.sort_unstable();
        for (reason, count) in &reasons {
            stage::note("envs", format!("{} left out: {reason}", stage::counted(*count, "record")));
        }
        let counts = ["train", "test"].map(|split| format!("{} {split}", splits[split]));
        stage::note("envs", format!("{}: {}", stage::counted(written, "problem"), counts.join(", ")));
        if self.split.is_none()
            && let Some((split, _)) = splits.iter().find(|(_, count)| written > 0 && **count == 0)
        {
            let all = stage::counted(written, "problem");
            let message = format!(
                "the {split} split is empty: {all} fell into the other; --test-share 0.5 divides them otherwise, --split \
                 puts a whole file into one"
            );
            stage::note("envs", message);
        }
        super::tasks::end(&mut writer, &[("records", read), ("tasks", written), ("left_out", read - written)])
    }
}

/// A share above 0 and below 1.
fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "a share is above 0 and below 1, such as 0.2".to_owned())
}

fn place(file: &Path, number: usize) -> String {
    format!("{}: record {}", file.display(), number + 1)
}

/// The records of a file: the elements of its one array, or one value after another.
fn records(file: &Path) -> Result<Vec<Value>> {
    let mut bytes = Vec::new();
    match file.as_os_str() == "-" {
        true => std::io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::io(format!("reading stdin: {error}")))?,
        false => record::file::open(file)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| Failure::named_file(file, &error))?,
    };
    let is_named = |end: &str| file.extension().is_some_and(|extension| extension == end);
    let format = match () {
        () if bytes.starts_with(b"PAR1") => Some(("Parquet", "parquet")),
        () if is_named("csv") || is_named("tsv") => Some(("CSV", "csv")),
        () => None,
    };
    if let Some((name, reader)) = format {
        let file = file.display();
        return Err(Failure::data(format!("{file}: this is {name}, and JSON Lines are read")).hint(format!(
            "python3 -c \"import pandas; pandas.read_{reader}('{file}').to_json('{file}.jsonl', orient='records', \
             lines=True)\" writes {file}.jsonl"
        )));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::data(format!("{}: no UTF-8", file.display())))?;
    let text = text.trim_start_matches('\u{feff}');
    let mut records = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let unreadable = |error| Failure::data(error).at(place(file, records.len()));
        match value.map_err(|error| unreadable(error).hint("JSON Lines, or one JSON array"))? {
            Value::Array(values) if records.is_empty() => records = values,
            value => records.push(value),
        }
    }
    Ok(records)
}
