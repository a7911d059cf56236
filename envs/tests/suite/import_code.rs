//! `envs import` on records in the layouts of public programming data sets, written by hand.

#![cfg(target_os = "linux")]

use crate::support;

use std::io::Write;
use std::process::Command;

use envs::import::Importer;
use problems::code::judge::golden;
use problems::code::spec::{Encoding, Instance, Reasoning, Rules, Style};
use serde_json::{Value, json};
use troupe_tests::skip;

const RULES: Rules = Rules {
    encoding: Encoding::Full,
    reasoning: Reasoning::Steps,
    turns: 4,
    cpu: 4.0,
    wall: None,
    memory: 256,
};

/// The problem that a record becomes, or why it is left out.
fn import(record: &Value) -> Result<Instance, String> {
    let mut importer = Importer::default();
    let Some(task) = importer.task(record).unwrap() else {
        return Err(importer.left_out.keys().next().unwrap().to_string());
    };
    assert_eq!(task.env, "code");
    let mut spec = serde_json::to_value(RULES).unwrap();
    spec.as_object_mut().unwrap().extend(task.spec.as_object().unwrap().clone());
    Ok(Instance::parse(&spec).unwrap())
}

const RIGHT: &str = "n = int(input())\nprint(n * n + 1)\n";

#[test]
fn apps_with_standard_input() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "problem_id": 1, "question": "Print n squared plus one.",
        "solutions": json!(["print(0)", RIGHT]).to_string(),
        "input_output": json!({"inputs": ["2\n", ["3"], "0\n"], "outputs": ["5\n", ["10"], "1\n"]}).to_string(),
        "starter_code": "",
    });
    let instance = import(&record).unwrap();
    let problem = &instance.problem;
    assert_eq!((problem.style, problem.examples, problem.tests.len()), (Style::Stdin, 1, 3));
    assert_eq!(problem.solution.as_deref(), Some(RIGHT), "the first that passes");
    assert!(!problem.wrong.is_empty(), "mutants");
    for wrong in &problem.wrong {
        assert!(!golden(&instance, wrong).unwrap().all(), "{wrong}");
    }
}

#[test]
fn asserts_of_mbpp_are_tests_of_its_function() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "task_id": 2, "text": "Write a function to find the shared elements.",
        "code": "def similar(a, b):\r\n  return tuple(sorted(set(a) & set(b))) ", "test_setup_code": "",
        "test_list": ["assert similar((3, 4, 5),(5, 4, 10)) == (4, 5)", "assert set(similar((1, 2),(1,))) == {1}",
                      "assert similar([1], [2]) == ()"],
        "challenge_test_list": ["assert similar((1, 2, 3), (2, 3)) == (2, 3)"],
    });
    let problem = import(&record).unwrap().problem;
    assert_eq!((problem.style, problem.function.as_deref()), (Style::Function, Some("similar")));
    let tests: Vec<(&str, &str)> =
        problem.tests.iter().map(|test| (test.input.as_str(), test.output.as_str())).collect();
    assert_eq!(
        tests,
        [
            ("[[3,4,5],[5,4,10]]", "[4,5]"),
            ("[[1],[2]]", "[]"),
            ("[[1,2],[1]]", "[1]"),
            ("[[1,2,3],[2,3]]", "[2,3]")
        ]
    );
    assert!(
        problem.statement.contains("called similar. For example: assert similar((3, 4, 5)"),
        "{}",
        problem.statement
    );
    let unread =
        json!({"text": "T", "code": "def f(x): return x", "test_list": ["assert f(1) < 2", "nonsense("]});
    assert_eq!(import(&unread).unwrap_err(), "no tests");
}

#[test]
fn asserts_on_sets_and_near_values_are_tests() {
    if support::sandbox().is_none() {
        return;
    }
    let record = |code: &str, tests: Value| json!({"text": "T", "code": code, "test_list": tests});
    let both = json!(["assert set(f(3)) == set([1, 2, 0])", "assert sorted(f(2)) == [0, 1]"]);
    let problem = import(&record("def f(n):\n    return list(range(n))[::-1]", both)).unwrap();
    for (program, right) in [
        ("def f(n):\n    return range(n)", true),
        ("def f(n):\n    return {k for k in range(n)}", true),
        ("def f(n):\n    return (k for k in range(n))", true),
        ("def f(n):\n    return list(range(n)) + [0]", false),
        ("def f(n):\n    return [1] * n", false),
    ] {
        assert_eq!(golden(&problem, program).unwrap().all(), right, "{program}");
    }
    let near = json!(["assert math.isclose(f(2), 0.67, rel_tol=0.01)", "assert abs(f(4) - 1.33) < 0.01"]);
    let problem = import(&record("def f(n):\n    return n / 3", near)).unwrap();
    let exact = "from fractions import Fraction\ndef f(n):\n    return Fraction(n, 3)";
    assert!(golden(&problem, exact).unwrap().all());
    assert!(!golden(&problem, "def f(n):\n    return n * 0.335").unwrap().all(), "near the assert alone");
    let wrong = json!(["assert math.isclose(f(2), 0.7, rel_tol=0.01)"]);
    assert!(import(&record("def f(n):\n    return n / 3", wrong)).is_err());
}

