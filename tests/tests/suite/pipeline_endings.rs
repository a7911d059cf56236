//! Runs that end early or badly: refusals, signals, and the policies that stay.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use troupe_tests::{must, pipeline};

use crate::pipeline::SMALL;

/// A run of one step, to be damaged.
fn finished(folder: &Path, steps: &str) -> (std::path::PathBuf, Vec<String>) {
    let run = folder.join("run");
    let arguments =
        ["--warmup", "5", "--tasks", "4", "--branches", "4", "--eval-every", "2", "--steps", steps];
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (run, arguments.map(str::to_owned).to_vec())
}

fn refused(run: &Path, arguments: &[String]) -> (Option<i32>, String) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = pipeline(run, &arguments).output().expect("pipeline.sh runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_update_that_publishes_nothing_stops_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let idle = "update=cat >/dev/null; echo '{\"type\":\"end\",\"v\":1,\"stage\":\"update\",\"ok\":true}'";
    let arguments = ["--warmup", "5", "--tasks", "4", "--steps", "1", "--eval-every", "0", "--stage", idle];
    let (code, printed) = refused(&run, &arguments.map(str::to_owned));
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("step 1: no policy has a new version"), "{printed}");
    assert!(!run.join("steps/000001/done").exists());
}

#[test]
fn a_cut_evaluation_and_a_missing_commit_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let (run, arguments) = finished(folder.path(), "2");
    let file = run.join("eval/step-000002.jsonl");
    let whole = std::fs::read(&file).expect("an evaluation");
    for cut in [&[][..], &whole[..whole.len() / 2]] {
        std::fs::write(&file, cut).expect("written");
        let (code, printed) = refused(&run, &arguments);
        assert_eq!(code, Some(65), "{printed}");
        assert!(printed.contains("step-000002.jsonl is no whole evaluation"), "{printed}");
    }
    std::fs::remove_file(&file).expect("removed");
    let (code, printed) = refused(&run, &arguments);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(
        troupe_tests::without_timing(&String::from_utf8(whole).expect("text")),
        troupe_tests::without_timing(&std::fs::read_to_string(&file).expect("played again"))
    );

    let current = std::fs::read_link(run.join("policies/shared/current")).expect("a link");
    std::fs::remove_file(run.join("steps/000001/done")).expect("removed");
    let (code, printed) = refused(&run, &arguments);
    assert_eq!(code, Some(65), "{printed}");
    assert!(printed.contains("000001/done is missing, but step 2 is committed"), "{printed}");
    assert_eq!(std::fs::read_link(run.join("policies/shared/current")).expect("a link"), current);

    // A policy with committed steps is never made anew because a file next to it is missing or unreadable.
    std::fs::remove_file(run.join("policies/done")).expect("removed");
    let (code, printed) = refused(&run, &arguments);
    assert_eq!(code, Some(74), "{printed}");
    assert!(printed.contains("policies/done cannot be read"), "{printed}");
    assert_eq!(std::fs::read_link(run.join("policies/shared/current")).expect("a link"), current);
}

/// SIGTERM to pipeline.sh alone: its stages end, too, and the lock is free, wherever it is.
#[test]
fn a_signal_to_the_script_ends_its_stages() {
    for (name, arguments) in [
        ("warm-up", vec!["--warmup", "200000"]),
        ("evaluation", vec!["--warmup", "0", "--eval-tasks", "100000"]),
        ("step", vec!["--warmup", "0", "--eval-every", "0", "--tasks", "100000"]),
        ("deaf", vec!["--warmup", "0", "--eval-every", "0", "--stage", "tasks=trap '' TERM; sleep 60; :"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        let begun = match name {
            "warm-up" => run.join("warmup/metrics.jsonl"),
            "evaluation" => run.join("eval/step-000000.jsonl.tmp"),
            _ => run.join("steps/000001/metrics.jsonl"),
        };
        let mut child = pipeline(&run, &arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let patience = Instant::now() + Duration::from_secs(120);
        while !begun.exists() {
            assert!(
                child.try_wait().expect("its state").is_none() && Instant::now() < patience,
                "{name} never began"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
        must(&format!("kill -TERM {}", child.id()));
        let asked = Instant::now();
        let status = child.wait().expect("its end");
        let taken = asked.elapsed();
        // Less than a second on an idle machine; the rest is for a loaded one.
        assert!(taken < Duration::from_secs(15), "{name}: {taken:?}");
        assert_eq!(status.code(), Some(143), "{name}");
        let mut said = String::new();
        child.stderr.take().expect("its stderr").read_to_string(&mut said).expect("a text");
        assert!(said.contains("pipeline.sh: stopped"), "{name}: {said}");
        assert!(
            said.contains("hint: the same command goes on from there, and so does ./pipeline.sh --resume "),
            "{name}: {said}"
        );
        let lock = run.join("lock").display().to_string();
        must(&format!(
            "python3 -c 'import fcntl; fcntl.flock(open(\"{lock}\"), fcntl.LOCK_EX | fcntl.LOCK_NB)'"
        ));
    }
}

/// The best evaluation's policies outlive later versions, and are policies like any other.
#[test]
fn the_best_policies_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let at = run.display();
    let kept_after = |steps: &str| {
        let arguments = [&SMALL[..], &["--steps", steps, "--eval-tasks", "20", "--keep-best"]].concat();
        let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(must(&format!("ls -d {at}/best-*")).lines().count(), 1, "the others are gone");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = said.lines().rfind(|line| line.contains("test tasks")).expect("an evaluation").to_owned();
        (must(&format!("readlink {at}/best")).trim().to_owned(), last)
    };
    let rate = |step: u64| -> f64 {
        let file = format!("{at}/eval/step-{step:06}.jsonl");
        must(&format!("report evaluate --format json --quiet {file} | jq .success"))
            .trim()
            .parse()
            .expect("a rate")
    };
    let better =
        |one: u64, other: u64| format!("best-{:06}", if rate(other) > rate(one) { other } else { one });
    let (kept, last) = kept_after("2");
    assert_eq!(kept, better(0, 2));
    // The terminal and the model card say which was best.
    if rate(2) > rate(0) {
        assert!(last.ends_with("; the best so far"), "{last}");
    } else {
        assert!(last.ends_with(&format!("; best so far {:.3} at step 0", rate(0))), "{last}");
    }
    must(&format!("policy export {at}/best/shared {at}/exported --quiet"));
    let card = std::fs::read_to_string(run.join("exported/README.md")).expect("a model card");
    let best: u64 = kept.trim_start_matches("best-").parse().expect("a step");
    let line = format!("The best is {:.3}, after update {best}: these weights.\n", rate(best));
    assert!(card.contains(&line) && card.contains(&format!("after {best} updates")), "{card}");
    let played = must(&format!(
        "envs tasks plan-path --split test --count 20 | rollout --policy {at}/best/shared --max-tokens 8 --temperature 0 --quiet | \
         report evaluate --format json --quiet | jq .success"
    ));
    assert_eq!(played.trim().parse::<f64>().expect("a rate"), rate(0).max(rate(2)));
    // A value below any policy's: the next evaluations are of the steps 2, where the run goes on, and 4.
    must(&format!("echo -1 > {at}/best/success"));
    let (kept, _) = kept_after("4");
    assert_eq!(kept, better(2, 4));
    // And as if it had been better.
    must(&format!("echo 2 > {at}/best/success"));
    assert_eq!(kept_after("6").0, kept);
}
