//! The Code environment: what its tasks hold, what answers earn, when episodes end.

#![cfg(target_os = "linux")]

use crate::{drawn, support};

use envs::{Demonstration, Environment, Split, State, find};
use problems::code::expression;
use problems::code::judge::{golden, quality};
use problems::code::spec::Instance;
use record::line::Task;
use record::sample::Message;
use serde_json::{Value, json};

fn code() -> &'static dyn Environment {
    find("code").unwrap()
}

pub fn tasks(texts: &[&str], split: Split, count: usize) -> Vec<Task> {
    drawn::tasks("code", split, 7, texts, count)
}

/// A task whose answer is the sum of a line.
fn sum() -> Value {
    json!({
        "encoding": "full", "turns": 3, "cpu": 2.0, "memory": 128, "name": "sum", "problem": "Print the sum.",
        "style": "stdin", "examples": 1, "solution": "print(sum(map(int, input().split())))",
        "tests": [
            {"input": "1 2\n", "output": "3\n"}, {"input": "-1\n", "output": "-1\n"},
            {"input": "\n", "output": "0\n"}, {"input": "2 2\n", "output": "4\n"},
        ],
        "wrong": ["print(max(map(int, input().split())))", "print(input().count(' ') * 4 - 1)"],
    })
}

fn start(spec: &Value, workflow: &str) -> Box<dyn State> {
    code().reset(spec, workflow).unwrap()
}

fn program(source: &str) -> String {
    format!("```python\n{source}\n```")
}

fn case(input: &str, output: &str) -> String {
    format!("**Test Input:**\n```\n{input}\n```\n**Test Output:**\n```\n{output}\n```")
}

const RIGHT: &str = "print(sum(map(int, input().split())))";

/// A usage example after a solution is not a solution; a helper in a separate block belongs to it.
#[test]
fn a_solution_counts_among_several_blocks() {
    if support::sandbox().is_none() {
        return;
    }
    let double = json!({
        "encoding": "full", "turns": 1, "cpu": 2.0, "memory": 128, "name": "double", "problem": "Double it.", "style": "function", "function": "f", "examples": 1,
        "tests": [{"input": "[4]", "output": "8"}, {"input": "[-7]", "output": "-14"}],
    });
    let function = "def f(x):\n    return x * 2";
    let of_function: [&[&str]; 4] = [
        &[function, "assert f(2) == 4"],
        &[function, "print(f(21))"],
        &["def f(x):\n    return 0", function, "f(1)"],
        &["def twice(x):\n    return x * 2", "def f(x):\n    return twice(x)", "assert f(2) == 4"],
    ];
    let of_input: [&[&str]; 2] = [
        &[RIGHT, "assert sum([1, 2]) == 3"],
        &["def total(line):\n    return sum(map(int, line.split()))", "print(total(input()))"],
    ];
    let answers = of_function.iter().map(|blocks| (&double, blocks));
    let sum = sum();
    for (spec, blocks) in answers.chain(of_input.iter().map(|blocks| (&sum, blocks))) {
        let text: Vec<String> = blocks.iter().map(|block| program(block)).collect();
        let outcome = start(spec, "one-shot").apply("coder", &text.join("\nThen:\n")).unwrap();
        assert_eq!((outcome.components["golden"], outcome.success), (1.0, true), "{blocks:?}");
    }
}

#[test]
fn a_coder_earns_by_compiling_running_and_passing() {
    if support::sandbox().is_none() {
        return;
    }
    for (text, compiles, smoke, golden) in [
        (program(RIGHT), 1.0, 1.0, 1.0),
        (program("print(max(map(int, input().split())))"), 1.0, 1.0, 0.25),
        (program("print(3)"), 1.0, 1.0, 0.25),
        (program("1/0"), 1.0, 0.0, 0.0),
        (program("print(("), 0.0, 0.0, 0.0),
        ("I do not know.".to_owned(), 0.0, 0.0, 0.0),
    ] {
        let outcome = start(&sum(), "team").apply("coder", &text).unwrap();
        let part = |name: &str| outcome.components[name];
        assert_eq!((part("compiles"), part("smoke"), part("golden")), (compiles, smoke, golden), "{text}");
        let local = 0.1 * compiles + 0.1 * smoke + 0.8 * golden;
        assert!(
            (outcome.rewards.local - local).abs() < 1e-12 && outcome.rewards.team == golden,
            "{outcome:?}"
        );
        assert!(!outcome.terminated && !outcome.success, "a coder alone ends nothing in a team");
    }
}

