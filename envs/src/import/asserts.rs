//! Layouts whose tests are asserts that call a function: MBPP and HumanEval.
//!
//! Asserts on literals become tests, also in `set(…)`, `sorted(…)`, `math.isclose(…)` and `abs(… - …) < …`. Left out:
//! all other asserts, such as those on random values.

use serde_json::Value;

use super::code::{RULES, draft, solved, strings};
use super::{Fields, Layout, Problem, Refusal, text};
use problems::code::NAME;
use problems::code::compare::same_members;
use problems::code::judge::run;
use problems::code::spec::{Instance, Test};
use sandbox::{Limits, Program, Sandbox};

/// MBPP: a text, a solution, and asserts that call its function.
pub static MBPP: Layout = Layout {
    name: "mbpp",
    environment: NAME,
    summary: "MBPP: text or prompt, code, test_list (asserts), challenge_test_list, test_setup_code",
    recognizes: |record| record.contains_key("test_list") && record.contains_key("code"),
    convert: |record| {
        let lists = ["test_list", "challenge_test_list"]
            .map(|name| record.get(name).map(strings).unwrap_or_default());
        let asserts = lists.concat();
        let tests = Asserts::read(&asserts)?;
        let statement = text(record, &["text", "prompt"]).ok_or("no problem")?;
        // The text does not name the function, so the first assert is added, as in MBPP's own prompt.
        let (function, example) = (&tests.function, asserts[0].trim());
        let statement = format!("{statement}\n\nThe function is called {function}. For example: {example}");
        let setup = text(record, &["test_setup_code"]).unwrap_or_default();
        let solution = format!("{setup}\n{}", text(record, &["code"]).unwrap_or_default());
        tests.problem(record, statement, 1, &solution)
    },
};

/// HumanEval: the beginning of a function, its body, and a function `check` with asserts.
pub static HUMAN_EVAL: Layout = Layout {
    name: "human-eval-code",
    environment: NAME,
    summary: "HumanEval for one coder, if named by --layout: prompt, entry_point, canonical_solution, test (asserts)",
    recognizes: |_| false,
    convert: |record| {
        let [prompt, name, body, test] =
            ["prompt", "entry_point", "canonical_solution", "test"].map(|field| text(record, &[field]));
        let (prompt, name) = (prompt.ok_or("no problem")?, name.ok_or("no function")?);
        let mut tests = Asserts::read(&[test.ok_or("no tests")?.to_owned()])?;
        if tests.function != "candidate" && tests.function != name {
            return Err("no tests".into());
        }
        name.clone_into(&mut tests.function);
        let statement = format!("Complete this function:\n```python\n{}\n```", prompt.trim());
        tests.problem(record, statement, 0, &format!("{prompt}{}", body.ok_or("no solution in Python")?))
    },
};

/// Function, arguments, value, whether its order does not matter, and how near a value has to be: relative and absolute,
/// as of `math.isclose`.
type Line = (String, Value, Value, bool, Option<(f64, f64)>);

/// Tests that asserts make.
struct Asserts {
    function: String,
    /// With their tolerances, if they have some.
    tests: Vec<(Test, Option<(f64, f64)>)>,
}

impl Asserts {
    /// The asserts in `texts` that call one function.
    fn read(texts: &[String]) -> Result<Asserts, Refusal> {
        let limits = Limits {
            cpu_seconds: 10.0,
            wall_seconds: 60.0,
            memory_bytes: 512 << 20,
            output_bytes: 16 << 20,
            scratch_bytes: 1 << 20,
        };
        let texts = Value::from(texts.to_vec()).to_string();
        let program = Program { limits, ..Program::python(include_str!("asserts.py"), &texts) };
        let execution = Sandbox::shared()?.run(&program)?;
        let lines = execution.stdout.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let lines: Vec<Line> = lines.collect();
        let function = lines.first().ok_or("no tests")?.0.clone();
        let own = lines.into_iter().filter(|(name, ..)| *name == function);
        let tests = own.map(|(_, input, output, any_order, tolerance)| {
            (Test { input: input.to_string(), output: output.to_string(), any_order }, tolerance)
        });
        Ok(Asserts { tests: tests.collect(), function })
    }

    /// The problem of a `statement` with its `solution`. Where a value only has to be near, or its order does not
    /// matter, the solution's value, if it is right, is the expected one.
    fn problem(
        self,
        record: &Fields,
        statement: String,
        examples: usize,
        solution: &str,
    ) -> Result<Problem, Refusal> {
        let solution = solution.trim().replace("\r\n", "\n") + "\n";
        let mut fields = record.clone();
        fields.insert("statement".to_owned(), statement.into());
        let name = Some(self.function);
        let tests: Vec<Test> = self.tests.iter().map(|(test, _)| test.clone()).collect();
        let known = draft(&fields, "statement", name.clone(), tests.clone(), examples)?;
        let instance = Instance::parse(&RULES.spec(&known)).map_err(|_| "tests that cannot be read")?;
        let mut near = tests;
        for (test, (_, tolerance)) in near.iter_mut().zip(&self.tests) {
            if tolerance.is_none() && !test.any_order {
                continue;
            }
            let got = run(&instance, &solution, &test.input)?.output.unwrap_or_default();
            let is_right = match (tolerance, got.parse::<f64>(), test.output.parse::<f64>()) {
                (Some((relative, absolute)), Ok(value), Ok(asserted)) => {
                    (value - asserted).abs() <= absolute.max(relative * value.abs().max(asserted.abs()))
                }
                _ => same_members(&test.output, &got),
            };
            if is_right {
                test.output = got;
            }
        }
        solved(draft(&fields, "statement", name, near, examples)?, &[solution], &[])
    }
}
