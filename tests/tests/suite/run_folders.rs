//! Folders that are no runs keep every file, and a copied run goes on with the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use troupe_tests::storm::{Random, rounds};
use troupe_tests::{contents, must, script};

const SMALL: [&str; 9] = ["--tasks", "2", "--warmup", "0", "--eval-every", "0", "--branches", "2", "--steps"];

fn call(here: &Path, arguments: &[&str]) -> Output {
    script().args(arguments).current_dir(here).output().expect("pipeline.sh runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every file below a folder, with its bytes, and every link with its target; named pipes are left out.
fn everything(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let kind = entry.symlink_metadata().expect("its kind");
        if kind.is_dir() {
            found.extend(everything(&entry));
        } else if kind.is_symlink() {
            found.insert(
                entry.clone(),
                fs::read_link(&entry).expect("a link").into_os_string().into_encoded_bytes(),
            );
        } else if kind.is_file() && !["lock", "failed"].iter().any(|name| entry.ends_with(name)) {
            found.insert(entry.clone(), fs::read(&entry).expect("a file"));
        }
    }
    found
}

/// Somebody's project, with names that a run has, too.
fn project(folder: &Path) {
    for name in [
        "stages/a.py",
        "policies/notes.txt",
        "policies/mine/c",
        "warmup/d",
        "reference/e",
        "steps/f",
        "eval/g",
        "config.toml",
        "run.json",
    ] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, "mine").expect("written");
    }
    must(&format!("policy init '{}' --preset tiny --seed 9 --quiet", folder.join("policies/best").display()));
}

