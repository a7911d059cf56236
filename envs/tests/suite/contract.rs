//! The contract of the built-in environments, in loops over all of them; and `envs check`, where each planted flaw breaks its rule.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use envs::check::{Effort, Program, Report, check_built_in, verdict};
use envs::{
    Demonstration, ENVIRONMENTS, Environment, ExtractionCase, Outcome, Selection, Settings, Split, State,
    Tasks, find, step,
};
use record::failure::Result;
use serde_json::{Value, json};

use crate::{drawn, support};

/// What `envs check` finds; `workflow`: not all of them.
pub fn report(name: &str, texts: &[&str], workflow: Option<&str>, tasks: u64, episodes: u64) -> Report {
    let environment = find(name).unwrap();
    checked(environment, environment, &drawn::settings(name, texts), workflow, tasks, episodes)
}

/// `played` by `envs step`, with tasks and answer formats of `environment`.
fn checked(
    environment: &dyn Environment,
    played: &dyn Environment,
    settings: &Settings,
    workflow: Option<&str>,
    tasks: u64,
    episodes: u64,
) -> Report {
    let all = played.workflows().iter().map(|workflow| Some(workflow.name().to_owned()));
    let command = format!("'{}' step -q {}", env!("CARGO_BIN_EXE_envs"), played.name());
    let workflows = workflow.map_or_else(|| all.collect(), |name| vec![Some(name.to_owned())]);
    let program = Program { command, timeout: Duration::from_secs(120), workflows };
    check_built_in(environment, settings, &program, &Effort { tasks, episodes, seed: 2 }, &mut || ()).unwrap()
}

/// Environments with settings: every one, every encoding, and where rules branch.
const KINDS: [(&str, &[&str]); 17] = [
    ("plan-path", &[]),
    ("plan-path", &["reward=success", "size=10", "encoding=full"]),
    ("sokoban", &[]),
    ("sokoban", &["encoding=full", "moves=3", "farthest=9"]),
    ("sokoban", &["reward=success", "boxes=2", "moves=4", "farthest=14", "proposal=moves"]),
    ("sudoku", &[]),
    ("sudoku", &["reward=success", "encoding=full"]),
    ("math", &[]),
    ("math", &["reward=success", "encoding=full"]),
    ("write", &["words=9", "success=1"]),
    ("tldr", &[]),
    ("tldr", &["gates=published", "hits=word"]),
    ("arxiv", &[]),
    ("coop-code", &["turns=1"]),
    ("code", &[]),
    ("code", &["encoding=full"]),
    ("code", &["encoding=full", "level=2"]),
];

/// True if programs that this environment runs can be run.
fn runs(name: &str) -> bool {
    !name.ends_with("code") || support::sandbox().is_some()
}

/// Every rule is kept, in all workflows with default settings and by a team with others. A shaped reward pays for idling, one for success alone does not.
#[test]
fn environments_keep_every_rule() {
    for (name, texts) in KINDS.into_iter().filter(|(name, _)| runs(name)) {
        // Every action of a program takes a sandbox: all situations are explored with default settings alone.
        let tasks = u64::from(texts.is_empty() || !name.ends_with("code"));
        let report = report(name, texts, Some("team").filter(|_| !texts.is_empty()), tasks, 12);
        let findings = &report.findings;
        verdict(name, findings).unwrap_or_else(|_| panic!("{name} {texts:?}: {findings:#?}"));
        assert!(findings.len() >= 10 && findings.iter().all(|finding| finding.tried > 0), "{findings:#?}");
        let advice = |rule: &str| findings.iter().find(|finding| finding.rule.starts_with(rule)).unwrap();
        if ["plan-path", "sokoban", "math"].contains(&name) || texts.contains(&"reward=success") {
            let pays = advice("idling pays nothing").broken.is_some();
            assert_eq!(pays, !texts.contains(&"reward=success"), "{name} {texts:?}: {findings:#?}");
        }
    }
}

/// A state's clone, its JSON and the step protocol have the same future, a clone leaves its original alone, and components of
/// rewards lie in [0, 1].
#[test]
fn states_are_values() {
    for environment in ENVIRONMENTS.iter().filter(|environment| runs(environment.name())) {
        let name = environment.name();
        for task in drawn::tasks(name, Split::Train, 3, &[], 2) {
            for workflow in environment.workflows() {
                let mut state = environment.reset(&task.spec, workflow.name()).unwrap();
                let workflow = Arc::clone(state.workflow());
                'episode: for stage in (0..state.turn_limit()).flat_map(|_| 0..workflow.stages()) {
                    for agent in state.acting(stage).into_iter().map(|agent| &workflow.agents()[agent]) {
                        for text in state.test_actions(agent).iter().take(12) {
                            is_a_value(*environment, &*state, agent, text);
                        }
                        let oracle = state.oracle(agent).unwrap_or_default();
                        if state.apply(agent, &oracle).unwrap().terminated {
                            break 'episode;
                        }
                    }
                }
            }
        }
    }
}

