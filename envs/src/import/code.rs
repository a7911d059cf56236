//! Layouts of programming data sets.
//!
//! Of the solutions that come with a problem the first is taken that passes its tests, all of them run in the sandbox; a
//! problem without one is left out, and counted. Programs that are known to be wrong are kept where the data set has them;
//! where it has none they are made of the solution, one sign changed at a time (mutants, as Stronger-MAS asks for, arXiv
//! 2510.11062, appendix A.1). Only those are kept that a single golden test finds out, so that a perfect test case
//! exists.
//!
//! LiveCodeBench packs its private tests in Python's pickle format, which is a program in all but name: they are unpacked in
//! the sandbox.
//!
//! Left out: problems whose answer is checked by a program of their own, and solutions in other languages than Python 3.

use serde_json::{Map, Value, json};

use super::{Fields, Layout, Problem, Refusal};
use crate::code::NAME;
use crate::code::judge::{golden, passes};
use crate::code::mutate::mutants;
use crate::code::spec::{Encoding, Instance, Problem as Code, Rules, Style, Test};
use sandbox::{Limits, Program, Sandbox};

/// Golden tests that are kept of a problem, the shortest first after the examples.
const TESTS: usize = 32;
/// Longest test in bytes, input and output together.
const LONGEST: usize = 1 << 16;
/// Solutions that are tried.
const SOLUTIONS: usize = 8;
/// Wrong programs that are tried, and kept.
const WRONG: (usize, usize) = (12, 4);
/// Rules under which solutions are tried.
const RULES: Rules = Rules { encoding: Encoding::Full, turns: 4, cpu: 10.0, memory: 512 };

/// APPS: a question, solutions and tests as JSON in texts.
pub static APPS: Layout = Layout {
    name: "apps",
    environment: NAME,
    summary: "APPS: question, solutions and input_output (JSON as text), starter_code",
    recognizes: |record| record.contains_key("input_output") && record.contains_key("question"),
    convert: |record| {
        let tests = unpacked(record, "input_output").ok_or("no tests")?;
        let function = tests["fn_name"].as_str().map(str::to_owned);
        let pairs = pairs(&tests["inputs"], &tests["outputs"]);
        let tests =
            pairs.iter().filter_map(|(input, output)| test(input, output, function.is_some())).collect();
        let solutions = unpacked(record, "solutions").map(|texts| strings(&texts)).unwrap_or_default();
        let statement = text(record, "question").ok_or("no problem")?;
        let draft = Draft { statement, starter: text(record, "starter_code"), function, tests, examples: 1 };
        draft.finish(&solutions, &[])
    },
};

/// CodeContests: a description, tests in three groups, solutions and wrong solutions by language.
pub static CODE_CONTESTS: Layout = Layout {
    name: "code-contests",
    environment: NAME,
    summary: "CodeContests: description, public_tests, private_tests, generated_tests, solutions, incorrect_solutions",
    recognizes: |record| record.contains_key("public_tests") && record.contains_key("description"),
    convert: |record| {
        let group = |name: &str| -> Vec<Test> {
            let group = record.get(name).cloned().unwrap_or_default();
            let pairs = pairs(&group["input"], &group["output"]);
            pairs.iter().filter_map(|(input, output)| test(input, output, false)).collect()
        };
        let mut tests = group("public_tests");
        let examples = tests.len().min(3);
        tests.extend(group("private_tests"));
        tests.extend(group("generated_tests"));
        let statement = text(record, "description").ok_or("no problem")?;
        let draft = Draft { statement, starter: None, function: None, tests, examples };
        draft.finish(&python(record, "solutions"), &python(record, "incorrect_solutions"))
    },
};

