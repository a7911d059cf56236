//! Generated Code tasks, drawn and never run.
//!
//! Answers are computed in Rust, by code that shares only the task with the Python reference solution. `envs
//! check` verifies that both agree on every test, which checks both. Wrong programs solve similar tasks. Only
//! those are kept that fail one common hidden test, so that a perfect test case exists.
//!
//! The split depends on a task's function: its answers on fixed inputs are hashed, and one task in 16 (one in
//! 8 on lists) is for testing. So two descriptions of the same function are in the same split.

use std::collections::HashMap;

use record::failure::Result;
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use serde::Serialize;
use serde_json::{Value, json};

use super::NAME;
use super::expression::{self, Chain};
use super::list::{Pipeline, draw_list};
use super::spec::{CodeProblem, Encoding, Style, TaskSettings, Test};
use environment::Split;
use environment::streams::{self, first_word, split_of};

/// One in this many tasks is for testing.
const TEST_SHARE: u64 = 16;
/// Share of test tasks on lists, of which there are fewer.
const TEST_SHARE_OF_LISTS: u64 = 8;
/// Draws after which the settings are assumed to allow no task.
const ATTEMPTS: u32 = 20_000;
/// Lists drawn for each test at most.
const LISTS: usize = 8;
/// Most wrong programs of a task.
const WRONG: usize = 4;
/// Greatest absolute value of an answer to a tiny policy's task.
const LARGEST_SMALL: i64 = 200;

/// A task of `split`, drawn from `stream`.
///
/// # Errors
/// The settings allow no such task: usage.
pub fn draw(settings: &TaskSettings, split: Split, stream: Stream) -> Result<Task> {
    let drawn = |draws: &mut Draws| {
        let steps = settings.least + draws.below((settings.most - settings.least + 1) as u32) as usize;
        let (behavior, problem, share) = match settings.rules.encoding {
            Encoding::Compact => small(settings, steps, draws)?,
            Encoding::Full if settings.level == 1 => formula(settings, steps, draws)?,
            Encoding::Full => large(settings, steps, draws)?,
        };
        let own = split_of(json!(behavior).to_string().as_bytes(), share);
        (own == split).then(|| streams::task(NAME, split, &problem.name, settings.rules.spec(&problem)))
    };
    streams::first_task(ATTEMPTS, split, stream, drawn, || {
        let TaskSettings { least, most, tests, .. } = settings;
        (format!("least={least} most={most} tests={tests}"), "allow more steps, or fewer tests")
    })
}

/// A task's answers to fixed inputs, the task, and the share of such tasks for testing.
type Drawn = (Vec<Value>, CodeProblem, u64);

/// A task for tiny policies, with its answers to fixed inputs.
fn small(settings: &TaskSettings, steps: usize, draws: &mut Draws) -> Option<Drawn> {
    let chain = Chain::draw(steps, draws);
    let mut inputs: Vec<i64> = (0..10).collect();
    draws.shuffle(&mut inputs);
    inputs.truncate(settings.tests);
    if !(0..10).all(|x| (-LARGEST_SMALL..=LARGEST_SMALL).contains(&chain.answer(x))) {
        return None;
    }
    // Copying the words as an expression must be wrong, or copying would solve the task.
    let copied = format!(" {}", chain.words());
    let differs = |x: &i64| expression::evaluate(&copied, i128::from(*x)) != Some(chain.answer(*x).into());
    let mut best: Vec<i64> = inputs.iter().copied().filter(differs).collect();
    if best.is_empty() {
        return None;
    }
    best.sort_unstable();
    let behavior = (0..10).map(|x| json!(chain.answer(x))).collect();
    let draft = Draft {
        statement: chain.words(),
        style: Style::Function,
        name: "f",
        answer: |chain: &Chain, x: &i64| json!(chain.answer(*x)),
        write: |chain: &Chain| expression::program(&chain.expression()),
    };
    let mut problem = draft.problem(settings, &chain, &chain.slips(), &inputs, &best)?;
    problem.wrong.insert(0, expression::program(&copied));
    problem.wrong.truncate(WRONG);
    Some((behavior, problem, TEST_SHARE))
}

/// Arithmetic on a number in prose, with its answers to the inputs of [`small`], so that equal functions of
/// both kinds share a split.
fn formula(settings: &TaskSettings, steps: usize, draws: &mut Draws) -> Option<Drawn> {
    let chain = Chain::draw(steps, draws);
    let mut inputs: Vec<i64> = (-9..=20).collect();
    draws.shuffle(&mut inputs);
    inputs.truncate(settings.tests);
    let draft = Draft {
        statement: chain.prose(),
        style: Style::Function,
        name: "solve",
        answer: |chain: &Chain, x: &i64| json!(chain.answer(*x)),
        write: |chain: &Chain| format!("def solve(x):\n    return{}\n", chain.expression()),
    };
    let hidden = inputs.get(settings.examples..).filter(|hidden| !hidden.is_empty()).unwrap_or(&inputs);
    let mut problem = draft.problem(settings, &chain, &chain.slips(), &inputs, hidden)?;
    // Different inputs do not make a different task.
    problem.name = format!("{:016x}", first_word(chain.words().as_bytes()));
    let behavior = (0..10).map(|x| json!(chain.answer(x))).collect();
    (!problem.wrong.is_empty()).then_some((behavior, problem, TEST_SHARE))
}

