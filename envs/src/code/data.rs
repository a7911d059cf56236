//! Problems from files: task lines, as `envs import` writes them, and the small set that is shipped.
//!
//! The rules of a task (encoding, turns, limits) are those of the settings it is drawn with, whatever its line says. A
//! problem is known by its text, so that it has one name and one split wherever it comes from.

use std::collections::HashMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::read::{Kind, Reader};
use serde::Deserialize;

use super::NAME;
use super::generate::task;
use super::spec::{Choice, Problem};
use crate::environment::{Selection, Split, Tasks};
use crate::import::{self, Importer};

/// Problems of our own writing, and the name that selects them.
const SHIPPED: (&str, &str) = ("shipped", include_str!("../../problems/code.jsonl"));

/// The problems of a file, each once, with their splits.
///
/// # Errors
/// A file that cannot be read, or a line that is no task of this environment, naming the line.
pub fn problems(file: &str) -> Result<Vec<(Problem, Split)>> {
    let place = |failure: Failure| failure.at(format!("--set data={file}"));
    let mut reader = Reader::new(file, std::io::Cursor::new(lines(file)?));
    let mut problems: Vec<(Problem, Split)> = Vec::new();
    let mut known: HashMap<u64, Split> = HashMap::new();
    while let Some(line) = reader.next().map_err(place)? {
        if line.kind != Kind::Task {
            continue;
        }
        let hint = "`envs import` writes this layout from public data sets";
        let written: Task = record::line::parse(&line).map_err(place)?;
        if written.env != NAME {
            return Err(place(line.failure(format!("{} is a task of {}", written.task, written.env))));
        }
        let mut problem = Problem::deserialize(&written.spec)
            .map_err(|error| place(line.failure(format!("spec: {error}"))).hint(hint))?;
        problem.check().map_err(|cause| place(line.failure(format!("spec: {cause}"))).hint(hint))?;
        let identity = import::identity(&problem.statement);
        problem.name = format!("{identity:016x}");
        let split = match written.split.as_deref() {
            Some("train") => Split::Train,
            Some("test") => Split::Test,
            _ => import::split_of(&problem.statement),
        };
        match known.insert(identity, split) {
            None => problems.push((problem, split)),
            Some(before) if before == split => {}
            Some(_) => {
                return Err(place(line.failure("this problem is in both splits"))
                    .hint("`envs import` gives each problem one split"));
            }
        }
    }
    Ok(problems)
}

/// The file as it stands, or as `envs import` makes it of the problems of our own.
fn lines(file: &str) -> Result<String> {
    if file != SHIPPED.0 {
        return std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!("--set data={file}: {error}"))
                .hint("`envs import` writes such a file; shipped is a small one of our own")
        });
    }
    let mut importer = Importer { source: Some(SHIPPED.0.to_owned()), ..Importer::default() };
    let mut lines = String::new();
    for record in SHIPPED.1.lines() {
        let record = serde_json::from_str(record).map_err(Failure::work)?;
        if let Some(task) = importer.task(&record)? {
            lines.push_str(&serde_json::to_string(&task).map_err(Failure::work)?);
            lines.push('\n');
        }
    }
    Ok(lines)
}

/// The tasks of a selection from `file`, repeated in a new order beyond their end.
///
/// # Errors
/// As [`problems`], or a split that is empty.
pub fn tasks(choice: &Choice, file: &str, selection: &Selection) -> Result<Tasks<'static>> {
    let split = selection.split;
    let tasks: Arc<[Task]> = problems(file)?
        .into_iter()
        .filter(|(_, own)| *own == split)
        .map(|(mut problem, _)| {
            problem.tests.truncate(choice.tests.max(problem.examples));
            task(&choice.rules, problem, split)
        })
        .collect();
    if tasks.is_empty() {
        return Err(Failure::usage(format!("--set data={file}: it has no {} problem", split.name()))
            .hint("`envs import --split` decides where problems go"));
    }
    let seed = selection.seed;
    Ok(Box::new((0..).flat_map(move |repetition: u64| {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        if repetition > 0 || split == Split::Train {
            let name = [Part::Text(NAME), Part::Text("order"), Part::Number(repetition)];
            Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
        }
        let tasks = Arc::clone(&tasks);
        order.into_iter().map(move |index| Ok(tasks[index].clone()))
    })))
}
