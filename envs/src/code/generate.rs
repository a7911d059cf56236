//! Which Code tasks there are: those of a file ([`crate::problems`]), or drawn, never run.
//!
//! Answers are computed in Rust, by code that shares nothing with the Python of the reference solution but the task: that
//! the two agree on every test is a test of both, and `envs check` makes it. Wrong programs are those of tasks that are
//! easily taken for this one. Only those are kept that one golden test, the first of its kind, finds out together, so
//! that there is a test case that finds out all of them.
//!
//! Train and test are told apart by what a task computes: its answers on fixed inputs are hashed, and one task in 16 is
//! for testing. Two ways of saying the same are on the same side.

use record::failure::{Failure, Result};
use record::line::Task;
use record::philox::{Draws, Stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::NAME;
use super::expression::{self, Chain};
use super::list::{Answer, Pipeline, draw_list};
use super::spec::{Encoding, Problem, Rules, Style, TaskSettings, Test};
use crate::environment::{Selection, Split, Tasks};
use crate::problems::Problems;
use crate::streams::{self, first_word, split_of};

/// Problems of our own.
const PROBLEMS: Problems = Problems { environment: NAME, shipped: include_str!("../../problems/code.jsonl") };

/// One in this many tasks is for testing.
const TEST_SHARE: u64 = 16;
/// Draws after which the settings are found to allow no task.
const ATTEMPTS: u32 = 20_000;
/// Most wrong programs of a task.
const WRONG: usize = 4;
/// Greatest size of a number in an answer to a tiny policy's task.
const LARGEST_SMALL: i64 = 200;

/// The problems of a file, or tasks without end.
///
/// # Errors
/// As [`Problems::tasks`].
pub fn tasks(settings: TaskSettings, selection: &Selection) -> Result<Tasks<'static>> {
    match settings.data.clone() {
        None => Ok(streams::tasks(NAME, selection, move |split, stream| draw(&settings, split, stream))),
        Some(file) => PROBLEMS.tasks(&file, selection, |spec, identity, split| {
            let mut task = from_file(&settings, spec, identity, split)?;
            // What a source says besides is kept.
            if let (Value::Object(to), Value::Object(from)) = (&mut task.spec, spec) {
                for (name, value) in from {
                    to.entry(name).or_insert_with(|| value.clone());
                }
            }
            Ok(task)
        }),
    }
}

fn from_file(settings: &TaskSettings, spec: &Value, identity: u64, split: Split) -> Result<Task> {
    let mut problem = Problem::deserialize(spec).map_err(|error| Failure::data(format!("spec: {error}")))?;
    problem.check().map_err(|cause| Failure::data(format!("spec: {cause}")))?;
    problem.name = format!("{identity:016x}");
    problem.tests.truncate(settings.tests.max(problem.examples));
    Ok(task(&settings.rules, problem, split))
}

/// A task of `split`, drawn from `stream`.
///
/// # Errors
/// The settings allow no such task: usage.
pub fn draw(settings: &TaskSettings, split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let steps = settings.least + draws.below((settings.most - settings.least + 1) as u32) as usize;
        let (behavior, problem) = match settings.rules.encoding {
            Encoding::Compact => small(settings, steps, draws)?,
            Encoding::Full => large(settings, steps, draws)?,
        };
        (split_of(behavior.as_bytes(), TEST_SHARE) == split).then(|| task(&settings.rules, problem, split))
    };
    streams::first_task(ATTEMPTS, split, stream, drawn, || {
        let TaskSettings { least, most, tests, .. } = settings;
        (format!("least={least} most={most} tests={tests}"), "allow more steps, or fewer tests")
    })
}

/// The task line of `problem`.
pub fn task(rules: &Rules, problem: Problem, split: Split) -> Task {
    streams::task(NAME, split, &problem.name, rules.spec(&problem))
}

