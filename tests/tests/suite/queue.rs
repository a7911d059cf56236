//! Several runs with one command, a run whose values change in the middle, and the list of all.

use std::fs;
use std::path::Path;

use troupe_tests::{contents, script};

/// Exit code, stdout and stderr of `pipeline.sh` in a folder.
fn called(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = script().args(arguments).current_dir(folder).output().expect("pipeline.sh runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

const STUDY: &str = "steps = 2\ntasks = 3\nbranches = 3\nwarmup = 6\neval-every = 2\neval-tasks = 6\nseed = [1, 2]\n[sweep]\nlr = [1e-3, 2e-3]\n";

#[test]
fn runs_of_a_sweep_are_made_skipped_resumed_and_named_where_they_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    fs::write(folder.join("study.toml"), STUDY).expect("written");
    let study = ["--config", "study.toml"];
    let (code, printed, said) = called(folder, &study);
    assert_eq!(code, Some(0), "{said}");
    let names = ["lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=2e-3,seed=1", "lr=2e-3,seed=2"];
    let runs = folder.join("runs/study");
    for (place, name) in (1..).zip(names) {
        assert!(printed.contains(&format!("run {place} of 4: ")), "{printed}");
        let config = fs::read_to_string(runs.join(name).join("config.toml")).expect("a configuration");
        let (lr, seed) = name.split_once(',').expect("two values");
        assert!(
            config.contains(if lr == "lr=1e-3" { "lr = 0.001\n" } else { "lr = 0.002\n" })
                && config.contains(&seed.replace('=', " = "))
        );
        assert!(!config.contains("sweep") && !config.contains("seed = ["), "{config}");
    }
    assert!(runs.join("report.html").is_file());
    // One run by itself is the same.
    let alone = ["--config", "study.toml", "--lr", "2e-3", "--seed", "2", "--run", "alone"];
    let (code, _, said) = called(folder, &alone);
    assert_eq!(code, Some(0), "{said}");
    assert!(contents(&folder.join("alone")) == contents(&runs.join(names[3])), "the same run");
    // Finished runs are skipped, unfinished ones resume, failed ones are named, and later ones are trained.
    let whole = contents(&runs.join(names[1]));
    fs::remove_file(runs.join(names[1]).join("steps/000002/done")).expect("removed");
    fs::remove_file(runs.join(names[1]).join("eval/step-000002.jsonl")).expect("removed");
    fs::write(runs.join(names[2]).join("steps/000002/done"), "damaged").expect("written");
    fs::remove_file(runs.join(names[2]).join("eval/step-000002.jsonl")).expect("removed");
    fs::remove_dir_all(runs.join(names[3])).expect("removed");
    let (code, printed, said) = called(folder, &study);
    assert_eq!(code, Some(65), "{said}");
    assert!(printed.contains(&format!("{} is done\n", names[0])) && !printed.contains("seed=2 is done"));
    assert!(printed.contains("continues after step 1\n"), "{printed}");
    assert!(said.contains("1 of 4 runs failed: lr=2e-3,seed=1 (exit code 65)\nhint: "), "{said}");
    assert!(contents(&runs.join(names[1])) == whole, "the same run");
    assert!(contents(&runs.join(names[3])) == contents(&folder.join("alone")), "the same run");
    let (code, listed, said) = called(folder, &["list"]);
    assert_eq!(code, Some(0), "{said}");
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["run", "state", "steps", "best", "size"]);
    assert_eq!(rows[1][..3], [&format!("study/{}", names[0])[..], "done", "2/2"]);
    assert_eq!(rows[3][..3], [&format!("study/{}", names[2])[..], "failed", "2/2"]);
    assert!(rows.len() == 5 && rows[1][4] == "at" && rows[1].last() == Some(&"MB"), "{listed}");
}

#[test]
fn a_mistake_in_any_run_of_a_sweep_is_found_before_the_first_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let toml = folder.join("study.toml");
    for (text, cause) in [
        ("[sweep]\nlr = [1e-3, -1]", "invalid value '-1' for '--lr <[AGENT=]X>'"),
        ("[sweep]\nenv = [\"plan-path\", \"plan-paht\"]", "plan-paht"),
        ("[sweep.flags]\nadvantage = [\"\", \"--estimator gpro\"]", "gpro"),
        ("[sweep]\nbranches = [4, 0]", "study.toml:2: --branches must be from 1"),
        ("[sweep]\nlearning_rate = [1]", "study.toml:2: unexpected argument '--learning-rate' found"),
        ("seed = [1, 1]", "two runs of the sweep are called seed=1"),
        ("seed = 1\n[sweep]\nseed = [1, 2]", "seed has one value and several"),
    ] {
        fs::write(&toml, text).expect("written");
        let (code, _, said) = called(folder, &["--config", "study.toml"]);
        assert!(code == Some(2) && said.contains(cause), "{text}: {said}");
        assert!(!folder.join("runs").exists(), "{text}");
    }
    let (code, _, said) = called(folder, &["evaluate", "--seed", "1,2"]);
    assert!(code == Some(2) && said.contains("evaluate and explain are of one run"), "{said}");
    fs::create_dir(folder.join("run")).expect("made");
    fs::write(folder.join("run/run.json"), "{}").expect("written");
    let (code, _, said) = called(folder, &["--seed", "1,2", "--run", "run"]);
    assert!(code == Some(2) && said.contains("is a run, and not a folder for several"), "{said}");
}

