//! Layouts of programming data sets.
//!
//! The solution is the first that passes all tests in the sandbox; problems without one are left out and
//! counted. Wrong programs come from the data set, or else are mutants of the solution with one sign changed,
//! as in Stronger-MAS (arXiv 2510.11062, appendix A.1). Only those are kept that fail one common hidden test,
//! so that a perfect test case exists.
//!
//! LiveCodeBench packs its private tests in Python's pickle format. Unpickling can run any code, so
//! it happens in the sandbox.
//!
//! Left out: problems with a special checker, and solutions in languages other than Python 3.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Fields, Layout, Problem, Refusal, text};
use environment::spec::write;
use problems::code::NAME;
use problems::code::compare::is_json;
use problems::code::judge::{golden, passes};
use problems::code::mutate::mutants;
use problems::code::spec::{CodeProblem, Encoding, Instance, Reasoning, Rules, Style, Test};
use sandbox::{Limits, Program, Sandbox};

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
/// Rules for trying solutions.
pub(super) const RULES: Rules = Rules {
    encoding: Encoding::Full,
    reasoning: Reasoning::Steps,
    turns: 4,
    cpu: 10.0,
    wall: None,
    memory: 512,
};

/// APPS: a question, with solutions and tests as JSON strings.
pub static APPS: Layout = Layout {
    name: "apps",
    environment: NAME,
    summary: "APPS: question, solutions and input_output (JSON as text), starter_code",
    recognizes: |record| record.contains_key("input_output") && record.contains_key("question"),
    convert: |record| {
        let tests = unpacked(record, "input_output").ok_or("no tests")?;
        let function = tests["fn_name"].as_str().map(str::to_owned);
        let pairs = pairs(&tests["inputs"], &tests["outputs"]);
        let solutions = unpacked(record, "solutions").map(|texts| strings(&texts)).unwrap_or_default();
        let kinds: &[Kind] = match function {
            Some(_) if pairs.iter().any(|(_, output)| held(output).is_some()) => &[Kind::Held, Kind::Value],
            Some(_) => &[Kind::Value],
            None => &[Kind::Printed],
        };
        let mut problem = Err("no tests".into());
        for kind in kinds {
            let tests = pairs.iter().filter_map(|(input, output)| test(input, output, *kind)).collect();
            problem = solved(draft(record, "question", function.clone(), tests, 1)?, &solutions, &[]);
            if !matches!(problem, Err(Refusal::LeftOut(UNSOLVED))) {
                break;
            }
        }
        problem
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
            pairs.iter().filter_map(|(input, output)| test(input, output, Kind::Printed)).collect()
        };
        let mut tests = group("public_tests");
        let examples = tests.len().min(3);
        tests.extend(group("private_tests"));
        tests.extend(group("generated_tests"));
        let problem = draft(record, "description", None, tests, examples)?;
        solved(problem, &python(record, "solutions"), &python(record, "incorrect_solutions"))
    },
};

/// LiveCodeBench: content, tests as JSON strings, and the function's name in `metadata`. It has no solutions,
/// so its problems are kept without one, unless the record has a `solution`.
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
        let problem = draft(record, "question_content", function, tests, examples)?;
        match text(record, &["solution"]) {
            None => Ok(finished(&problem)),
            Some(solution) => solved(problem, &[solution.to_owned()], &[]),
        }
    },
};

/// The layout of the shipped problems: the fields of a `spec` except the rules.
pub static PROBLEM: Layout = Layout {
    name: "problem",
    environment: NAME,
    summary: "the project's own: problem, style, function, tests, examples, solution, wrong",
    recognizes: |record| record.contains_key("style") && record.contains_key("tests"),
    convert: |record| {
        let problem: CodeProblem = serde_json::from_value(Value::Object(record.clone()))
            .map_err(|_| "fields that make no problem")?;
        problem.check().map_err(|_| "fields that make no problem")?;
        Ok(finished(&problem))
    },
};

/// A problem without a solution: its examples, then the shortest other tests, each once.
pub(super) fn draft(
    record: &Fields,
    statement: &str,
    function: Option<String>,
    mut tests: Vec<Test>,
    examples: usize,
) -> Result<CodeProblem, &'static str> {
    let mut statement = text(record, &[statement]).ok_or("no problem")?.to_owned();
    if let (Some(starter), Some(_)) = (text(record, &["starter_code"]), &function) {
        statement.push_str(&format!("\n\nStart with this:\n{starter}"));
    }
    let length = |test: &Test| test.input.len() + test.output.len();
    let mut hidden = tests.split_off(examples.min(tests.len()));
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
    let style = if function.is_some() { Style::Function } else { Style::Stdin };
    let problem = CodeProblem {
        name: String::new(),
        statement,
        style,
        function,
        tests,
        examples,
        solution: None,
        wrong: Vec::new(),
    };
    problem.check().map(|()| problem).map_err(|_| "tests that cannot be read")
}

