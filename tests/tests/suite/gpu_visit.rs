//! tests/gpu_visit.sh: the order of the rows that a GPU visit measures, and the figures it keeps.

use std::path::Path;
use std::process::Command;

use troupe_tests::root;

/// A command's exit code and output, in a folder.
fn bash(folder: &Path, command: &str) -> (i32, String) {
    let output = Command::new("bash").args(["-c", command]).current_dir(folder).output().expect("bash runs");
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code().unwrap_or(-1), printed.concat())
}

/// The output of one that must succeed.
fn must(folder: &Path, command: &str) -> String {
    let (code, printed) = bash(folder, command);
    assert_eq!(code, 0, "{command}: {printed}");
    printed
}

/// A repository with the script, one file of code and one commit, whose name it returns.
fn repository(folder: &Path) -> String {
    for name in ["tests/gpu_visit.sh", "benches/gpu.tsv"] {
        let to = folder.join(name);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(root().join(name), to).expect("copied");
    }
    // Remove the real measurements from the test's copy.
    must(folder, "sed -i 1q benches/gpu.tsv");
    let all = "mkdir update && echo first >update/code && git init -q && git add -A && \
               git -c user.name=a -c user.email=a@b commit -qm one";
    must(folder, all);
    must(folder, "git rev-parse --short=12 HEAD").trim().to_owned()
}

#[test]
fn what_was_never_measured_comes_first_then_what_has_changed_then_the_oldest() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let head = repository(folder);
    let plan = || -> Vec<String> {
        let printed = must(folder, "tests/gpu_visit.sh plan");
        let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        printed.lines().map(name).collect()
    };
    let new = plan();
    assert_eq!(new[..3], ["facts", "roofline", "tests"]);
    let mut rows = String::new();
    // All were measured, the second one most recently, but for one.
    for (place, name) in new.iter().enumerate().filter(|(_, name)| *name != "decode-long:1.7B") {
        let day = if place == 3 { 28 } else { 27 };
        rows += &format!("2026-11-{day}\t{}\tcard\t580\t{name}\tok\t\t\t\t9\n", head);
    }
    std::fs::write(folder.join("figures"), &rows).expect("written");
    assert!(must(folder, "tests/gpu_visit.sh merge figures").contains(&format!("{} new", new.len() - 1)));
    assert!(must(folder, "tests/gpu_visit.sh merge figures").contains("0 new"), "merged twice");
    let measured = plan();
    assert_eq!((&*measured[2], &*measured[measured.len() - 1]), ("decode-long:1.7B", &*new[3]));
    // Rows with changed code come before others of the same day, and after rows that were never measured.
    std::fs::write(folder.join("update/code"), "second").expect("written");
    let changed = plan();
    assert_eq!(changed[2..4], ["decode-long:1.7B", "tests"]);
    let place = |name: &str| changed.iter().position(|own| own == name).expect("a row");
    assert!(place("train:1.7B") < place("kernels:1.7B"), "{changed:?}");

    std::fs::write(folder.join("figures"), "2026-11-28\tok\n").expect("written");
    let before = std::fs::read_to_string(folder.join("benches/gpu.tsv")).expect("figures");
    assert_eq!(bash(folder, "tests/gpu_visit.sh merge figures").0, 65);
    let after = std::fs::read_to_string(folder.join("benches/gpu.tsv")).expect("figures");
    assert_eq!(before, after, "nothing is appended by half");
}
