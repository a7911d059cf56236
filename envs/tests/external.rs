//! `envs check --env-command` finds what is wrong with a program: each flaw, planted into the example in Python, breaks the
//! rule that is about it, and the sound one keeps them all.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use envs::Settings;
use envs::check::external::{Program, Report, check};
use envs::check::{Effort, verdict};
use record::line::Task;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

fn flawed(flaw: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/flawed.py");
    format!("python3 -B '{}' '{}' {flaw}", script.display(), examples().display())
}

fn tasks(command: &str, count: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for split in ["train", "test"] {
        let command = format!("{command} tasks --split {split} --count {count} --seed 5");
        let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        tasks.extend(
            text.lines()
                .filter(|line| line.contains("\"type\": \"task\""))
                .map(|line| serde_json::from_str::<Task>(line).unwrap()),
        );
    }
    tasks
}

fn report(command: &str, tasks: &[Task]) -> Report {
    let program = Program { command: command.to_owned(), timeout: Duration::from_secs(60), workflow: None };
    let effort = Effort { tasks: 1, episodes: 12, seed: 1, settings: Settings::default() };
    check(&program, tasks, &effort, &mut || ()).unwrap()
}

fn broken(report: &Report) -> Vec<&'static str> {
    report.findings.iter().filter(|finding| finding.broken.is_some()).map(|finding| finding.rule).collect()
}

#[test]
fn a_sound_program_keeps_every_rule() {
    let command = flawed("none");
    let report = report(&command, &tasks(&command, 20));
    verdict("guess-number", &report.findings).unwrap_or_else(|_| panic!("{:#?}", report.findings));
    assert!(report.findings.len() >= 18 && report.notes.is_empty(), "{report:#?}");
}

#[test]
fn each_flaw_breaks_its_rule() {
    let tasks = tasks(&flawed("none"), 4);
    for (flaw, rule) in [
        ("memory", "the same line has the same answer"),
        ("process", "another process gives the same answer"),
        ("numbers", "a state survives JSON"),
        ("refuses", "every text has an outcome"),
        ("unseen", "every agent sees something"),
        ("dies-of-nonsense", "a request that makes no sense is answered with `error`"),
        ("range", "rewards stay in their range"),
        ("generous", "rewards stay in their range"),
        ("goes-on", "a success ends the episode"),
        ("early-success", "a success is one to the oracle"),
        ("timeout-is-success", "running out of turns is no success"),
        ("lazy-oracle", "the oracle solves every task"),
        ("lazy-oracle", "no action scores above the oracle's"),
        ("pays-for-dawdling", "no path collects more team reward than the oracle's"),
    ] {
        let report = report(&flawed(flaw), &tasks);
        let broken = broken(&report);
        assert!(broken.contains(&rule), "{flaw} broke {broken:?}, not {rule:?}");
        assert_eq!(verdict("guess-number", &report.findings).unwrap_err().code, 1);
    }
}

#[test]
fn test_tasks_that_are_also_train_tasks_are_found() {
    let command = flawed("leak");
    assert_eq!(broken(&report(&flawed("none"), &tasks(&command, 4))), ["train and test are disjoint"]);
}

#[test]
fn without_probe_the_rest_is_tried_and_what_was_not_is_said() {
    let command = flawed("no-oracle");
    let report = report(&command, &tasks(&command, 4));
    assert_eq!(broken(&report), [""; 0]);
    assert!(
        report.notes.len() == 1 && report.notes[0].contains("does not answer `probe`"),
        "{:?}",
        report.notes
    );
    assert!(report.findings.iter().any(|finding| finding.rule == "running out of turns is no success"));
    assert!(report.findings.iter().all(|finding| !finding.rule.contains("oracle")));
}

#[test]
fn the_command_line_prints_the_rules_and_wants_tasks() {
    let run = |input: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_envs"))
            .args(["check", "--quiet", "--tasks", "1", "--episodes", "4", "--env-command", &flawed("none")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let lines: Vec<String> =
        tasks(&flawed("none"), 2).iter().map(|task| serde_json::to_string(task).unwrap()).collect();
    let (code, stdout, stderr) = run(&(lines.join("\n") + "\n"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.lines().all(|line| line.starts_with("ok     ")), "{stdout}");
    let (code, _, stderr) = run("");
    assert_eq!(code, Some(65));
    assert!(stderr.starts_with("envs: there is no task on stdin\nhint: "), "{stderr}");
}