/// `problem` with the first of `solutions` that passes, and the `wrong` programs that a single test detects.
pub(super) fn solved(
    mut problem: CodeProblem,
    solutions: &[String],
    wrong: &[String],
) -> Result<Problem, Refusal> {
    if solutions.is_empty() {
        return Err("no solution in Python".into());
    }
    let instance = Instance::parse(&RULES.spec(&problem)).map_err(|_| "tests that cannot be read")?;
    let mut passing = None;
    for solution in solutions.iter().take(SOLUTIONS) {
        if golden(&instance, solution)?.all() {
            passing = Some(solution);
            break;
        }
    }
    let solution = passing.ok_or(UNSOLVED)?;
    let made = if wrong.is_empty() { mutants(solution) } else { Vec::new() };
    let tried: Vec<&String> = wrong.iter().chain(&made).take(WRONG.0).collect();
    // A test shown in the statement does not distinguish programs.
    let hidden = problem.tests.get(problem.examples..).filter(|hidden| !hidden.is_empty());
    for test in hidden.unwrap_or(&problem.tests).iter().take(TESTS / 4) {
        let mut found = Vec::new();
        for program in &tried {
            if found.len() < WRONG.1 && !passes(&instance, program, test)? {
                found.push((*program).clone());
            }
        }
        if found.len() > problem.wrong.len() {
            problem.wrong = found;
        }
    }
    problem.solution = Some(solution.clone());
    Ok(finished(&problem))
}

/// A problem with the `spec` of a task; the caller adds the rules.
fn finished(problem: &CodeProblem) -> Problem {
    let mut spec = write(problem);
    if let Value::Object(fields) = &mut spec {
        fields.shift_remove("name");
    }
    Problem { text: problem.statement.clone(), spec }
}

/// A field that holds JSON as a string, or the value itself.
fn unpacked(record: &Fields, name: &str) -> Option<Value> {
    match record.get(name)? {
        Value::String(text) => serde_json::from_str(text).ok(),
        Value::Null => None,
        value => Some(value.clone()),
    }
}

/// Decodes JSON text that was pickled, compressed and base64-encoded.
fn unpickled(text: &str) -> Result<Value, Refusal> {
    const UNPACK: &str = "import base64, pickle, sys, zlib\n\
        sys.stdout.write(pickle.loads(zlib.decompress(base64.b64decode(sys.stdin.read()))))\n";
    const LIMITS: Limits = Limits {
        cpu_seconds: 60.0,
        wall_seconds: 600.0,
        memory_bytes: 4 << 30,
        output_bytes: 1 << 30,
        scratch_bytes: 1 << 20,
    };
    let execution = Sandbox::shared()?.run(&Program { limits: LIMITS, ..Program::python(UNPACK, text) })?;
    let tests = execution.is_success().then(|| serde_json::from_str(&execution.stdout).ok()).flatten();
    tests.ok_or_else(|| "private tests that cannot be unpacked".into())
}

pub(super) fn strings(values: &Value) -> Vec<String> {
    values.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn pairs<'a>(inputs: &'a Value, outputs: &'a Value) -> Vec<(&'a Value, &'a Value)> {
    let list = |values: &'a Value| values.as_array().map(Vec::as_slice).unwrap_or_default();
    list(inputs).iter().zip(list(outputs)).collect()
}

/// How APPS writes an output: as text, as a function's value, or as a list that contains the value. A
/// list of one may be either.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Printed,
    Value,
    Held,
}

/// The value in a list of one.
fn held(output: &Value) -> Option<&Value> {
    output.as_array().filter(|values| values.len() == 1).and_then(|values| values.first())
}

/// A test of APPS: strings, numbers or lists of lines, or arguments and the return value.
fn test(input: &Value, output: &Value, kind: Kind) -> Option<Test> {
    if kind != Kind::Printed {
        let value = held(output).filter(|_| kind == Kind::Held).unwrap_or(output);
        return input.is_array().then(|| Test {
            input: input.to_string(),
            output: value.to_string(),
            ..Test::default()
        });
    }
    let line = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let lines = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(format!("{number}\n")),
        Value::Array(values) => {
            values.iter().map(line).collect::<Option<Vec<_>>>().map(|lines| lines.join("\n") + "\n")
        }
        _ => None,
    };
    Some(Test { input: lines(input)?, output: lines(output)?, ..Test::default() })
}

/// A test of LiveCodeBench: strings, or one argument per line.
fn lines_of_arguments(case: &Value, function: bool) -> Option<Test> {
    let (input, output) = (case["input"].as_str()?, case["output"].as_str()?);
    if !function {
        return Some(Test { input: input.to_owned(), output: output.to_owned(), ..Test::default() });
    }
    // Integers of any length are kept as written.
    let value = |text: &str| match serde_json::from_str::<Value>(text) {
        Ok(value) => Some(value.to_string()),
        Err(_) => is_json(text).then(|| text.trim().to_owned()),
    };
    let arguments: Option<Vec<String>> =
        input.lines().filter(|line| !line.trim().is_empty()).map(value).collect();
    Some(Test { input: format!("[{}]", arguments?.join(",")), output: value(output)?, ..Test::default() })
}

/// The Python 3 programs in a field of CodeContests: `language` 3, or bare strings.
fn python(record: &Fields, name: &str) -> Vec<String> {
    let Some(group) = record.get(name) else { return Vec::new() };
    let programs = pairs(&group["language"], &group["solution"]);
    programs
        .iter()
        .filter(|(language, _)| **language == json!(3) || **language == json!("PYTHON3"))
        .filter_map(|(_, program)| program.as_str().map(str::to_owned))
        .collect()
}
