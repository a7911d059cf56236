//! Workflows of a file, from the user's side.

use envs::check::verdict;
use envs::{Selection, Settings, Split, State, find};
use record::line::Task;
use serde_json::json;

use crate::contract::report;

fn file(name: &str) -> String {
    troupe_tests::root().join("examples/workflows").join(name).display().to_string()
}

fn settings(environment: &str) -> Settings {
    let texts = ["encoding=full".to_owned()];
    Settings::parse(&texts, environment, find(environment).unwrap().metadata().settings).unwrap()
}

fn task(environment: &str) -> Task {
    let selection = Selection { split: Split::Train, seed: 4, settings: settings(environment) };
    find(environment).unwrap().tasks(&selection).unwrap().next().unwrap().unwrap()
}

fn begin(name: &str) -> Box<dyn State> {
    find("math").unwrap().begin(&task("math"), Some(&file(name))).unwrap()
}

#[test]
fn every_example_keeps_the_contract() {
    let files = std::fs::read_dir(troupe_tests::root().join("examples/workflows")).unwrap();
    let names: Vec<String> = files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 7);
    for name in names {
        let report = report("math", &["encoding=full"], Some(&file(&name)), 1, 20);
        verdict(&name, &report.findings).unwrap_or_else(|failure| panic!("{}: {report:#?}", failure.message));
    }
}

/// A right answer that the evaluator takes for wrong is not the end; one that it takes for right is.
#[test]
fn an_evaluator_ends_the_episode() {
    let mut state = begin("evaluator-optimizer.toml");
    let right = state.oracle("solver").unwrap();
    let answered = state.apply("solver", &right).unwrap();
    assert_eq!((answered.rewards.team, answered.rewards.local, answered.terminated), (0.0, 1.0, false));
    let refused = state.clone_state().apply("evaluator", "It is wrong.").unwrap();
    assert_eq!((refused.rewards.local, refused.terminated), (0.2, false));
    let accepted = state.apply("evaluator", "Right").unwrap();
    assert_eq!((accepted.rewards.team, accepted.rewards.local), (1.0, 1.0));
    assert!(accepted.terminated && accepted.success);
}

#[test]
fn a_vote_counts_answers_that_mean_the_same() {
    let mut state = begin("vote.toml");
    let right = state.oracle("solver-1").unwrap();
    let wrong = "= 99999";
    let mut texts = vec![wrong, wrong, &right, &right, &right];
    let name = |number: usize| format!("solver-{}", number + 1);
    let names: Vec<String> = (0..5).map(name).collect();
    let play = |state: &mut dyn State, texts: &[&str]| {
        let actions: Vec<(&str, &str)> =
            names.iter().map(String::as_str).zip(texts.iter().copied()).collect();
        state.apply_together(&actions).unwrap()
    };
    let outcome = play(&mut *state.clone_state(), &texts);
    assert_eq!((outcome.rewards.team, outcome.success, outcome.local_of("solver-1")), (1.0, true, 0.2));
    texts[2] = wrong;
    assert!(!play(&mut *state, &texts).success);
}

/// A judge of the last turn skips the turns before it, and is shown what the debaters said last.
#[test]
fn a_judge_acts_in_the_last_turn() {
    let mut state = begin("debate.toml");
    for turn in 0..2 {
        assert!(!state.acts("judge"), "turn {turn}");
        assert_eq!(
            state.clone_state().apply("judge", "= 1").unwrap_err().message,
            "'judge' does not act in this turn"
        );
        let outcome = state.apply_together(&[("debater-1", "= 1"), ("debater-2", "= 2")]).unwrap();
        assert!(!outcome.terminated);
    }
    assert!(state.observe("debater-1")[0].content.ends_with("debater-1: = 1\ndebater-2: = 2"));
    state.apply_together(&[("debater-1", "= 3"), ("debater-2", "= 4")]).unwrap();
    assert!(
        state.acts("judge") && state.observe("judge")[0].content.ends_with("debater-1: = 3\ndebater-2: = 4")
    );
    let right = state.oracle("judge").unwrap();
    assert!(state.apply("judge", &right).unwrap().success);
}

/// A state holds its workflow, so `envs step` goes on without the file.
#[test]
fn a_state_holds_its_workflow() {
    let state = begin("chain.toml");
    let json = state.to_json();
    assert_eq!(json["workflow"]["order"], json!(["drafter", "reviser"]));
    assert_eq!(find("math").unwrap().restore(&json).unwrap().to_json(), json);
    let mut broken = json;
    broken["workflow"]["last"] = json!("nobody");
    assert_eq!(find("math").unwrap().restore(&broken).err().unwrap().code, 65);
}

#[test]
fn an_environment_without_a_checker_says_so() {
    let failure = find("plan-path").unwrap().begin(&task("plan-path"), Some("debate.toml")).err().unwrap();
    assert_eq!((failure.code, &*failure.message), (2, "plan-path has no workflow 'debate.toml'"));
    assert!(failure.hint.unwrap().starts_with("files are for tasks with a checker, math and code"));
    let selection = Selection { split: Split::Train, seed: 4, settings: Settings::default() };
    let compact = find("math").unwrap().tasks(&selection).unwrap().next().unwrap().unwrap();
    let failure = find("math").unwrap().begin(&compact, Some(&file("chain.toml"))).err().unwrap();
    assert_eq!(failure.code, 2, "{}", failure.message);
}
