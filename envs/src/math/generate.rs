//! Which math tasks there are: word problems drawn without end, or the problems of a file.
//!
//! A word problem belongs to `test` when a hash of its chain of arithmetic is divisible by 8. The words that tell the
//! chain have no part in it, so no chain seen in training comes back in the test split, not in other words and not
//! in the other encoding.
//!
//! A problem of a file belongs to the split that its line names, and otherwise to `test` by a hash of its text
//! ([`crate::import`]). The file's test problems are taken in its order; train problems in orders that the seed
//! decides, each once before any comes again.

use std::collections::HashMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::read::{Kind, Reader};
use serde_json::{Map, Value};

use super::NAME;
use super::spec::{Encoding, Problem, Rules};
use super::story::Chain;
use crate::environment::{Selection, Split, Tasks};
use crate::import::{self, Importer};
use crate::streams;

/// One in this many problems is for testing.
const TEST_SHARE: u64 = 8;
/// Draws after which rules are found to allow no task.
const ATTEMPTS: u32 = 20_000;

/// Tasks of a selection.
///
/// # Errors
/// A file that cannot be read, or is no file of problems.
pub fn tasks(rules: Rules, selection: &Selection) -> Result<Tasks<'static>> {
    match rules.data.clone() {
        None => Ok(streams::tasks(NAME, selection, move |split, stream| word_problem(&rules, split, stream))),
        Some(file) => from_file(&rules, &file, selection),
    }
}

/// The first word problem of a stream that belongs to the split.
///
/// # Errors
/// The rules allow none: usage.
pub fn word_problem(rules: &Rules, split: Split, stream: Stream) -> Result<Task> {
    let mut draws = Draws::new(stream);
    for _ in 0..ATTEMPTS {
        let steps = 1 + draws.below(rules.level);
        let chain = Chain::draw(steps, rules.largest, &mut draws);
        let text = chain.write();
        if streams::split_of(text.as_bytes(), TEST_SHARE) != split || chain.steps.len() != steps as usize {
            continue;
        }
        let problem = match rules.encoding {
            Encoding::Compact => chain.tell_shortly(&mut draws),
            Encoding::Full => chain.tell(&mut draws),
        };
        let answer = chain.value().unwrap_or_default().to_string();
        let known = Map::from_iter([("level".to_owned(), Value::from(steps))]);
        return Ok(task(streams::first_word(text.as_bytes()), split, rules.spec(&problem, &answer, known)));
    }
    Err(Failure::usage(format!(
        "no {} task in {ATTEMPTS} draws: level={} largest={}",
        split.name(),
        rules.level,
        rules.largest
    ))
    .hint("a higher level or a greater largest leaves more room"))
}

/// The task line of a problem.
pub fn task(identity: u64, split: Split, spec: Value) -> Task {
    Task {
        env: NAME.to_owned(),
        task: format!("{NAME}/{}/{identity:016x}", split.name()),
        split: Some(split.name().to_owned()),
        spec,
        ..Task::default()
    }
}

/// The problems of `file` that belong to the selection's split.
fn from_file(rules: &Rules, file: &str, selection: &Selection) -> Result<Tasks<'static>> {
    let tasks = read(rules, file)?;
    let tasks: Vec<Task> =
        tasks.into_iter().filter(|task| task.split.as_deref() == Some(selection.split.name())).collect();
    if tasks.is_empty() {
        return Err(Failure::usage(format!(
            "--set data={file}: it has no {} problem",
            selection.split.name()
        )));
    }
    let (split, seed) = (selection.split, selection.seed);
    let tasks = Arc::new(tasks);
    let count = tasks.len();
    let order = move |round: u64| {
        let mut order: Vec<usize> = (0..count).collect();
        if split == Split::Train || round > 0 {
            let name = [Part::Text(NAME), Part::Text("data"), Part::Text(split.name()), Part::Number(round)];
            Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
        }
        order
    };
    Ok(Box::new((0..).flat_map(move |round| {
        let tasks = Arc::clone(&tasks);
        order(round).into_iter().map(move |index| Ok(tasks[index].clone()))
    })))
}

/// The problems that come with the program, and the name that selects them.
const SHIPPED: (&str, &str) = ("shipped", include_str!("../../problems/math.jsonl"));

/// Every task of the file of this name: as it stands, or as `envs import` makes it of the problems of our own.
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
        let record: Value = serde_json::from_str(record).map_err(Failure::work)?;
        if let Some(task) = importer.task(&record)? {
            lines.push_str(&serde_json::to_string(&task).map_err(Failure::work)?);
            lines.push('\n');
        }
    }
    Ok(lines)
}

/// Every task of a file, under the rules given; a problem that is there twice once.
fn read(rules: &Rules, file: &str) -> Result<Vec<Task>> {
    let place =
        |failure: Failure| Failure { message: format!("--set data={file}: {}", failure.message), ..failure };
    let mut reader = Reader::new(file, std::io::Cursor::new(lines(file)?));
    let mut tasks: Vec<Task> = Vec::new();
    let mut known: HashMap<u64, Split> = HashMap::new();
    while let Some(line) = reader.next().map_err(place)? {
        if line.kind != Kind::Task {
            continue;
        }
        let written: Task = record::line::parse(&line)?;
        if written.env != NAME {
            return Err(Failure::data(format!(
                "--set data={file}: {} is a task of {}",
                written.task, written.env
            )));
        }
        let problem = Problem::parse(&written.spec).map_err(place)?;
        let identity = import::identity(&problem.text);
        let split = match written.split.as_deref() {
            Some("train") => Split::Train,
            Some("test") => Split::Test,
            _ => import::split_of(&problem.text),
        };
        match known.insert(identity, split) {
            None => {}
            Some(before) if before == split => continue,
            Some(_) => {
                return Err(Failure::data(format!(
                    "--set data={file}: the problem of {} is in both splits",
                    written.task
                ))
                .hint("`envs import` gives each problem one split"));
            }
        }
        let known = match written.spec {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        tasks.push(task(identity, split, rules.spec(&problem.text, &problem.reference, known)));
    }
    Ok(tasks)
}
