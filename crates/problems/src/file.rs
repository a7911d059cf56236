//! Problems from files: task lines, as `envs import` writes them, and the small sets that come with the program.
//!
//! The rules of a task (encoding, turns, limits) come from the settings, whatever its line says. A problem is
//! known by its text, so that it has one name and one split wherever it comes from: the split that its line
//! names, otherwise one by a hash of its text. Test problems come in the file's order; train problems in
//! orders that the seed decides, each once before any comes again.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use record::read::{Kind, Reader};
use serde_json::Value;

use crate::Problem;
use environment::streams;
use environment::{Selection, Split, Tasks};

/// The name that selects the shipped problems.
const SHIPPED: &str = "shipped";
/// Bytes of a file of problems.
const LARGEST: u64 = 1 << 30;
/// One in this many problems is for testing.
const TEST_SHARE: u64 = 8;

/// What names a problem: a hash of its text without white space and case.
pub fn identity(text: &str) -> u64 {
    let bare: String =
        text.chars().filter(|letter| !letter.is_whitespace()).flat_map(char::to_lowercase).collect();
    streams::first_word(bare.as_bytes())
}

/// The split of a problem whose source names none; `share`: of test problems, if not one in eight.
pub fn split_of(text: &str, share: Option<f64>) -> Split {
    let is_test = match share {
        None => identity(text).is_multiple_of(TEST_SHARE),
        Some(share) => (identity(text) as f64) < share * (u64::MAX as f64),
    };
    if is_test { Split::Test } else { Split::Train }
}

/// The tasks of a selection from `file`, without end.
///
/// # Errors
/// A file that cannot be read, or a split that is empty: usage. A line that is no task of this environment, or a problem
/// in both splits: data, naming the line.
pub fn tasks<P: Problem>(
    name: &'static str,
    file: &str,
    rules: &P::Rules,
    selection: &Selection,
) -> Result<Tasks<'static>> {
    let (split, seed) = (selection.split, selection.seed);
    let mut tasks = if file == SHIPPED { shipped::<P>(name, rules)? } else { read::<P>(name, file, rules)? };
    tasks.retain(|task| task.split.as_deref() == Some(split.name()));
    if tasks.is_empty() {
        return Err(Failure::usage(format!("--set data={file}: it has no {} problem", split.name()))
            .hint("`envs import --split` decides where problems go"));
    }
    let tasks: Arc<[Task]> = tasks.into();
    Ok(Box::new((0..).flat_map(move |round: u64| {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        if round > 0 || split == Split::Train {
            let name = [Part::Text(name), Part::Text("data"), Part::Text(split.name()), Part::Number(round)];
            Draws::new(Stream::named(seed, &name)).shuffle(&mut order);
        }
        let tasks = Arc::clone(&tasks);
        order.into_iter().map(move |index| Ok(tasks[index].clone()))
    })))
}

/// The task of the problem in `raw`. What a source says besides (a level, a source) is kept.
fn task<P: Problem>(
    environment: &str,
    rules: &P::Rules,
    raw: &Value,
    identity: u64,
    split: Split,
) -> Result<Task> {
    let name = format!("{identity:016x}");
    let mut spec = P::from_file(rules, raw, &name)?;
    if let (Value::Object(spec), Value::Object(raw)) = (&mut spec, raw) {
        for (key, value) in raw {
            spec.entry(key).or_insert_with(|| value.clone());
        }
    }
    Ok(streams::task(environment, split, &name, spec))
}

fn shipped<P: Problem>(name: &str, rules: &P::Rules) -> Result<Vec<Task>> {
    let parse = |line| {
        let mut raw: Value = serde_json::from_str(line).map_err(Failure::work)?;
        raw["source"] = SHIPPED.into();
        let text = raw["problem"].as_str().unwrap_or_default();
        task::<P>(name, rules, &raw, identity(text), split_of(text, None))
    };
    P::shipped(name).lines().map(parse).collect()
}

/// The problems of `file`, each once.
fn read<P: Problem>(name: &str, file: &str, rules: &P::Rules) -> Result<Vec<Task>> {
    let path = Path::new(file);
    let opened = record::file::open(path).and_then(|opened| Ok((path.metadata()?.len(), opened)));
    let (length, opened) = opened.map_err(|error| {
        Failure::usage(format!("--set data={file}: {error}"))
            .hint("`envs import` writes such a file; shipped is a small one of our own")
    })?;
    // A pipe does not say how long it is.
    let mut bounded = opened.take(LARGEST + 1);
    let tasks =
        if length > LARGEST { Ok(Vec::new()) } else { tasks_of::<P>(name, file, &mut bounded, rules) };
    match length > LARGEST || bounded.limit() == 0 {
        true => Err(Failure::data(format!("--set data={file}: more than {} MiB", LARGEST >> 20))
            .hint("all problems are kept in memory: divide the file, or select from it with jq")),
        false => tasks,
    }
}

fn tasks_of<P: Problem>(name: &str, file: &str, lines: impl Read, rules: &P::Rules) -> Result<Vec<Task>> {
    const HINT: &str = "`envs import` writes this layout from public data sets";
    let place = |failure: Failure| match failure.message.contains("no `type`") {
        true => Failure::data(format!("--set data={file}: these are no tasks")).hint(format!(
            "records of a data set: envs import {file} > tasks.jsonl, then --set data=tasks.jsonl"
        )),
        false => failure.at(format!("--set data={file}")),
    };
    let mut reader = Reader::new(file, lines);
    let mut tasks = Vec::new();
    let mut known: HashMap<u64, Split> = HashMap::new();
    let raw =
        || format!("if that is a data set: envs import {file} > tasks.jsonl, then --set data=tasks.jsonl");
    while let Some(line) = reader.next().map_err(|failure| match tasks.is_empty() {
        true => place(failure).hint(raw()),
        false => place(failure),
    })? {
        if line.kind != Kind::Task {
            continue;
        }
        let fail = |cause: String| place(line.failure(cause));
        let raw: Task = record::line::parse(&line).map_err(place)?;
        if raw.env != name {
            return Err(fail(format!("{} is a task of {}", raw.task, raw.env)));
        }
        let text = raw.spec["problem"].as_str();
        let text = text.ok_or_else(|| fail("spec: problem: there is no text".to_owned()).hint(HINT))?;
        let identity = identity(text);
        let split = match raw.split.as_deref() {
            Some("train") => Split::Train,
            Some("test") => Split::Test,
            _ => split_of(text, None),
        };
        match known.insert(identity, split) {
            None => tasks.push(
                task::<P>(name, rules, &raw.spec, identity, split)
                    .map_err(|failure| fail(failure.message.clone()).hint(HINT))?,
            ),
            Some(before) if before == split => {}
            Some(_) => {
                return Err(fail(format!("the problem of {} is in both splits", raw.task))
                    .hint("`envs import` gives each problem one split"));
            }
        }
    }
    Ok(tasks)
}
