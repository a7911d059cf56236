//! Machines without a working sandbox, which run no program, and signals while a program runs.

#![cfg(target_os = "linux")]

use crate::support;

use std::io::Write;
use std::process::{Command, Stdio};
use troupe_tests::program::{run_on, texts};
use troupe_tests::skip;

/// Where the kernel refuses namespaces nothing is run, and whoever asked learns why.
#[test]
fn without_namespaces_nothing_runs() {
    if !support::has_python() {
        skip!("no python3 of version 3.9 or newer");
    }
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("ran");
    let spec = r#"{"problem": "1 + 1?", "answer": "2", "encoding": "full"}"#;
    let source = format!("```python\nopen({:?}, 'w')\nprint(2)\n```", trace.display().to_string());
    let state = format!(r#"{{"env": "math", "spec": {spec}, "workflow": "team", "said": [null, null]}}"#);
    let action = serde_json::Value::from(source);
    let request = format!(r#"{{"request": 1, "state": {state}, "agent": "tool", "action": {action}}}"#);
    let run = |arguments: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_envs"));
        support::without_namespaces(command.args(arguments));
        texts(&run_on(&mut command, input))
    };
    let (code, said, errors) = run(&["step", "math"], &request.replace('\n', " "));
    assert!(
        said.contains("\"error\":\"sandbox: the kernel refuses new namespaces"),
        "{code:?} {said} {errors}"
    );
    assert!(!trace.exists());
    // Expressions are evaluated without one.
    let spec = r#"{"problem": "x + 3 * 2", "encoding": "compact", "turns": 4, "cpu": 2.0, "memory": 128,
        "style": "function", "function": "f", "tests": [{"input": "[4]", "output": "14"}]}"#;
    let chain = format!(
        r#"{{"env": "code", "spec": {spec}, "workflow": "team", "turn": 0, "best": 0, "over": false}}"#
    );
    let chain = chain.replace('\n', " ");
    let chain =
        format!(r#"{{"request": 1, "state": {chain}, "agent": "coder", "action": " ( x + 3 ) * 2"}}"#);
    let (code, said, errors) = run(&["step", "code"], &chain);
    assert!(said.contains("\"golden\":1.0"), "{code:?} {said} {errors}");
    let (code, said, errors) = run(&["check", "code", "--tasks", "1", "--episodes", "1"], "");
    assert_eq!((code, said.as_str()), (Some(69), ""), "{errors}");
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(lines[0].starts_with("envs: sandbox: the kernel refuses new namespaces: "), "{errors}");
    assert!(lines[1].starts_with("hint: allow unprivileged user namespaces"), "{errors}");
    // A problem whose solution cannot be tried is not left out: the import ends.
    let record = r#"{"question": "Print 2.", "solutions": ["print(2)"], "input_output": {"inputs": ["1"], "outputs": ["2"]}}"#;
    let (code, said, errors) = run(&["import", "-"], record);
    assert_eq!((code, said.as_str()), (Some(69), ""), "{errors}");
    assert!(errors.starts_with("envs: -: record 1: sandbox: the kernel refuses new namespaces"), "{errors}");
}

#[test]
fn a_signal_ends_the_wait_for_a_program() {
    if support::sandbox().is_none() {
        return;
    }
    let spec = r#"{"problem": "1 + 1?", "answer": "2", "encoding": "full"}"#;
    let state = format!(r#"{{"env": "math", "spec": {spec}, "workflow": "team", "said": [null, null]}}"#);
    let action = r#""```python\nimport time\ntime.sleep(25)\n```""#;
    let request =
        format!("{{\"request\": 1, \"state\": {state}, \"agent\": \"tool\", \"action\": {action}}}\n");
    let mut child = Command::new(env!("CARGO_BIN_EXE_envs"))
        .args(["step", "math"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none());
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let began = std::time::Instant::now();
    let status = child.wait().unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "it took {:?}", began.elapsed());
    assert_eq!(status.code(), Some(143));
}