#[test]
fn a_folder_that_is_no_run_keeps_every_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    project(&here.join("project"));
    let run = here.join("run").display().to_string();
    assert!(call(here, &[&["--run", &run], &SMALL[..], &["2"]].concat()).status.success());
    fs::create_dir_all(here.join("documents/thesis")).expect("made");
    fs::write(here.join("documents/thesis/a.tex"), "precious").expect("written");
    let at = |name: &str| here.join("run").join(name);
    let moved = |name: &str| fs::rename(at(name), here.join("aside")).expect("moved");
    /// A command line, the preparation before it, and its error.
    type Case<'a> = (&'a [&'a str], &'a dyn Fn(), &'a str);
    let cases: [Case; 9] = [
        (&["--run", "project"], &|| (), "project is not empty, and not a run"),
        (
            &[
                "--run",
                "project",
                "--policies",
                "tool=project/policies/best",
                "--policies",
                "planner=project/policies/best",
            ],
            &|| (),
            "is not empty",
        ),
        (
            &["--run", "run", "--model", "run/policies/shared"],
            &|| (),
            "--model=run/policies/shared: a run cannot begin from its own folder",
        ),
        (
            &["--resume", "run"],
            &|| {
                moved("stages");
                symlink("../documents", at("stages")).expect("linked")
            },
            "run/stages: a link",
        ),
        (
            &["--resume", "run"],
            &|| {
                moved("report.html");
                symlink("../documents/thesis/a.tex", at("report.html")).expect("linked")
            },
            "report.html: a link",
        ),
        (
            &["--resume", "run", "--steps", "3"],
            &|| {
                moved("steps/000002/samples.jsonl");
                symlink("/dev/../etc/hostname", at("steps/000002/samples.jsonl")).expect("linked");
            },
            "samples.jsonl: a link",
        ),
        (
            &["--run", "run", "--steps", "3", "--seed", "9", "--tasks", "2"],
            &|| moved("run.json"),
            "has steps up to 2 and no run.json of a run",
        ),
        (
            &["--resume", "run"],
            &|| {
                moved("config.toml");
                fifo(&at("config.toml"))
            },
            "config.toml: a device or a named pipe",
        ),
        (
            &["--resume", "run"],
            &|| {
                moved("lock");
                fifo(&at("lock"))
            },
            "lock: a device or a named pipe",
        ),
    ];
    let names = ["stages", "report.html", "steps/000002/samples.jsonl", "run.json", "config.toml", "lock"];
    let files = everything(here);
    for (arguments, change, told) in cases {
        change();
        let before = everything(here);
        let started = Instant::now();
        let output = call(here, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(
            said(&output).contains(told) && said(&output).lines().count() == 2,
            "{arguments:?}: {}",
            said(&output)
        );
        assert_eq!(everything(here), before, "{arguments:?}");
        let listed = call(here, &["list", "."]);
        assert!(listed.status.code().is_some() && started.elapsed() < Duration::from_secs(60));
        if here.join("aside").exists() {
            let name =
                names.iter().find(|name| at(name).is_symlink() || !at(name).exists() || is_fifo(&at(name)));
            let path = at(name.expect("what was moved"));
            let _ = fs::remove_file(&path);
            fs::rename(here.join("aside"), path).expect("moved back");
        }
    }
    assert_eq!(everything(here), files);
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

fn is_fifo(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_fifo())
}

/// Copies a folder by one of four kinds of tools.
fn copy(kind: usize, from: &Path, to: &Path) {
    let (from, to) = (from.display(), to.display());
    match kind % 4 {
        0 => must(&format!("cp -r '{from}' '{to}'")),
        1 => must(&format!("cp -rL '{from}' '{to}'")), // as scp -r
        2 => must(&format!("mkdir '{to}' && tar -C '{from}' -cf - . | tar -C '{to}' -xf -")),
        // An object store: no empty folders, links as text.
        _ => must(&format!(
            "cd '{from}' && find . -type f -exec cp --parents -t \"$(mkdir -p '{to}' && echo '{to}')\" {{}} + && \
             find . -type l | while read -r link; do readlink \"$link\" > '{to}'/\"$link\"; done"
        )),
    };
}

/// The streams and the published weights of a run, without its links and what a copy makes of them.
fn results(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let is_result = |name: &String| {
        let is_link = |part: &str| part == "current" || part == "base" || part == "best";
        (name.starts_with("steps/") || name.starts_with("eval/") || name.starts_with("policies/"))
            && !name.split('/').skip(1).any(is_link)
    };
    contents(run).into_iter().filter(|(name, _)| is_result(name)).collect()
}

/// A run of adapters of another run, with a file of problems and a workflow; returns its arguments.
fn begin(here: &Path) -> Vec<String> {
    must(&format!(
        "cd '{}'; for i in $(seq 40); do echo \"{{\\\"question\\\":\\\"What is $i plus 3?\\\",\\\"answer\\\":\\\"$((i + 3))\\\"}}\"; done > raw; \
         envs import raw --test-share 0.3 > tasks.jsonl; \
         printf 'order = [\"solver\", \"critic\"]\\nlast = \"critic\"\\n[role.solver]\\n[role.critic]\\nsees = [\"solver\"]\\n' > w.toml; \
         mkdir first; policy init first/base --preset tiny --seed 3 --quiet; \
         for name in solver critic; do policy init first/$name --from first/base --adapter rank=4,alpha=8 --quiet; done",
        here.display()
    ));
    let arguments = "--env math --set data=tasks.jsonl --set encoding=full --workflow w.toml --max-tokens 6 --tasks 2 --branches 2 --eval-every 1 \
                     --eval-tasks 2 --keep-best --policies solver=first/solver --policies critic=first/critic --lr 0.01";
    // Random weights earn nothing, so that nothing would be learned.
    let judge = "reward=jq -c 'if .type == \"sample\" then .reward = .completion_ids[0] % 7 else . end'";
    arguments.split_whitespace().chain(["--stage", judge]).map(str::to_owned).collect()
}

fn copies_go_on(rounds: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let arguments = begin(here);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = call(here, &[&["--run", "run", "--steps", "2"], &arguments[..]].concat());
    assert!(began.status.success(), "{}", said(&began));
    let elsewhere = tempfile::tempdir().expect("a folder");
    for round in 0..rounds {
        copy(round, &here.join("run"), &elsewhere.path().join(format!("copy{round}")));
    }
    let whole = call(here, &["--resume", "run", "--steps", "4"]);
    assert!(whole.status.success(), "{}", said(&whole));
    let expected = results(&here.join("run"));
    let version = |step: &str| {
        expected.iter().find(|(name, _)| **name == format!("policies/solver/step-{step}/version.json"))
    };
    let digest = |bytes: &[u8]| String::from_utf8_lossy(bytes).split("digest").nth(1).map(str::to_owned);
    let [third, fourth] = ["000003", "000004"].map(|step| digest(version(step).expect("a version").1));
    assert!(fourth.is_some() && third != fourth, "it has learned nothing");
    fs::remove_dir_all(here).expect("removed");
    for round in 0..rounds {
        let name = format!("copy{round}");
        let mut resumed = script();
        resumed.args(["--resume", &name, "--steps", "4"]).env("HOME", elsewhere.path());
        let resumed = resumed.current_dir(elsewhere.path()).output().expect("pipeline.sh runs");
        assert!(resumed.status.success(), "copy {round}: {}", said(&resumed));
        let (found, wanted) = (results(&elsewhere.path().join(&name)), &expected);
        let names: Vec<_> =
            wanted.keys().chain(found.keys()).filter(|name| wanted.get(*name) != found.get(*name)).collect();
        assert!(names.is_empty(), "copy {round}: {names:?}");
        // The best is there, and can be given away.
        must(&format!(
            "cd '{}'; policy check {name}/best/solver; policy export {name}/best/solver out{round} --merge",
            elsewhere.path().display()
        ));
    }
    fs::create_dir(here).expect("made again");
}

#[test]
fn a_run_copied_by_any_tool_goes_on_with_the_same_bytes() {
    copies_go_on(4);
}

#[test]
fn other_data_under_the_same_name_is_refused_with_both_digests() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let arguments = begin(here);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert!(call(here, &[&["--run", "run", "--steps", "1"], &arguments[..]].concat()).status.success());
    for (file, flag) in [("tasks.jsonl", "data"), ("w.toml", "workflow")] {
        let kept = fs::read(here.join(file)).expect("a file");
        fs::write(here.join(file), [&kept[..], b"\n"].concat()).expect("written");
        let refused = call(here, &["--resume", "run", "--steps", "2"]);
        let told = said(&refused);
        assert!(
            refused.status.code() == Some(2) && told.matches(&format!(" of {flag}")).count() == 2,
            "{told}"
        );
        assert!(told.contains("the run has a copy of what it was started with"), "{told}");
        fs::write(here.join(file), kept).expect("written");
    }
    // The policies that it began with are its own: the first run may go on, or go.
    fs::remove_dir_all(here.join("first")).expect("removed");
    let resumed = call(here, &["--resume", "run", "--steps", "2"]);
    assert!(resumed.status.success(), "{}", said(&resumed));
}

