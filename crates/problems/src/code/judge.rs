//! Judges programs and test cases. Programs run in the sandbox, verdicts are made here.
//!
//! Left out: speed, except for the time limit.

use record::failure::Result;
use sandbox::{Entry, Execution, Program, Status};
use serde::{Deserialize, Serialize};

use super::compare::{same, same_members};
use super::expression;
use super::spec::{Encoding, Instance, Style, Test};
use crate::run;

/// Timeouts after which the remaining tests count as failed without being run.
const MAX_TIMEOUTS: usize = 2;

/// The result of a program on an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its output or return value, if it ended without an error.
    pub output: Option<String>,
    /// Why there is no output.
    pub fault: String,
    /// It exceeded the time limit.
    pub late: bool,
}

/// A case on which the program gave an unexpected result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disagreement {
    pub case: Test,
    /// The program's output, if any.
    pub got: Option<String>,
    /// Why there is none.
    pub fault: String,
}

/// Results of the golden tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResults {
    /// Passed tests.
    pub passed: usize,
    /// All tests.
    pub total: usize,
}

impl TestResults {
    /// Passed tests as a share of all.
    pub fn fraction(&self) -> f64 {
        self.passed as f64 / self.total.max(1) as f64
    }

    /// Returns true if all were passed.
    pub fn all(&self) -> bool {
        self.passed == self.total
    }
}

/// Runs the program `source` on `input`.
pub fn run(instance: &Instance, source: &str, input: &str) -> Result<Run> {
    let entry = match (instance.problem.style, &instance.problem.function) {
        (Style::Function, Some(name)) => Entry::Solve(name),
        _ => Entry::Script,
    };
    execute(instance, source, input, entry)
}

/// Returns true if `source` compiles; it is not run.
pub fn compiles(instance: &Instance, source: &str) -> Result<bool> {
    Ok(execute(instance, source, "", Entry::Compile)?.output.is_some())
}

fn execute(instance: &Instance, source: &str, stdin: &str, entry: Entry<'_>) -> Result<Run> {
    if instance.rules.encoding == Encoding::Compact
        && let Some(body) = expression::body(source)
    {
        return Ok(compute(body, stdin, entry));
    }
    let program = Program { source, entry, stdin, limits: instance.limits() };
    Ok(read(&*run::run(&program)?, entry))
}

/// Evaluates an expression, without the sandbox.
fn compute(body: &str, stdin: &str, entry: Entry<'_>) -> Run {
    let x = match entry {
        // Any number will do, to see whether it is a valid expression.
        Entry::Compile => Some(1),
        _ => match serde_json::from_str::<Vec<i64>>(stdin).as_deref() {
            Ok([x]) => Some(i128::from(*x)),
            _ => None,
        },
    };
    let output = x.and_then(|x| expression::evaluate(body, x)).map(|value| value.to_string());
    let fault = if output.is_some() { "" } else { "it has no value" };
    Run { output, fault: fault.to_owned(), late: false }
}

fn read(execution: &Execution, entry: Entry<'_>) -> Run {
    let fault = match execution.status {
        Status::Exited(0) => {
            let output = match entry.function() {
                Some(_) => execution.result.clone(),
                None => Some(execution.stdout.clone()),
            };
            return Run { output, fault: String::new(), late: false };
        }
        Status::Exited(code) => match execution.stderr.lines().rfind(|line| !line.trim().is_empty()) {
            Some(line) => line.chars().take(200).collect(),
            None => format!("exit code {code}"),
        },
        Status::Signal(number) => format!("killed by signal {number}"),
        Status::CpuTime | Status::WallTime => "out of time".to_owned(),
        Status::Memory => "out of memory".to_owned(),
        Status::Output => "too much output".to_owned(),
    };
    Run { output: None, fault, late: matches!(execution.status, Status::CpuTime | Status::WallTime) }
}

/// Returns true if `run` gave the output of `test`.
pub fn gives(instance: &Instance, run: &Run, test: &Test) -> bool {
    run.output.as_ref().is_some_and(|got| match test.any_order {
        true => same_members(&test.output, got),
        false => same(instance.problem.style, &test.output, got),
    })
}

/// Returns true if `source` passes `test`.
pub fn passes(instance: &Instance, source: &str, test: &Test) -> Result<bool> {
    Ok(gives(instance, &run(instance, source, &test.input)?, test))
}

/// Runs `source` on the golden tests.
pub fn golden(instance: &Instance, source: &str) -> Result<TestResults> {
    let tests = &instance.problem.tests;
    let (mut passed, mut late) = (0, 0);
    for test in tests {
        let run = run(instance, source, &test.input)?;
        passed += usize::from(gives(instance, &run, test));
        late += usize::from(run.late);
        if late == MAX_TIMEOUTS {
            break;
        }
    }
    Ok(TestResults { passed, total: tests.len() })
}

/// The quality of a test case, judged by the reference solution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// The reference solution accepts the input.
    pub valid: bool,
    /// The reference solution gives the expected output.
    pub agrees: bool,
    /// Share of the known wrong programs that the case detects; 1 if none are known. 0 for a case that is
    /// wrong or was copied from the statement.
    pub finds: f64,
}

impl Quality {
    /// The quality of an unreadable case.
    pub const NOTHING: Quality = Quality { valid: false, agrees: false, finds: 0.0 };
}

/// Judges `case`. Without a reference solution only the golden tests are known to be right, so a case with
/// any other input is worth nothing.
pub fn quality(instance: &Instance, case: &Test) -> Result<Quality> {
    let problem = &instance.problem;
    if problem.style.check(case).is_err() {
        return Ok(Quality::NOTHING);
    }
    let right = match &problem.solution {
        Some(solution) => run(instance, solution, &case.input)?.output,
        None => problem
            .tests
            .iter()
            .find(|test| same(problem.style, &test.input, &case.input))
            .map(|test| test.output.clone()),
    };
    let Some(right) = right else { return Ok(Quality::NOTHING) };
    if !same(problem.style, &right, &case.output) {
        return Ok(Quality { valid: true, ..Quality::NOTHING });
    }
    let shows = instance.rules.encoding == Encoding::Full;
    if shows && problem.shown().iter().any(|test| same(problem.style, &test.input, &case.input)) {
        return Ok(Quality { valid: true, agrees: true, finds: 0.0 });
    }
    let mut found = 0;
    for wrong in &problem.wrong {
        found += usize::from(!passes(instance, wrong, case)?);
    }
    let finds = if problem.wrong.is_empty() { 1.0 } else { found as f64 / problem.wrong.len() as f64 };
    Ok(Quality { valid: true, agrees: true, finds })
}