#[test]
fn a_tester_earns_by_being_right_and_finding_out() {
    if support::sandbox().is_none() {
        return;
    }
    for (text, valid, agrees, finds) in [
        (case("2 2 5", "9"), 1.0, 1.0, 1.0),
        // Copied from the statement: it tells nothing apart.
        (case("1 2", "3"), 1.0, 1.0, 0.0),
        (case("  1   2 ", "3.0"), 1.0, 1.0, 0.0),
        (case("5", "5"), 1.0, 1.0, 0.5),
        (case("1 2", "4"), 1.0, 0.0, 0.0),
        (case("one two", "3"), 0.0, 0.0, 0.0),
        ("Try 1 2.".to_owned(), 0.0, 0.0, 0.0),
    ] {
        let outcome = start(&sum(), "team").apply("tester", &text).unwrap();
        let part = |name: &str| outcome.components[name];
        assert_eq!((part("valid"), part("agrees"), part("finds")), (valid, agrees, finds), "{text}");
        assert!((outcome.rewards.local - (0.1 * valid + 0.1 * agrees + 0.8 * finds)).abs() < 1e-12);
        assert_eq!(outcome.rewards.team, 0.0);
    }
}

/// A policy that learned nothing can only repeat its prompt.
#[test]
fn copying_the_prompt_solves_no_compact_task() {
    for split in [Split::Train, Split::Test] {
        for task in tasks(&[], split, 300) {
            let instance = Instance::parse(&task.spec).unwrap();
            let copied = expression::program(&format!(" {}", instance.problem.statement));
            let results = golden(&instance, &copied).unwrap();
            assert!(results.passed <= 1, "{}: {results:?}", instance.problem.statement);
            assert_eq!(instance.problem.wrong.first(), Some(&copied));
            let best = instance.problem.tests.iter().map(|test| quality(&instance, test).unwrap().finds);
            assert_eq!(
                best.fold(0.0, f64::max),
                1.0,
                "{}: no test finds out all",
                instance.problem.statement
            );
        }
    }
}

#[test]
fn a_tester_who_copies_the_first_example_earns_little() {
    if support::sandbox().is_none() {
        return;
    }
    for texts in [&["encoding=full"][..], &["encoding=full", "level=3"], &["data=shipped"]] {
        for task in tasks(texts, Split::Train, 8) {
            let first = &task.spec["tests"][0];
            let text = |name: &str| first[name].as_str().unwrap().trim_end().to_owned();
            let state = start(&task.spec, "team");
            let earned = |text: &str| state.clone_state().apply("tester", text).unwrap().rewards.local;
            assert!(earned(&case(&text("input"), &text("output"))) <= 0.2, "{}", task.task);
            assert_eq!(earned(&state.oracle("tester").unwrap()), 1.0, "{}", task.task);
        }
    }
}

#[test]
fn agreement_ends_an_episode_and_is_no_success() {
    if support::sandbox().is_none() {
        return;
    }
    let mut state = start(&sum(), "team");
    let wrong = program("print(max(map(int, input().split())))");
    let outcome = state.apply_together(&[("coder", &wrong), ("tester", &case("4", "4"))]).unwrap();
    assert!(outcome.terminated && !outcome.success, "{outcome:?}");
    assert!(!state.is_solved());
    assert_eq!(outcome.components["agreement"], 1.0);
    assert!(state.apply("coder", &wrong).is_err(), "the episode is over");

    let mut state = start(&sum(), "team");
    let right = program(RIGHT);
    let outcome = state.apply_together(&[("coder", &right), ("tester", &case("4 4", "8"))]).unwrap();
    assert!(outcome.terminated && outcome.success && state.is_solved(), "{outcome:?}");
    assert_eq!(outcome.rewards.team, 1.0);
}