/// LiveCodeBench: content, tests as JSON in texts, and the function's name in `metadata`. It has no solutions, so these
/// problems are kept without one where the record has no `solution`.
pub static LIVE_CODE_BENCH: Layout = Layout {
    name: "livecodebench",
    environment: NAME,
    summary: "LiveCodeBench: question_content, public_test_cases, private_test_cases (JSON as text, or packed), metadata",
    recognizes: |record| record.contains_key("question_content"),
    convert: |record| {
        let function =
            unpacked(record, "metadata").and_then(|data| data["func_name"].as_str().map(str::to_owned));
        let public = unpacked(record, "public_test_cases").unwrap_or_default();
        let private = match (record.get("private_test_cases"), unpacked(record, "private_test_cases")) {
            (Some(Value::String(text)), None) if !text.trim().is_empty() => unpickled(text)?,
            (_, tests) => tests.unwrap_or_default(),
        };
        let cases = |list: &Value| -> Vec<Test> {
            let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(|case| lines_of_arguments(case, function.is_some())).collect()
        };
        let mut tests = cases(&public);
        let examples = tests.len().min(3);
        tests.extend(cases(&private));
        let statement = text(record, "question_content").ok_or("no problem")?;
        let solutions: Vec<String> = text(record, "solution").into_iter().collect();
        let draft = Draft { statement, starter: text(record, "starter_code"), function, tests, examples };
        if solutions.is_empty() { draft.without_solution() } else { draft.finish(&solutions, &[]) }
    },
};

/// The layout of the shipped problems: the fields of a `spec`, without rules.
pub static PROBLEM: Layout = Layout {
    name: "problem",
    environment: NAME,
    summary: "the project's own: problem, style, function, tests, examples, solution, wrong",
    recognizes: |record| record.contains_key("style") && record.contains_key("tests"),
    convert: |record| {
        let code: Code = serde_json::from_value(Value::Object(record.clone()))
            .map_err(|_| "fields that make no problem")?;
        code.check().map_err(|_| "fields that make no problem")?;
        Ok(problem(&code))
    },
};

/// A problem before its solution was tried.
struct Draft {
    statement: String,
    starter: Option<String>,
    function: Option<String>,
    tests: Vec<Test>,
    examples: usize,
}

impl Draft {
    fn code(mut self) -> Result<Code, &'static str> {
        let mut hidden = self.tests.split_off(self.examples.min(self.tests.len()));
        hidden.sort_by_key(|test| test.input.len() + test.output.len());
        let mut seen = std::collections::HashSet::new();
        let mut fits = |test: &Test| {
            test.input.len() + test.output.len() <= LONGEST
                && seen.insert((test.input.clone(), test.output.clone()))
        };
        self.tests.retain(&mut fits);
        hidden.retain(&mut fits);
        let examples = self.tests.len();
        self.tests.extend(hidden);
        self.tests.truncate(TESTS.max(examples));
        if self.tests.is_empty() {
            return Err("no tests");
        }
        let mut statement = self.statement;
        if let (Some(starter), Some(_)) = (&self.starter, &self.function)
            && !starter.trim().is_empty()
        {
            statement.push_str(&format!("\n\nStart with this:\n{starter}"));
        }
        let code = Code {
            name: String::new(),
            style: if self.function.is_some() { Style::Function } else { Style::Stdin },
            statement,
            function: self.function,
            tests: self.tests,
            examples,
            solution: None,
            wrong: Vec::new(),
        };
        code.check().map(|()| code).map_err(|_| "tests that cannot be read")
    }

    fn without_solution(self) -> Result<Problem, Refusal> {
        Ok(problem(&self.code()?))
    }

    /// Takes the first of `solutions` that passes, and of the wrong programs those that one test finds out.
    fn finish(self, solutions: &[String], wrong: &[String]) -> Result<Problem, Refusal> {
        let mut code = self.code()?;
        if solutions.is_empty() {
            return Err("no solution in Python".into());
        }
        let instance = Instance::parse(&RULES.spec(&code)).map_err(|_| "tests that cannot be read")?;
        for solution in solutions.iter().take(SOLUTIONS) {
            if golden(&instance, solution)?.all() {
                code.solution = Some(solution.clone());
                break;
            }
        }
        let Some(solution) = &code.solution else { return Err("no solution that passes its tests".into()) };
        let made = if wrong.is_empty() { mutants(solution) } else { Vec::new() };
        let tried: Vec<&String> = wrong.iter().chain(&made).take(WRONG.0).collect();
        let mut best: Vec<String> = Vec::new();
        for test in code.tests.iter().take(TESTS / 4) {
            let mut found = Vec::new();
            for program in &tried {
                if found.len() < WRONG.1 && !passes(&instance, program, test)? {
                    found.push((*program).clone());
                }
            }
            if found.len() > best.len() {
                best = found;
            }
        }
        code.wrong = best;
        Ok(problem(&code))
    }
}

