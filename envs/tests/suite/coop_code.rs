//! A helper and a main function, through the step protocol: numbers worked out by hand from the published rules.

#![cfg(target_os = "linux")]

use crate::support;

use envs::{Environment, Selection, Settings, Split, find, step};
use serde_json::{Value, json};

fn environment() -> &'static dyn Environment {
    find("coop-code").unwrap()
}

fn ask(request: &Value) -> Value {
    serde_json::from_str(&step::answer(environment(), &request.to_string())).unwrap()
}

/// Five assertions on the sum of squares; the fourth and fifth want something else.
fn spec() -> Value {
    let asserts = [
        "candidate([1, 2]) == 5",
        "candidate([]) == 0",
        "candidate([3]) == 9",
        "candidate([1]) == 2",
        "candidate([2]) == 5",
    ];
    let test: String = asserts.iter().map(|assert| format!("    assert {assert}\n")).collect();
    json!({
        "problem": "from typing import List\n\ndef squares(x: List[int]) -> int:\n    \"\"\"The sum of squares.\"\"\"\n",
        "entry_point": "squares", "test": format!("def check(candidate):\n{test}"), "turns": 1, "gates": "published",
    })
}

const AUX: &str = "```python\ndef aux(n):\n    return n * n\n```";
const MAIN: &str = "def squares(x: List[int]) -> int:\n    total = 0\n    for n in x:\n        total += aux(n)\n    return total";

fn play(spec: &Value, aux: &str, main: &str) -> Value {
    let reset = ask(&json!({"task": {"spec": spec}}));
    assert_eq!(reset["reward_range"], json!([0.0, 4.0]), "{reset}");
    ask(&json!({"state": reset["state"], "actions": {"aux": aux, "main": main}}))
}

fn earns(spec: &Value, aux: &str, main: &str, want: f64) {
    let answer = play(spec, aux, main);
    let team = answer["rewards"]["team"].as_f64().unwrap_or_else(|| panic!("{answer}"));
    assert!((team - want).abs() < 1e-9, "{team}, not {want}: {aux} {main}: {answer}");
}

#[test]
fn the_four_levels() {
    if support::sandbox().is_none() {
        return;
    }
    let spec = spec();
    let wrapper = "def squares(x):\n    return aux(x)";
    let sum = "def aux(x):\n    return sum(n * n for n in x)";
    earns(&spec, AUX, MAIN, 0.4 + 0.6 + 0.5 + 0.6 + 1.5);
    earns(&spec, sum, wrapper, 2.6);
    earns(&spec, AUX, "I would sum them up.", 0.4);
    earns(&spec, "", "", 0.0);
    // No value, no points for the helper; it is there all the same, and called.
    earns(&spec, "def aux(n):\n    pass", MAIN, 0.6 + 0.5 + 0.2 + 1.5);
    earns(&spec, AUX, "def squares(x):\n    pass", 0.4);
    earns(&spec, AUX, "def squares(x):\n    return = 1", 1.0);
    earns(&spec, AUX, "def squares(x):\n    return None", 1.5);
    // A main function that calls the helper and adds to it cooperates only where an assertion holds.
    earns(
        &spec,
        AUX,
        "def squares(x):\n    total = -1\n    for n in x:\n        total -= aux(n)\n    return total",
        1.5,
    );
    // Calls whose value is dropped, as far as the published rule sees them.
    earns(&spec, AUX, "def squares(x):\n    aux (3)\n    return sum(n * n for n in x)", 1.5 + 0.6 + 1.0);
    earns(&spec, AUX, "def squares(x):\n    aux(3)\n    return sum(n * n for n in x)", 1.5 + 0.6 + 1.5);
    // What a function uses stays with it; what its author writes of the partner's does not.
    for aux in [
        "def square(n):\n    return n * n\n\ndef aux(n):\n    return square(n)",
        "POWER = 2\n\ndef aux(n):\n    return n ** POWER",
        "import math\ndef aux(n):\n    return int(math.pow(n, 2))",
        "square = lambda n: n * n\ndef aux(n):\n    return square(n)",
        "aux = lambda n: n * n",
    ] {
        let main = "START = 0\ndef squares(x):\n    total = START\n    for n in x:\n        total += aux(n)\n    return total";
        earns(&spec, &format!("```python\n{aux}\n```"), main, 0.4 + 0.6 + 0.5 + 0.6 + 1.5);
    }
    earns(&spec, "def aux(n):\n    return 0", &format!("{AUX}\n\n{MAIN}"), 0.4 + 0.6 + 0.5 + 0.2 + 1.5);
    let mut right = spec;
    right["test"] =
        "def check(candidate):\n    assert candidate([1, 2]) == 5\n    assert candidate([3]) == 9\n".into();
    earns(&right, "", "def squares(x):\n    return sum(n * n for n in x)", 2.1);
    earns(&right, AUX, MAIN, 4.0);
    assert_eq!(play(&right, AUX, MAIN)["success"], true);
    assert_eq!(play(&spec_with_failures(), AUX, MAIN)["success"], false);
}

