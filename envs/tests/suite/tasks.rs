//! What a seed draws stays the same from version to version (a published result names its seed, not its boards), and so does what
//! `envs check` tries.

use envs::{Demonstration, Environment, Selection, Settings, Split, find};
use serde::Serialize;

fn selection(environment: &dyn Environment, settings: &[&str], split: Split) -> Selection {
    let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
    let settings = Settings::parse(&texts, environment.name(), environment.metadata().settings).unwrap();
    Selection { split, seed: 5, settings }
}

/// The first digits of a BLAKE3 digest over `items` as JSON.
fn digest(items: impl Iterator<Item: Serialize>) -> String {
    let mut hasher = blake3::Hasher::new();
    for item in items {
        hasher.update(serde_json::to_string(&item).unwrap().as_bytes());
    }
    hasher.finalize().to_hex()[..12].to_owned()
}

/// Fails with every case whose digest is another one.
fn pinned(cases: &[(&str, &[&str], &str)], found: impl Fn(&dyn Environment, &[&str]) -> String) {
    let mut wrong = Vec::new();
    for (name, settings, expected) in cases {
        let found = found(find(name).unwrap(), settings);
        if found != *expected {
            wrong.push(format!("{name} {settings:?}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "other than before:\n{}", wrong.join("\n"));
}

/// 200 tasks of each split.
#[test]
fn tasks_of_a_seed_are_those_of_every_version() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("plan-path", &[], "70316f73476c 17999561bdf1"),
        ("plan-path", &["size=10"], "0c36eeb69ae5 300d1aff5dc6"),
        ("plan-path", &["encoding=full", "level=2"], "abc9b1682e0a 9cfef4ddb31e"),
        ("sokoban", &[], "270fe4b3c839 f523fe644c4c"),
        ("sudoku", &[], "beb8982a6119 b5695d2e4b80"),
        ("sudoku", &["size=9"], "b69c98a0639f c0c3651d48c1"),
        ("math", &[], "4c5134e21f6c a19a6f2f7d54"),
        ("math", &["encoding=full"], "6f18c1516f53 a8553733da60"),
        ("math", &["encoding=full", "level=3"], "57ed8c066ae6 a7fc76360678"),
        ("code", &[], "8901527766b7 e551ceb73d3b"),
        ("code", &["least=1", "most=4", "tests=3"], "2c2dc1ca162f 4ad562567b29"),
        ("code", &["encoding=full"], "68b8bc0e9e62 2bd11e370442"),
        ("code", &["encoding=full", "level=2", "examples=3"], "8758d2e4c203 0fe541eefaac"),
        ("code", &["encoding=full", "tests=3", "examples=3"], "9b1de95cb135 81082d782038"),
        ("code", &["encoding=full", "level=2", "tests=3", "examples=3"], "88f0428f7eb5 470e1c6487ea"),
        ("code", &["encoding=full", "level=3"], "72f61109deb8 f3fc9b62f67d"),
    ];
    pinned(cases, |environment, settings| {
        let specs = |split| {
            let tasks = environment.tasks(&selection(environment, settings, split)).unwrap();
            digest(tasks.take(200).map(|task| task.unwrap().spec))
        };
        format!("{} {}", specs(Split::Train), specs(Split::Test))
    });
}

#[test]
fn demonstrations_of_a_seed_are_those_of_every_version() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("plan-path", &["team"], "d77720d3f133"),
        ("sokoban", &["team"], "23872b919432"),
        ("sudoku", &["team"], "e46b48b38ff5"),
        ("sudoku", &["single", "size=9"], "37c93f4ede55"),
        ("math", &["team"], "28767b10e267"),
        ("math", &["team", "encoding=full", "level=4"], "bbb6eddede38"),
        ("math", &["check", "encoding=full"], "9435af42ba90"),
        ("code", &["team"], "f6429543a3b3"),
    ];
    pinned(cases, |environment, settings| {
        let shares = environment.metadata().demonstrators.iter();
        let demonstration = Demonstration {
            tasks: selection(environment, &settings[1..], Split::Train),
            workflow: settings[0].to_owned(),
            mix: shares.map(|(kind, share)| ((*kind).to_owned(), *share)).collect(),
            states: 6,
            follow: 0.5,
        };
        digest(environment.demonstrations(&demonstration).unwrap().take(50).flat_map(Result::unwrap))
    });
}

/// A slip here would make `envs check` see less than it says.
#[test]
fn check_tries_the_same_actions_in_every_version() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("plan-path", &["team"], "791b03088f13"),
        ("plan-path", &["team", "encoding=full"], "285116bd1b26"),
        ("sokoban", &["team"], "ff06445818c3"),
        ("sudoku", &["team"], "0846a10e2cba"),
        ("sudoku", &["team", "encoding=full"], "560c5ffb544a"),
        ("sudoku", &["single", "size=9"], "f114c37b0b0c"),
        ("math", &["team"], "135cb27b0d52"),
        ("math", &["team", "encoding=full"], "20e6f9adae86"),
        ("code", &["team"], "f771875da20e"),
        ("code", &["team", "encoding=full"], "1bbb7528d172"),
    ];
    pinned(cases, |environment, settings| {
        let tasks = environment.tasks(&selection(environment, &settings[1..], Split::Train)).unwrap();
        let states = tasks.take(3).map(|task| environment.reset(&task.unwrap().spec, settings[0]).unwrap());
        digest(states.flat_map(|state| {
            let agents = state.workflow().agents().iter();
            agents.flat_map(|agent| state.test_actions(agent)).collect::<Vec<_>>()
        }))
    });
}

/// Texts that mean something and texts that do not, for every agent that is named here.
#[test]
fn check_knows_styles_of_answers() {
    for (name, encoding, agents) in [
        ("plan-path", "full", &["tool", "planner"][..]),
        ("plan-path", "compact", &["planner"]),
        ("sokoban", "full", &["tool", "planner"]),
        ("sokoban", "compact", &["planner"]),
        ("sudoku", "full", &["tool", "planner"]),
        ("sudoku", "compact", &["planner"]),
        ("math", "compact", &["tool", "reasoner"]),
        ("code", "full", &["coder", "tester"]),
        ("code", "compact", &["coder", "tester"]),
    ] {
        let cases = find(name).unwrap().extraction_cases();
        for (agent, read) in agents.iter().flat_map(|agent| [(*agent, true), (*agent, false)]) {
            let found = cases.iter().any(|case| {
                case.spec["encoding"].as_str().unwrap_or_default() == encoding
                    && case.agent == agent
                    && case.means.is_some() == read
            });
            assert!(found, "{name} {encoding} {agent} {read}");
        }
    }
}
