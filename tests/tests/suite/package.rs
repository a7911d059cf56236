//! What pip installs: the programs and the loop, on a machine that has neither Rust nor this checkout.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use troupe_tests::{programs, root, runtime, skip};

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

/// A folder with the wheel in `venv`, and its runtime library; `None` if it cannot be made here.
fn installed() -> Option<&'static Path> {
    static MADE: OnceLock<(Option<PathBuf>, Option<Child>)> = OnceLock::new();
    let (folder, _) = MADE.get_or_init(|| {
        let can = |command: &str| Command::new("bash").args(["-c", command]).output().is_ok_and(|out| out.status.success());
        if !can("python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'") {
            return (None, None);
        }
        let folder = tempfile::tempdir().expect("a folder").keep();
        // Statics are never dropped: when this process ends, however it does, the shell reads the end of its input.
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", "read -r _; rm -rf -- \"$0\""]).arg(&folder).stdin(Stdio::piped());
        let cleaner = cleaner.spawn().expect("sh runs");
        // A concurrent build replaces programs, so both packages are made of one copy.
        let built = folder.join("built");
        std::fs::create_dir(&built).expect("a folder");
        for program in PROGRAMS.iter().chain(&["troupe-pipeline"]) {
            std::fs::copy(programs().join(program), built.join(program)).expect("a copy");
        }
        for out in ["dist", "again"] {
            let mut package = Command::new("python3");
            package.arg(root().join("scripts/package/package.py")).arg("--programs").arg(&built);
            assert!(package.arg("--out").arg(folder.join(out)).status().expect("python3 runs").success());
        }
        must(&folder, "diff -r dist again");
        let python = Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")).status();
        assert!(python.expect("python3 runs").success(), "python3 has no venv");
        // Its dependency is here already; what pip makes of that package is a folder with this file.
        must(&folder, "pip install --quiet --disable-pip-version-check --no-index --no-deps dist/*.whl");
        let version = runtime().rsplit_once(".so.").expect("a version").1;
        let needs =
            must(&folder, "python -c \"from importlib.metadata import requires; print(*requires('troupe'))\"");
        assert_eq!(needs.trim(), format!("onnxruntime=={version}"));
        assert!(
            !must(&folder, "rollout --version").contains("\nONNX Runtime "),
            "it finds one that it should not know"
        );
        // The commands it prints exist.
        let told = must(
            &folder,
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
            &folder,
            &format!(
                "mkdir -p $(echo venv/lib/python3*/site-packages)/onnxruntime/capi && ln -s {} \
                 venv/lib/python3*/site-packages/onnxruntime/capi",
                runtime()
            ),
        );
        (Some(folder), Some(cleaner))
    });
    folder.as_deref()
}

const NO_WHEEL: &str = "a wheel needs python3 3.11 or newer with venv and pip: apt-get install python3-venv";

#[test]
fn an_installed_wheel_trains_without_this_checkout() {
    let Some(folder) = installed() else { skip!("{NO_WHEEL}") };
    let version = runtime().rsplit_once(".so.").expect("a version").1;
    assert!(must(folder, "rollout --version").contains(&format!("\nONNX Runtime {version}")));
    let told = must(folder, "troupe --version");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() == 2 && lines[0] == concat!("troupe ", env!("CARGO_PKG_VERSION")), "{told}");
    assert!(
        lines[1].starts_with(&format!("ONNX Runtime {version} (")) && lines[1].ends_with(".so.1.31.1)"),
        "{told}"
    );

    let listed = must(folder, "troupe");
    let share = folder.join("venv/share");
    for program in PROGRAMS {
        assert!(listed.contains(&format!("\n  {program} ")), "{listed}");
        let page = std::fs::read_to_string(share.join(format!("man/man1/{program}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH EXAMPLES\n.nf\n"), "{page}");
        for completions in [
            format!("bash-completion/completions/{program}.bash"),
            format!("fish/vendor_completions.d/{program}.fish"),
            format!("zsh/site-functions/_{program}"),
        ] {
            assert!(share.join(&completions).is_file(), "{completions}");
        }
        must(folder, &format!("{program} --version && troupe {program} --help"));
    }
    for (words, offered) in [
        ("update --lr-o", "--lr-other"),
        ("troupe pipeline --lr-w", "--lr-warmup"),
        ("troupe pipeline --env sud", "sudoku"),
        ("troupe envs tasks plan", "plan-path"),
        ("envs list sok", "sokoban"),
        ("troupe adv", "advantage"),
    ] {
        let (program, last) = (words.split(' ').next().expect("a program"), words.split(' ').count() - 1);
        let complete = format!(
            "source venv/share/bash-completion/completions/{program}.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _{program} {program} \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo ${{COMPREPLY[@]}}"
        );
        assert_eq!(must(folder, &complete).trim(), offered, "{words}");
    }
    must(folder, "! command -v cargo && troupe pipeline --warmup 2 --steps 1 --tasks 2 --eval-every 0 2>&1");
    assert!(folder.join("runs/plan-path/steps/000001/done").exists());
    must(
        folder,
        "mkdir unpacked && tar xzf dist/*.tar.gz -C unpacked && unpacked/*/bin/troupe envs list | grep -q plan-path",
    );
}

