//! Two agents complete one class, through the step protocol: numbers worked out by hand from the published rules.

#![cfg(target_os = "linux")]

use crate::{drawn, support};

use envs::check::{Effort, check, verdict};
use envs::import::Importer;
use envs::{Environment, Split, find, step};
use record::line::Task;
use serde_json::{Value, json};

fn environment() -> &'static dyn Environment {
    find("class-eval").unwrap()
}

fn tasks(texts: &[&str], count: usize) -> Vec<Task> {
    drawn::tasks("class-eval", Split::Train, 1, texts, count)
}

/// A class of `methods` methods m0, m1, … that return their number.
fn spec(methods: usize) -> Value {
    let class: String = (0..methods)
        .map(|at| format!("    def m{at}(self):\n        \"\"\"The number {at}.\"\"\"\n\n"))
        .collect();
    let test = "import unittest\nclass Tests(unittest.TestCase):\n    def test_0(self):\n        self.assertEqual(A().m0(), 0)\n    \
                def test_1(self):\n        self.assertEqual(A().m1(), 1)\n";
    json!({"problem": format!("class A:\n{class}"), "test": test, "turns": 1, "gates": "published"})
}

fn methods(names: std::ops::Range<usize>) -> String {
    names.map(|at| format!("def m{at}(self):\n    return {at}\n\n")).collect()
}

fn play(spec: &Value, first: &str, second: &str) -> Value {
    let ask = |request: Value| -> Value {
        serde_json::from_str(&step::answer(environment(), &request.to_string())).unwrap()
    };
    let reset = ask(json!({"task": {"spec": spec}}));
    ask(json!({"state": reset["state"], "actions": {"coder-1": first, "coder-2": second}}))
}

#[test]
fn coverage_overlap_and_balance() {
    if support::sandbox().is_none() {
        return;
    }
    for (count, first, second, want) in [
        (5, methods(0..3), methods(3..5), 6.86),
        (5, methods(0..5), String::new(), -2.0),
        (5, methods(0..1), methods(0..1), -1.0),
        (4, methods(0..2), methods(2..4), 7.0),
        // Two of five by each, three in all: 2 x .6 + (2 - 3/25) + 3.5 (1 - .25/6.25) - .5.
        (5, methods(0..2), methods(1..3), 1.2 + 1.88 + 2.86),
        (5, methods(0..3), methods(2..5), 2.0 + 1.857142857 + 2.86),
    ] {
        let answer = play(&spec(count), &first, &second);
        let team = answer["rewards"]["team"].as_f64().unwrap_or_else(|| panic!("{answer}"));
        assert!((team - want).abs() < 1e-6, "{team}, not {want}: {answer}");
    }
}

/// What bodies without work are paid by the published rules, and by default.
#[test]
fn points_take_methods_that_work() {
    if support::sandbox().is_none() {
        return;
    }
    let bodies = |names: std::ops::Range<usize>, body: &str| -> String {
        names.map(|at| format!("def m{at}(self):\n    {body}\n\n")).collect()
    };
    for (what, first, second, by_the_rules, by_work) in [
        ("the work", methods(0..2), methods(2..4), 7.0, 7.0),
        ("pass", bodies(0..2, "pass"), bodies(2..4, "pass"), 7.0, -2.0),
        ("a constant", bodies(0..2, "return 7"), bodies(2..4, "return 7"), 7.0, 0.0),
        // One of two tests holds.
        ("half of it", methods(0..1) + &bodies(1..2, "return 7"), methods(2..4), 7.0, 3.5),
        // What the first left open the second wrote; three written, the share of the first is one of them.
        (
            "a method left open",
            methods(0..1) + &bodies(1..2, "..."),
            methods(1..4),
            4.0 - 1.0 / 3.0 + 2.5625,
            6.125,
        ),
    ] {
        for (gates, want) in [("published", by_the_rules), ("earned", by_work)] {
            let mut spec = spec(4);
            spec["gates"] = gates.into();
            let answer = play(&spec, &first, &second);
            let team = answer["rewards"]["team"].as_f64().unwrap_or_else(|| panic!("{answer}"));
            assert!((team - want).abs() < 1e-6, "{what} {gates}: {team}, not {want}: {answer}");
        }
    }
}