/// Killed after any step, the run ends after the same step, with the same exit code.
#[test]
fn a_flat_run_ends_where_it_would_have_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let whole = call(here, &[&["--run", "whole"], &SMALL[..], &["9"]].concat());
    let steps = |run: &str| fs::read_dir(here.join(run).join("steps")).expect("steps").count();
    assert!(whole.status.code() == Some(1) && steps("whole") == 4, "{}", said(&whole));
    for stopped in ["1", "2", "3"] {
        let name = format!("stopped{stopped}");
        call(here, &[&["--run", &name], &SMALL[..], &[stopped]].concat());
        for _ in 0..2 {
            let resumed = call(here, &[&["--run", &name], &SMALL[..], &["9"]].concat());
            assert_eq!((resumed.status.code(), steps(&name)), (Some(1), 4), "{stopped}: {}", said(&resumed));
            assert!(said(&resumed).contains("steps 1 to 3: all groups are flat"), "{}", said(&resumed));
        }
    }
    // A changed value is another beginning.
    let changed = call(here, &["--resume", "stopped3", "--temperature", "2"]);
    assert_eq!((changed.status.code(), steps("stopped3")), (Some(1), 7), "{}", said(&changed));
}

/// Mistakes that earlier showed after a part of the run was made.
#[test]
fn every_value_is_checked_before_there_is_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    must(&format!(
        "cd '{}'; policy init p --preset tiny --quiet; echo '{{\"question\":\"What is 2 plus 3?\",\"answer\":\"5\"}}' > mine.jsonl; \
         envs import mine.jsonl --split train > t.jsonl; cp -r p/step-000000 plain; \
         python3 -c 'import json; n = \"plain/tokenizer_config.json\"; c = json.load(open(n)); c.pop(\"chat_template\"); json.dump(c, open(n, \"w\"))'",
        here.display()
    ));
    for (arguments, told) in [
        (&["--policies", "planner=p", "--policies", "tool=nothere"][..], "nothere: no such directory"),
        (&["--env", "math", "--set", "data=t.jsonl"], "a file of problems has no demonstrations"),
        (&["--policies", "planner=p", "--policies", "tool=plain"], "chat template"),
        (
            &["--env", "math", "--model", "plain", "--set", "data=mine.jsonl"],
            "envs import mine.jsonl > tasks.jsonl",
        ),
        (&["--policies", "planner=p", "--policies", "tool=HTTP://me:S3CRET@h/v1"], "a name or a key in it"),
        (
            &["--policies", "planner=p", "--policies", "tool=http://h/v1?api_key=S3CRET"],
            "no setting \"api_key\"",
        ),
        (&["--model", "https:me:S3CRET@h/v1"], "a name or a key in it"),
    ] {
        let output = call(here, &[&["--run", "run", "--steps", "1"], arguments].concat());
        let said = said(&output);
        assert!(output.status.code() == Some(2) || output.status.code() == Some(65), "{arguments:?}: {said}");
        assert!(
            said.contains(told) && said.lines().count() == 2 && !said.contains("S3CRET"),
            "{arguments:?}: {said}"
        );
        assert!(!here.join("run").exists(), "{arguments:?}");
    }
}

