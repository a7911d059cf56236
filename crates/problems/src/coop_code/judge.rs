//! Scores a helper and a main function together, in levels.
//!
//! | level | condition | points |
//! |---|---|---|
//! | functions | helper exists and returns a value: 0.4; main function, too: 0.6, or the score ends | 1 |
//! | syntax | imports, helper and main function form a program, or the score ends here | 0.5 |
//! | tests | share of the assertions that hold | 1 |
//! | cooperation | share of the assertions that hold, times: main needs the helper 0.5, and adds to it 1 | 1.5 |
//!
//! A trial decides if main needs the helper ([`super::need`]). The published rule instead looks at the
//! text, and requires one assertion that holds: main calls the helper 0.5, and adds to it 1; -0.5 for a
//! call whose value is dropped.
//!
//! A model's functions never see the expected values. Each assertion is first split, without them, into
//! calls and a check. The calls run with the functions, in one process per assertion. The check runs
//! without the functions, on the values that came back as text. Left out: values whose text is not a Python
//! literal, which count as wrong.

use record::failure::Result;
use sandbox::{Entry, Execution, Limits, Program, Status};
use serde_json::{Value, json};

use super::functions::{assertions, calls_aux, ignores_aux, imports, is_wrapper, returns};
use super::need;
use crate::functions::{function, lambda, mentions, used};
use crate::gates::Gates;
use crate::run;

/// Largest total of points.
pub const MOST: f64 = 4.0;
/// Timeouts after which the remaining assertions are not run.
const MAX_TIMEOUTS: usize = 3;

/// Splits assertions: returns the calls of `candidate` in each, and the assertion with
/// `_v[i]` in their places.
const SPLIT: &str = "\
import ast, json, sys
class Calls(ast.NodeTransformer):
    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id == 'candidate':
            self.found.append(ast.unparse(node))
            return ast.parse('_v[%d]' % (len(self.found) - 1), mode='eval').body
        return self.generic_visit(node)
parts = []
for text in json.load(sys.stdin):
    calls = Calls()
    calls.found = []
    try:
        tree = ast.fix_missing_locations(calls.visit(ast.parse(text)))
        parts.append([calls.found, ast.unparse(tree)])
    except (SyntaxError, ValueError, RecursionError):
        parts.append([[], 'assert False'])
print(json.dumps(parts))
";
/// Makes the calls; appended to the functions.
const CALL: &str = "
def troupe_calls(calls):
    return [repr(eval(call, globals())) for call in calls]
";
/// Checks the returned values.
pub(super) const CHECK: &str = "\
import ast, json, math, sys
verdicts = []
for values, check in json.load(sys.stdin):
    try:
        exec(check, {'_v': [ast.literal_eval(value) for value in values], 'math': math})
        verdicts.append(True)
    except BaseException:
        verdicts.append(False)
print(json.dumps(verdicts))
";

/// Findings about two answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The helper exists.
    pub helper: bool,
    /// It returns something.
    pub helper_returns: bool,
    /// The main function exists and returns something.
    pub main: bool,
    /// The syntax error of the program, if any.
    pub syntax: Option<String>,
    /// Each assertion, and why it fails, if it does.
    pub tests: Vec<(String, Option<String>)>,
    /// The rule that determined `uses` and `wrapper`.
    pub gates: Gates,
    /// The main function calls the helper; with earned points, it needs the helper.
    pub uses: bool,
    /// The main function adds nothing to the helper.
    pub wrapper: bool,
    /// The main function drops a value of the helper.
    pub ignores: bool,
}

impl Report {
    /// Share of the assertions that hold.
    pub fn share(&self) -> f64 {
        let held = self.tests.iter().filter(|(_, cause)| cause.is_none()).count();
        held as f64 / self.tests.len().max(1) as f64
    }

    /// Returns true if levels 1 and 2 are passed.
    pub fn runs(&self) -> bool {
        self.main && self.syntax.is_none()
    }

    /// Points of each level by name, and the maximum of each.
    pub fn levels(&self) -> [(&'static str, f64, f64); 6] {
        let flag = |holds: bool| f64::from(u8::from(holds));
        let share = if self.runs() { self.share() } else { 0.0 };
        let cooperates = share > 0.0 && self.helper && self.uses;
        let drops = cooperates && self.ignores;
        let weight = if self.gates.earned() { share } else { 1.0 };
        [
            ("helper", 0.4 * flag(self.helper_returns), 0.4),
            ("main", 0.6 * flag(self.main), 0.6),
            ("syntax", 0.5 * flag(self.runs()), 0.5),
            ("tests", share, 1.0),
            ("calls", weight * (0.5 * flag(cooperates) - 0.5 * flag(drops)), 0.5),
            ("adds", weight * flag(cooperates && !self.wrapper), 1.0),
        ]
    }

    /// The total of points, 0 to 4.
    pub fn total(&self) -> f64 {
        self.levels().iter().map(|(_, points, _)| points).sum()
    }
}

/// The task of the two functions.
pub struct Question<'a> {
    /// The text of the problem; its imports are part of the program.
    pub prompt: &'a str,
    /// The name of the main function.
    pub entry: &'a str,
    /// A test in HumanEval's layout.
    pub test: &'a str,
    /// Processor seconds per assertion.
    pub cpu: f64,
    /// The conditions of cooperation.
    pub gates: Gates,
}

