//! Problems from files: one [`Problem`] a line, as `envs import` writes them, and the small set that is shipped.
//!
//! A problem whose line has no `split` is for testing when a hash of its statement, white space aside, is divisible by 8;
//! so the same problem is on the same side in any file, whatever its name. Problems that are there twice are kept once.

use std::collections::HashSet;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Part, Stream};

use super::NAME;
use super::generate::task;
use super::spec::{Choice, Problem, Source};
use crate::environment::{Selection, Split, Tasks};
use crate::streams::split_of;

/// Problems of our own writing.
const SHIPPED: &str = include_str!("problems.jsonl");
/// One in this many problems is for testing.
const TEST_SHARE: u64 = 8;

/// The problems of `source`.
///
/// # Errors
/// A file that cannot be read, or a line that is no problem, naming the line.
pub fn problems(source: &Source) -> Result<Vec<Problem>> {
    let (name, text) = match source {
        Source::Generated => return Ok(Vec::new()),
        Source::Shipped => ("the shipped problems", SHIPPED.to_owned()),
        Source::File(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::io(error).at(path))?;
            (path.as_str(), text)
        }
    };
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{name}:{}", number + 1);
        let hint = "`envs import` writes this layout from public data sets";
        let problem: Problem =
            serde_json::from_str(line).map_err(|error| Failure::data(error).at(place()).hint(hint))?;
        problem.check().map_err(|cause| Failure::data(cause).at(place()).hint(hint))?;
        if seen.insert(fingerprint(&problem)) {
            problems.push(problem);
        }
    }
    Ok(problems)
}

/// The tasks of a selection, repeated in a new order beyond their end.
///
/// # Errors
/// As [`problems`], or a split that is empty.
pub fn tasks(choice: &Choice, selection: &Selection) -> Result<Tasks<'static>> {
    let split = selection.split;
    let own: Vec<Problem> = problems(&choice.source)?
        .into_iter()
        .filter(|problem| split_of_problem(problem) == split)
        .map(|mut problem| {
            problem.tests.truncate(choice.tests.max(problem.examples));
            problem
        })
        .collect();
    if own.is_empty() {
        return Err(Failure::data(format!("{NAME}: the split {} has no problem", split.name()))
            .hint("a line may say `\"split\":\"train\"` or `\"split\":\"test\"`"));
    }
    let tasks: Arc<[Task]> = own.into_iter().map(|problem| task(&choice.rules, problem, split)).collect();
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

/// What is left of a statement without white space.
fn fingerprint(problem: &Problem) -> String {
    problem.statement.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn split_of_problem(problem: &Problem) -> Split {
    match problem.split.as_deref() {
        Some("train") => Split::Train,
        Some("test") => Split::Test,
        _ => split_of(fingerprint(problem).as_bytes(), TEST_SHARE),
    }
}
