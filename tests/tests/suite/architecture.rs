//! The workspace in floors: a crate depends only on crates of lower floors, so no stage imports another stage.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

const FLOORS: [&[&str]; 6] = [
    &["record", "gemm", "compile-kernels"],
    &["sandbox", "functional", "environment", "endpoint"],
    &["device", "policy", "games", "problems"],
    &["envs"],
    &["rollout", "group", "advantage", "update", "report", "pipeline"],
    &[SUPPORT],
];

const SUPPORT: &str = "troupe-tests";

/// The crates of the workspace and what each depends on, build and test dependencies included.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(troupe_tests::root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let of = |package: &Value| {
        package["dependencies"].as_array().expect("dependencies").iter().map(text).collect()
    };
    packages.iter().map(|package| (text(package), of(package))).collect()
}

/// Each arrow that does not point to a lower floor.
fn wrong_arrows(dependencies: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let floor = |name: &str| FLOORS.iter().position(|floor| floor.contains(&name));
    let mut wrong = Vec::new();
    for (name, needed) in dependencies {
        let Some(own) = floor(name) else {
            wrong.push(format!("{name} has no floor: add it to FLOORS"));
            continue;
        };
        // The support library of tests needs no crate of the workspace, so every crate's tests may use it.
        let inside = needed.iter().filter(|needed| dependencies.contains_key(*needed) && *needed != SUPPORT);
        wrong.extend(
            inside
                .filter(|needed| floor(needed).is_none_or(|floor| floor >= own))
                .map(|needed| format!("{name} -> {needed}")),
        );
    }
    wrong
}

#[test]
fn every_arrow_between_crates_points_down() {
    let dependencies = dependencies();
    assert!(dependencies.len() >= FLOORS.concat().len(), "{dependencies:?}");
    assert_eq!(wrong_arrows(&dependencies), [""; 0]);
}

#[test]
fn the_support_library_depends_on_no_crate() {
    let manifest =
        std::fs::read_to_string(troupe_tests::root().join("tests/Cargo.toml")).expect("a manifest");
    let section = manifest.split("[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next());
    let names: Vec<&str> =
        section.expect("dependencies").lines().filter_map(|line| line.split('.').next()).collect();
    assert_eq!(names, ["serde_json", "tempfile"]);
}

#[test]
fn arrows_up_and_sideways_are_found() {
    let crates = [("group", "rollout"), ("record", "policy"), ("rollout", "record"), ("policy", "serde")];
    let crates = crates.map(|(name, needed)| (name.to_owned(), vec![needed.to_owned()]));
    assert_eq!(wrong_arrows(&BTreeMap::from(crates)), ["group -> rollout", "record -> policy"]);
    let unknown = BTreeMap::from([("extra".to_owned(), Vec::new())]);
    assert_eq!(wrong_arrows(&unknown), ["extra has no floor: add it to FLOORS"]);
}

/// Modules of `problems` and the modules they must not use: shared code knows no problem set, and problem sets do not
/// know each other.
const MODULES: [(&str, &[&str]); 6] = [
    ("problem.rs", &SETS),
    ("joint.rs", &SETS),
    ("coop_code", &["math", "code", "writing"]),
    ("writing", &["math", "code", "coop_code"]),
    ("math", &["code", "writing", "coop_code"]),
    ("code", &["math", "writing", "coop_code"]),
];

const SETS: [&str; 4] = ["math", "code", "writing", "coop_code"];

#[test]
fn problem_sets_do_not_know_each_other() {
    for (module, others) in MODULES {
        let mut paths = vec![troupe_tests::root().join("crates/problems/src").join(module)];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a module");
                paths.extend(entries.map(|entry| entry.expect("an entry").path()));
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            for other in others {
                let arrow = format!("use crate::{other}::");
                assert!(!text.contains(&arrow), "{} has '{arrow}'", path.display());
            }
        }
    }
}
