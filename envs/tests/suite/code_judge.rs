//! The judge of Code: how programs end, the value of cases, and which cases are shown, tried and
//! demonstrated.

#![cfg(target_os = "linux")]

use crate::{drawn, support};

use envs::{Demonstration, Environment, Split, State, find};
use problems::code::judge::{Quality, compiles, golden, passes, quality, run};
use problems::code::spec::{Instance, Test};
use record::line::Task;
use serde_json::{Value, json};

fn code() -> &'static dyn Environment {
    find("code").unwrap()
}

fn tasks(texts: &[&str], count: usize) -> Vec<Task> {
    drawn::tasks("code", Split::Train, 7, texts, count)
}

/// The sum of a line, by programs that read.
fn sum() -> Value {
    json!({
        "encoding": "full", "turns": 3, "cpu": 0.5, "memory": 128, "name": "sum", "problem": "Print the sum.",
        "style": "stdin", "examples": 1, "solution": "print(sum(map(int, input().split())))",
        "tests": [
            {"input": "1 2\n", "output": "3\n"}, {"input": "-1\n", "output": "-1\n"},
            {"input": "\n", "output": "0\n"}, {"input": "2 2\n", "output": "4\n"},
        ],
        "wrong": ["print(max(map(int, input().split())))", "print(input().count(' ') * 4 - 1)"],
    })
}

/// Three more than a number, and that twice, by expressions.
fn chain() -> Value {
    json!({
        "encoding": "compact", "turns": 4, "cpu": 2.0, "memory": 128, "name": "chain", "problem": "x + 3 * 2",
        "style": "function", "function": "f", "examples": 1, "solution": "def f(x):\n    return ( ( x + 3 ) * 2 )\n",
        "tests": [{"input": "[4]", "output": "14"}, {"input": "[-7]", "output": "-8"}],
        "wrong": ["def f(x):\n    return ( x + 3 * 2 )\n"],
    })
}

fn with(mut spec: Value, changes: &[(&str, Value)]) -> Value {
    for (key, value) in changes {
        spec[*key] = value.clone();
    }
    spec
}

fn instance(spec: &Value) -> Instance {
    Instance::parse(spec).unwrap()
}

fn start(spec: &Value, workflow: &str) -> Box<dyn State> {
    code().reset(spec, workflow).unwrap()
}

fn test(input: &str, output: &str) -> Test {
    Test { input: input.to_owned(), output: output.to_owned(), ..Test::default() }
}

#[test]
fn programs_end_in_many_ways() {
    if support::sandbox().is_none() {
        return;
    }
    let sum = instance(&sum());
    let long = "é".repeat(300);
    for (source, fault) in [
        ("import sys\nprint('first\\nlast\\n', file=sys.stderr)\nsys.exit(3)", "last"),
        (&format!("import sys\nsys.exit('{long}')"), &long[..400]),
        ("raise SystemExit(3)", "exit code 3"),
        ("import ctypes\nctypes.string_at(0)", "killed by signal 11"),
        ("while True: print('x' * 9999)", "too much output"),
        ("while True: pass", "out of time"),
    ] {
        let run = run(&sum, source, "1 2\n").unwrap();
        assert_eq!(
            (run.output, run.fault.as_str(), run.late),
            (None, fault, fault == "out of time"),
            "{source}"
        );
    }
    let fine = run(&sum, "print(input())", "1 2\n").unwrap();
    assert_eq!((fine.output.as_deref(), fine.fault.as_str(), fine.late), (Some("1 2\n"), "", false));
    assert!(compiles(&sum, "1/0").unwrap() && !compiles(&sum, "print((").unwrap());
    // The return value counts, not the output.
    let call = instance(&with(chain(), &[("encoding", json!("full")), ("cpu", json!(0.5))]));
    let called = |source: &str| run(&call, source, "[4]").unwrap().output;
    assert_eq!(called("def f(x):\n    print('seen')\n    return [x]").as_deref(), Some("[4]"));
    assert_eq!(called("def g(x):\n    return x"), None);
}