/// A problem with the `spec` of a task; the rules are those of whoever draws it.
fn problem(code: &Code) -> Problem {
    let mut spec = RULES.spec(code);
    if let Value::Object(fields) = &mut spec {
        fields.retain(|name, _| !matches!(name.as_str(), "encoding" | "turns" | "cpu" | "memory" | "name"));
    }
    Problem { text: code.statement.clone(), spec }
}

fn text(record: &Fields, name: &str) -> Option<String> {
    record.get(name)?.as_str().map(str::to_owned).filter(|text| !text.trim().is_empty())
}

/// A field that holds JSON as text, or the value itself.
fn unpacked(record: &Map<String, Value>, name: &str) -> Option<Value> {
    match record.get(name)? {
        Value::String(text) => serde_json::from_str(text).ok(),
        Value::Null => None,
        value => Some(value.clone()),
    }
}

/// JSON as a text that was pickled, compressed and put into base 64.
fn unpickled(text: &str) -> Result<Value, Refusal> {
    const UNPACK: &str = "import base64, pickle, sys, zlib\n\
        sys.stdout.write(pickle.loads(zlib.decompress(base64.b64decode(sys.stdin.read()))))\n";
    const LIMITS: Limits = Limits {
        cpu_seconds: 60.0,
        wall_seconds: 600.0,
        memory_bytes: 4 << 30,
        processes: 1,
        output_bytes: 1 << 30,
        scratch_bytes: 1 << 20,
    };
    let execution = Sandbox::shared()?.run(&Program { limits: LIMITS, ..Program::python(UNPACK, text) })?;
    let tests = execution.is_success().then(|| serde_json::from_str(&execution.stdout).ok()).flatten();
    tests.ok_or_else(|| "private tests that cannot be unpacked".into())
}

fn strings(values: &Value) -> Vec<String> {
    values.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn pairs<'a>(inputs: &'a Value, outputs: &'a Value) -> Vec<(&'a Value, &'a Value)> {
    let list = |values: &'a Value| values.as_array().map(Vec::as_slice).unwrap_or_default();
    list(inputs).iter().zip(list(outputs)).collect()
}

/// A test of APPS: texts, lists of lines, or arguments and a list that holds the value.
fn test(input: &Value, output: &Value, function: bool) -> Option<Test> {
    if function {
        let value = match output {
            Value::Array(values) if values.len() == 1 => &values[0],
            value => value,
        };
        return input.is_array().then(|| Test { input: input.to_string(), output: value.to_string() });
    }
    let lines = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(_) => Some(strings(value).join("\n") + "\n"),
        _ => None,
    };
    Some(Test { input: lines(input)?, output: lines(output)? })
}

/// A test of LiveCodeBench: texts, or one argument a line.
fn lines_of_arguments(case: &Value, function: bool) -> Option<Test> {
    let (input, output) = (case["input"].as_str()?, case["output"].as_str()?);
    if !function {
        return Some(Test { input: input.to_owned(), output: output.to_owned() });
    }
    let arguments: Option<Vec<Value>> = input
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).ok())
        .collect();
    let value: Value = serde_json::from_str(output).ok()?;
    Some(Test { input: json!(arguments?).to_string(), output: value.to_string() })
}

/// Programs in Python 3 of a field of CodeContests: 3 is its number in `language`, or the texts stand alone.
fn python(record: &Fields, name: &str) -> Vec<String> {
    let Some(group) = record.get(name) else { return Vec::new() };
    let programs = pairs(&group["language"], &group["solution"]);
    programs
        .iter()
        .filter(|(language, _)| **language == json!(3) || **language == json!("PYTHON3"))
        .filter_map(|(_, program)| program.as_str().map(str::to_owned))
        .collect()
}
