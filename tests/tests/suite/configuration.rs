//! `pipeline.sh --config` and `--resume`: every flag of a run is a line of one TOML file, which the run writes.

use std::fs;
use std::path::Path;

use troupe_tests::{contents, differences, must, pipeline, script};

/// Exit code, stdout and stderr.
fn called(run: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = pipeline(run, arguments).output().expect("pipeline.sh runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A small run in TOML, with every kind of value.
const SMALL: &str = r#"
# A run of two steps.
steps = 2
"tasks" = 6
branches = 4
warmup = 1_2
lr = 2e-3
betas = [0.9,
  0.99, # and the other
]
eval-every = 2
eval_tasks = 20
policies = "per-role"
train = ["tool"]
keep-best = true
set.colums = 5
flags = { update = '--epochs 1' }

[stage]
advantage = "jq -c 'if .type==\"sample\" then .advantage = .reward - 1 else . end'"
"#;

/// The file's settings as a command line.
const FLAGS: [&str; 24] = [
    "--steps",
    "2",
    "--tasks",
    "6",
    "--branches",
    "4",
    "--warmup",
    "12",
    "--lr",
    "2e-3",
    "--betas",
    "0.9,0.99",
    "--eval-every",
    "2",
    "--eval-tasks=20",
    "--policies",
    "per-role",
    "--train",
    "tool",
    "--keep-best",
    "--flags",
    "update=--epochs 1",
    "--stage",
    "advantage=jq -c 'if .type==\"sample\" then .advantage = .reward - 1 else . end'",
];

#[test]
fn a_file_of_lines_is_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let [by_flags, by_file, again] = ["flags", "file", "again"].map(|name| folder.path().join(name));
    let (code, _, said) = called(&by_flags, &FLAGS);
    assert_eq!(code, Some(0), "{said}");
    let file = folder.path().join("run.toml");
    fs::write(&file, SMALL.replace("set.colums = 5\n", "")).expect("written");
    let file = file.display().to_string();
    let (code, _, said) = called(&by_file, &["--config", &file]);
    assert_eq!(code, Some(0), "{said}");
    assert!(contents(&by_flags) == contents(&by_file), "the same run");
    // All of it is written down, and makes the run again.
    let written = by_file.join("config.toml");
    let text = fs::read_to_string(&written).expect("a configuration");
    for line in
        ["lr = 0.002\n", "seed = 1\n", "keep = 2\n", "clip = 0.2\n", "optimizer = \"adamw\"\n", "[stage]\n"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let (code, _, said) = called(&again, &["--config", &written.display().to_string()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(contents(&by_file) == contents(&again), "the same run");
    assert_eq!(fs::read_to_string(again.join("config.toml")).expect("a configuration"), text);
    // It is TOML for others, too; Python has it since 3.11.
    let toml = "import sys\ntry:\n    import tomllib\nexcept ImportError:\n    sys.exit()\n\
                text = tomllib.load(open(sys.argv[1], \"rb\"))\n\
                assert (text[\"lr\"], text[\"betas\"], text[\"train\"]) == (0.002, [0.9, 0.99], [\"tool\"]), text";
    must(&format!("python3 -c '{toml}' '{}'", written.display()));
    // The command line overrides the file: the number of steps, and a different stage.
    let longer = ["--config", &file, "--steps", "3"];
    let (code, printed, said) = called(&by_file, &longer);
    assert_eq!(code, Some(0), "{said}");
    assert!(printed.contains("step 3: success in training"), "{printed}");
}

#[test]
fn a_run_goes_on_with_what_it_wrote_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, stopped] = ["whole", "stopped"].map(|name| folder.path().join(name));
    let small = [
        "--warmup",
        "30",
        "--tasks",
        "6",
        "--branches",
        "4",
        "--eval-every",
        "0",
        "--seed",
        "3",
        "--keep",
        "3",
    ];
    let regularized =
        [&small[..], &["--clip", "0.3", "--kl", "0.01", "--policies", "adapter-per-role"]].concat();
    for (run, steps) in [(&whole, "3"), (&stopped, "1")] {
        let (code, _, said) = called(run, &[&regularized[..], &["--steps", steps]].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    let resume = |more: &[&str]| {
        let output = script().arg("--resume").arg(&stopped).args(more).output().expect("pipeline.sh runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = resume(&["--steps", "3"]);
    assert_eq!(code, Some(0), "{said}");
    let different: Vec<String> = differences(&whole, &stopped)
        .into_iter()
        .filter(|file| !file.contains("/adapter_config.json:")) // names the place of the base
        .collect();
    assert!(different.is_empty(), "{different:#?}");
    let settings = must(&format!(
        "jq -c '[.settings.clip, .settings.kl, (.settings.reference | length > 0)]' '{}/policies/tool/current/trainer_state.json'",
        whole.display()
    ));
    assert_eq!(settings.trim(), "[0.3,0.01,true]");
    assert_eq!(must(&format!("ls -d '{}'/policies/tool/step-*", whole.display())).lines().count(), 3);
    // All that differs is said at once, as flags.
    let (code, said) =
        resume(&["--seed", "4", "--branches", "3", "--lr", "0.001", "--flags", "update=--epochs 2"]);
    assert_eq!(code, Some(2), "{said}");
    let named = format!(
        "pipeline.sh: {run} was started with --seed 3 --branches 4 no --flags, not with --seed 4 --branches 3 --flags 'update=--epochs 2'\n\
         hint: --seed cannot change in a run: ./pipeline.sh --resume {run} goes on as it was started",
        run = stopped.display()
    );
    assert!(said.starts_with(&named), "{said}");
    // Other kinds of mistakes.
    let (code, said) = resume(&["--run", "elsewhere"]);
    assert!(code == Some(2) && said.contains("--resume names the run"), "{said}");
    let (code, _, said) = called(&whole, &["--config", "nowhere.toml"]);
    assert!(code == Some(2) && said.contains("--config nowhere.toml: no such file"), "{said}");
}

#[test]
fn a_line_that_is_no_flag_is_refused_where_it_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    for (text, cause, hint) in [
        ("lr = 1e-3\nstpes = 3", "run.toml:2: unexpected argument '--stpes'", "did you mean --steps?"),
        ("learning_rate = 1e-3", "run.toml:1: unexpected argument '--learning-rate'", "did you mean --lr?"),
        ("[sets]\nlevel = 1", "run.toml:1: unexpected argument '--sets'", "did you mean --set?"),
        ("# how many\nsteps = \"three\"", "run.toml:2: --steps three: not a whole number", "--help"),
        ("steps = 3.0", "run.toml:1: --steps 3.0: not a whole number", "--help"),
        ("steps = 1979-05-27", "run.toml:1: steps: not a value of --steps", "--help"),
        ("lr = true", "run.toml:1: invalid value 'true' for '--lr <[AGENT=]X>': not a number", "--help"),
        ("resident = 3", "run.toml:1: invalid value '3' for '--resident", "--help"),
        ("optimizer = adamw", "run.toml:1: string values must be quoted", "strings are quoted"),
        ("stage = 3", "run.toml:1: invalid value '3' for '--stage <NAME=COMMAND>'", "--help"),
        ("lr = 1\n\nlr = 2", "run.toml:3: duplicate key", "leave one of them out"),
        ("run = \"x\"", "run.toml:1: run has no place in a file", "--run"),
        ("env = \"math", "run.toml:1: invalid basic string, expected `\"`", "hint: "),
        ("steps = 3 lr = 4", "run.toml:1: unexpected key or value", "hint: "),
        ("branches = 0", "run.toml:1: --branches must be from 1", ""),
        ("policies = \"perrole\"", "invalid value 'perrole' for '--policies <WHICH>': not shared", ""),
    ] {
        let file = folder.path().join("run.toml");
        fs::write(&file, text).expect("written");
        let (code, _, said) = called(&run, &["--config", &file.display().to_string()]);
        assert_eq!(code, Some(2), "{text}: {said}");
        assert!(said.contains(cause) && said.contains(hint), "{text}: {said}");
        assert_eq!(
            said.lines().filter(|line| line.starts_with("hint: ")).count(),
            said.lines().count() - 1,
            "{said}"
        );
        assert!(!run.exists(), "{text}");
    }
    let (code, _, said) = called(&run, &["--stpes", "3"]);
    assert!(code == Some(2) && said.contains("did you mean --steps?"), "{said}");
    let (code, _, said) = called(&run, &["--lr", "many"]);
    assert!(
        code == Some(2) && said.contains("invalid value 'many' for '--lr <[AGENT=]X>': not a number"),
        "{said}"
    );
}
