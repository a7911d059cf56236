//! `update`, killed or refused at one system call after another: a published version is complete or absent,
//! and the same command ends with the bytes of an undisturbed run.
//!
//! Left out: other programs, and power cuts, which also lose unsynchronized data.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{Place, contents, one, program, version};
use policy::directory::Policy;
use troupe_tests::{skip, storm};

const ARGUMENTS: &str =
    "--policy p --lr 1e-3 --lr-warmup 0 --minibatches 1 --keep 1 --threads 2 --quiet --max-logprob-gap 0";

/// System calls in which a disk can fail.
const DISK: &[&str] = &[
    "copy_file_range",
    "fdatasync",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    "getdents64",
    "lseek",
    "mkdir",
    "newfstatat",
    "openat",
    "read",
    "readlink",
    "rename",
    "renameat2",
    "statx",
    "symlink",
    "unlink",
    "unlinkat",
    "write",
];

/// Runs `update` under strace; returns its exit code, unless a signal ended it, and its messages.
fn injected(place: &Place, injection: &str, log: &str, input: &str) -> (Option<i32>, String) {
    let mut child = Command::new("strace")
        .args(["-f", "-qq", "-o", log, "-e", injection])
        .arg(program())
        .args(ARGUMENTS.split_whitespace())
        .current_dir(place.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that was killed early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The system calls of the first thread: the name of each, and how many of that name there were with it.
fn calls(log: &str) -> Vec<(String, usize)> {
    let first = log.split_whitespace().next().unwrap();
    let mut seen = BTreeMap::new();
    let lines = log.lines().filter_map(|line| line.strip_prefix(first)?.trim_start().split_once('('));
    let lines = lines.filter(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    let numbered = lines.map(|(name, _)| {
        let count = seen.entry(name.to_owned()).or_insert(0);
        *count += 1;
        (name.to_owned(), *count)
    });
    // Where the kernel or the loader fails before `main`, that is not ours.
    numbered.skip_while(|(name, _)| name != "sigaltstack").collect()
}

fn shell(place: &Place, command: &str) {
    assert!(Command::new("sh").args(["-c", command]).current_dir(&place.folder).status().unwrap().success());
}

#[test]
#[ignore = "storm"]
fn at_any_system_call_nothing_is_lost() {
    let traces = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    if !traces.is_ok_and(|status| status.success()) {
        skip!("strace is not here, or may not trace");
    }
    let runs = storm::rounds(24, 1000);
    // The second of two steps: there is a version to prune and an optimizer's state to go on from.
    let (place, root, input) = one();
    let first = version(&root);
    place.update(ARGUMENTS, &input).ok();
    let input = input.replace(&first, &version(&root));
    shell(&place, "cp -a p before");
    injected(&place, "trace=all", "calls", &input);
    let log = fs::read_to_string(place.folder.path().join("calls")).unwrap();
    let calls = calls(&log);
    let whole = contents(&root);
    assert!(calls.len() > 100 && root.join("step-000002").exists(), "{} calls", calls.len());

    let mut random = storm::Random::new();
    let (mut stopped, mut codes) = (0, BTreeMap::new());
    for run in 0..runs {
        shell(&place, "rm -rf p && cp -a before p");
        let what = ["signal=KILL", "error=EIO", "error=ENOSPC"][run % 3];
        let (call, when) = loop {
            let (call, when) = &calls[random.below(calls.len())];
            // Memory and threads are not the disk's to refuse.
            if what == "signal=KILL" || DISK.contains(&call.as_str()) {
                break (call, when);
            }
        };
        let injection = format!("inject={call}:{what}:when={when}");
        let (code, stderr) = injected(&place, &injection, "/dev/null", &input);
        stopped += usize::from(code != Some(0));
        *codes.entry(code).or_insert(0) += 1;
        assert!(!stderr.contains("panicked"), "{injection}: {code:?} {stderr}");
        assert!(code.is_some() || what == "signal=KILL", "{injection}: {stderr}");
        assert!(code != Some(2), "a fault of the disk is none of the command line: {injection}: {stderr}");
        let version = Policy::open(&root).and_then(|policy| policy.verify());
        version.unwrap_or_else(|failure| panic!("{injection}: {failure}"));
        place.update(ARGUMENTS, &input).ok();
        assert!(contents(&root) == whole, "{injection}: other bytes after a second run");
    }
    println!(
        "{stopped} of {runs} runs were stopped, at one of {} system calls; exit codes {codes:?}",
        calls.len()
    );
    assert!(stopped * 3 > runs, "most injections came too late to matter: {codes:?}");
}
