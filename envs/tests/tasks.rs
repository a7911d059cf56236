//! The tasks and demonstrations of a seed stay the same from version to version: a published result names its seed, not its
//! boards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use envs::{Demonstration, Selection, Settings, Split, find};

/// The first digits of a BLAKE3 digest over the specs of the first 200 tasks.
fn digest(name: &str, settings: &[&str], split: Split) -> String {
    let environment = find(name).unwrap();
    let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
    let settings = Settings::parse(&texts, name, environment.settings()).unwrap();
    let selection = Selection { split, seed: 5, settings };
    let mut hasher = blake3::Hasher::new();
    for task in environment.tasks(&selection).unwrap().take(200) {
        hasher.update(task.unwrap().spec.to_string().as_bytes());
    }
    hasher.finalize().to_hex()[..12].to_owned()
}

#[test]
fn tasks_of_a_seed_are_those_of_every_version() {
    let cases: &[(&str, &[&str], [&str; 2])] = &[
        ("plan-path", &[], ["eef4942e7220", "17999561bdf1"]),
        ("plan-path", &["size=10"], ["dda3bcae97f0", "300d1aff5dc6"]),
        ("plan-path", &["encoding=full", "level=2"], ["20f899d7497d", "9cfef4ddb31e"]),
        ("sokoban", &[], ["270fe4b3c839", "f523fe644c4c"]),
        ("sudoku", &[], ["beb8982a6119", "b5695d2e4b80"]),
        ("sudoku", &["size=9"], ["b69c98a0639f", "c0c3651d48c1"]),
        ("tic-tac-toe", &[], ["bd1a188d4d55", "d7dc3c55df45"]),
        ("math", &[], ["4c5134e21f6c", "a19a6f2f7d54"]),
        ("math", &["encoding=full", "level=3"], ["57ed8c066ae6", "a7fc76360678"]),
        ("code", &[], ["8901527766b7", "e551ceb73d3b"]),
        ("code", &["least=1", "most=4", "tests=3"], ["2c2dc1ca162f", "4ad562567b29"]),
        ("code", &["encoding=full"], ["68b8bc0e9e62", "2bd11e370442"]),
        ("code", &["encoding=full", "level=2", "examples=3"], ["f51c45cb60ff", "410a42acb554"]),
        ("code", &["encoding=full", "level=3"], ["4696940b6c7f", "53938b3eca9d"]),
    ];
    let mut wrong = Vec::new();
    for &(name, settings, expected) in cases {
        let found = [Split::Train, Split::Test].map(|split| digest(name, settings, split));
        if found != expected {
            wrong.push(format!("{name} {settings:?}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "other tasks than before:\n{}", wrong.join("\n"));
}

#[test]
fn demonstrations_of_a_seed_are_those_of_every_version() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("plan-path", &["team"], "1bc0eda1e689"),
        ("sokoban", &["team"], "23872b919432"),
        ("sudoku", &["team"], "e46b48b38ff5"),
        ("sudoku", &["single", "size=9"], "37c93f4ede55"),
        ("tic-tac-toe", &["team"], "a60f70858a75"),
        ("math", &["team"], "28767b10e267"),
        ("code", &["team"], "f6429543a3b3"),
    ];
    let mut wrong = Vec::new();
    for &(name, settings, expected) in cases {
        let environment = find(name).unwrap();
        let texts: Vec<String> = settings[1..].iter().map(|text| (*text).to_owned()).collect();
        let tasks = Selection {
            split: Split::Train,
            seed: 5,
            settings: Settings::parse(&texts, name, environment.settings()).unwrap(),
        };
        let shares = environment.demonstrators().iter();
        let demonstration = Demonstration {
            tasks,
            workflow: settings[0].to_owned(),
            mix: shares.map(|(kind, share)| ((*kind).to_owned(), *share)).collect(),
            states: 6,
            follow: 0.5,
        };
        let mut hasher = blake3::Hasher::new();
        for batch in environment.demonstrations(&demonstration).unwrap().take(50) {
            for sample in batch.unwrap() {
                hasher.update(serde_json::to_string(&sample).unwrap().as_bytes());
            }
        }
        let found = &hasher.finalize().to_hex()[..12];
        if found != expected {
            wrong.push(format!("{name} {settings:?}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "other demonstrations than before:\n{}", wrong.join("\n"));
}
