//! A third stage built with the same library, `crates/record/examples/judge.rs`, in a pipe before `group`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const END: &str = r#"{"type":"end","v":1,"stage":"rollout","ok":true}"#;

/// The folder of the built example; a test of `group` alone has not built it.
fn examples() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        troupe_tests::build("--example judge");
        Path::new(env!("CARGO_BIN_EXE_group")).with_file_name("examples")
    })
}

/// Runs a shell command, with `judge` and `group` on its PATH, on the given lines.
fn run(command: &str, lines: &[String]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("samples.jsonl"), lines.join("\n") + "\n").expect("written");
    let programs = Path::new(env!("CARGO_BIN_EXE_group")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .args(["-o", "pipefail", "-c", command])
        .env("PATH", format!("{}:{}:{path}", examples().display(), programs.display()))
        .current_dir(folder.path())
        .output()
        .expect("bash runs")
}

fn sample(branch: u32) -> String {
    format!(
        r#"{{"type":"sample","v":1,"episode":"0.0","turn":0,"agent":"planner","branch":{branch},"branches":3,"id":"b{branch}","prompt":[{{"role":"user","content":"go"}}],"completion":"{}","prompt_ids":[1],"reward":0.5}}"#,
        "x".repeat(branch as usize)
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A judge that scores completions by length and cannot judge empty ones, and a filter that counts scores.
const PIPE: &str = r#"judge --quiet 'python3 -uc "
import json, sys
for line in sys.stdin:
    print(json.dumps(len(json.loads(line)[\"completion\"]) or None))"' < samples.jsonl | tee judged |
python3 -c "
import json, sys
for line in sys.stdin:
    line = json.loads(line)
    if line['type'] == 'sample':
        line['reward'] = None if line['judge'] is None else line['reward'] + 0.5 * line['judge']
    print(json.dumps(line, separators=(',', ':')))" | group --unscored drop-sample --quiet; status=$?; cat judged >&2; exit $status"#;

#[test]
fn a_judge_sits_before_group() {
    let note = r#"{"type":"note" , "v":1}"#.to_owned();
    let output = run(PIPE, &[sample(0), note.clone(), sample(1), sample(2), END.to_owned()]);
    assert!(output.status.success(), "{output:?}");
    let judged = text(&output.stderr);
    let judged: Vec<&str> = judged.lines().collect();
    let with = |branch, judge: &str| {
        format!("{},\"judge\":{judge}}}", sample(branch).strip_suffix('}').expect("an object"))
    };
    assert_eq!(judged[..4], [with(0, "null"), note, with(1, "1.0"), with(2, "2.0")]);
    assert!(judged[4].starts_with(r#"{"type":"end","v":1,"stage":"judge","ok":true,"counts":{"samples":3,"samples_written":3},"after":["#));
    let grouped = text(&output.stdout);
    assert_eq!(grouped.matches("\"group_size\":2").count(), 2, "{grouped}");
    assert!(grouped.contains(r#""reward":1.0,"#) && grouped.contains(r#""reward":1.5,"#), "{grouped}");
}

#[test]
fn a_judge_that_fails_stops_the_stream() {
    let judge = |program: &str, sample: String| {
        let output = run(&format!("judge '{program}' < samples.jsonl"), &[sample, END.to_owned()]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, stdout, stderr) = judge("read -r line; echo good", sample(1));
    assert_eq!(
        (code, stderr.as_str()),
        (Some(1), "judge: stdin:1: b1: the judge answered `good`, not a number or null\n")
    );
    assert!(stdout.contains(r#""stage":"judge","ok":false"#), "{stdout}");
    let (code, _, stderr) = judge("exit 3", sample(1));
    assert_eq!(
        (code, stderr.as_str()),
        (Some(1), "judge: stdin:1: b1: the judge ended before it answered\n")
    );
    let (code, _, stderr) =
        judge("read -r line; echo 1", sample(1).replace("\"v\":1", "\"v\":1,\"judge\":1"));
    assert_eq!(code, Some(65));
    assert!(stderr.starts_with("judge: stdin:1: b1: `judge` is already present\nhint: "), "{stderr}");
}