#[test]
fn a_resumed_run_takes_other_values_from_the_next_step_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let small = "--warmup 30 --tasks 4 --branches 4 --eval-every 0 --keep 9 --run";
    let begin: Vec<&str> = small.split(' ').collect();
    let (code, _, said) = called(folder, &[&begin[..], &["run", "--steps", "1"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let refused = ["--resume", "run", "--steps", "2", "--lr", "5e-4", "--env", "math"];
    let (code, _, said) = called(folder, &refused);
    assert!(
        code == Some(2)
            && said.contains("--env --workflow cannot change") | said.contains("--env cannot change"),
        "{said}"
    );
    let changed = ["--resume", "run", "--steps", "2", "--lr", "5e-4", "--kl", "0.01", "--tasks", "3"];
    let (code, _, said) = called(folder, &changed);
    assert_eq!(code, Some(0), "{said}");
    let told = "from step 2 on --tasks 3 --lr 5e-4 --kl 0.01 instead of --tasks 4 --lr 1e-3 --kl 0";
    assert!(said.contains(told), "{said}");
    // It goes on with them, and the step is one with these values.
    let (code, _, said) = called(folder, &["--resume", "run", "--steps", "3"]);
    assert_eq!(code, Some(0), "{said}");
    // A finished run is not cut.
    let run = folder.join("run");
    let config = fs::read(run.join("config.toml")).expect("a configuration");
    for fewer in ["0", "2"] {
        let (code, _, said) = called(folder, &["--resume", "run", "--steps", fewer]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("has 3 steps already\nhint: --steps can only grow: --steps 4"), "{said}");
        assert_eq!(fs::read(run.join("config.toml")).expect("a configuration"), config);
    }
    let read = |name: &str| -> serde_json::Value {
        let text = fs::read_to_string(run.join(name)).expect("a file");
        serde_json::from_str(text.lines().next_back().filter(|_| name.ends_with('l')).unwrap_or(&text))
            .expect("JSON")
    };
    assert_eq!(read("run.json")["history"], serde_json::json!([told]));
    assert_eq!(read("run.json")["lr"], "5e-4");
    for (step, tasks) in [(1, 4), (2, 3), (3, 3)] {
        assert_eq!(read(&format!("steps/{step:06}/tasks.jsonl"))["counts"]["tasks"], tasks, "step {step}");
    }
    let state = read("policies/shared/current/trainer_state.json");
    assert_eq!(
        (state["settings"]["lr"].as_f64(), state["settings"]["kl"].as_f64()),
        (Some(5e-4), Some(0.01))
    );
}

/// From a policy that plays well, with a learning rate that destroys it and with one that does not.
#[test]
fn a_run_that_collapses_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = troupe_tests::warmed_up().display();
    let run = |lr: &str, name: &str, how: &str| {
        let policies = [format!("tool={policy}"), format!("planner={policy}")];
        let more = ["--policies", &policies[0], "--policies", &policies[1], "--lr", lr, "--run", name];
        let small = format!("--on-collapse {how} --steps 4 --tasks 12 --branches 6 --eval-every 0");
        called(folder.path(), &[&more[..], &small.split(' ').collect::<Vec<_>>()].concat())
    };
    let (code, _, said) = run("0.3", "warned", "warn");
    let at = said.find("the run may be collapsing: ").expect("a warning");
    assert!(said[..at].lines().next_back().expect("a line").starts_with("pipeline.sh: step "), "{said}");
    assert!(
        said[at..].contains("\nhint: begin again in another --run with a smaller --lr than 0.3"),
        "{said}"
    );
    assert_eq!((code, said.matches("may be collapsing").count()), (Some(0), 1), "{said}");
    let (_, _, said) = run("1e-3", "sound", "stop");
    assert!(!said.contains("collapsing"), "{said}");
    let (code, _, said) = run("0.3", "stopped", "stop");
    let step = said.split("pipeline.sh: step ").nth(1).and_then(|rest| rest.split(':').next()?.parse().ok());
    let (step, has) = (step.expect("a step"), |step: u64| {
        folder.path().join(format!("stopped/steps/{step:06}/done")).exists()
    });
    assert!(code == Some(1) && has(step) && !has(step + 1) && step < 4, "{said}");
}