/// A program that hangs is not waited for once for every test.
#[test]
fn two_tests_out_of_time_end_the_judgment() {
    if support::sandbox().is_none() {
        return;
    }
    let sum = instance(&with(sum(), &[("cpu", json!(0.3))]));
    let hangs = |on: &str| format!("x = input()\nwhile x in {on}: pass\nprint(sum(map(int, x.split())))");
    let passed = |on: &str| golden(&sum, &hangs(on)).unwrap().passed;
    assert_eq!((passed("[]"), passed("['1 2']"), passed("['1 2', '-1']")), (4, 3, 0));
    assert_eq!(golden(&sum, &hangs("['1 2']")).unwrap().fraction(), 0.75);
}

#[test]
fn cases_are_worth_what_they_find_out() {
    if support::sandbox().is_none() {
        return;
    }
    let worth = |spec: &Value, input: &str, output: &str| {
        let Quality { valid, agrees, finds } = quality(&instance(spec), &test(input, output)).unwrap();
        (valid, agrees, finds)
    };
    assert_eq!(worth(&sum(), "2 2 5\n", "9\n"), (true, true, 1.0));
    // Nobody is known to be wrong.
    let alone = with(sum(), &[("wrong", json!([]))]);
    assert_eq!(worth(&alone, "7 7\n", "14\n"), (true, true, 1.0));
    // Without a solution only the golden inputs have a known answer.
    let blind = with(sum(), &[("solution", Value::Null)]);
    assert_eq!(worth(&blind, "2 2\n", "4\n"), (true, true, 1.0));
    assert_eq!(worth(&blind, "2 2\n", "5\n"), (true, false, 0.0));
    assert_eq!(worth(&blind, "7 7\n", "14\n"), (false, false, 0.0));
    // A function takes a list of arguments and gives JSON.
    assert_eq!(worth(&chain(), "[4]", "14"), (true, true, 1.0));
    assert_eq!(worth(&chain(), "4", "14"), (false, false, 0.0));
    assert_eq!(worth(&chain(), "[4]", "fourteen"), (false, false, 0.0));
    let full = with(chain(), &[("encoding", json!("full"))]);
    assert_eq!(worth(&full, "[4]", "14"), (true, true, 0.0), "the statement shows it");
    let sum = instance(&sum());
    assert!(passes(&sum, "print(3)", &test("9\n", "3\n")).unwrap());
    assert!(!passes(&sum, "print(3)", &test("9\n", "4\n")).unwrap());
}

#[test]
fn compact_answers_earn_like_others() {
    for (agent, text, names, expected) in [
        ("coder", " ( x + 3 ) * 2", ["compiles", "smoke", "golden"], [1.0, 1.0, 1.0]),
        ("coder", " x + 3", ["compiles", "smoke", "golden"], [1.0, 1.0, 0.0]),
        ("coder", " 1 4", ["compiles", "smoke", "golden"], [0.0, 0.0, 0.0]),
        ("coder", " 14", ["compiles", "smoke", "golden"], [1.0, 1.0, 0.5]),
        ("tester", " 4 : 1 4", ["valid", "agrees", "finds"], [1.0, 1.0, 1.0]),
        // The wrong program is 6 more than x, the right one twice as much.
        ("tester", " 0 : 6", ["valid", "agrees", "finds"], [1.0, 1.0, 0.0]),
        ("tester", " 4 : 1 5", ["valid", "agrees", "finds"], [1.0, 0.0, 0.0]),
    ] {
        let outcome = start(&chain(), "team").apply(agent, text).unwrap();
        let found = names.map(|name| outcome.components[name]);
        assert_eq!(found, expected, "{agent} {text}");
    }
}