#[test]
fn human_eval_is_for_one_coder_too() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "task_id": "HumanEval/0", "prompt": "def add(a, b):\n    \"\"\"The sum.\"\"\"\n", "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3, \"sum\"\n    assert candidate(\n        -1, 1) == 0\n    assert True\n",
    });
    let mut importer =
        Importer { layout: Some(envs::import::find("human-eval-code").unwrap()), ..Importer::default() };
    let task = importer.task(&record).unwrap().unwrap();
    assert_eq!((&*task.env, task.spec["function"].as_str()), ("code", Some("add")));
    assert_eq!(
        task.spec["tests"],
        json!([{"input": "[1,2]", "output": "3"}, {"input": "[-1,1]", "output": "0"}])
    );
    assert_eq!(Importer::default().task(&record).unwrap().unwrap().env, "coop-code");
}

#[test]
fn apps_with_a_function() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "question": "Double the list.", "starter_code": "class Solution:\n    def double(self, x):\n",
        "solutions": json!(["class Solution:\n    def double(self, x):\n        return x + x\n"]).to_string(),
        "input_output": json!({"fn_name": "double", "inputs": [[[1, 2]], [[]]], "outputs": [[[1, 2, 1, 2]], [[]]]})
            .to_string(),
    });
    let problem = import(&record).unwrap().problem;
    assert_eq!((problem.style, problem.function.as_deref()), (Style::Function, Some("double")));
    assert_eq!((problem.tests[0].input.as_str(), problem.tests[0].output.as_str()), ("[[1,2]]", "[1,2,1,2]"));
    assert!(problem.statement.contains("class Solution"));
}

/// Rows that the public graders take: a solution that ends with exit(), numbers as outputs, a list of one that is the value, deep calls.
#[test]
fn apps_as_its_own_grader_reads_it() {
    if support::sandbox().is_none() {
        return;
    }
    let row = |question: &str, tests: Value, solution: &str| {
        import(&json!({"question": question, "solutions": json!([solution]).to_string(), "input_output": tests.to_string(), "starter_code": ""}))
            .map(|instance| instance.problem.tests[0].output.clone())
    };
    let printed = |inputs: Value, outputs: Value| json!({"inputs": inputs, "outputs": outputs});
    let called =
        |inputs: Value, outputs: Value| json!({"fn_name": "f", "inputs": inputs, "outputs": outputs});
    let stops = "n=int(input())\nif n>0:\n    print(n+1)\n    exit()\nprint(n+1)";
    for (question, tests, solution, first) in [
        ("exit", printed(json!(["1\n", "5\n"]), json!(["2\n", "6\n"])), stops, "2\n"),
        ("numbers", printed(json!(["1\n", 2]), json!([2, 3])), "print(int(input())+1)", "2\n"),
        ("the value", called(json!([[1], [2]]), json!([[1], [2]])), "def f(n):\n    return [n]", "[1]"),
        ("held", called(json!([[1], [2]]), json!([[[1]], [[2]]])), "def f(n):\n    return [n]", "[1]"),
        ("held number", called(json!([[1], [2]]), json!([[2], [3]])), "def f(n):\n    return n+1", "2"),
        (
            "deep",
            called(json!([[3000], [2]]), json!([3000, 2])),
            "def f(n):\n    return 0 if n==0 else 1+f(n-1)",
            "3000",
        ),
    ] {
        assert_eq!(row(question, tests, solution).as_deref(), Ok(first), "{question}");
    }
}

/// Integers of 5,000 digits, which no f64 holds.
#[test]
fn long_integers_are_compared_as_they_are_written() {
    if support::sandbox().is_none() {
        return;
    }
    let long = "7".repeat(5000);
    let cases = |output: &str| {
        json!([{"input": format!("{long}\n1"), "output": output, "testtype": "functional"}]).to_string()
    };
    let record = |output: &str| {
        import(&json!({
            "question_content": format!("Add {}.", output.len()), "metadata": json!({"func_name": "add"}).to_string(),
            "public_test_cases": cases(output), "solution": "class Solution:\n    def add(self, a, b):\n        return a + b\n",
        }))
    };
    let right = format!("{}8", "7".repeat(4999));
    assert_eq!(record(&right).unwrap().problem.tests[0].output, right);
    assert!(record(&long).is_err());
}

/// Hand-out signatures name types that they do not import.
#[test]
fn a_signature_with_types_of_typing() {
    if support::sandbox().is_none() {
        return;
    }
    let solution = "class Solution:\n    def first(self, x: List[int]) -> Optional[int]:\n        return x[0] if x else None\n";
    let record = json!({
        "question": "The first, if any.", "starter_code": "", "solutions": json!([solution]).to_string(),
        "input_output": json!({"fn_name": "first", "inputs": [[[3, 1]], [[]]], "outputs": [3, null]}).to_string(),
    });
    assert_eq!(import(&record).unwrap().problem.solution.as_deref(), Some(solution));
}

