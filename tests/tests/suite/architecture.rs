//! The workspace in floors: a crate depends only on crates of lower floors, so no stage imports another stage.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

const FLOORS: [&[&str]; 5] = [
    &["record", "gemm", "compile-kernels"],
    &["sandbox", "functional"],
    &["device", "policy", "envs"],
    &["rollout", "group", "advantage", "update", "report", "troupe-run"],
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

/// Rooms of `envs` and the rooms they must not use: problems know no environment, and environments neither each other
/// nor the import.
const ROOMS: [(&str, &[&str]); 9] = [
    ("problems", &["math", "code", "import", "grid", "writing", "coop_code", "class_eval", "strbuild"]),
    ("class_eval", &["math", "code", "import", "grid", "writing", "coop_code", "strbuild"]),
    ("strbuild", &["math", "code", "import", "grid", "writing", "coop_code"]),
    ("coop_code", &["math", "code", "import", "grid", "writing"]),
    ("writing", &["math", "code", "import", "grid", "coop_code"]),
    ("math/answer", &["problems", "code", "import"]),
    ("math", &["code", "import", "grid"]),
    ("code", &["math", "import", "grid"]),
    ("grid", &["problems", "math", "code", "import"]),
];

#[test]
fn arrows_between_the_rooms_of_envs_point_one_way() {
    for (room, others) in ROOMS {
        let mut folders = vec![troupe_tests::root().join("envs/src").join(room)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a room") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
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
}
