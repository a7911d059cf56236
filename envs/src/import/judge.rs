//! Decides with the environments' rules whether a converted record becomes a task.
//!
//! The solution of a program is the first that passes all tests in the sandbox; problems without one are left out and
//! counted. Wrong programs come from the data set, or else are mutants of the solution with one sign changed, as in
//! Stronger-MAS (arXiv 2510.11062, appendix A.1). Only those are kept that fail one common hidden test, so that a perfect
//! test case exists.

use std::collections::HashSet;

use record::failure::Failure;
use serde::Deserialize;
use serde_json::Value;

use environment::spec::write;
use problems::code::compare::same_members;
use problems::code::judge::{golden, passes, run};
use problems::code::mutate::mutants;
use problems::code::spec::{CodeProblem, Encoding, Instance, Reasoning, Rules, Test};
use problems::math::answer::{Answer, extract};
use problems::{code, coop_code, math};

/// Most golden tests per problem: the examples, then the shortest.
const TESTS: usize = 32;
/// Longest test in bytes, input and output together.
const LONGEST: usize = 1 << 16;
/// Why a problem without a passing solution is left out.
const UNSOLVED: &str = "no solution that passes its tests";
/// Most solutions to try.
const SOLUTIONS: usize = 8;
/// Most wrong programs to try, and to keep.
const WRONG: (usize, usize) = (12, 4);
/// Processor seconds of a wrong program and test: many mutants never end.
const WRONG_CPU: f64 = 2.0;
/// Rules for trying solutions.
const RULES: Rules = Rules {
    encoding: Encoding::Full,
    reasoning: Reasoning::Steps,
    turns: 4,
    cpu: 10.0,
    wall: None,
    memory: 512,
};

/// Why a record is not converted.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It is unusable, for this short reason.
    LeftOut(String),
    /// It could not be judged, for example without a sandbox; the import fails.
    Failed(Failure),
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Refusal {
        Refusal::LeftOut(reason.to_owned())
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Failed(failure)
    }
}

/// A converted record.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Draft {
    /// The environment.
    pub env: String,
    /// The task's `spec`, as far as it is known.
    pub spec: Value,
    /// A solution in words that ends with the answer.
    worked: Option<String>,
    /// Ways to read the tests of a program; the first counts that a solution passes.
    tests: Vec<Vec<Assert>>,
    /// Programs that should pass; `None`: none is known.
    solutions: Option<Vec<String>>,
    /// Programs that should fail.
    wrong: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Assert {
    #[serde(flatten)]
    test: Test,
    /// How near a number has to be, relative and absolute, as of `math.isclose`.
    #[serde(default)]
    tolerance: Option<(f64, f64)>,
}

impl Draft {
    /// The `spec` of the task.
    pub fn spec(&self) -> Result<Value, Refusal> {
        const UNFIT: &str = "fields that make no problem";
        match self.env.as_str() {
            math::NAME => self.math(),
            coop_code::NAME => {
                let spec = coop_code::Spec::deserialize(&self.spec).map_err(|_| UNFIT)?;
                spec.check()?;
                Ok(write(&spec))
            }
            code::NAME => {
                let known = CodeProblem::deserialize(&self.spec).map_err(|_| UNFIT)?;
                if self.tests.is_empty() {
                    return known.check().map(|()| finished(&known)).map_err(|_| UNFIT.into());
                }
                let mut spec = Err("no tests".into());
                for tests in &self.tests {
                    spec = self.code(&known, tests);
                    if !matches!(&spec, Err(Refusal::LeftOut(reason)) if reason == UNSOLVED) {
                        break;
                    }
                }
                spec
            }
            _ => Ok(self.spec.clone()),
        }
    }

    fn math(&self) -> Result<Value, Refusal> {
        let found = self.worked.as_deref().and_then(extract::answer);
        let answer = found.or_else(|| self.spec["answer"].as_str().map(str::to_owned));
        let answer = answer.ok_or("no answer in the solution")?.trim().to_owned();
        match Answer::read(&answer) {
            None => return Err("no answer".into()),
            Some(Answer::Word(words)) if words.split(' ').count() > 3 => {
                return Err("an answer in prose".into());
            }
            Some(_) => {}
        }
        let mut spec = self.spec.clone();
        spec["answer"] = answer.into();
        Ok(spec)
    }