/// A task in prose, with its answers to fixed inputs.
fn large(settings: &TaskSettings, steps: usize, draws: &mut Draws) -> Option<Drawn> {
    let pipeline = Pipeline::draw(steps, draws);
    let style = if draws.below(2) == 0 { Style::Stdin } else { Style::Function };
    let mut fixed = Draws::new(Stream::named(0, &[Part::Text(NAME), Part::Text("behaviour")]));
    let behavior: Vec<Value> = (0..24).map(|_| pipeline.answer(&draw_list(&mut fixed))).collect();
    // A task with a constant answer is useless.
    if behavior.iter().all(|answer| *answer == behavior[0]) {
        return None;
    }
    // An output that many tests share would pay a program that prints it.
    let most = settings.tests.div_ceil(4);
    let mut outputs: HashMap<String, usize> = HashMap::new();
    let mut lists: Vec<Vec<i64>> = Vec::new();
    for _ in 0..LISTS * settings.tests {
        let list = draw_list(draws);
        let count = outputs.entry(pipeline.answer(&list).to_string()).or_default();
        if lists.len() < settings.tests && *count < most {
            *count += 1;
            lists.push(list);
        }
    }
    if lists.len() < settings.tests {
        return None;
    }
    let form = match style {
        Style::Stdin => {
            "\nInput: the first line holds the number of numbers, the second line the numbers. Output: the result; a list \
             is printed on one line.\n"
        }
        Style::Function => "\nWrite a function solve(x) that takes the list and returns the result.\n",
    };
    let draft = Draft {
        statement: pipeline.words() + form,
        style,
        name: "solve",
        answer: |pipeline: &Pipeline, list: &Vec<i64>| pipeline.answer(list),
        write: |pipeline: &Pipeline| match style {
            Style::Stdin => pipeline.script(),
            Style::Function => pipeline.function(),
        },
    };
    // A case shown in the statement does not distinguish programs.
    let hidden = lists.get(settings.examples..).filter(|hidden| !hidden.is_empty()).unwrap_or(&lists);
    let mut problem = draft.problem(settings, &pipeline, &pipeline.slips(), &lists, hidden)?;
    problem.name = format!("{:016x}", first_word(problem.statement.as_bytes()));
    (!problem.wrong.is_empty()).then_some((behavior, problem, TEST_SHARE_OF_LISTS))
}

/// Functions that turn a family of tasks into problems.
struct Draft<A, W> {
    statement: String,
    style: Style,
    /// The function's name.
    name: &'static str,
    answer: A,
    /// The program of a task.
    write: W,
}

impl<A, W> Draft<A, W> {
    /// The problem of `task`, tested on `inputs`. Its wrong programs are the `slips` that fail on the first
    /// of the `best` inputs that detects most of them.
    fn problem<T, I: Serialize>(
        self,
        settings: &TaskSettings,
        task: &T,
        slips: &[T],
        inputs: &[I],
        best: &[I],
    ) -> Option<CodeProblem>
    where
        A: Fn(&T, &I) -> Value,
        W: Fn(&T) -> String,
    {
        let found = |input: &I| -> Vec<&T> {
            let right = (self.answer)(task, input);
            slips.iter().filter(|slip| (self.answer)(slip, input) != right).collect()
        };
        let best = best.iter().rev().max_by_key(|input| found(input).len())?;
        let wrong = found(best).into_iter().take(WRONG).map(&self.write).collect();
        let test = |input: &I| {
            let (input, output) = (json!(input), (self.answer)(task, input));
            match self.style {
                Style::Stdin => {
                    let count = input.as_array().map_or(0, Vec::len);
                    Test {
                        input: format!("{count}\n{}", printed(&input)),
                        output: printed(&output),
                        ..Test::default()
                    }
                }
                Style::Function => {
                    Test { input: json!([input]).to_string(), output: output.to_string(), ..Test::default() }
                }
            }
        };
        let tests: Vec<Test> = inputs.iter().map(test).collect();
        let name = format!("{:016x}", first_word(json!([self.statement, inputs]).to_string().as_bytes()));
        Some(CodeProblem {
            name,
            statement: self.statement,
            style: self.style,
            function: (self.style == Style::Function).then(|| self.name.to_owned()),
            examples: settings.examples.min(tests.len()),
            tests,
            solution: Some((self.write)(task)),
            wrong,
        })
    }
}

/// A number, or the numbers of a list, on a line.
fn printed(value: &Value) -> String {
    let words = match value {
        Value::Array(list) => list.iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
        number => number.to_string(),
    };
    words + "\n"
}