#[test]
fn a_situation_is_drawn() {
    let mut compact = start(&chain(), "team");
    assert_eq!(compact.draw(), "x + 3 * 2\nturn 0\n");
    compact.apply_together(&[("coder", " x"), ("tester", " 4 : 14")]).unwrap();
    let program = "program:\ndef f(x):\n    return ( x )\n";
    assert_eq!(compact.draw(), format!("x + 3 * 2\nturn 1\n{program}case: [4] -> 14\n"));
    if support::sandbox().is_none() {
        return;
    }
    let mut full = start(&sum(), "team");
    let case = "Test Input:\n```\n1\n2\n```\nTest Output: 3";
    full.apply_together(&[("coder", "```python\nprint(3)\n```"), ("tester", case)]).unwrap();
    let shown = "Print the sum.\nturn 1\nprogram:\nprint(3)\ncase, input:\n1\n2\ncase, output:\n3\n";
    assert_eq!(full.draw(), shown);
    // A program that reads lines gets a whole last line, and a function its arguments as they are.
    assert_eq!(full.to_json()["case"]["input"], "1\n2\n");
    let mut function = start(&with(chain(), &[("encoding", json!("full"))]), "team");
    function.apply("tester", "Test Input: [4]\nTest Output: 14").unwrap();
    assert_eq!(function.to_json()["case"]["input"], "[4]");
}

#[test]
fn what_check_needs_is_there() {
    let tried = |spec: &Value, agent: &str| start(spec, "team").test_actions(agent);
    let right = "```python\nprint(sum(map(int, input().split())))\n```";
    let wrong = "```python\nprint(max(map(int, input().split())))\n```";
    let case = |input: &str, output: &str| {
        format!("**Test Input:**\n```\n{input}\n```\n**Test Output:**\n```\n{output}\n```")
    };
    for (actions, expected) in [
        (tried(&sum(), "coder"), vec![right.to_owned(), wrong.to_owned(), String::new()]),
        // The output of another test with the input of the first.
        (tried(&sum(), "tester"), vec![case("1 2", "3"), case("-1", "-1"), case("1 2", "4"), String::new()]),
        (
            tried(&chain(), "coder"),
            vec![" ( x + 3 ) * 2".to_owned(), " x + 3 * 2".to_owned(), " ( x".to_owned()],
        ),
        (tried(&chain(), "tester"), vec![" 4 : 1 4".to_owned(), " x : 3".to_owned()]),
    ] {
        for action in expected {
            assert!(actions.contains(&action), "{action:?} is not tried: {actions:?}");
        }
    }
}

#[test]
fn specs_that_cannot_be_are_refused() {
    let tests = |input: &str, output: &str| json!([{"input": input, "output": output}]);
    for (key, value, cause) in [
        ("turns", json!(0), "turns"),
        ("turns", json!(100), "turns"),
        ("cpu", json!(0.05), "cpu"),
        ("cpu", json!(61), "cpu"),
        ("wall", json!(0.05), "wall"),
        ("wall", json!(601), "wall"),
        ("memory", json!(15), "memory"),
        ("memory", json!(4097), "memory"),
        ("problem", json!(" "), "problem: it is empty"),
        ("tests", json!([]), "tests: there are none"),
        ("examples", json!(3), "examples: 3 of 2 tests"),
        ("function", json!(""), "function: it has no name"),
        ("function", Value::Null, "function: it has no name"),
        ("tests", tests("4", "14"), "tests[0].input: not a JSON array of arguments"),
        ("tests", tests("[4]", "fourteen"), "tests[0].output: not a JSON value"),
    ] {
        let failure = code().reset(&with(chain(), &[(key, value.clone())]), "team").err();
        let failure = failure.map(|failure| failure.message).unwrap_or_default();
        assert!(failure.contains(cause), "{key} {value}: {failure:?} does not say {cause:?}");
    }
    for (key, value) in
        [("turns", json!(99)), ("cpu", json!(60)), ("wall", json!(600)), ("memory", json!(4096))]
    {
        assert!(code().reset(&with(chain(), &[(key, value.clone())]), "team").is_ok(), "{key} {value}");
    }
    // Programs that read take any text.
    let text = with(sum(), &[("tests", tests("4", "fourteen"))]);
    assert!(code().reset(&text, "team").is_ok());
}

#[test]
fn states_that_cannot_be_are_refused() {
    let json = start(&chain(), "team").to_json();
    for (best, is_fine) in [(0, true), (2, true), (3, false)] {
        let mut json = json.clone();
        json["best"] = best.into();
        assert_eq!(code().restore(&json).is_ok(), is_fine, "{best}");
    }
}