/// Scores the texts of the two agents.
pub fn judge(question: &Question<'_>, [helper, main]: [&str; 2]) -> Result<Report> {
    let beside = [used(helper, "aux", question.entry), used(main, question.entry, "aux")];
    let short = lambda(helper, "aux").map(str::to_owned);
    let (helper, main) = (function(helper, "aux"), function(main, question.entry));
    let is_short = helper.is_none() && short.is_some();
    let helper = helper.or(short);
    let code = main.as_deref().unwrap_or_default();
    let mut report = Report {
        helper: helper.is_some(),
        helper_returns: is_short || helper.as_deref().is_some_and(returns),
        main: returns(code),
        uses: calls_aux(code),
        wrapper: is_wrapper(code),
        ignores: ignores_aux(code) && !question.gates.earned(),
        gates: question.gates,
        ..Report::default()
    };
    if !report.main {
        return Ok(report);
    }
    let [with_helper, with_main] = &beside;
    let helper = helper.as_deref().unwrap_or_default();
    let parts = [&imports(question.prompt), with_helper, helper, with_main, code];
    let program = parts.map(|part| format!("{part}\n\n")).concat();
    let limits = Limits { cpu_seconds: question.cpu, ..Limits::default() };
    let source = format!("import math\n{program}");
    let compiled = run::run(&Program { source: &source, entry: Entry::Compile, stdin: "", limits })?;
    if !compiled.is_success() {
        report.syntax = Some(fault(&compiled));
        return Ok(report);
    }
    let split = ours(SPLIT, &json!(assertions(question.test)))?;
    report.tests =
        tests(&format!("{source}candidate = {}\n{CALL}", question.entry), question.test, &split, limits)?;
    if question.gates.earned() {
        (report.uses, report.wrapper) = (false, true);
        let held: Vec<&Value> = split
            .as_array()
            .into_iter()
            .flatten()
            .zip(&report.tests)
            .filter(|(_, (_, cause))| cause.is_none())
            .map(|(part, _)| part)
            .collect();
        // A helper that is never mentioned needs no trial.
        if report.helper && !held.is_empty() && (mentions(code, "aux") || mentions(with_main, "aux")) {
            (report.uses, report.wrapper) = need::tried(&source, question.entry, &held, limits)?;
        }
    }
    Ok(report)
}

/// Every assertion of `test`, split as in `split`, and why it fails for `source`, if it does.
fn tests(source: &str, test: &str, split: &Value, limits: Limits) -> Result<Vec<(String, Option<String>)>> {
    let assertions = assertions(test);
    let (mut late, mut values, mut causes) = (0, Vec::new(), Vec::new());
    for part in split.as_array().map(Vec::as_slice).unwrap_or_default() {
        let (mut value, mut cause) =
            (json!([]), Some("not run: too many before it ran out of time".to_owned()));
        if late < MAX_TIMEOUTS {
            let stdin = json!([part[0]]).to_string();
            let execution =
                run::run(&Program { source, entry: Entry::Call("troupe_calls"), stdin: &stdin, limits })?;
            late += usize::from(matches!(execution.status, Status::CpuTime | Status::WallTime));
            let result = execution.result.as_deref().filter(|_| execution.is_success());
            let texts = result.and_then(|text| serde_json::from_str::<Vec<String>>(text).ok());
            cause = texts.is_none().then(|| fault(&execution));
            value = json!(texts.unwrap_or_default());
        }
        values.push(json!([value, part[1]]));
        causes.push((value, cause));
    }
    let verdicts = ours(CHECK, &json!(values))?;
    let verdict = |at: usize| verdicts[at] == true;
    let tests = assertions.into_iter().zip(causes).enumerate();
    Ok(tests
        .map(|(at, (assertion, (values, cause)))| {
            let wrong = || format!("it gave {}", shorten(&values_text(&values)));
            let cause = cause.or_else(|| (!verdict(at)).then(wrong));
            (assertion, cause)
        })
        .collect())
}

/// Runs a program of ours; returns its output as JSON, or null if it cannot handle the input.
pub(super) fn ours(source: &str, input: &Value) -> Result<Value> {
    let execution = run::run(&Program::python(source, &input.to_string()))?;
    Ok(serde_json::from_str(&execution.stdout).unwrap_or_default())
}

fn values_text(values: &Value) -> String {
    let texts: Vec<&str> = values.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    texts.join(", ")
}

/// Why a run produced nothing.
fn fault(execution: &Execution) -> String {
    match execution.status {
        Status::CpuTime | Status::WallTime => "out of time".to_owned(),
        Status::Memory => "out of memory".to_owned(),
        Status::Output => "too much output".to_owned(),
        Status::Signal(number) => format!("killed by signal {number}"),
        Status::Exited(_) => {
            let line = execution.stderr.lines().rfind(|line| !line.trim().is_empty());
            shorten(line.unwrap_or("it gave nothing").trim())
        }
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}