#[test]
fn examples_are_those_of_the_statement_even_where_tests_repeat() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "description": "Print n squared plus one.",
        "public_tests": {"input": ["2\n", "2\n"], "output": ["5\n", "5\n"]},
        "private_tests": {"input": ["30\n", "2\n", "0\n"], "output": ["901\n", "5\n", "1\n"]},
        "solutions": {"language": [3], "solution": [RIGHT]},
    });
    let problem = import(&record).unwrap().problem;
    let inputs: Vec<&str> = problem.tests.iter().map(|test| test.input.as_str()).collect();
    assert_eq!((problem.examples, inputs), (1, vec!["2\n", "0\n", "30\n"]));
}

/// A problem whose solution cannot be tried is not left out: the import ends.
#[test]
fn without_a_sandbox_the_import_fails_and_says_why() {
    if !support::has_python() {
        skip!("no python3 of version 3.9 or newer");
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let record = json!({
        "question": "Print 2.", "solutions": json!(["print(2)"]).to_string(),
        "input_output": json!({"inputs": ["1\n"], "outputs": ["2\n"]}).to_string(),
    });
    write!(file, "{record}").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_envs"));
    command.arg("import").arg(file.path());
    support::without_namespaces(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(69), 0), "{said}");
    assert!(
        said.contains("record 1: sandbox: the kernel refuses new namespaces") && said.contains("hint: "),
        "{said}"
    );
}

#[test]
fn code_contests() {
    if support::sandbox().is_none() {
        return;
    }
    let record = json!({
        "name": "1_A. Square", "description": "Print n squared plus one.",
        "public_tests": {"input": ["2\n"], "output": ["5\n"]},
        "private_tests": {"input": ["3\n", "0\n"], "output": ["10\n", "1\n"]},
        "generated_tests": {"input": [], "output": []},
        "solutions": {"language": [2, 3], "solution": ["int main() {}", RIGHT]},
        "incorrect_solutions": {"language": [3, 3], "solution": ["print(5)", "print(int(input()) ** 2)"]},
    });
    let problem = import(&record).unwrap().problem;
    assert_eq!((problem.examples, problem.tests.len()), (1, 3));
    assert_eq!(problem.solution.as_deref(), Some(RIGHT));
    assert_eq!(problem.wrong.len(), 2);
}

#[test]
fn live_code_bench() {
    let record = json!({
        "question_title": "add", "question_content": "Add two numbers.", "starter_code": "def add(a, b):",
        "public_test_cases": json!([{"input": "1\n2", "output": "3", "testtype": "functional"}]).to_string(),
        "private_test_cases": json!([{"input": "-1\n1", "output": "0", "testtype": "functional"}]).to_string(),
        "metadata": json!({"func_name": "add"}).to_string(),
    });
    let problem = import(&record).unwrap().problem;
    assert_eq!((problem.style, problem.tests.len(), problem.solution), (Style::Function, 2, None));
    assert_eq!(problem.tests[1].input, "[-1,1]");
}

/// base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES)))) of two cases.
const PACKED: &str = "eJxrYJlaywABPZXR1UqZeQWlJUpWCkq6hjF5hko6Ckr5pSVQIQMQtyS1uKSksiAVJJBWmpdckpmfl5ijVKujgKTZKCbPFFWvOT69sVP0AF0ZKOs=";

#[test]
fn packed_tests_of_live_code_bench_are_unpacked_in_the_sandbox() {
    if support::sandbox().is_none() {
        return;
    }
    let mut record = json!({
        "question_content": "Add two numbers.", "metadata": json!({"func_name": "add"}).to_string(),
        "public_test_cases": json!([{"input": "1\n2", "output": "3"}]).to_string(), "private_test_cases": PACKED,
    });
    let tests = import(&record).unwrap().problem.tests;
    let tests: Vec<(&str, &str)> = tests.iter().map(|test| (&*test.input, &*test.output)).collect();
    assert_eq!(tests, [("[1,2]", "3"), ("[2,5]", "7"), ("[-1,1]", "0")]);
    for broken in ["eJxr", "no base 64!", "gASVAAAAAA=="] {
        record["private_test_cases"] = broken.into();
        assert_eq!(import(&record).unwrap_err(), "private tests that cannot be unpacked", "{broken}");
    }
}

#[test]
fn what_cannot_be_used_is_left_out_and_said() {
    if support::sandbox().is_none() {
        return;
    }
    let apps = |solutions: Value, tests: Value| json!({"question": "?", "solutions": solutions.to_string(), "input_output": tests.to_string()});
    let tests = json!({"inputs": ["1\n"], "outputs": ["2\n"]});
    for (record, reason) in [
        (apps(json!(["print(3)"]), tests.clone()), "no solution that passes its tests"),
        (apps(json!([]), tests), "no solution in Python"),
        (apps(json!(["print(2)"]), json!({"inputs": [], "outputs": []})), "no tests"),
    ] {
        assert_eq!(import(&record).unwrap_err(), reason);
    }
}
