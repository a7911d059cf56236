//! What programs do with inputs, and what that is worth: programs run in the sandbox, verdicts are made here.
//!
//! The same program on the same input is run once: what came of it is remembered by the digest of both, in this process
//! and as long as there is room. Candidates of one turn often repeat each other, and tests are repeated turn after turn.
//!
//! Left out: time as a part of the verdict beyond the limit; a program that is fast is worth as much as one that is not.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use record::failure::Result;
use serde_json::Value;

use super::compare::{same_text, same_value};
use super::expression;
use super::spec::{Encoding, Instance, Style, Test};
use sandbox::{Entry, Execution, Program, Sandbox, Status};

/// Runs that are remembered at a time.
const REMEMBERED: usize = 1 << 16;
/// Longest output that is remembered, in bytes.
const LONGEST: usize = 1 << 12;
/// Timeouts after which the remaining tests count as failed without being run.
const MAX_TIMEOUTS: usize = 2;

/// What came of a program and an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What it printed or returned, if it ended well.
    pub output: Option<String>,
    /// In a few words, why there is no output.
    pub fault: String,
    /// It ran out of time.
    pub late: bool,
}

/// Results of the golden tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResults {
    /// Passed tests.
    pub passed: usize,
    /// All tests.
    pub total: usize,
    /// The first test that was not passed, as its position, with what came of it.
    pub first_failure: Option<(usize, Run)>,
}

impl TestResults {
    /// Passed tests as a share of all.
    pub fn fraction(&self) -> f64 {
        self.passed as f64 / self.total.max(1) as f64
    }

    /// Whether all were passed.
    pub fn all(&self) -> bool {
        self.passed == self.total
    }
}

type Digest = [u8; 32];

static MEMORY: LazyLock<Mutex<HashMap<Digest, Run>>> = LazyLock::new(Mutex::default);

/// What the program `source` does with `input`.
///
/// # Errors
/// The sandbox fails.
pub fn run(instance: &Instance, source: &str, input: &str) -> Result<Run> {
    let entry = match (instance.problem.style, &instance.problem.function) {
        (Style::Function, Some(name)) => Entry::Call(name),
        _ => Entry::Script,
    };
    execute(instance, source, input, entry)
}

/// Whether `source` is a program; none of it is run.
///
/// # Errors
/// The sandbox fails.
pub fn compiles(instance: &Instance, source: &str) -> Result<bool> {
    Ok(execute(instance, source, "", Entry::Compile)?.output.is_some())
}

fn execute(instance: &Instance, source: &str, stdin: &str, entry: Entry<'_>) -> Result<Run> {
    if instance.rules.encoding == Encoding::Compact
        && let Some(body) = expression::body(source)
    {
        return Ok(compute(body, stdin, entry));
    }
    let limits = instance.limits();
    let mut hasher = blake3::Hasher::new();
    for part in [source, stdin, &format!("{entry:?} {limits:?}")] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = *hasher.finalize().as_bytes();
    if let Some(run) = MEMORY.lock().unwrap_or_else(PoisonError::into_inner).get(&digest) {
        return Ok(run.clone());
    }
    let program = Program { source, entry, stdin, limits };
    let run = reading(Sandbox::shared()?.run(&program)?, entry);
    if run.output.as_ref().is_none_or(|output| output.len() <= LONGEST) {
        let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.len() >= REMEMBERED {
            memory.clear();
        }
        memory.insert(digest, run.clone());
    }
    Ok(run)
}

/// What an expression gives: it is no program that a sandbox would be needed for.
fn compute(body: &str, stdin: &str, entry: Entry<'_>) -> Run {
    let x = match entry {
        // Any place will do to see whether it is an expression.
        Entry::Compile => Some(1),
        _ => match serde_json::from_str::<Vec<i64>>(stdin).as_deref() {
            Ok([x]) => Some(i128::from(*x)),
            _ => None,
        },
    };
    match x.and_then(|x| expression::evaluate(body, x)) {
        Some(value) => Run { output: Some(value.to_string()), fault: String::new(), late: false },
        None => Run { output: None, fault: "it has no value".to_owned(), late: false },
    }
}

fn reading(execution: Execution, entry: Entry<'_>) -> Run {
    let fault = match execution.status {
        Status::Exited(0) => {
            let output =
                if matches!(entry, Entry::Call(_)) { execution.result } else { Some(execution.stdout) };
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

/// Whether `got` is the output `expected` of this problem.
pub fn same(style: Style, expected: &str, got: &str) -> bool {
    match style {
        Style::Stdin => same_text(expected, got),
        Style::Function => {
            match (serde_json::from_str::<Value>(expected), serde_json::from_str::<Value>(got)) {
                (Ok(expected), Ok(got)) => same_value(&expected, &got),
                _ => false,
            }
        }
    }
}

/// Whether `source` passes `test`.
///
/// # Errors
/// The sandbox fails.
pub fn passes(instance: &Instance, source: &str, test: &Test) -> Result<bool> {
    let run = run(instance, source, &test.input)?;
    Ok(run.output.is_some_and(|output| same(instance.problem.style, &test.output, &output)))
}

/// How `source` does on the golden tests.
///
/// # Errors
/// The sandbox fails.
pub fn golden(instance: &Instance, source: &str) -> Result<TestResults> {
    let tests = &instance.problem.tests;
    let mut results = TestResults { passed: 0, total: tests.len(), first_failure: None };
    let mut late = 0;
    for (number, test) in tests.iter().enumerate() {
        let run = run(instance, source, &test.input)?;
        if run.output.as_ref().is_some_and(|output| same(instance.problem.style, &test.output, output)) {
            results.passed += 1;
            continue;
        }
        late += usize::from(run.late);
        results.first_failure.get_or_insert((number, run));
        if late == MAX_TIMEOUTS {
            break;
        }
    }
    Ok(results)
}

/// What a test case is worth, judged by the reference solution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// The reference solution takes the input.
    pub valid: bool,
    /// It gives the output that the case expects.
    pub agrees: bool,
    /// Share of the wrong programs that the case finds out; 1 where there are none, 0 for a case that does not agree.
    pub finds: f64,
}

/// Judges `case`. Without a reference solution only the golden tests are known to be right, and a case with another
/// input than theirs counts for nothing.
///
/// # Errors
/// The sandbox fails.
pub fn quality(instance: &Instance, case: &Test) -> Result<Quality> {
    const NOTHING: Quality = Quality { valid: false, agrees: false, finds: 0.0 };
    let problem = &instance.problem;
    let readable = match problem.style {
        Style::Stdin => true,
        Style::Function => {
            serde_json::from_str::<Vec<Value>>(&case.input).is_ok()
                && serde_json::from_str::<Value>(&case.output).is_ok()
        }
    };
    if !readable {
        return Ok(NOTHING);
    }
    let right = match &problem.solution {
        Some(solution) => run(instance, solution, &case.input)?.output,
        None => problem
            .tests
            .iter()
            .find(|test| same(problem.style, &test.input, &case.input))
            .map(|test| test.output.clone()),
    };
    let Some(right) = right else { return Ok(NOTHING) };
    if !same(problem.style, &right, &case.output) {
        return Ok(Quality { valid: true, ..NOTHING });
    }
    let mut found = 0;
    for wrong in &problem.wrong {
        found += usize::from(!passes(instance, wrong, case)?);
    }
    let finds = if problem.wrong.is_empty() { 1.0 } else { found as f64 / problem.wrong.len() as f64 };
    Ok(Quality { valid: true, agrees: true, finds })
}
