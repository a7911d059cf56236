//! What users meet at the border: a misspelt name, a program or a folder that is missing, a run that is stopped.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use troupe_tests::{must, pipeline, root, run};

#[test]
fn a_misspelt_environment_is_answered_with_the_nearest_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let output = pipeline(&run, &["--env", "sudko"]).output().expect("pipeline.sh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said, "envs: there is no environment 'sudko'\nhint: did you mean 'sudoku'?\n");
    assert!(!run.exists(), "nothing was asked for");
}

/// A script that could not be read to its end must not pass for one that has nothing more to do.
#[test]
fn a_pipeline_sh_that_is_cut_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("pipeline.sh");
    let whole = std::fs::read_to_string(root().join("pipeline.sh")).expect("the script");
    let begin = whole.find("\n{ ").expect("a brace before all that it does") + 3;
    for cut in (begin..whole.len() - 1).filter(|at| whole.is_char_boundary(*at)).step_by(97) {
        std::fs::write(&copy, &whole[..cut]).expect("written");
        let (code, _, said) = run(&format!("bash '{}' --setup", copy.display()));
        assert!(code != 0 && !said.is_empty(), "cut to {cut} bytes: {code}");
    }
    std::fs::write(&copy, &whole).expect("written");
    let (code, _, said) = run(&format!("bash '{}' --setup", copy.display()));
    assert_eq!(code, 0, "{said}");
}

/// Ctrl-C reaches every process of the terminal; the message says how to go on.
#[test]
fn an_interrupt_says_how_to_go_on() {
    for more in [&[][..], &["--resident"]] {
        interrupted(more);
    }
}

fn interrupted(more: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("run");
    let small = ["--warmup", "30", "--tasks", "6", "--branches", "4", "--eval-every", "0", "--steps"];
    let script = pipeline(&at, &[&small[..], &["10000"], more].concat());
    // A shell's background job, which this test may be part of, ignores SIGINT, and so would its children.
    let heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", heed]).arg(script.get_program()).args(script.get_args());
    command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(root());
    let command = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let patience = Instant::now() + Duration::from_secs(120);
    while !at.join("steps/000002/done").exists() {
        assert!(
            child.try_wait().expect("its state").is_none() && Instant::now() < patience,
            "it never began"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    must(&format!("kill -INT -- -{}", child.id()));
    let output = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(!said.contains("Traceback"), "{said}");
    let how = format!("./pipeline.sh --resume {}", at.display());
    assert!(
        said.ends_with(&format!("hint: the same command goes on from there, and so does {how}\n")),
        "{said}"
    );
    let steps = std::fs::read_dir(at.join("steps")).expect("steps").count() - 1;
    let printed = must(&format!("{how} --steps {}", steps + 1));
    assert!(printed.contains(&format!("step {}: success in training", steps + 1)), "{printed}");
}

#[test]
fn every_program_takes_the_same_short_flags() {
    for program in ["envs", "policy", "rollout", "group", "advantage", "update", "report"] {
        let (version, help) = (must(&format!("{program} --version")), must(&format!("{program} --help")));
        assert!(version.starts_with(&format!("{program} ")), "{version}");
        assert!(help.contains("-q, --quiet") && help.contains("Examples:"), "{help}");
    }
}

/// Runs a stage as at a terminal, where its input is ended at once (Ctrl-D), and prints all that the terminal shows.
const TERMINAL: &str = "
import fcntl, os, pty, struct, subprocess, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack(\"HHHH\", 40, 120, 0, 0))
stage = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=slave, stderr=slave)
os.close(slave)
os.write(master, bytes([4]))
shown = b\"\"
try:
    while part := os.read(master, 65536):
        shown += part
except OSError:
    pass
sys.stdout.write(shown.decode().replace(chr(13), str()))
sys.exit(stage.wait())
";

#[test]
fn a_stage_at_a_terminal_says_what_it_waits_for_and_prints_no_end_when_it_fails() {
    for stage in ["group", "advantage", "report evaluate"] {
        let (code, shown, _) = run(&format!("python3 -c '{TERMINAL}' {stage}"));
        assert_eq!(code, 65, "{shown}");
        assert!(shown.contains(": waiting for JSON lines from this terminal: "), "{stage}: {shown}");
        assert!(shown.contains("stdin ended without an `end` line\nhint: "), "{stage}: {shown}");
        assert!(!shown.contains("{\"type\":\"end\""), "{stage}: {shown}");
    }
}

/// Evaluation, sampling and training: whoever watches sees how far each of them is; a log does not fill with it.
#[test]
fn long_stages_of_a_run_show_their_progress_on_a_terminal_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let small = ["--warmup", "20", "--tasks", "6", "--steps", "2", "--eval-tasks", "10", "--eval-every", "2"];
    for more in [&[][..], &["--resident"], &["--shards", "2"]] {
        let name = more.first().copied().unwrap_or("plain");
        let script = format!(
            "python3 -c '{TERMINAL}' ./pipeline.sh --run {} {} {}",
            at(name).display(),
            small.join(" "),
            more.join(" ")
        );
        let (code, shown, said) = run(&script);
        assert_eq!(code, 0, "{shown}{said}");
        let played = if name == "--shards" { "/3" } else { "/6" };
        for (program, total) in
            [("update [", "/20 "), ("evaluating [", "/10 "), ("rollout [", played), ("update [", "/2 ")]
        {
            let is_shown = shown
                .split(program)
                .skip(1)
                .any(|bar| bar.lines().next().is_some_and(|bar| bar.contains(total)));
            assert!(is_shown, "{name}: no {program} of {total} in\n{shown}");
        }
        // Messages start on a new line.
        for line in [
            "step 0: success on 10 test tasks ",
            "step 1: success in training ",
            "step 2: success in training ",
        ] {
            let begins = shown.split(line).next().expect("a part");
            assert!(shown.contains(line) && begins.ends_with(['\n', 'K']), "{name}: {line:?} in {shown:?}");
        }
    }
    let output = pipeline(&at("logged"), &small).output().expect("pipeline.sh runs");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("rollout ") && !said.contains('\u{1b}'), "{said}");
    assert!(troupe_tests::differences(&at("plain"), &at("logged")).is_empty(), "the same run");
}
