//! Stages that stay (`--resident`): one part of a stream after another gives the bytes of a process a part.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use troupe_tests::program::lines;
use troupe_tests::{differences, must, pipeline, shell};

/// Returns true if the training state of a version is on the disk.
fn saved(run: &Path, step: u64) -> bool {
    let version = run.join(format!("policies/shared/step-{step:06}"));
    let [state, moments] =
        ["trainer_state.json", "optimizer.safetensors"].map(|name| version.join(name).exists());
    assert_eq!(state, moments, "step {step}");
    state
}

/// Saved every third step and at the end, whatever ends the run; a step counts once its state, or a later one, is saved.
#[test]
fn the_optimizers_state_is_saved_every_few_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let [run, whole] = ["run", "whole"].map(|name| folder.path().join(name));
    let small = [
        "--warmup",
        "30",
        "--tasks",
        "6",
        "--branches",
        "4",
        "--eval-every",
        "0",
        "--keep",
        "9",
        "--steps",
        "8",
    ];
    let called = |run: &Path, more: &[&str]| {
        let output = pipeline(run, &[&small[..], more].concat()).output().expect("pipeline.sh runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The tasks of step 6 fail until they may go: 4 and 5 are saved as the stages end.
    let own =
        "tasks=[ $STEP != 6 ] || [ -e $RUN.go ] || exit 3; envs tasks plan-path --count 6 --seed 100000$STEP";
    let go = |run: &Path| fs::write(run.with_extension("go"), "").expect("written");
    go(&whole);
    let (code, said) = called(&whole, &["--stage", own]);
    assert_eq!(code, Some(0), "{said}");
    let seldom = ["--resident", "--save-every", "3", "--stage", own];
    let (code, said) = called(&run, &seldom);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!([0, 1, 2, 3, 4, 5].map(|step| saved(&run, step)), [false, false, false, true, false, true]);
    assert!(run.join("steps/000005/done").exists());
    go(&run);
    let (code, said) = called(&run, &seldom);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!([6, 7, 8].map(|step| saved(&run, step)), [true, false, true]);
    let mut different = differences(&whole, &run);
    different
        .retain(|file| !file.contains("/trainer_state.json") && !file.contains("/optimizer.safetensors"));
    assert!(different.is_empty(), "{different:#?}");
    let newest =
        |run: &Path| fs::read(run.join("policies/shared/current/optimizer.safetensors")).expect("a state");
    assert!(newest(&whole) == newest(&run));
    let (code, said) = called(&run, &["--save-every", "2", "--resident=no"]);
    assert!(code == Some(2) && said.contains("--save-every has no effect without --resident"), "{said}");
}

/// The state of a step is saved after the answer: until the next answer a run goes on from the step before.
#[test]
fn the_step_before_an_answer_can_be_gone_on_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    must(&format!("policy init '{}/policy' --preset tiny --seed 7 >/dev/null", place.display()));
    let version = |step: u64| place.join(format!("policy/step-{step:06}"));
    let mut child = shell("update --quiet --resident --keep 1 --policy policy")
        .current_dir(place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("update starts");
    let mut input = child.stdin.take().expect("its stdin");
    let mut answers = BufReader::new(child.stdout.take().expect("its stdout")).lines();
    for step in [1, 2, 3] {
        let part = must(&format!(
            "cd '{}' && envs tasks plan-path --count 3 --seed {step} | rollout --quiet --policy policy --turns 2 --max-tokens 6 \
             --step {step} | group --quiet | advantage --quiet",
            place.display()
        ));
        input.write_all(part.as_bytes()).expect("update reads");
        while !answers.next().expect("an answer").expect("a line").starts_with("{\"type\":\"end\"") {}
        let state = |step: u64| version(step).join("trainer_state.json").exists();
        assert!(step == 1 || state(step - 1), "step {step}");
        // Its work after the answer.
        for _ in 0..1000 {
            if state(step) {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        assert!(state(step), "step {step}");
        assert!(step == 1 || state(step - 1), "step {step}");
    }
    drop(input);
    assert!(child.wait().expect("its end").success());
    assert_eq!([0, 1, 2, 3].map(|step| version(step).exists()), [false, false, true, true]);
}

#[test]
fn resident_flags_without_effect_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (arguments, cause) in [
        (&["--stage", "group=cat"][..], "--stage group=... is a process a step"),
        (&["--save-every", "0"][..], "--save-every must be from 1"),
        (
            &["--device", "cuda", "--ranks", "2", "--parts", "2", "--save-every", "2"][..],
            "--save-every has no effect with --ranks and --device cuda",
        ),
    ] {
        let arguments = [&["--resident"][..], arguments].concat();
        let output = pipeline(&folder.path().join("run"), &arguments).output().expect("pipeline.sh runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(cause), "{printed}");
    }
}

/// Tasks may come from anything; where they do not end as they must, no stage waits for more.
#[test]
fn tasks_of_ones_own_are_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let small =
        ["--warmup", "5", "--steps", "2", "--branches", "2", "--eval-every", "0", "--resident", "--stage"];
    let own = |run: &str, command: &str| {
        let tasks = format!("tasks={command}");
        let arguments = [&small[..], &[tasks.as_str()]].concat();
        let output = pipeline(&folder.path().join(run), &arguments).output().expect("pipeline.sh runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, printed) = own("whole", "envs tasks plan-path --count 3 --seed $STEP");
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = own("endless", "envs tasks plan-path --count 3 --seed $STEP | head -n 3");
    assert_eq!(code, Some(65), "{printed}");
    assert!(printed.contains("does not end with its only `end` line"), "{printed}");
    let (code, printed) = own("failing", "exit 3");
    assert_eq!(code, Some(3), "{printed}");
    assert!(printed.contains("step 1: tasks failed with exit code 3"), "{printed}");
}

/// SIGTERM to the script alone ends the stages, and frees the run.
#[test]
fn a_signal_ends_the_stages_that_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    // Warmed up so far that not all groups are flat: after three such steps a run ends by itself.
    let small = ["--warmup", "20", "--tasks", "4", "--branches", "4", "--eval-every", "0", "--resident"];
    let mut child = pipeline(&run, &small).spawn().expect("pipeline.sh starts");
    while !run.join("steps/000002/done").exists() {
        assert!(child.try_wait().expect("its state").is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let killed = shell(&format!("kill -TERM {}", child.id())).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait().expect("its end").code(), Some(143));
    let rest = must(&format!("ps -eo args= | grep -F '{}' | grep -v grep || true", folder.path().display()));
    assert_eq!(rest, "", "still there");
}

/// The order in which samples arrive.
#[derive(Clone, Copy)]
enum Order {
    OfTasks,
    /// A sample of the first task comes last, after a pause.
    Scattered,
    /// The second of two shards comes first.
    OfShards,
}

/// The lines of a step's samples by a version, and after a pause its `end`. Random weights all earn the same,
/// so every second candidate gets a reward.
fn part(text: &str, version: &str, order: Order) -> (String, String) {
    let mut lines = lines(text);
    let end = lines.pop().expect("an end");
    lines.retain(|line| line["type"] == "sample");
    for (index, sample) in lines.iter_mut().enumerate() {
        sample["advantage"] = if index % 2 == 0 { 1.0 } else { -0.5 }.into();
        sample["policy_version"] = version.into();
    }
    match order {
        Order::OfTasks => {}
        Order::Scattered => lines.rotate_left(1),
        Order::OfShards => {
            let half = lines.len() / 2;
            lines.iter_mut().enumerate().for_each(|(index, line)| {
                line["shard"] = if index < half { "0/2" } else { "1/2" }.into();
            });
            lines.rotate_left(half);
        }
    }
    let held_back = if matches!(order, Order::Scattered) { lines.pop() } else { None };
    let text = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect();
    (text(&lines), text(&held_back.into_iter().chain([end]).collect::<Vec<_>>()))
}

/// Two parts through one process, with a pause in the second: the published version, and the length of the
/// overlap.
fn stayed(update: &str, place: &Path, texts: &[String], order: Order, pause: Duration) -> (String, f64) {
    let command = format!("cd '{}' && exec {update} --resident --policy staying", place.display());
    let mut process = shell(&command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("update");
    let mut input = process.stdin.take().expect("a pipe");
    let mut output = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let (mut version, mut overlap) = (current(&place.join("staying")), 0.0);
    for (text, pause) in texts.iter().zip([Duration::ZERO, pause]) {
        let (samples, end) = part(text, &version, order);
        input.write_all(samples.as_bytes()).expect("room");
        sleep(pause);
        input.write_all(end.as_bytes()).expect("room");
        let line: Value = serde_json::from_str(&output.next().expect("a line").expect("text")).expect("JSON");
        version = line["policy_version"].as_str().expect("a version").to_owned();
        overlap = line["timing"]["overlap_seconds"].as_f64().expect("seconds");
        output.next().expect("an end").expect("text");
    }
    drop(input);
    assert!(process.wait().expect("an exit").success());
    (version, overlap)
}

fn current(policy: &Path) -> String {
    let text = fs::read_to_string(policy.join("current/version.json")).expect("a version");
    serde_json::from_str::<Value>(&text).expect("JSON")["version"].as_str().expect("a version").to_owned()
}

#[test]
fn the_first_minibatch_begins_before_the_stream_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    must(&format!("cd '{}' && policy init begin --preset tiny --seed 7 >/dev/null", place.display()));
    let texts = [3, 4].map(|step| {
        must(&format!(
            "cd '{}' && envs tasks plan-path --count 120 --seed {step} | rollout --quiet --policy begin --branches 2 --turns 1 \
             --max-tokens 4 --step {step} | group --quiet | advantage --quiet",
            place.display()
        ))
    });
    for (flags, order, begins) in [
        ("--minibatches 1", Order::OfTasks, true),
        ("--minibatches 2 --seed 5 --aggregate sequence", Order::OfTasks, true),
        ("--minibatches 2 --seed 5 --epochs 2 --aggregate constant", Order::OfTasks, true),
        ("--minibatches 1", Order::Scattered, false),
        ("--minibatches 1 --allow-incomplete", Order::OfShards, false),
        // These need all samples first: log-probabilities before the first step, a reference's, the sizes of parts.
        ("--minibatches 2 --importance 2", Order::OfTasks, false),
        ("--kl 0.1 --reference begin", Order::OfTasks, false),
        ("--parts 2", Order::OfTasks, false),
    ] {
        // The second part, too, was sampled from the first version.
        let update = format!("update --quiet --max-logprob-gap 0 {flags}");
        let fresh =
            |name: &str| must(&format!("cd '{}' && rm -rf {name} && cp -a begin {name}", place.display()));
        fresh("single");
        for text in &texts {
            let (samples, end) = part(text, &current(&place.join("single")), order);
            fs::write(place.join("part"), samples + &end).expect("a file");
            must(&format!("cd '{}' && {update} --policy single <part", place.display()));
        }
        let mut overlap = 0.0;
        for seconds in [1, 5, 20] {
            fresh("staying");
            let version;
            (version, overlap) = stayed(&update, place, &texts, order, Duration::from_secs(seconds));
            assert_eq!(version, current(&place.join("single")), "{flags}");
            if overlap > 0.0 || !begins {
                break; // a busy machine may not come to it within a second
            }
        }
        assert_eq!(overlap > 0.0, begins, "{flags}: {overlap} s");
        assert_eq!(
            differences(&place.join("single"), &place.join("staying")),
            Vec::<String>::new(),
            "{flags}"
        );
    }
}
