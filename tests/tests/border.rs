//! What users meet at the border: a misspelt name, a program or a folder that is missing, a run that is stopped.

use troupe_tests::{pipeline, root};

#[test]
fn a_misspelt_environment_is_answered_with_the_nearest_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let output = pipeline(&run, &["--env", "sudko"]).output().expect("pipeline.sh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said, "envs: there is no environment 'sudko'\nhint: did you mean 'sudoku'?\n");
    assert!(!run.exists(), "nothing was asked for");
}

#[test]
fn a_missing_python_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for tool in ["bash", "sed", "awk", "cat", "dirname", "tr", "sort", "env", "mkdir"] {
        let found = ["/usr/bin", "/bin"].map(|at| std::path::Path::new(at).join(tool));
        let found = found.iter().find(|path| path.exists()).expect("a tool of every system");
        std::os::unix::fs::symlink(found, folder.path().join(tool)).expect("a link");
    }
    let mut command = std::process::Command::new(root().join("pipeline.sh"));
    let output = command
        .env("PATH", folder.path())
        .env("TROUPE_BIN", "/nowhere")
        .arg("--run")
        .arg(folder.path().join("run"))
        .output()
        .expect("pipeline.sh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.starts_with("pipeline.sh: python3 is not installed\nhint: "), "{said}");
}
