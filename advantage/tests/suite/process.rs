//! Behavior that transcripts cannot test: signals, readers that go away, independence of the order of lines,
//! and the examples of `--help`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};

use troupe_tests::program::{run_examples, run_on, start, text};

const ADVANTAGE: &str = env!("CARGO_BIN_EXE_advantage");
const END: &str = "{\"type\":\"end\",\"v\":1,\"stage\":\"group\",\"ok\":true}\n";

fn sample(turn: u32, branch: u32, reward: f64) -> String {
    format!(
        "{{\"type\":\"sample\",\"v\":1,\"episode\":\"0.0\",\"turn\":{turn},\"agent\":\"planner\",\"branch\":{branch},\
         \"branches\":3,\"id\":\"0.0/{turn}/planner/{branch}\",\"selected\":{},\"reward\":{reward},\
         \"rewards\":{{\"team\":{reward},\"local\":0}},\"group\":\"0.0/planner/{turn}\",\"group_size\":3}}\n",
        branch == 0
    )
}

fn group(turn: u32) -> String {
    sample(turn, 0, 0.1) + &sample(turn, 1, 0.7) + &sample(turn, 2, 1e-9)
}

/// The samples that come out for `input`, sorted.
fn samples(input: &str) -> Vec<String> {
    let output = run_on(&mut Command::new(ADVANTAGE), input);
    assert!(output.status.success(), "{output:?}");
    let mut lines: Vec<String> =
        text(&output.stdout).lines().filter(|line| line.contains("\"sample\"")).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Waits for a complete group, while the next is incomplete.
fn waiting_after_one_group() -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = start(&mut Command::new(ADVANTAGE));
    let input = group(0) + &sample(1, 0, 0.5);
    child.stdin.as_mut().expect("stdin").write_all(input.as_bytes()).expect("written");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    for _ in 0..3 {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert!(line.contains("\"group_std\":"), "{line}");
    }
    (child, stdout)
}

#[test]
fn a_signal_ends_the_wait_for_input() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let (mut child, mut stdout) = waiting_after_one_group();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        assert_eq!(child.wait().expect("advantage ends").code(), Some(code));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, "", "a stream that was interrupted has no `end`");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (mut child, stdout) = waiting_after_one_group();
    drop(stdout);
    let mut stdin = child.stdin.take().expect("stdin");
    let rest = sample(1, 1, 0.0) + &sample(1, 2, 1.0) + &(2..2000).map(group).collect::<String>();
    // The write fails once the stage has ended.
    let _ = stdin.write_all(rest.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("advantage ends");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

/// Floating-point sums depend on their order; advantages must not depend on the order of lines.
#[test]
fn a_shuffled_stream_has_the_same_advantages_to_the_last_bit() {
    let straight = group(0) + &group(1) + END;
    let mut lines: Vec<&str> = straight.lines().collect();
    lines.reverse();
    lines.swap(1, 4);
    assert_eq!(samples(&straight), samples(&(lines.join("\n") + "\n")));
}

#[test]
fn the_version_is_printed() {
    let output = Command::new(ADVANTAGE).arg("--version").output().expect("advantage runs");
    assert_eq!(text(&output.stdout), format!("advantage {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_examples_of_the_help_run() {
    let episodes = group(0).replace("\"selected\":", "\"sampling_mode\":\"parallel\",\"selected\":");
    let joint = |branch: u32| {
        format!(
            "{{\"type\":\"joint\",\"v\":1,\"episode\":\"0.0\",\"turn\":0,\"id\":\"0.0/{branch}\",\"parent\":null,\
             \"members\":[\"0.0/0/planner/{branch}\"],\"reward\":{branch}}}\n"
        )
    };
    let joint = group(0) + &(0..3).map(joint).collect::<String>() + END;
    let groups = group(0) + &group(1) + END;
    run_examples(
        ADVANTAGE,
        &[("groups.jsonl", groups), ("episodes.jsonl", episodes + END), ("joint.jsonl", joint)],
    );
}
