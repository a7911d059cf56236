//! One program, its input and its output.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Starts a program with pipes to all its streams.
pub fn start(command: &mut Command) -> Child {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a program on `input`, which it need not read to the end.
pub fn run_on(command: &mut Command, input: impl Into<Vec<u8>>) -> Output {
    let mut child = start(command);
    let (mut stdin, input) = (child.stdin.take().expect("a pipe"), input.into());
    // The program may write more than a pipe holds before it reads on.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("the writer");
    output
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The exit code, standard output and standard error.
pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The JSON values of a stream, one a line.
pub fn lines(stream: &str) -> Vec<Value> {
    let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    stream.lines().map(value).collect()
}

/// The lines of one `type`.
pub fn of_type<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["type"] == kind)
}

/// Runs the examples of a program's `--help` in a folder with these files; there are three or more.
pub fn run_examples(program: &str, files: &[(&str, String)]) {
    if Command::new("jq").arg("--version").output().is_err() {
        return crate::skip::not_run("jq is not installed");
    }
    let help = text(&Command::new(program).arg("--help").output().expect("its help").stdout);
    let (_, examples) = help.split_once("Examples:\n").expect("examples come first");
    let (examples, _) = examples.split_once("\n\n").expect("then the usage");
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("written");
    }
    let programs = Path::new(program).parent().expect("a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    // A pipe may go on in the next line.
    let examples = examples.replace("|\n", "| ");
    assert!(examples.lines().count() >= 3);
    for example in examples.lines() {
        let mut bash = Command::new("bash");
        bash.args(["-o", "pipefail", "-c", example]).current_dir(folder.path()).env("PATH", &path);
        let output = bash.output().expect("bash runs");
        assert!(output.status.success(), "{example}: {output:?}");
    }
}
