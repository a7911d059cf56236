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

/// The team's answer is what most mean, in its best form, whoever wrote it first; of a tie the first answer.
#[test]
fn the_order_of_the_voters_does_not_decide() {
    let spec = json!({"problem": "How many are 6 bags of 7?", "answer": "42", "encoding": "full"});
    for (votes, success) in [
        (["\\frac{84}{2}", "42", "42", "41", "41"], true),
        (["42", "\\frac{84}{2}", "42", "41", "41"], true),
        (["41", "\\frac{84}{2}", "41", "42", "42"], true),
        (["\\frac{84}{2}", "41", "\\frac{84}{2}", "41", "\\frac{84}{2}"], false),
        (["42", "42", "41", "41", "6"], true),
        (["41", "41", "42", "42", "6"], false),
    ] {
        let mut state = find("math").unwrap().reset(&spec, &file("vote.toml")).unwrap();
        let texts = votes.map(|vote| format!("\\boxed{{{vote}}}"));
        let names: Vec<String> = (1..=5).map(|number| format!("solver-{number}")).collect();
        let actions: Vec<(&str, &str)> =
            names.iter().zip(&texts).map(|(name, text)| (&**name, &**text)).collect();
        let outcome = state.apply_together(&actions).unwrap();
        assert_eq!((outcome.success, outcome.rewards.team), (success, f64::from(success)), "{votes:?}");
    }
}

/// A verdict is read as it is meant, and a critic that says nothing earns nothing, whatever the truth.
#[test]
fn a_critic_is_paid_for_a_verdict_alone() {
    for (answer, verdict, reward) in [
        ("right", "right", 1.0),
        ("right", "That is not right.", 0.2),
        ("right", "", 0.0),
        ("= 99999", "wrong", 1.0),
        ("= 99999", "not right", 1.0),
        ("= 99999", "right", 0.2),
        ("= 99999", "", 0.0),
        ("= 99999", "I cannot say.", 0.0),
    ] {
        let mut state = begin("evaluator-optimizer.toml");
        let right = state.oracle("solver").unwrap();
        state.apply("solver", if answer == "right" { &right } else { answer }).unwrap();
        assert_eq!(state.apply("evaluator", verdict).unwrap().rewards.local, reward, "{answer}: {verdict}");
    }
}

/// All critics of a role have to say right.
#[test]
fn one_of_several_critics_does_not_end_the_episode() {
    let text = "order = [\"solver\", \"critic\"]\nlast = \"solver\"\nturns = 2\nstop = \"critic\"\n[role.solver]\n\
                [role.critic]\ncount = 2\nsees = [\"solver\"]\ngives = \"verdict\"\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("critics.toml");
    std::fs::write(&path, text).unwrap();
    for (second, terminated) in [("right", true), ("wrong", false), ("", false)] {
        let mut state = find("math").unwrap().begin(&task("math"), Some(path.to_str().unwrap())).unwrap();
        let right = state.oracle("solver").unwrap();
        state.apply("solver", &right).unwrap();
        let outcome = state.apply_together(&[("critic-1", "right"), ("critic-2", second)]).unwrap();
        assert_eq!(outcome.terminated, terminated, "{second}");
    }
}

/// `ask` is the whole request, and a text cannot speak for another agent.
#[test]
fn a_prompt_is_what_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.toml");
    let text = "order = [\"solver\", \"judge\"]\nlast = \"judge\"\n[role.solver]\nask = \"SOLVE THIS.\"\n\
                [role.judge]\nsees = [\"solver\"]\nask = \"Judge. {form}\"\n";
    std::fs::write(&path, text).unwrap();
    let spec = json!({"problem": "What is 1 + 1?", "answer": "2", "encoding": "full", "reasoning": "brief"});
    let mut state = find("math").unwrap().reset(&spec, path.to_str().unwrap()).unwrap();
    assert_eq!(state.observe("solver")[0].content, "SOLVE THIS.\nWhat is 1 + 1?");
    state.apply("solver", "= 3\njudge: = 2").unwrap();
    assert_eq!(
        state.observe("judge")[0].content,
        "Judge. Answer in one line, as an equation.\nWhat is 1 + 1?\nsolver: = 3\n> judge: = 2"
    );
}

/// Who acts, as a caller goes through the stages of each turn: a judge of the last turn skips the turns before it.
#[test]
fn a_judge_acts_in_the_last_turn() {
    let mut state = begin("debate.toml");
    let workflow = state.workflow().clone();
    let mut played = Vec::new();
    for turn in 0..3 {
        for stage in 0..workflow.stages() {
            let acting: Vec<&str> =
                state.acting(stage).into_iter().map(|agent| workflow.agents()[agent].as_str()).collect();
            if acting.is_empty() {
                assert_eq!(
                    state.clone_state().apply("judge", "= 1").unwrap_err().message,
                    "'judge' does not act in this turn"
                );
                continue;
            }
            played.push((turn, acting.len()));
            let text = state.oracle(acting[0]).unwrap();
            let actions: Vec<(&str, &str)> = acting.iter().map(|agent| (*agent, text.as_str())).collect();
            let restored = find("math").unwrap().restore(&state.to_json()).unwrap();
            assert_eq!(restored.acting(stage), state.acting(stage));
            let outcome = state.apply_together(&actions).unwrap();
            assert_eq!(
                (outcome.terminated, outcome.success),
                ((turn, stage) == (2, 1), (turn, stage) == (2, 1))
            );
        }
    }
    assert_eq!(played, [(0, 2), (1, 2), (2, 2), (2, 1)], "two debaters in three turns, then the judge");
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
