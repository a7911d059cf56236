//! The scripts of `experiments/`, by their own checks: numbers worked out by hand, and tiny cells trained to their budget.

use troupe_tests::run;

#[test]
fn small_cells_are_trained_to_their_budget_and_not_again() {
    let (code, _, stderr) = run("python3 experiments/check.py");
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn every_script_lists_its_cells() {
    for script in ["main_table", "grouping", "roles", "controls", "real_model", "magrpo", "hunt"] {
        let (code, stdout, stderr) =
            run(&format!("python3 experiments/{script}.py list --root /nonexistent/runs"));
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.lines().count() >= 3 && stdout.contains("done: none"), "{stdout}");
    }
}
