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
    for name in ["tests/gpu_visit.sh", "bench/speed/gpu.tsv"] {
        let to = folder.join(name);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(root().join(name), to).expect("copied");
    }
    // Remove the real measurements from the test's copy.
    must(folder, "sed -i 1q bench/speed/gpu.tsv");
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
    // One that could not run there is one that was never measured.
    let missed = format!("2026-11-28\t{head}\tcard\t580\t{}\tNOT RUN\t\t\t\t0\n", measured[2]);
    std::fs::write(folder.join("figures"), missed).expect("written");
    assert!(must(folder, "tests/gpu_visit.sh merge figures").contains("1 new"));
    assert_eq!(plan(), measured);
    // Rows with changed code come before others of the same day, and after rows that were never measured.
    std::fs::write(folder.join("update/code"), "second").expect("written");
    let changed = plan();
    assert_eq!(changed[2..4], ["decode-long:1.7B", "tests"]);
    let place = |name: &str| changed.iter().position(|own| own == name).expect("a row");
    assert!(place("train:1.7B") < place("kernels:1.7B"), "{changed:?}");

    std::fs::write(folder.join("figures"), "2026-11-28\tok\n").expect("written");
    let before = std::fs::read_to_string(folder.join("bench/speed/gpu.tsv")).expect("figures");
    assert_eq!(bash(folder, "tests/gpu_visit.sh merge figures").0, 65);
    let after = std::fs::read_to_string(folder.join("bench/speed/gpu.tsv")).expect("figures");
    assert_eq!(before, after, "nothing is appended by half");
}

/// docs/benchmarks.md has the newest figures of `bench/speed/gpu.tsv`.
#[test]
fn the_table_of_figures_is_up_to_date() {
    let root = troupe_tests::root();
    let (code, printed) = bash(&root, "python3 bench/speed/gpu_table.py --check");
    assert_eq!(code, 0, "{printed}");
    // A newer figure changes it.
    let folder = tempfile::tempdir().expect("a folder");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("a file");
    let figures = read("bench/speed/gpu.tsv");
    let row = "decode:1.7B/1.7B: prefill, context 1536";
    let newer = |commit: &str| {
        format!("{figures}2026-11-30\t{commit}\tcard\t580\t{row}\t123456\ttokens/s\t61 %\t0\t9\n")
    };
    std::fs::write(folder.path().join("document"), read("docs/benchmarks.md")).expect("written");
    let table = |commit: &str, flags: &str| {
        std::fs::write(folder.path().join("figures"), newer(commit)).expect("written");
        let place = folder.path().display();
        bash(&root, &format!("python3 bench/speed/gpu_table.py {flags} {place}/document {place}/figures"))
    };
    assert_eq!(table("0123456", "--check").0, 0, "a build that was measured beside another");
    let (code, printed) = table("0123456789ab", "--check");
    assert!(code == 1 && printed.contains("hint: bench/speed/gpu_table.py"), "{printed}");
    assert_eq!(table("0123456789ab", "").0, 0);
    let written = std::fs::read_to_string(folder.path().join("document")).expect("a document");
    assert!(written.contains("| prefill, tokens/s | 123,456 | 61 % | 0123456789ab |"), "{written}");
}