    /// A problem with a solution that passes, and with the wrong programs that a single test detects.
    fn code(&self, known: &CodeProblem, asserts: &[Assert]) -> Result<Value, Refusal> {
        let instance = |problem: &CodeProblem| {
            Instance::parse(&RULES.spec(problem)).map_err(|_| "tests that cannot be read")
        };
        let mut problem = fit(known, asserts.iter().map(|assert| assert.test.clone()).collect())?;
        let Some(solutions) = &self.solutions else { return Ok(finished(&problem)) };
        let first = solutions.first().ok_or("no solution in Python")?;
        if asserts.iter().any(|assert| assert.test.any_order || assert.tolerance.is_some()) {
            let tests = asserts.iter().map(|assert| nearest(&instance(&problem)?, first, assert));
            problem = fit(known, tests.collect::<Result<_, Refusal>>()?)?;
        }
        let instance = instance(&problem)?;
        let mut passing = None;
        for solution in solutions.iter().take(SOLUTIONS) {
            if golden(&instance, solution)?.all() {
                passing = Some(solution);
                break;
            }
        }
        let solution = passing.ok_or(UNSOLVED)?;
        let made = if self.wrong.is_empty() { mutants(solution) } else { Vec::new() };
        let tried: Vec<&String> = self.wrong.iter().chain(&made).take(WRONG.0).collect();
        // A test shown in the statement does not distinguish programs.
        let trial = Instance { rules: Rules { cpu: WRONG_CPU, ..RULES }, ..instance.clone() };
        let hidden = problem.tests.get(problem.examples..).filter(|hidden| !hidden.is_empty());
        for test in hidden.unwrap_or(&problem.tests).iter().take(TESTS / 4) {
            let mut found = Vec::new();
            for program in &tried {
                if found.len() < WRONG.1 && !passes(&trial, program, test)? {
                    found.push((*program).clone());
                }
            }
            if found.len() > problem.wrong.len() {
                problem.wrong = found;
            }
            if problem.wrong.len() == WRONG.1.min(tried.len()) {
                break;
            }
        }
        problem.solution = Some(solution.clone());
        Ok(finished(&problem))
    }
}

/// The test of an assert. Where a value only has to be near, or its order does not matter, the solution's value is the
/// expected one, if it is right.
fn nearest(instance: &Instance, solution: &str, assert: &Assert) -> Result<Test, Refusal> {
    let Assert { test, tolerance } = assert;
    if tolerance.is_none() && !test.any_order {
        return Ok(test.clone());
    }
    let got = run(instance, solution, &test.input)?.output.unwrap_or_default();
    let is_right = match (tolerance, got.parse::<f64>(), test.output.parse::<f64>()) {
        (Some((relative, absolute)), Ok(value), Ok(asserted)) => {
            (value - asserted).abs() <= absolute.max(relative * value.abs().max(asserted.abs()))
        }
        _ => same_members(&test.output, &got),
    };
    Ok(Test { output: if is_right { got } else { test.output.clone() }, ..test.clone() })
}

/// The problem with its examples, then the shortest other tests, each once.
fn fit(known: &CodeProblem, mut tests: Vec<Test>) -> Result<CodeProblem, &'static str> {
    let length = |test: &Test| test.input.len() + test.output.len();
    let mut hidden = tests.split_off(known.examples.min(tests.len()));
    hidden.sort_by_key(length);
    let mut seen = HashSet::new();
    let mut fits =
        |test: &Test| length(test) <= LONGEST && seen.insert((test.input.clone(), test.output.clone()));
    tests.retain(&mut fits);
    hidden.retain(&mut fits);
    let examples = tests.len();
    tests.extend(hidden);
    tests.truncate(TESTS.max(examples));
    if tests.is_empty() {
        return Err("no tests");
    }
    let problem = CodeProblem { tests, examples, ..known.clone() };
    problem.check().map(|()| problem).map_err(|_| "tests that cannot be read")
}

/// A problem as the `spec` of a task; the caller adds the rules.
fn finished(problem: &CodeProblem) -> Value {
    let mut spec = write(problem);
    if let Value::Object(fields) = &mut spec {
        fields.shift_remove("name");
    }
    spec
}
