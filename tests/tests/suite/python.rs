//! The tests of Python (tests/python, by pytest) with the programs of this build.

use std::process::Command;

use troupe_tests::{outside_cargo, programs, root, runtime, skip};

#[test]
fn python_tests_pass() {
    let installed = root().join("target/python/pytest/bin/python");
    let python = if installed.exists() { installed } else { "python3".into() };
    let found = Command::new(&python).args(["-c", "import pytest, xdist"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skip!("there is no pytest with pytest-xdist; .ci/packages installs it");
    }
    // A file at a time in each worker, because tests of a file share what they made.
    let mut pytest = Command::new(python);
    pytest.args("-m pytest -q -p no:cacheprovider -n 3 --dist worksteal tests/python".split(' '));
    pytest.current_dir(root()).env("TROUPE_BIN", programs()).env("ORT_DYLIB_PATH", runtime());
    let output = outside_cargo(&mut pytest).output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