/// By the published rules tests are a component and a part of success, and pay nothing.
#[test]
fn tests_pay_nothing() {
    if support::sandbox().is_none() {
        return;
    }
    let right = play(&spec(4), &methods(0..2), &methods(2..4));
    let wrong = play(&spec(4), &methods(0..2).replace("return 1", "return 7"), &methods(2..4));
    let broken = play(&spec(4), &methods(0..2).replace("return 1", "return ("), &methods(2..4));
    for (answer, tests, success) in [(&right, 1.0, true), (&wrong, 0.5, false), (&broken, 0.0, false)] {
        assert_eq!(answer["rewards"]["team"], right["rewards"]["team"]);
        assert_eq!(
            (&answer["reward_components"]["tests"], &answer["success"]),
            (&json!(tests), &json!(success))
        );
    }
}

#[test]
fn jobs_are_taken_or_told() {
    for task in tasks(&["jobs=partition"], 8) {
        let jobs: Vec<Vec<String>> = serde_json::from_value(task.spec["jobs"].clone()).unwrap();
        assert!(jobs[0].len() - jobs[1].len() <= 1, "{jobs:?}");
        let state = environment().reset(&task.spec, "team").unwrap();
        for (agent, own, other) in [("coder-1", 0, 1), ("coder-2", 1, 0)] {
            let prompt = &state.observe(agent)[0].content;
            let asked = &prompt[prompt.find("Your partner").unwrap()..];
            assert!(
                asked.contains(&jobs[own].join(", ")) && !asked.contains(&jobs[other].join(", ")),
                "{asked}"
            );
        }
        assert_eq!(tasks(&["jobs=partition"], 8).iter().find(|other| other.task == task.task), Some(&task));
    }
    let state = environment().reset(&tasks(&[], 1)[0].spec, "team").unwrap();
    assert!(state.observe("coder-2")[0].content.contains("You are coder 2 of 2"));
    let mut spec = spec(3);
    spec["jobs"] = json!([["m0"], ["other"]]);
    assert!(environment().reset(&spec, "team").is_err());
}

#[test]
fn our_own_classes_and_the_contract() {
    if support::sandbox().is_none() {
        return;
    }
    for jobs in ["jobs=take", "jobs=partition"] {
        let mut names = std::collections::HashSet::new();
        for task in tasks(&[jobs, "turns=1"], 20) {
            names.insert(task.task.clone());
            for workflow in ["team", "single"] {
                let mut state = environment().reset(&task.spec, workflow).unwrap();
                let agents = state.workflow().agents().to_vec();
                let texts: Vec<String> = agents.iter().map(|agent| state.oracle(agent).unwrap()).collect();
                let actions: Vec<(&str, &str)> =
                    agents.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
                let outcome = state.apply_together(&actions).unwrap();
                assert!(outcome.success, "{}: {outcome:?}", task.spec);
            }
        }
        assert!(names.len() >= 8);
    }
    let effort =
        Effort { tasks: 1, episodes: 20, seed: 1, settings: drawn::settings("class-eval", &["turns=1"]) };
    let findings = check(environment(), &effort, &mut || ()).unwrap();
    verdict("class-eval", &findings).unwrap_or_else(|failure| panic!("{}: {findings:#?}", failure.message));
}

#[test]
fn class_eval_becomes_tasks() {
    let record = json!({
        "task_id": "X", "skeleton": "class A:\n    def one(self):\n        \"\"\"1\"\"\"\n", "test": "import unittest\n",
        "solution_code": "class A:\n    def one(self):\n        return 1\n", "class_name": "A",
    });
    let task = Importer::default().task(&record).unwrap().unwrap();
    assert_eq!((task.env.as_str(), &task.spec["solution"]), ("class-eval", &record["solution_code"]));
    environment().reset(&task.spec, "team").unwrap();
    let mut done = record.clone();
    done["skeleton"] = record["solution_code"].clone();
    assert_eq!(Importer::default().task(&done).unwrap(), None);
}

#[test]
fn settings_are_checked() {
    for text in ["jobs=draw", "overlap=more", "turns=0", "success=2"] {
        let selection = drawn::selection("class-eval", Split::Train, 1, &[text]);
        assert_eq!(environment().tasks(&selection).err().unwrap().code, 2, "{text}");
    }
}