#[test]
fn without_a_test_case_a_team_does_not_agree() {
    if support::sandbox().is_none() {
        return;
    }
    for silent in ["I would try 4 4.", ""] {
        let mut state = start(&sum(), "team");
        let outcome = state.apply_together(&[("coder", &program(RIGHT)), ("tester", silent)]).unwrap();
        assert_eq!((outcome.components["agreement"], outcome.terminated), (0.0, false), "{outcome:?}");
    }
}

#[test]
fn a_right_program_is_handed_in_after_the_last_turn_and_paid_once() {
    if support::sandbox().is_none() {
        return;
    }
    let mut state = start(&sum(), "team");
    let (right, mistaken) = (program(RIGHT), case("4 4", "9"));
    let mut team = 0.0;
    for turn in 1..=3 {
        let outcome = state.apply_together(&[("coder", &right), ("tester", &mistaken)]).unwrap();
        team += outcome.rewards.team;
        assert_eq!((outcome.terminated, outcome.success), (turn == 3, turn == 3), "turn {turn}");
        if turn < 3 {
            let seen = &state.observe("tester")[0].content;
            assert!(seen.contains("4 4") && seen.contains('9') && seen.contains("\n8\n"), "{seen}");
        }
    }
    assert_eq!(team, 1.0);
}

#[test]
fn alone_the_examples_decide_when_to_stop() {
    if support::sandbox().is_none() {
        return;
    }
    let mut state = start(&sum(), "single");
    let outcome = state.apply("coder", &program("print(0)")).unwrap();
    assert!(!outcome.terminated);
    let seen = &state.observe("coder")[0].content;
    assert!(seen.contains("On an example it did not do what was expected"), "{seen}");
    // Passes the example and nothing else.
    let outcome = state.clone_state().apply("coder", &program("print(3)")).unwrap();
    assert!(outcome.terminated && !outcome.success);
    let outcome = state.apply("coder", &program(RIGHT)).unwrap();
    assert!(outcome.terminated && outcome.success && state.is_solved());
    let outcome = start(&sum(), "one-shot").apply("coder", &program("print(0)")).unwrap();
    assert!(outcome.terminated && !outcome.success);
}

#[test]
fn no_prompt_holds_a_hidden_test_or_the_solution() {
    let mut spec = sum();
    spec["tests"][3] = json!({"input": "7777 1111\n", "output": "8888\n"});
    for workflow in ["team", "single", "one-shot"] {
        let state = start(&spec, workflow);
        for agent in state.workflow().agents() {
            let seen = &state.observe(agent)[0].content;
            assert!(!seen.contains("7777") && !seen.contains("8888") && !seen.contains("sum(map"), "{seen}");
        }
    }
}

/// Digits stand apart, so that each is a word that a tiny tokenizer knows.
#[test]
fn compact_prompts_spell_numbers() {
    let spec = json!({
        "encoding": "compact", "turns": 4, "cpu": 2.0, "memory": 128, "name": "chain", "problem": "x + 3 * 2",
        "style": "function", "function": "f", "examples": 1, "solution": "def f(x):\n    return ( ( x + 3 ) * 2 )\n",
        "tests": [{"input": "[4]", "output": "14"}, {"input": "[-7]", "output": "-8"}],
    });
    let prompt = |coder: &str, tester: &str| {
        let mut state = start(&spec, "team");
        let outcome = state.apply_together(&[("coder", coder), ("tester", tester)]).unwrap();
        assert!(!outcome.terminated, "{outcome:?}");
        state.observe("tester")[0].content.clone()
    };
    assert_eq!(prompt(" x + 3 * 2", " 4 : 1 4"), "tester x + 3 * 2 was x + 3 * 2 at 4 : 1 4 but 1 0");
    assert_eq!(prompt(" x", "-7:- 8"), "tester x + 3 * 2 was x at - 7 : - 8 but - 7");
    assert_eq!(prompt(" x )", " 4 : 14"), "tester x + 3 * 2 was x ) at 4 : 1 4 but none");
}