#[test]
fn a_task_carries_its_settings() {
    let spec = |texts: &[&str]| tasks(texts, 1)[0].spec.clone();
    let own = spec(&["turns=2", "cpu=1.5", "wall=3", "memory=64", "tests=5", "examples=1"]);
    let [tests, wrong] = ["tests", "wrong"].map(|name| own[name].as_array().unwrap().len());
    assert_eq!((tests, wrong <= 4), (5, true));
    for (key, value) in [
        ("turns", json!(2)),
        ("cpu", json!(1.5)),
        ("wall", json!(3.0)),
        ("memory", json!(64)),
        ("examples", json!(1)),
    ] {
        assert_eq!(own[key], value, "{key}");
    }
    let limits = instance(&own).limits();
    assert_eq!((limits.cpu_seconds, limits.wall_seconds, limits.memory_bytes), (1.5, 3.0, 64 << 20));
    let default = instance(&spec(&[])).limits();
    assert_eq!((default.cpu_seconds, default.wall_seconds, default.memory_bytes), (4.0, 30.0, 256 << 20));
    // A file's problem keeps the tests that its statement shows, however few are asked for.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("problems.jsonl");
    let tests: Vec<Value> =
        (0..9).map(|x| json!({"input": format!("{x}\n"), "output": format!("{x}\n")})).collect();
    for (examples, kept) in [(1, 3), (5, 5)] {
        let spec = json!({"problem": "Print it.", "style": "stdin", "tests": tests, "examples": examples});
        let line =
            json!({"type": "task", "v": 1, "env": "code", "task": "print", "split": "train", "spec": spec});
        std::fs::write(&file, format!("{line}\n")).unwrap();
        let data = format!("data={}", file.display());
        let task = &self::tasks(&[&data, "tests=3"], 1)[0];
        assert_eq!(task.spec["tests"].as_array().unwrap().len(), kept, "{examples} shown");
    }
}

#[test]
fn demonstrators_do_what_their_names_say() {
    for (kind, right) in [("opt", true), ("careless", false)] {
        let tasks = drawn::selection("code", Split::Train, 7, &[]);
        let mix = vec![(kind.to_owned(), 1.0)];
        let demonstration = Demonstration { tasks, workflow: "team".to_owned(), mix, states: 8, follow: 1.0 };
        let batches = code().demonstrations(&demonstration).unwrap().take(20).map(Result::unwrap);
        let mut earned = [Vec::new(), Vec::new()];
        for (batch, task) in batches.zip(tasks_of(&demonstration)) {
            for sample in batch {
                let agent = sample.agent.unwrap();
                let outcome = start(&task.spec, "team").apply(&agent, &sample.completion.unwrap()).unwrap();
                let (place, name) = if *agent == *"tester" { (1, "agrees") } else { (0, "golden") };
                earned[place].push(outcome.components[name]);
            }
        }
        let [coder, tester] = earned.map(|all| all.iter().sum::<f64>() / all.len() as f64);
        match right {
            true => assert_eq!((coder, tester), (1.0, 1.0)),
            // The output of another test is right by chance, and by drawing the same one.
            false => assert!(coder < 0.2 && (0.05..0.6).contains(&tester), "{coder} {tester}"),
        }
    }
}

fn tasks_of(demonstration: &Demonstration) -> Vec<Task> {
    code().tasks(&demonstration.tasks).unwrap().take(20).map(Result::unwrap).collect()
}

#[test]
fn the_best_case_is_the_oracles() {
    // At 0 both programs give 6; at 4 the wrong one gives 10.
    let tests = json!([{"input": "[0]", "output": "6"}, {"input": "[4]", "output": "14"}, {"input": "[5]", "output": "16"}]);
    let state = start(&with(chain(), &[("tests", tests)]), "team");
    let oracle = |agent: &str| state.oracle(agent);
    assert_eq!(oracle("tester").as_deref(), Some(" 4 : 1 4"));
    assert_eq!(oracle("coder").as_deref(), Some(" ( x + 3 ) * 2"));
}