/// A task for tiny policies, with what it computes.
fn small(settings: &TaskSettings, steps: usize, draws: &mut Draws) -> Option<(String, Problem)> {
    let chain = Chain::draw(steps, draws);
    let inputs: Vec<i64> = {
        let mut inputs: Vec<i64> = (0..10).collect();
        draws.shuffle(&mut inputs);
        inputs.truncate(settings.tests);
        inputs
    };
    let behavior: Vec<i64> = (0..10).map(|x| chain.answer(x)).collect();
    if behavior.iter().any(|answer| answer.abs() > LARGEST_SMALL) {
        return None;
    }
    let slips = chain.slips();
    let found =
        |x: i64| -> Vec<&Chain> { slips.iter().filter(|slip| slip.answer(x) != chain.answer(x)).collect() };
    let best = inputs.iter().copied().max_by_key(|&x| (found(x).len(), -x))?;
    let wrong: Vec<String> =
        found(best).into_iter().take(WRONG).map(|slip| expression::program(&slip.expression())).collect();
    let tests = inputs
        .iter()
        .map(|&x| Test { input: format!("[{x}]"), output: chain.answer(x).to_string() })
        .collect::<Vec<_>>();
    let statement = chain.words();
    let name = format!("{:016x}", first_word(json!([statement, inputs]).to_string().as_bytes()));
    let solution = Some(expression::program(&chain.expression()));
    Some((
        json!(behavior).to_string(),
        Problem {
            name,
            statement,
            style: Style::Function,
            function: Some("f".to_owned()),
            examples: settings.examples.min(tests.len()),
            tests,
            solution,
            wrong,
        },
    ))
}

/// A task in prose, with what it computes.
fn large(settings: &TaskSettings, steps: usize, draws: &mut Draws) -> Option<(String, Problem)> {
    let pipeline = Pipeline::draw(steps, draws);
    let style = if draws.below(2) == 0 { Style::Stdin } else { Style::Function };
    let behavior: Vec<serde_json::Value> =
        fixed_lists().map(|list| returned(&pipeline.answer(&list))).collect();
    // A task that always gives the same is none.
    if behavior.iter().all(|answer| *answer == behavior[0]) {
        return None;
    }
    let lists: Vec<Vec<i64>> = (0..settings.tests).map(|_| draw_list(draws)).collect();
    let slips = pipeline.slips();
    let found = |list: &[i64]| -> Vec<&Pipeline> {
        slips.iter().filter(|slip| slip.answer(list) != pipeline.answer(list)).collect()
    };
    let best = lists.iter().rev().max_by_key(|list| found(list).len())?;
    let write = |pipeline: &Pipeline| match style {
        Style::Stdin => pipeline.script(),
        Style::Function => pipeline.function(),
    };
    let wrong: Vec<String> = found(best).into_iter().take(WRONG).map(write).collect();
    if wrong.is_empty() {
        return None;
    }
    let tests: Vec<Test> = lists
        .iter()
        .map(|list| {
            let answer = pipeline.answer(list);
            match style {
                Style::Stdin => Test { input: printed_input(list), output: printed(&answer) },
                Style::Function => {
                    Test { input: json!([list]).to_string(), output: returned(&answer).to_string() }
                }
            }
        })
        .collect();
    let form = match style {
        Style::Stdin => {
            "\nInput: the first line holds the number of numbers, the second line the numbers. Output: the result; a list \
             is printed on one line.\n"
        }
        Style::Function => "\nWrite a function solve(x) that takes the list and returns the result.\n",
    };
    let statement = pipeline.words() + form;
    let name = format!("{:016x}", first_word(json!([statement, lists]).to_string().as_bytes()));
    Some((
        json!(behavior).to_string(),
        Problem {
            name,
            statement,
            style,
            function: (style == Style::Function).then(|| "solve".to_owned()),
            examples: settings.examples.min(tests.len()),
            tests,
            solution: Some(write(&pipeline)),
            wrong,
        },
    ))
}

/// Lists whose answers tell what a task computes.
fn fixed_lists() -> impl Iterator<Item = Vec<i64>> {
    let stream =
        Stream::named(0, &[record::philox::Part::Text(NAME), record::philox::Part::Text("behaviour")]);
    let mut draws = Draws::new(stream);
    (0..24).map(move |_| draw_list(&mut draws))
}

fn printed_input(list: &[i64]) -> String {
    format!("{}\n{}\n", list.len(), words(list))
}

fn words(list: &[i64]) -> String {
    list.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
}

fn printed(answer: &Answer) -> String {
    match answer {
        Answer::List(list) => words(list) + "\n",
        Answer::Number(number) => format!("{number}\n"),
    }
}

fn returned(answer: &Answer) -> serde_json::Value {
    match answer {
        Answer::List(list) => json!(list),
        Answer::Number(number) => json!(number),
    }
}
