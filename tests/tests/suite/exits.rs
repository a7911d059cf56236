//! docs/stream-format.md's table of exit codes, row by row and program by program: the same situation has the same code everywhere, one line that
//! names the program, and a hint. Signals are in each stage's `process.rs`.

use troupe_tests::{run, runtime};

/// Programs that read a stream of samples, as commands that read stdin.
const READERS: [&str; 5] =
    ["group", "advantage", "update --policy p", "policy encode --policy p", "report evaluate"];
/// Programs that open a policy directory, where D is.
const OPENERS: [&str; 6] = [
    "policy check D",
    "policy export D out",
    "policy init new --from D",
    "policy encode --policy D < samples",
    "rollout --policy D < tasks",
    "update --policy D < samples",
];

struct Table {
    folder: tempfile::TempDir,
    wrong: String,
}

impl Table {
    /// A folder with a policy `p`, its tasks and a step of samples.
    fn new() -> Table {
        let table = Table { folder: tempfile::tempdir().expect("a folder"), wrong: String::new() };
        let (code, _, said) = table.run(
            "policy init p --preset tiny --seed 1 -q && mkdir folder && envs tasks plan-path --count 2 > tasks && \
             rollout --policy p --turns 1 --branches 2 -q < tasks > played && group -q < played | advantage -q > samples",
        );
        assert_eq!(code, 0, "{said}");
        table
    }

    fn run(&self, command: &str) -> (i32, String, String) {
        run(&format!("root=$PWD; cd '{}' && {{ {command}; }}", self.folder.path().display()))
    }

    /// Expects this code, one line `PROGRAM: …` with `cause`, and a line `hint: …`.
    fn fails(&mut self, command: &str, code: i32, cause: &str) {
        let (found, _, said) = self.run(command);
        let program = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
        let program = program.rsplit(['/', '(']).next().unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let taught = matches!(lines[..], [line, hint]
            if line.starts_with(&format!("{program}: ")) && line.contains(cause)
                && hint.strip_prefix("hint: ").is_some_and(|hint| hint.trim_end().len() > 10 && !hint.ends_with(' ')));
        if found != code || !taught {
            self.wrong +=
                &format!("{command}\n  exit {found}, not {code}, or no {cause:?} and hint in:\n{said}\n");
        }
    }

    fn succeeds(&mut self, command: &str) {
        let (found, _, said) = self.run(command);
        if found != 0 || said.contains("hint: ") {
            self.wrong += &format!("{command}\n  exit {found}, not 0: {said}\n");
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.wrong.is_empty(), "{}", self.wrong);
    }
}

#[test]
fn a_slip_of_the_command_line_is_2() {
    let mut table = Table::new();
    for program in [
        "envs",
        "policy",
        "rollout",
        "group",
        "advantage",
        "update",
        "report",
        "envs tasks",
        "envs demo",
        "envs list",
        "envs check",
        "envs import",
        "envs new",
        "envs play",
        "envs step",
        "policy init",
        "policy check",
        "policy encode",
        "policy export",
        "report evaluate",
        "report compress",
        "$root/pipeline.sh",
    ] {
        table.fails(&format!("{program} --nonsense"), 2, "--nonsense");
    }
    for program in [
        "envs tasks plan-path --count",
        "rollout --policy p --turns",
        "group --by",
        "advantage --estimator",
        "update --policy p --lr",
        "policy init q --seed",
        "report p --episodes",
        "report evaluate --format",
        "$root/pipeline.sh --steps",
        "$root/pipeline.sh --lr",
        "$root/pipeline.sh --method",
        "$root/pipeline.sh --policies",
    ] {
        table.fails(&format!("{program} many"), 2, "many");
    }
    // A number below 0 is the value of its flag.
    for (command, cause) in [
        ("envs tasks plan-path --count -3", "--count -3: not a whole number of 0 or more"),
        ("rollout --policy p --branches -2", "--branches -2: not K or ROLE=K"),
        ("rollout --policy p --turns -1", "--turns must be at least 1"),
        ("update --policy p --lr -1", "--lr must be 0 or above"),
        ("update --policy p --minibatches 0", "--minibatches must be at least 1"),
        ("advantage --gamma -1", "--gamma"),
        ("envs check math --workflow nowhere.toml", "--workflow nowhere.toml: no such file"),
        ("$root/pipeline.sh --evaluate --policies tool=p", "--evaluate needs a value: --evaluate STEP"),
    ] {
        table.fails(command, 2, cause);
    }
    for program in [
        "envs",
        "policy",
        "rollout",
        "update",
        "report",
        "envs tasks",
        "envs demo",
        "envs check",
        "envs import",
        "envs new",
        "envs play",
        "envs step",
        "policy init",
        "policy check",
        "policy encode",
        "policy export",
        "report compress",
    ] {
        table.fails(program, 2, "");
    }
    // Existing files are never overwritten.
    for program in ["policy init p --preset tiny", "policy export p p"] {
        table.fails(program, 2, "p: already there");
    }
}

