//! What pip installs: the programs and the loop, on a machine that has neither Rust nor this checkout.

use std::path::Path;
use std::process::Command;

use troupe_tests::{programs, root, runtime};

const PROGRAMS: [&str; 7] = ["envs", "policy", "rollout", "group", "advantage", "update", "report"];

/// The output of a command that must succeed, with nothing of this machine but its system's programs and `folder` as home.
fn must(folder: &Path, command: &str) -> String {
    let path = format!("{}/venv/bin:/usr/bin:/bin", folder.display());
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).env_clear().env("PATH", path).env("HOME", folder).current_dir(folder);
    let output = shell.output().expect("bash runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn an_installed_wheel_trains_without_this_checkout() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // A concurrent build replaces programs, so both packages are made from one copy.
    let built = folder.join("built");
    std::fs::create_dir(&built).expect("a folder");
    for program in PROGRAMS.iter().chain(&["troupe-run"]) {
        std::fs::copy(programs().join(program), built.join(program)).expect("a copy");
    }
    for out in ["dist", "again"] {
        let mut package = Command::new("python3");
        package.arg(root().join("package/package.py")).arg("--programs").arg(&built);
        assert!(package.arg("--out").arg(folder.join(out)).status().expect("python3 runs").success());
    }
    must(folder, "diff -r dist again");
    let python = Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")).status();
    assert!(python.expect("python3 runs").success(), "python3 has no venv");
    // Its dependency is here already; what pip makes of that package is a folder with this file.
    must(folder, "pip install --quiet --disable-pip-version-check --no-index --no-deps dist/*.whl");
    let version = runtime().rsplit_once(".so.").expect("a version").1;
    let needs =
        must(folder, "python -c \"from importlib.metadata import requires; print(*requires('troupe'))\"");
    assert_eq!(needs.trim(), format!("onnxruntime=={version}"));
    assert!(
        !must(folder, "rollout --version").contains("\nONNX Runtime "),
        "it finds one that it should not know"
    );
    // What it says to type is there to be typed.
    let told = must(
        folder,
        "policy init p --preset tiny 2>&1 && ! (envs tasks plan-path --count 1 | rollout --policy p) 2>&1 >/dev/null \
         && ! troupe pipeline --steppes 3 2>&1 && troupe pipeline --help",
    );
    for hint in [
        "hint: troupe pipeline --setup fetches it once",
        "hint: did you mean --steps? run troupe pipeline --help",
    ] {
        assert!(told.contains(hint), "{hint} in {told}");
    }
    assert!(!told.contains("./pipeline.sh"), "{told}");
    must(
        folder,
        &format!(
            "mkdir -p $(echo venv/lib/python3*/site-packages)/onnxruntime/capi && ln -s {} \
                           venv/lib/python3*/site-packages/onnxruntime/capi",
            runtime()
        ),
    );
    assert!(must(folder, "rollout --version").contains(&format!("\nONNX Runtime {version}")));

    let listed = must(folder, "troupe");
    for program in PROGRAMS {
        assert!(listed.contains(&format!("\n  {program} ")), "{listed}");
        let share = folder.join("venv/share");
        let page = std::fs::read_to_string(share.join(format!("man/man1/{program}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS") && page.contains("Examples"), "{page}");
        for completions in [
            format!("bash-completion/completions/{program}.bash"),
            format!("fish/vendor_completions.d/{program}.fish"),
            format!("zsh/site-functions/_{program}"),
        ] {
            assert!(share.join(&completions).is_file(), "{completions}");
        }
        must(folder, &format!("{program} --version && troupe {program} --help"));
    }
    let complete = "source venv/share/bash-completion/completions/update.bash; COMP_WORDS=(update --lea); COMP_CWORD=1; \
                    _update update --lr-o update; echo ${COMPREPLY[@]}";
    assert_eq!(must(folder, complete).trim(), "--lr-other");
    must(folder, "! command -v cargo && troupe pipeline --warmup 2 --steps 1 --tasks 2 --eval-every 0 2>&1");
    assert!(folder.join("runs/plan-path/steps/000001/done").exists());
    must(
        folder,
        "mkdir unpacked && tar xzf dist/*.tar.gz -C unpacked && unpacked/*/bin/troupe envs list | grep -q plan-path",
    );
}

#[test]
fn the_image_is_made_with_the_rust_that_the_workspace_needs() {
    let text = |file| std::fs::read_to_string(root().join(file)).expect("a file");
    let image = text("package/Dockerfile");
    let rust = text("Cargo.toml")
        .split("rust-version = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next().map(str::to_owned));
    assert!(image.contains(&format!("FROM rust:{}-", rust.expect("a version"))), "{image}");
    let feature =
        image.split("--features rollout/").nth(1).and_then(|rest| rest.split(' ').next()).expect("a feature");
    assert!(text("rollout/Cargo.toml").contains(&format!("\n{feature} = [")), "{feature}");
}

/// README promises Python 3.9. The wheel requires the Python of its ONNX Runtime.
#[test]
fn what_is_shipped_in_python_is_read_by_the_oldest_that_is_promised() {
    let parse = "import ast, pathlib, sys\n\
                 for file in sys.argv[1:]: ast.parse(pathlib.Path(file).read_text(), file, feature_version=(3, 9))";
    let mut python = Command::new("python3");
    python.args(["-c", parse]).current_dir(root());
    for folder in ["examples", "sandbox/src", "package"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "py") {
                python.arg(path);
            }
        }
    }
    assert!(python.get_args().count() > 12, "{python:?}");
    let output = python.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