fn is_a_value(environment: &dyn Environment, state: &dyn State, agent: &str, text: &str) {
    let (json, seen) = (state.to_json(), state.observe(agent));
    let (mut clone, mut back) = (state.clone_state(), environment.restore(&json).unwrap());
    assert_eq!((back.to_json(), back.observe(agent)), (json.clone(), seen));
    let outcome = clone.apply(agent, text).unwrap();
    assert_eq!(back.apply(agent, text).unwrap(), outcome, "{agent} says {text:?} at {json}");
    assert_eq!(back.to_json(), clone.to_json());
    assert_eq!(state.to_json(), json, "{agent} says {text:?}");
    assert!(outcome.components.values().all(|value| (0.0..=1.0).contains(value)), "{json}: {outcome:?}");
    let request = json!({"request": 1, "state": json, "agent": agent, "action": text}).to_string();
    let answer = step::answer(environment, &request);
    assert_eq!(answer, step::answer(environment, &request));
    // Compared as text, because parsing a number may change its last bit.
    for (key, value) in [
        ("state", clone.to_json()),
        ("terminated", outcome.terminated.into()),
        ("success", outcome.success.into()),
    ] {
        assert!(answer.contains(&format!("\"{key}\":{value}")), "{request}: {answer}");
    }
}

#[test]
fn tasks_depend_on_the_seed_and_not_on_their_number() {
    for environment in ENVIRONMENTS {
        let tasks = |seed, count| drawn::tasks(environment.name(), Split::Train, seed, &[], count);
        assert_eq!(tasks(9, 5), tasks(9, 20)[..5], "{}", environment.name());
        assert_ne!(tasks(9, 5), tasks(10, 5), "{}", environment.name());
    }
}

#[test]
fn the_test_split_is_never_demonstrated() {
    for environment in ENVIRONMENTS {
        let shares = environment.metadata().demonstrators.iter();
        let demonstration = Demonstration {
            tasks: drawn::selection(environment.name(), Split::Test, 4, &[]),
            workflow: environment.default_workflow().to_owned(),
            mix: shares.map(|(kind, share)| ((*kind).to_owned(), *share)).collect(),
            states: 1,
            follow: 1.0,
        };
        let failure = environment.demonstrations(&demonstration).err().unwrap();
        assert!(failure.code == 2 && failure.message.contains("test split"), "{failure:?}");
    }
}

/// In a grid world a malformed answer earns nothing and changes nothing.
#[test]
fn malformed_answers_earn_and_move_nothing() {
    for name in ["plan-path", "sokoban", "sudoku"] {
        let malformed =
            find(name).unwrap().extraction_cases().into_iter().filter(|case| case.means.is_none());
        let mut tried = 0;
        for case in malformed {
            let mut state = find(name).unwrap().reset(&case.spec, "team").unwrap();
            let before = state.to_json();
            let outcome = state.apply(case.agent, &case.text).unwrap();
            assert!(outcome.components.values().all(|value| *value == 0.0), "{name} {case:?}: {outcome:?}");
            assert_eq!(state.to_json(), before, "{name} {case:?}");
            tried += 1;
        }
        assert!(tried >= 4, "{name}: {tried}");
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for (name, texts) in [
        ("sokoban", &["size=12", "boxes=4"][..]),
        ("sokoban", &["size=18"]),
        ("sokoban", &["boxes=7"]),
        ("sokoban", &["farthest=13"]),
        ("sokoban", &["nearest=10"]),
        ("sokoban", &["density=0.9"]),
        ("sokoban", &["encoding=full", "proposal=cells"]),
        ("code", &["turns=0"]),
        ("code", &["least=3", "most=2"]),
        ("code", &["encoding=short"]),
        ("code", &["data=shipped", "encoding=compact"]),
        ("code", &["level=5"]),
        ("code", &["reasoning=long"]),
        ("code", &["wall=0"]),
        ("code", &["data=/nowhere.jsonl"]),
    ] {
        let selection = drawn::selection(name, Split::Train, 1, texts);
        assert_eq!(find(name).unwrap().tasks(&selection).err().unwrap().code, 2, "{name} {texts:?}");
    }
}

/// Every level in prose has hundreds of test tasks, none of which is trained on; `key` of a spec names the task.
#[test]
fn every_level_in_prose_has_hundreds_of_test_tasks() {
    for (name, key, train) in [("math", "chain", 4000), ("code", "problem", 2000)] {
        for level in 1..=4 {
            let texts = ["encoding=full", &format!("level={level}")];
            let named = |split, seed, count| -> HashSet<String> {
                drawn::tasks(name, split, seed, &texts, count)
                    .iter()
                    .map(|task| task.spec[key].to_string())
                    .collect()
            };
            let test = named(Split::Test, 0, 400);
            assert!(test.len() >= 300, "{name} {level}: {}", test.len());
            assert!(test.is_disjoint(&named(Split::Train, 1, train)), "{name} {level}");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 30, ..Default::default() })]
    /// Any texts of all agents have a reward in range, in any order, in every environment and workflow.
    #[test]
    fn any_texts_have_a_reward_in_range(
        words in "(c3| f1|but|so |\u{0}|\u{1b}\\[2J|é|ﬀ|İ|\u{1c}|\u{202e}|🦀|```|\n| : |\\[PARAGRAPH_SPLIT\\]|def aux\\(x\\):|    return 1|'''|word ){0,60}",
        other in "\\PC{0,400}",
    ) {
        for environment in ENVIRONMENTS.iter().filter(|environment| runs(environment.name())) {
            let spec = &drawn::tasks(environment.name(), Split::Train, 1, &[], 1)[0].spec;
            for workflow in environment.workflows() {
                let mut state = environment.reset(spec, workflow.name()).unwrap();
                let (least, most) = state.reward_range();
                let mut again = state.clone_state();
                let workflow = Arc::clone(state.workflow());
                let acting = state.acting(0).into_iter().map(|agent| workflow.agents()[agent].as_str());
                let mut actions: Vec<(&str, &str)> = acting.zip([words.as_str(), other.as_str()].into_iter().cycle()).collect();
                let forward = state.apply_together(&actions).unwrap();
                actions.reverse();
                let backward = again.apply_together(&actions).unwrap();
                proptest::prop_assert!((least..=most).contains(&forward.rewards.team));
                proptest::prop_assert_eq!(&forward, &backward);
                proptest::prop_assert_eq!(state.to_json(), again.to_json());
            }
        }
    }
}

