//! An environment behind a command: answers, refusals, and failures of the program.

use std::time::Duration;

use envs::{Environment, External};
use record::line::Task;
use serde_json::json;

/// A program in sed: two agents, and every action succeeds.
const PROGRAM: &str = r#"sed -u -E \
-e '/"task":.*"refuse"/{s/.*"request":([0-9]+)}$/{"request":\1,"error":"no such task"}/;b}' \
-e '/"task":/{s/.*"request":([0-9]+)}$/{"request":\1,"state":{"n":0},"observations":{"a":[{"role":"user","content":"to a"}],"b":[{"role":"user","content":"to b"}]},"agents":["a","b"],"order":"parallel","turns":7}/;b}' \
-e '/"action":"odd"/{s/.*"request":([0-9]+)}$/{"request":\1,"state":{}}/;b}' \
-e 's/.*"agent":"([a-z]+)".*"request":([0-9]+)}$/{"request":\2,"state":{"n":1},"rewards":{"team":1,"local":0.5},"reward_components":{"c":1},"terminated":true,"success":true}/'"#;

fn environment(command: &str) -> External {
    External::new(command, Duration::from_secs(20))
}

fn task(name: &str) -> Task {
    Task { env: "any".to_owned(), task: name.to_owned(), spec: json!({}), ..Task::default() }
}

fn plays(environment: &External) {
    let state = environment.begin(&task("t"), None).expect("a state");
    assert_eq!((state.workflow().agents(), state.turn_limit()), (&["a".to_owned(), "b".to_owned()][..], 7));
    assert_eq!(state.workflow().order(), "parallel");
    assert_eq!(state.observe("a")[0].content, "to a");
    let mut next = state.clone_state();
    let outcome = next.apply("a", "anything\n\"quoted\"").expect("an outcome");
    assert_eq!((outcome.rewards.team, outcome.rewards.local), (1.0, 0.5));
    assert!(outcome.terminated && outcome.success && next.is_solved() && !state.is_solved());
    assert_eq!((state.to_json(), next.to_json()), (json!({"n": 0}), json!({"n": 1})));
}

#[test]
fn a_program_that_answers_is_an_environment() {
    let environment = environment(PROGRAM);
    assert_eq!(environment.agents(&task("t"), None).expect("agents"), ["a", "b"]);
    plays(&environment);
    plays(&environment);
}

#[test]
fn a_program_that_dies_after_each_answer_is_started_again() {
    plays(&environment(&format!("read -r line && printf '%s\\n' \"$line\" | {PROGRAM}")));
}

#[test]
fn refusals_of_the_program_concern_the_task_or_the_action() {
    let environment = environment(PROGRAM);
    let failure = environment.begin(&task("refuse"), None).err().expect("a refused task");
    assert_eq!((failure.code, failure.message.as_str()), (record::failure::DATA, "no such task"));
    assert_eq!(environment.agents(&task("refuse"), None).expect("agents are not known"), [""; 0]);
    let failure =
        environment.begin(&task("t"), None).expect("a state").apply("a", "odd").expect_err("half an answer");
    assert!(failure.message.contains("missing field `rewards`"), "{}", failure.message);
}

#[test]
fn a_program_that_does_not_answer_is_named_with_what_it_did() {
    for (command, cause) in [
        ("exit 3", "exit 3: ended without an answer (exit status: 3)"),
        ("sed -u 's/.*/{}/'", "sed -u 's/.*/{}/': its answer does not echo \"request\": 0"),
        (
            "sed -u 's/.*/hm/'",
            "sed -u 's/.*/hm/': line 1 of its output is no JSON object: \"hm\"; stdout is for answers, so print to stderr",
        ),
    ] {
        let failure = environment(command).agents(&task("t"), None).expect_err("no answer");
        assert_eq!((failure.code, failure.message), (2, format!("--env-command {cause}")));
    }
    let silent = External::new("sleep 60", Duration::from_millis(50));
    // More than a pipe holds, so that a program that reads nothing does not even take the request.
    for name in ["t".to_owned(), "t".repeat(1 << 20)] {
        let failure = silent.begin(&task(&name), None).err().expect("no answer");
        assert_eq!((failure.code, failure.message.as_str()), (1, "sleep 60: no line within 0.05 s"));
    }
}
