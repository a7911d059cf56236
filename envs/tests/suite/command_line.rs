//! The transcripts in `tests/transcripts`: commands with their output, their errors and their exit codes.

use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use troupe_tests::program::{run_on, start, texts};

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/transcripts/*.trycmd").case("tests/transcripts/*.toml");
}

fn envs(arguments: &[&str]) -> Command {
    let mut envs = Command::new(env!("CARGO_BIN_EXE_envs"));
    envs.args(arguments);
    envs
}

fn step(input: &[u8]) -> Output {
    run_on(&mut envs(&["step", "plan-path"]), input)
}

const RESET: &str = r#"{"request":"first","task":{"spec":{"size":3,"encoding":"compact","moves":2,"turns":4,"walls":["b1"],"goal":"a0","start":"c2"}},"workflow":"team"}"#;

#[test]
fn step_answers_each_line_in_order_and_always_alike() {
    let state = r#"{"spec":{"size":3,"encoding":"compact","moves":2,"turns":4,"walls":["b1"],"goal":"a0","start":"c2"},"workflow":"single","position":"c0","best":2,"proposal":null}"#;
    let action = format!(r#"{{"request":{{"id":2}},"state":{state},"agent":"planner","action":" L L"}}"#);
    let nobody = format!(r#"{{"request":3,"state":{state},"agent":"tool","action":" b0"}}"#);
    let lines = [RESET, &action, &nobody, "not json", "[1]", "", "{\"request\":4}", "{\"taks\":1}", RESET];
    let output = step(lines.join("\n").as_bytes());
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), lines.len());
    let bytes: Vec<&str> = text.lines().collect();
    assert_eq!(bytes[0], bytes[8], "the same line in, the same bytes out");

    assert_eq!(answers[0]["request"], "first");
    assert_eq!(answers[0]["agents"], serde_json::json!(["tool", "planner"]));
    assert_eq!(answers[0]["order"], "sequential");
    assert_eq!(answers[0]["turns"], 4);
    assert_eq!(answers[0]["observations"]["tool"][0]["content"], "walls b1 goal a0 at c2 tool");

    assert_eq!(answers[1]["request"]["id"], 2);
    assert_eq!(answers[1]["rewards"], serde_json::json!({"team": 1.0, "local": 1.0}));
    assert_eq!((&answers[1]["terminated"], &answers[1]["success"]), (&true.into(), &true.into()));
    assert_eq!(answers[1]["state"]["position"], "a0");

    assert_eq!(answers[2]["request"], 3);
    for (index, cause) in [
        (2, "workflow single has no agent 'tool'"),
        (3, "no JSON object"),
        (4, "no JSON object"),
        (5, "no JSON object"),
        (6, "either `task`"),
        (7, "either `task`"),
    ] {
        let error = answers[index]["error"].as_str().unwrap_or_default();
        assert!(error.contains(cause), "{index}: {error:?} does not say {cause:?}");
    }
}

#[test]
fn bytes_that_are_no_text_are_answered() {
    let output = step(b"\xff\xfe\n{\"request\":1}\n");
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let mut child = start(&mut envs(&["tasks", "plan-path", "--count", "100000"]));
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

/// Returns true if `envs` with `arguments` and an open stdin ends within a second of `signal`, and with which code.
fn stops(arguments: &[&str], stdin: &str, signal: &str) -> Option<i32> {
    let mut child = start(&mut envs(arguments));
    let mut input = child.stdin.take().unwrap();
    input.write_all(stdin.as_bytes()).unwrap();
    let open = Some(input).filter(|_| stdin.is_empty());
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "{arguments:?} ended by itself");
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(began.elapsed() < Duration::from_secs(1), "{arguments:?}: {:?}", began.elapsed());
            drop(open);
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    None
}

#[test]
fn the_first_signal_stops_step_play_and_check() {
    let task =
        "{\"type\":\"task\",\"v\":1,\"env\":\"e\",\"task\":\"e/train/1\",\"split\":\"train\",\"spec\":{}}\n";
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        for (arguments, stdin) in [
            (&["step", "plan-path"][..], ""),
            (&["play", "plan-path"], ""),
            (&["check", "--quiet", "sokoban", "--tasks", "500"], ""),
            (&["check", "--quiet", "--env-command", "sleep 600"], task),
        ] {
            assert_eq!(stops(arguments, stdin, signal), Some(code), "{arguments:?}");
        }
    }
}

#[test]
fn requests_have_a_longest_line() {
    let output = step(&vec![b'x'; (16 << 20) + 1]);
    assert_eq!(output.status.code(), Some(65));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("envs: stdin:1: line is longer than 16 MiB\nhint: "), "{stderr}");
}

/// Problems come from anywhere, and a tool's program prints anything: neither steers the terminal.
#[test]
fn play_shows_control_characters_and_does_not_send_them() {
    let clear = "\u{1b}[2J";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let spec =
        serde_json::json!({"problem": format!("What is{clear}\u{9b}1A\u{202e} one and one?"), "answer": "2"});
    let task = serde_json::json!({"type": "task", "v": 1, "env": "math", "task": "t", "split": "train", "spec": spec});
    writeln!(file, "{task}").unwrap();
    let program = "\"\"\"\n```python\nprint('\\x1b]0;title\\x07', 3)\n```\n\"\"\"\n";
    let input = format!("?\n{program}?\nI say {clear} 3\n?\n{program}?\n");
    let data = format!("data={}", file.path().display());
    // Without a sandbox the program ends before it has read all.
    let output = run_on(&mut envs(&["play", "math", "--set", "turns=2", "--set", &data]), input);
    let (_, stdout, stderr) = texts(&output);
    let steers = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!stdout.contains(steers) && !stderr.contains(steers), "{stdout:?} {stderr:?}");
    assert!(stdout.contains("What is\\u{1b}[2J\\u{9b}1A\\u{202e} one"), "{stdout}");
    assert!(stdout.contains("\\u{1b}]0;title\\u{7}") || stderr.contains("sandbox"), "{stdout} {stderr}");
}