/// What is paid for cooperation by the published rules, which read the main function, and by default, where it is tried. Three of five
/// assertions can hold: 1.5 + 0.6 + 0.6 x 1.5 is 3.0.
#[test]
fn cooperation_takes_a_helper_that_is_needed() {
    if support::sandbox().is_none() {
        return;
    }
    let alone = |text: &str| format!("def squares(x):\n    {text}\n    return sum(n * n for n in x)");
    for (what, aux, main, by_the_rules, by_work) in [
        ("both work", AUX, MAIN, 3.6, 3.0),
        ("a comment", AUX, &*alone("# aux(x)"), 3.6, 2.1),
        ("a string", AUX, &*alone("text = 'aux(x)'"), 3.6, 2.1),
        ("dead code", AUX, &*alone("if False:\n        aux(x)"), 3.6, 2.1),
        ("a value that is dropped", AUX, &*alone("aux(3)"), 3.6, 2.1),
        ("a value times 0", AUX, "def squares(x):\n    return sum(n * n for n in x) + 0 * aux(3)", 2.6, 2.1),
        (
            "a value caught",
            AUX,
            "def squares(x):\n    try:\n        aux(3)\n    except Exception:\n        pass\n    return sum(n * n for n in x)",
            3.6,
            2.1,
        ),
        ("a constant", "", "def squares(x):\n    # aux(x)\n    return 9", 1.1 + 0.2, 1.1 + 0.2),
        (
            "a constant beside a helper",
            AUX,
            "def squares(x):\n    # aux(x)\n    return 9",
            1.5 + 0.2 + 1.5,
            1.5 + 0.2,
        ),
        (
            "a constant for two",
            "def aux(x):\n    return 8",
            "def squares(x):\n    return aux(x) + 1",
            2.2,
            1.5 + 0.2 + 0.2 * 1.5,
        ),
        (
            "a wrapper",
            "def aux(x):\n    return sum(n * n for n in x)",
            "def squares(x):\n    return aux(x)",
            2.6,
            1.5 + 0.6 + 0.3,
        ),
        (
            "a wrapper in disguise",
            "def aux(x):\n    return sum(n * n for n in x)",
            "def squares(x):\n    y = aux(x)\n    y += 0\n    return y",
            3.6,
            2.4,
        ),
        ("given to another function", AUX, "def squares(x):\n    return sum(map(aux, x))", 2.1, 3.0),
    ] {
        let mut spec = spec();
        earns(&spec, aux, main, by_the_rules);
        spec["gates"] = "earned".into();
        let answer = play(&spec, aux, main);
        let team = answer["rewards"]["team"].as_f64().unwrap_or_else(|| panic!("{answer}"));
        assert!((team - by_work).abs() < 1e-9, "{what}: {team}, not {by_work}: {answer}");
    }
    let mut right = spec();
    right["gates"] = "earned".into();
    right["turns"] = 2.into();
    right["test"] =
        "def check(candidate):\n    assert candidate([1, 2]) == 5\n    assert candidate([3]) == 9\n".into();
    earns(&right, AUX, MAIN, 4.0);
    let told = play(&right, AUX, MAIN)["observations"]["main"][0]["content"].to_string();
    assert!(told.contains("main function needs aux: yes"), "{told}");
}

/// 3.6 of 4 is 0.9, but two tests fail.
fn spec_with_failures() -> Value {
    spec()
}

/// Assertions of HumanEval's kinds.
#[test]
fn assertions_of_every_kind() {
    if support::sandbox().is_none() {
        return;
    }
    for (assertion, value, holds) in [
        ("assert candidate(1) == (1, 2)", "(1, 2)", true),
        ("assert candidate(1) == (1, 2)", "[1, 2]", false),
        ("assert abs(candidate(1) - 0.3) < 1e-6", "0.1 + 0.2", true),
        ("assert math.fabs(candidate(1) - 2) < 1e-6, 'text'", "2.1", false),
        ("assert candidate(1) is None", "None", true),
        ("assert candidate(1) == candidate(2)", "{'a': {1, 2}}", true),
        ("assert not candidate(candidate(1))", "0", true),
        ("assert candidate(1) == True, \"message\"", "True", true),
        ("assert candidate(", "1", false),
        ("assert candidate(undefined) == 1", "1", false),
        ("assert candidate(1) == 1", "object()", false),
    ] {
        let mut spec = spec();
        spec["test"] = format!("def check(candidate):\n    {assertion}\n").into();
        let main = format!("def squares(x):\n    return {value}");
        earns(&spec, "", &main, 1.1 + f64::from(u8::from(holds)));
    }
}

