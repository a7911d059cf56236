//! The scripts of `bench/paper/`, by their self-checks: numbers worked out by hand, and tiny cells trained to
//! their budget. Also checks that `.ci/bench` runs or names every script of `bench/speed/` and `bench/paper/`.

use std::collections::BTreeSet;

use troupe_tests::{root, run};

#[test]
fn small_cells_are_trained_to_their_budget_and_not_again() {
    let (code, _, stderr) = run("python3 bench/paper/check.py");
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn every_script_lists_its_cells() {
    for script in
        ["main_table", "grouping", "roles", "controls", "real_model", "magrpo", "hunt", "credit", "studies"]
    {
        let (code, stdout, stderr) =
            run(&format!("python3 bench/paper/{script}.py list --root /nonexistent/runs"));
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.lines().count() >= 3 && stdout.contains("done: none"), "{stdout}");
    }
}

#[test]
fn ci_runs_every_script_or_names_what_does() {
    let folders = ["bench/speed/", "bench/paper/"];
    let files = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        let kept = names.filter(|name| !["README.md", "__pycache__"].contains(&name.as_str()));
        kept.map(|name| format!("{folder}{name}")).collect()
    };
    let there: BTreeSet<String> = folders.iter().flat_map(|folder| files(folder)).collect();
    assert!(there.len() > 40, "{there:?}");
    // The first such word of a line that runs something, or that says what does; comments are no such lines.
    let ci = std::fs::read_to_string(root().join(".ci/bench")).expect("a text");
    let kinds = ["run ", "cell ", "environment ", "    '"];
    let named: BTreeSet<String> = ci
        .lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
        .filter_map(|line| {
            line.split([' ', '\'', ':']).find(|word| folders.iter().any(|folder| word.starts_with(folder)))
        })
        .map(str::to_owned)
        .collect();
    let missing: Vec<&String> = there.difference(&named).collect();
    assert!(missing.is_empty(), "neither run nor named in .ci/bench: {missing:?}");
    let gone: Vec<&String> = named.difference(&there).collect();
    assert!(gone.is_empty(), "named in .ci/bench and not there: {gone:?}");
}