#[test]
fn pages_of_a_wheel_can_be_read_and_typed() {
    let Some(folder) = installed() else { skip!("{NO_WHEEL}") };
    let pages = must(folder, "ls venv/share/man/man1");
    assert!(
        !pages.contains("help") && pages.contains("envs-tasks.1\n") && pages.contains("troupe-pipeline.1\n"),
        "{pages}"
    );
    // Documents and examples name existing files.
    must(
        folder,
        "! grep -rn '[^/a-z][.]/pipeline[.]sh' venv/share/troupe/README.md venv/share/troupe/docs venv/share/troupe/examples",
    );
    must(folder, "mkdir -p typed && cd typed && troupe examples");
    let (code, said) = {
        let mut again = Command::new(folder.join("venv/bin/troupe"));
        let output = again.arg("examples").current_dir(folder.join("typed")).output().expect("troupe runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(code == Some(2) && said.contains("hint: "), "{said}");
    let named = must(
        folder,
        "grep -oh 'examples/[a-z_]*[.]py' -r venv/share/troupe/README.md venv/share/troupe/docs | sort -u",
    );
    assert!(named.lines().count() > 4, "{named}");
    for example in named.lines() {
        assert!(folder.join("typed").join(example).is_file(), "{example}");
    }
    must(
        folder,
        "cd typed && troupe pipeline --env-command 'python3 examples/guess_number.py' --warmup 2 --steps 1 --tasks 2 --eval-every 0 2>&1 && \
         troupe envs new my-game && grep -q 'troupe pipeline' my_game.py && ! grep -q '[.]/pipeline[.]sh' my_game.py",
    );
}

/// The wheel is in one environment, and the packages of a game in another: `python3` of the game is the caller's.
#[test]
fn a_game_runs_by_the_python_of_its_caller() {
    let Some(folder) = installed() else { skip!("{NO_WHEEL}") };
    let theirs = folder.join("theirs");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&theirs).status();
    assert!(made.expect("python3 runs").success(), "python3 has no venv");
    let packages = must(folder, "echo theirs/lib/python3*/site-packages");
    let game = std::fs::read_to_string(root().join("examples/guess_number.py")).expect("an example");
    let of_theirs = folder.join(packages.trim());
    std::fs::write(of_theirs.join("only_theirs.py"), game).expect("written");
    let module = root().join("examples/troupe");
    let copied = Command::new("cp").arg("-r").arg(module).arg(of_theirs.join("troupe")).status();
    assert!(copied.expect("cp runs").success());
    let run = "import only_theirs, runpy, sys\nassert '/theirs/' in sys.prefix + '/', sys.prefix\nrunpy.run_module('only_theirs', run_name='__main__')\n";
    std::fs::write(folder.join("game.py"), run).expect("written");
    let train = "pipeline --env-command 'python3 game.py' --warmup 2 --steps 1 --tasks 2 --eval-every 2 --eval-tasks 2";
    for (name, command) in [
        ("called", format!("PATH=$PWD/theirs/bin:/usr/bin:/bin venv/bin/troupe {train}")),
        ("behind", format!("PATH=$PWD/theirs/bin:$PATH troupe {train}")),
        ("resident", format!("PATH=$PWD/theirs/bin:$PATH troupe {train} --resident")),
    ] {
        must(folder, &format!("{command} --run runs/theirs-{name} 2>&1"));
        assert!(folder.join(format!("runs/theirs-{name}/steps/000001/done")).exists(), "{name}");
    }
    let check = "python3 game.py tasks --split train --count 2 --seed 1 >tasks; python3 game.py tasks --split test --count 2 --seed 1 >>tasks; \
                 venv/bin/envs check --env-command 'python3 game.py' --episodes 2 --tasks 1 <tasks";
    must(folder, &format!("export PATH=$PWD/theirs/bin:/usr/bin:/bin; {check}"));
    // If the wheel's Python comes first on PATH, the caller gets it too, and it lacks the game.
    must(
        folder,
        &format!(
            "(troupe {train} --run runs/theirs-not 2>&1 || true) | grep \"No module named 'only_theirs'\""
        ),
    );
}

/// `from troupe import Environment` needs no file beside the program, and says its types.
#[test]
fn the_wheel_has_the_module_for_environments() {
    let Some(folder) = installed() else { skip!("{NO_WHEEL}") };
    let program = "import troupe\nclass Game(troupe.Environment):\n    def tasks(self, split, seed):\n        number = split == 'test'\n        \
                   while True:\n            number += 2\n            yield str(number), number\n    def reset(self, spec):\n        \
                   return troupe.Start(spec, {'player': f'say {spec}'}, ['player'], turns=1)\n    def step(self, state, agent, text):\n        \
                   won = text == str(state)\n        return troupe.Step(state, {}, team=float(won), terminated=True, success=won)\n\
                   if __name__ == '__main__': Game().main()\n";
    std::fs::create_dir_all(folder.join("own")).expect("a folder");
    std::fs::write(folder.join("own/game.py"), program).expect("written");
    let said = must(folder, "python -m troupe.check --tasks 2 own/game.py");
    assert!(said.contains("ok     every text has an outcome") && !said.contains("BROKEN"), "{said}");
    let typed = "python -c 'import pathlib, troupe; print(pathlib.Path(troupe.__file__).with_name(\"py.typed\").is_file(), troupe.__file__)'";
    let said = must(folder, typed);
    assert!(said.starts_with("True ") && said.contains("/venv/lib/"), "{said}");
    must(
        folder,
        "(python own/game.py tasks; python own/game.py tasks --split test) | envs check --quiet --env-command 'python own/game.py'",
    );
}

#[test]
fn the_image_is_made_with_the_rust_that_the_workspace_needs() {
    let text = |file| std::fs::read_to_string(root().join(file)).expect("a file");
    let image = text("scripts/package/Dockerfile");
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
    for folder in ["examples", "examples/troupe", "crates/sandbox/src", "scripts/package"] {
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