/// A program never sees the expected values, so it cannot make its verdict.
#[test]
fn verdicts_cannot_be_forged() {
    if support::sandbox().is_none() {
        return;
    }
    for main in [
        "def squares(x):\n    import os\n    os._exit(0)\n    return 1",
        "def squares(x):\n    print('[true, true, true]')\n    raise SystemExit(0)\n    return 1",
        "def squares(x):\n    class Same(int):\n        __eq__ = lambda self, other: True\n    return Same(77)",
        "def squares(x):\n    import builtins\n    builtins.repr = lambda value: '5 or True'\n    return 1",
        "def squares(x):\n    global troupe_calls\n    troupe_calls = lambda calls: ['0' for call in calls]\n    return 1",
    ] {
        let answer = play(&spec(), "", main);
        let share = answer["reward_components"]["tests"].as_f64().unwrap();
        assert!(share == 0.0, "{main}: {answer}");
    }
}

#[test]
fn a_program_that_never_ends_costs_three_assertions() {
    if support::sandbox().is_none() {
        return;
    }
    let mut spec = spec();
    spec["cpu"] = 0.2.into();
    spec["shown"] = 0.into();
    spec["turns"] = 2.into();
    let began = std::time::Instant::now();
    let answer = play(&spec, AUX, "def squares(x):\n    while True:\n        pass\n    return 1");
    assert_eq!(answer["rewards"]["team"], 1.5);
    let told = answer["observations"]["main"][0]["content"].as_str().unwrap();
    assert_eq!((told.matches(": out of time").count(), told.matches("not run").count()), (3, 2), "{told}");
    // Far below a limit of minutes: three times 0.2 s of processor time.
    assert!(began.elapsed().as_secs() < 60);
}

#[test]
fn feedback_between_turns() {
    if support::sandbox().is_none() {
        return;
    }
    let wrong = "def squares(x):\n    return 7";
    for (feedback, shown, has, has_not) in [
        ("plain", 1, "This was not the last turn.", "passed"),
        ("passed", 1, "Not all tests passed.", "syntax"),
        (
            "level-passed",
            1,
            "syntax is right: yes\nall tests passed: no\nmain function calls aux: no",
            "it gave",
        ),
        (
            "level-feedback",
            1,
            "tests: 0 of 1 passed\n  assert candidate([1, 2]) == 5: it gave 7",
            "candidate([3])",
        ),
        ("level-feedback", 0, "assert candidate([2]) == 5: it gave 7", "Your partner wrote"),
    ] {
        let mut spec = spec();
        spec["turns"] = 2.into();
        (spec["feedback"], spec["shown"]) = (feedback.into(), shown.into());
        let answer = play(&spec, AUX, wrong);
        assert_eq!((&answer["terminated"], &answer["success"]), (&json!(false), &json!(false)));
        for (agent, own) in [("aux", "return n * n"), ("main", "return 7")] {
            let told = answer["observations"][agent][0]["content"].as_str().unwrap();
            let after = &told[told.find("You wrote before").unwrap()..];
            assert!(after.contains(has) && after.contains(own), "{feedback}: {told}");
            assert!(
                feedback == "level-passed" || !after.replace(own, "").contains(has_not),
                "{feedback}: {told}"
            );
        }
    }
    let state = environment().reset(&spec(), "discussion").unwrap();
    assert_eq!(state.turn_limit(), 2);
}

/// The shipped problems: enough of them, solved by their reference functions.
#[test]
fn our_own_problems() {
    if support::sandbox().is_none() {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for split in [Split::Train, Split::Test] {
        let tasks =
            environment().tasks(&Selection { split, seed: 1, settings: Settings::default() }).unwrap();
        for task in tasks.take(60).map(Result::unwrap) {
            if !seen.insert(task.task.clone()) {
                continue;
            }
            let mut state = environment().reset(&task.spec, "team").unwrap();
            let texts = ["aux", "main"].map(|agent| state.oracle(agent).unwrap());
            let outcome = state.apply_together(&[("aux", &texts[0]), ("main", &texts[1])]).unwrap();
            assert!((outcome.rewards.team - 4.0).abs() < 1e-9, "{}: {outcome:?}", task.spec);
        }
    }
    assert_eq!(seen.len(), 28);
}
