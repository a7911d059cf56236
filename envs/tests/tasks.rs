//! The tasks of a seed stay the same from version to version: a published result names its seed, not its boards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use envs::{Selection, Settings, Split, find};

/// The first digits of a BLAKE3 digest over the specs of the first 40 tasks.
fn digest(name: &str, settings: &[&str], split: Split) -> String {
    let environment = find(name).unwrap();
    let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
    let settings = Settings::parse(&texts, name, environment.settings()).unwrap();
    let selection = Selection { split, seed: 5, settings };
    let mut hasher = blake3::Hasher::new();
    for task in environment.tasks(&selection).unwrap().take(40) {
        hasher.update(task.unwrap().spec.to_string().as_bytes());
    }
    hasher.finalize().to_hex()[..12].to_owned()
}

#[test]
fn tasks_of_a_seed_are_those_of_every_version() {
    let cases: &[(&str, &[&str], [&str; 2])] = &[
        ("plan-path", &[], ["a9df3b061360", "a8dc09a7667e"]),
        ("plan-path", &["size=10"], ["ec594cdfb971", "bbba1cac3b96"]),
        ("plan-path", &["encoding=full", "level=2"], ["9cd62ca3ea74", "0c9132085f7a"]),
        ("sokoban", &[], ["ddc0d24dcefc", "3f9bfc6fcc39"]),
        ("sudoku", &[], ["4df73c67c375", "1214debe4a53"]),
        ("sudoku", &["size=9"], ["b2c146d0df3e", "fb9b057313ef"]),
        ("tic-tac-toe", &[], ["a8d4dcf5b9c5", "e76463f9ef8e"]),
        ("math", &[], ["8c60e6078191", "b0abb0cdde38"]),
        ("math", &["encoding=full", "level=3"], ["ad5902d52fe6", "4651c0c128bc"]),
        ("code", &[], ["f2d121e094f3", "bda78bf516ae"]),
        ("code", &["encoding=full", "level=3"], ["db47f1847839", "057f91dbf5ad"]),
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