#[test]
fn demonstrations_show_later_turns_too() {
    let mut kinds = vec![(&[][..], " was ")];
    if support::sandbox().is_some() {
        kinds.push((&["encoding=full"], "The last program was"));
    }
    for (texts, later) in kinds {
        let demonstration = Demonstration {
            tasks: drawn::selection("code", Split::Train, 7, texts),
            workflow: "team".to_owned(),
            mix: vec![("opt".to_owned(), 0.5), ("careless".to_owned(), 0.5)],
            states: 8,
            follow: 1.0,
        };
        let samples: Vec<_> =
            code().demonstrations(&demonstration).unwrap().take(6).flat_map(Result::unwrap).collect();
        let shows = |prompt: &[Message]| prompt[0].content.contains(later);
        let seen = samples.iter().filter(|sample| sample.prompt.as_deref().is_some_and(shows)).count();
        assert!(seen >= 8 && seen <= samples.len() / 2, "{seen} of {}", samples.len());
    }
}

#[test]
fn programs_that_pretend_earn_nothing_for_it() {
    if support::sandbox().is_none() {
        return;
    }
    for source in [
        "import os\nos.write(1, b'passed')\nos._exit(0)",
        "print('passed')\nraise SystemExit(0)",
        "import sys\nsys.stdout = None",
        "class Same(str):\n    __eq__ = lambda self, other: True\nprint(Same('3'), end='')\n1/0",
        "import json\njson.dumps = lambda *a: '3'\nprint(5)",
    ] {
        let outcome = start(&sum(), "team").apply("coder", &program(source)).unwrap();
        assert_eq!(outcome.components["golden"], 0.0, "{source}");
    }
}

#[test]
fn brief_prompts_begin_alike_and_hold_the_task_and_its_examples() {
    let tasks = tasks(&["encoding=full"], Split::Train, 2);
    for agent in ["coder", "tester"] {
        let prompts = tasks.iter().map(|task| start(&task.spec, "team").observe(agent)[0].content.clone());
        let prompts: Vec<String> = prompts.collect();
        let problem = Instance::parse(&tasks[0].spec).unwrap().problem;
        let common = prompts[0].find(&problem.statement).unwrap();
        assert!(common > 10 && prompts[0][..common] == prompts[1][..common], "{prompts:?}");
        let first = &problem.tests[0];
        let example = format!("solve({}) is {}\n", first.input.trim_matches(['[', ']']), first.output);
        assert!(prompts[0].contains(&problem.statement) && prompts[0].contains(&example), "{}", prompts[0]);
        assert!(prompts[0].len() < 420, "{}", prompts[0]);
    }
}

/// A program that sleeps uses no processor time: its elapsed time is bounded, by 10 s and five times `cpu` or by the task.
#[test]
fn a_program_that_sleeps_ends_with_its_wall_time() {
    assert_eq!(tasks(&["wall=2.5"], Split::Train, 1)[0].spec["wall"], 2.5);
    assert!(tasks(&[], Split::Train, 1)[0].spec.get("wall").is_none());
    if support::sandbox().is_none() {
        return;
    }
    let mut spec = sum();
    spec["wall"] = 0.5.into();
    let sleeps = program("import time\nprint(sum(map(int, input().split())), flush=True)\ntime.sleep(12)");
    // The task's limit of 20 s would let it end and pass.
    let outcome = start(&spec, "team").apply("coder", &sleeps).unwrap();
    assert_eq!(outcome.components["golden"], 0.0, "{outcome:?}");
}