#[test]
fn a_file_or_a_directory_that_is_not_there_is_2() {
    let mut table = Table::new();
    for command in OPENERS {
        table.fails(&command.replace('D', "nowhere"), 2, "nowhere: no such directory");
    }
    for (command, cause) in [
        ("report nowhere", "nowhere: no such directory"),
        ("report evaluate nowhere", "nowhere: no such file"),
        ("report evaluate samples --against nowhere", "nowhere: no such file"),
        ("report compress nowhere", "nowhere: no such file"),
        ("policy init new --config nowhere", "nowhere: no such file"),
        ("policy init new --from nowhere.gguf", "nowhere.gguf: no such"),
        ("envs import nowhere", "nowhere: no such file"),
        ("envs import samples --without nowhere", "nowhere: no such file"),
        ("envs tasks math --set data=nowhere", "--set data=nowhere: "),
        ("envs play math --set data=nowhere", "--set data=nowhere: "),
        ("$root/pipeline.sh --config nowhere", "--config nowhere: no such file"),
        ("$root/pipeline.sh --resume nowhere", "there is no nowhere/config.toml"),
    ] {
        table.fails(command, 2, cause);
    }
}

#[test]
fn a_stream_that_breaks_the_record_is_65() {
    let mut table = Table::new();
    for (line, cause) in [
        (r#"{"type":"sample","v":1,"turn":"x"}"#, "stdin:1: `turn`: invalid type"),
        (r#"{"type":"sample","v":2}"#, "stdin:1: line is v2, this program reads v1"),
        (r#"{"type":"#, "stdin:1: not a JSON object"),
        ("[]", "stdin:1: not a JSON object"),
        (r#"{"v":1}"#, "stdin:1: no `type`"),
        (r"\xff", "stdin:1: byte 1 is not UTF-8"),
        ("", "stdin ended without an `end` line"),
        (
            r#"{"type":"end","v":1,"stage":"x","ok":false,"counts":{},"after":[],"timing":{}}"#,
            "stage x before this one did not succeed",
        ),
    ] {
        for reader in READERS {
            table.fails(&format!("{reader} < <(printf '{line}\\n')"), 65, cause);
        }
        // These read tasks, which none of the lines is.
        for reader in ["rollout --policy p", "envs check --env-command 'envs step plan-path'"] {
            let cause = if line.contains("\"v\":1,") || line.is_empty() { "task on stdin" } else { cause };
            table.fails(&format!("{reader} < <(printf '{line}\\n')"), 65, cause);
        }
    }
}

/// Rollout is missing between two stages.
#[test]
fn tasks_without_samples_are_65() {
    let mut table = Table::new();
    for reader in ["group", "group --resident", "advantage", "update --policy p"] {
        table.fails(&format!("{reader} < tasks"), 65, "stdin holds tasks and no samples");
    }
    table.succeeds("envs tasks plan-path --count 0 | group -q | advantage -q");
    // Its policies are named where a folder of them is given.
    let (code, _, said) = table.run("mkdir several && cp -r p several/one");
    assert_eq!(code, 0, "{said}");
    let (_, _, said) = table.run("policy check several");
    assert!(said.contains("hint: its policies are several/one"), "{said}");
}

#[test]
fn a_policy_with_a_part_missing_or_damaged_is_65_whoever_opens_it() {
    let mut table = Table::new();
    for (damage, cause) in [
        ("rm -r D/step-000000", "D/step-000000: not a complete version"),
        ("rm D/current", "D: a policy directory without current"),
        ("rm D/current && rm -r D/step-000000", "D: neither a policy directory nor"),
        ("echo '{' > D/current/config.json", "D/step-000000/config.json: not JSON"),
        ("truncate -s 1000 D/current/model.safetensors", "model.safetensors: the header claims"),
        ("rm D/current/model.safetensors", "D/step-000000: no model.safetensors"),
        ("rm D/current/tokenizer.json", "D/step-000000/tokenizer.json: no such file"),
    ] {
        let (code, _, said) =
            table.run(&format!("rm -rf damaged; cp -r p damaged && {}", damage.replace('D', "damaged")));
        assert_eq!(code, 0, "{said}");
        for command in OPENERS {
            // Texts are encoded without weights, and tokens are trained on without texts.
            let needless = [("policy encode", "model.safetensors"), ("update", "tokenizer")];
            if !needless.iter().any(|(program, part)| command.starts_with(program) && damage.contains(part)) {
                table.fails(&command.replace('D', "damaged"), 65, &cause.replace('D', "damaged"));
            }
        }
    }
}

#[test]
fn what_is_unavailable_is_69() {
    let mut table = Table::new();
    table.fails("ORT_DYLIB_PATH=/nowhere rollout --policy p < tasks", 69, "/nowhere");
    if !std::path::Path::new("/dev/nvidia0").exists() {
        table.fails("rollout --policy p --device cuda < tasks", 69, "");
        table.fails("update --policy p --device cuda < samples", 69, "");
    }
    assert!(std::path::Path::new(runtime()).exists());
}

#[test]
fn what_cannot_be_read_or_written_is_74() {
    let mut table = Table::new();
    for reader in
        READERS.iter().chain(&["rollout --policy p", "envs check --env-command 'envs step plan-path'"])
    {
        table.fails(&format!("{reader} < folder"), 74, "reading stdin: Is a directory");
    }
    for command in [
        "report evaluate folder",
        "envs import folder",
        "policy init new --config folder",
        "envs tasks math --set data=folder",
        "$root/pipeline.sh --config folder",
    ] {
        table.fails(command, 74, "Is a directory");
    }
    for program in ["envs", "policy", "rollout", "group", "advantage", "update", "report"] {
        table.fails(&format!("{program} --help > /dev/full"), 74, "writing the output: No space left");
        table.fails(&format!("{program} --version > /dev/full"), 74, "writing the output: No space left");
    }
    for command in [
        "envs tasks plan-path",
        "envs list",
        "envs demo plan-path --count 1",
        "envs check plan-path --episodes 2 -q",
        "policy check p",
        "policy encode --policy p -q < samples",
        "rollout --policy p -q --turns 1 --greedy < tasks",
        "group -q < played",
        "advantage -q < <(group -q < played)",
        "update --policy p -q --dry-run < samples",
        "report evaluate --allow-incomplete -q samples",
        "report samples --csv -",
    ] {
        table.fails(&format!("{command} > /dev/full"), 74, "writing the output: No space left");
    }
    for command in ["report samples --html /dev/null/x.html", "report samples --csv nowhere/x.csv"] {
        table.fails(command, 74, "");
    }
}

#[test]
fn a_reader_that_went_away_is_0() {
    let mut table = Table::new();
    for command in [
        "envs tasks plan-path --count 9000",
        "envs list",
        "policy check p",
        "policy encode --policy p -q < samples",
        "rollout --policy p -q --turns 1 < tasks",
        "group -q < played",
        "advantage -q < <(group -q < played)",
        "update --policy p -q --dry-run < samples",
        "report samples --csv -",
        "report --help",
        "envs --version",
    ] {
        table.succeeds(&format!("{command} | true"));
    }
}
