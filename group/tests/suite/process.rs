//! Behavior that transcripts cannot test: signals, readers that go away, invalid UTF-8, and
//! the examples of `--help`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output};

use troupe_tests::program::{run_examples, run_on, start, text};

const GROUP: &str = env!("CARGO_BIN_EXE_group");

fn sample(turn: u32, branch: u32) -> String {
    format!(
        "{{\"type\":\"sample\",\"v\":1,\"episode\":\"0.0\",\"turn\":{turn},\"agent\":\"planner\",\"branch\":{branch},\
         \"branches\":2,\"id\":\"0.0/{turn}/planner/{branch}\",\"prompt_ids\":[1],\"reward\":0.5}}\n"
    )
}

const END: &str = "{\"type\":\"end\",\"v\":1,\"stage\":\"rollout\",\"ok\":true}\n";

fn run(input: &[u8]) -> Output {
    run_on(&mut Command::new(GROUP), input)
}

/// Sends a group and waits until it is written, so that the stage is waiting for more.
fn waiting_after_one_group() -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = start(&mut Command::new(GROUP));
    let stdin = child.stdin.as_mut().expect("stdin");
    stdin.write_all((sample(0, 0) + &sample(0, 1) + &sample(1, 0)).as_bytes()).expect("written");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    for _ in 0..2 {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert!(line.contains("\"group_size\":2}"), "{line}");
    }
    (child, stdout)
}

/// A complete group is written while the stream continues, and a signal ends the wait without cutting a line.
#[test]
fn a_signal_ends_the_wait_for_input() {
    for (signal, code, word) in [("-INT", 130, "interrupted"), ("-TERM", 143, "terminated")] {
        let (mut child, mut stdout) = waiting_after_one_group();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let status = child.wait().expect("group ends");
        assert_eq!(status.code(), Some(code));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, "", "a stream that was interrupted has no `end`");
        let mut stderr = String::new();
        child.stderr.take().expect("stderr").read_to_string(&mut stderr).expect("read");
        assert_eq!(stderr, format!("group: {word}\n"));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (mut child, stdout) = waiting_after_one_group();
    drop(stdout);
    let mut stdin = child.stdin.take().expect("stdin");
    let rest: String = (2..2000).map(|turn| sample(turn, 0) + &sample(turn, 1)).collect();
    // The write fails once the stage has ended.
    let _ = stdin.write_all((sample(1, 1) + &rest).as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("group ends");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let output = run(b"{\"type\":\"note\",\"v\":1,\"a\":\"\xff\"}\n");
    assert_eq!(output.status.code(), Some(65));
    assert!(text(&output.stderr).starts_with("group: stdin:1: byte 27 is not UTF-8\nhint: "), "{output:?}");
}

#[test]
fn a_line_without_an_end_is_refused_before_it_fills_the_memory() {
    let output = run(&vec![b' '; 17 << 20]);
    assert_eq!(output.status.code(), Some(65));
    assert!(
        text(&output.stderr).starts_with("group: stdin:1: line is longer than 16 MiB\nhint: "),
        "{output:?}"
    );
}

/// Running `group` on its output is refused; with its keys removed, the output is the same again.
#[test]
fn lines_pass_through_byte_for_byte() {
    let input = sample(0, 0) + "{\"type\":\"note\" , \"v\":1,\"x\":1.50}\n" + &sample(0, 1) + END;
    let output = run(input.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines[2], "{\"type\":\"note\" , \"v\":1,\"x\":1.50}");
    for (line, branch) in [(&lines[0], 0), (&lines[1], 1)] {
        let expected = sample(0, branch).trim_end().trim_end_matches('}').to_owned();
        assert_eq!(line, &(expected + ",\"group\":\"0.0/planner/0\",\"group_size\":2}"));
    }
}

#[test]
fn the_version_is_printed() {
    let output = Command::new(GROUP).arg("--version").output().expect("group runs");
    assert_eq!(text(&output.stdout), format!("group {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_examples_of_the_help_run() {
    let stream: String = (0..2).flat_map(|turn| (0..2).map(move |branch| sample(turn, branch))).collect();
    run_examples(GROUP, &[("samples.jsonl", stream + END)]);
}