/// Tasks and formats of an environment with a flaw.
struct Flawed(Flaw);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// The test split depends on the seed.
    LooseTestSplit,
    /// Test tasks come from the train split.
    Leak,
    /// Malformed answers get something for trying.
    PaysForNonsense,
}

impl Environment for Flawed {
    fn name(&self) -> &str {
        "plan-path"
    }
    fn tasks(&self, selection: &Selection) -> Result<Tasks<'_>> {
        let mut selection = selection.clone();
        if self.0 == Flaw::Leak {
            selection.split = Split::Train;
        }
        let skipped = match self.0 {
            Flaw::LooseTestSplit if selection.split == Split::Test => selection.seed as usize,
            _ => 0,
        };
        Ok(Box::new(find("plan-path")?.tasks(&selection)?.skip(skipped)))
    }
    fn reset(&self, spec: &Value, workflow: &str) -> Result<Box<dyn State>> {
        let state = find("plan-path")?.reset(spec, workflow)?;
        Ok(if self.0 == Flaw::PaysForNonsense { Box::new(Paid(state)) } else { state })
    }
    fn workflows(&self) -> &[Arc<envs::Workflow>] {
        find("plan-path").unwrap().workflows()
    }
    fn extraction_cases(&self) -> Vec<ExtractionCase> {
        find("plan-path").unwrap().extraction_cases()
    }
}

/// A state that pays for malformed answers.
struct Paid(Box<dyn State>);

impl State for Paid {
    fn workflow(&self) -> &Arc<envs::Workflow> {
        self.0.workflow()
    }
    fn turn_limit(&self) -> u32 {
        self.0.turn_limit()
    }
    fn observe(&self, agent: &str) -> Vec<record::sample::Message> {
        self.0.observe(agent)
    }
    fn apply(&mut self, agent: &str, text: &str) -> Result<Outcome> {
        let mut outcome = self.0.apply(agent, text)?;
        outcome.rewards.local += if outcome.components["format"] == 0.0 { 0.05 } else { 0.0 };
        Ok(outcome)
    }
    fn clone_state(&self) -> Box<dyn State> {
        Box::new(Paid(self.0.clone_state()))
    }
    fn to_json(&self) -> Value {
        self.0.to_json()
    }
}

/// The rules that only built-in environments have; `external.rs` has the others.
#[test]
fn each_flaw_of_a_built_in_environment_breaks_its_rule() {
    for (flaw, rule) in [
        (Flaw::None, None),
        (Flaw::LooseTestSplit, Some("no seed changes the test split")),
        (Flaw::Leak, Some("train and test are disjoint")),
        (Flaw::PaysForNonsense, Some("answers are read as a reader expects")),
    ] {
        let played = find("plan-path").unwrap();
        let report = checked(&Flawed(flaw), played, &Settings::default(), None, 0, 1);
        let broken = report.findings.iter().filter(|finding| finding.broken.is_some() && !finding.advice);
        let broken: Vec<&str> = broken.map(|finding| finding.rule).collect();
        assert!(rule.map_or(broken.is_empty(), |rule| broken.contains(&rule)), "{flaw:?}: {broken:?}");
        assert_eq!(verdict("plan-path", &report.findings).is_err(), rule.is_some());
    }
}