/// Random folders that are no runs, with names that a run has.
#[test]
#[ignore = "storm"]
fn no_file_of_a_folder_that_is_no_run_is_touched() {
    let mut random = Random::new();
    const NAMES: [&str; 14] = [
        "stages",
        "steps",
        "policies",
        "warmup",
        "eval",
        "reference",
        "baselines",
        "data",
        "report.cache",
        "best-000004",
        "run.json",
        "config.toml",
        "report.html",
        "tool",
    ];
    for round in 0..rounds(12, 200) {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path().join("project");
        fs::create_dir(&here).expect("made");
        for _ in 0..=random.below(6) {
            let parts: Vec<&str> = (0..=random.below(3)).map(|_| NAMES[random.below(NAMES.len())]).collect();
            let path = here.join(parts.join("/"));
            let made = fs::create_dir_all(path.parent().expect("a folder"));
            if made.is_ok() && !path.exists() {
                match random.below(5) {
                    0 => symlink("/etc", &path).expect("linked"),
                    1 => fs::create_dir(&path).expect("made"),
                    2 => fs::write(&path, "{}").expect("written"),
                    _ => fs::write(&path, "mine").expect("written"),
                }
            }
        }
        let before = everything(&here);
        let words: &[&str] = match random.below(3) {
            0 => &["--resume", "project"],
            1 => &["--run", "project", "--seed", "1,2", "--steps", "0", "--warmup", "0", "--eval-every", "0"],
            _ => &["--run", "project", "--steps", "0", "--warmup", "0", "--eval-every", "0"],
        };
        let output = call(folder.path(), words);
        let after = everything(&here);
        let lost: Vec<_> = before.iter().filter(|(name, bytes)| after.get(*name) != Some(*bytes)).collect();
        assert!(lost.is_empty(), "round {round}, {words:?}: {lost:?}: {}", said(&output));
        let is_sweep = words.contains(&"--seed");
        assert!(
            is_sweep || output.status.code() != Some(0) || before.is_empty(),
            "round {round}: {before:?}"
        );
    }
}

#[test]
#[ignore = "storm"]
fn runs_copied_by_four_tools_go_on_with_the_same_bytes_too() {
    copies_go_on(rounds(4, 16));
}
