//! Shards: `rollout --shard` deals tasks in turn, and whatever order their streams are joined in, `update` makes the bytes of
//! one process (`tests/tests/tables/same-stages.txt`). `pipeline.sh --shards` repeats those that fail, and no others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use troupe_tests::{contents, pipeline, programs};

/// A folder with the programs, whose `rollout` is this script: it finds the real one as `$REAL`.
fn with_rollout(folder: &Path, script: &str) {
    for entry in fs::read_dir(programs()).expect("the programs") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_owned();
        if path.is_file() && name != "rollout" {
            symlink(&path, folder.join(name)).expect("a link");
        }
    }
    let real = programs().join("rollout");
    let script =
        format!("#!/bin/bash\nREAL='{}' log='{}'\n{script}", real.display(), folder.join("log").display());
    fs::write(folder.join("rollout"), script).expect("a script");
    fs::set_permissions(folder.join("rollout"), fs::Permissions::from_mode(0o755)).expect("executable");
}

const SMALL: [&str; 10] =
    ["--warmup", "12", "--steps", "2", "--tasks", "7", "--branches", "4", "--eval-every", "0"];

/// What training made: all of the policies, and the metrics of each step.
fn trained(run: &Path) -> Vec<(String, Vec<u8>)> {
    let made = contents(run).into_iter().filter_map(|(name, bytes)| {
        if name.ends_with("metrics.jsonl") && name.starts_with("steps") {
            let text = String::from_utf8(bytes).expect("text");
            let line = text.lines().find(|line| line.starts_with("{\"type\":\"metrics\"")).expect("metrics");
            return Some((name, line.as_bytes().to_vec()));
        }
        (name.starts_with("policies") || name.ends_with("/done") || name.ends_with("tasks.jsonl"))
            .then_some((name, bytes))
    });
    made.collect()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_killed_shard_is_played_again_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, shards, bin] = ["whole", "shards", "bin"].map(|name| folder.path().join(name));
    succeeded(&pipeline(&whole, &SMALL).output().expect("pipeline.sh runs"));

    // The second of three shards is killed once in each step, in the midst of its output.
    fs::create_dir(&bin).expect("a folder");
    with_rollout(
        &bin,
        r#"case "$* " in
        *'--shard '*)
            printf '%s\n' "$*" | sed -E 's/.*--step ([0-9]+).*--shard ([0-9/]+).*/\1 \2/' >>"$log"
            [[ $* != *'--shard 1/3'* ]] || [ $(($(grep -c ' 1/3$' "$log") % 2)) = 0 ] || { "$REAL" "$@" | head -n 3; kill -9 $$; } ;;
        esac
        exec "$REAL" "$@""#,
    );
    let arguments = [&SMALL[..], &["--shards", "3"]].concat();
    let output = pipeline(&shards, &arguments).env("TROUPE_BIN", &bin).output().expect("pipeline.sh runs");
    succeeded(&output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("step 1: rollout --shard 1/3 failed with exit code 137, and is played again"),
        "{stderr}"
    );
    let mut played: Vec<String> =
        fs::read_to_string(bin.join("log")).expect("the log").lines().map(str::to_owned).collect();
    played.sort();
    assert_eq!(played, ["1 0/3", "1 1/3", "1 1/3", "1 2/3", "2 0/3", "2 1/3", "2 1/3", "2 2/3"]);
    assert_eq!(trained(&whole), trained(&shards));
    let left = contents(&shards);
    assert!(!left.keys().any(|name| name.contains("shard-")), "{:?}", left.keys());
}

#[test]
fn played_shards_are_kept_and_their_number_may_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, shards, bin] = ["whole", "shards", "bin"].map(|name| folder.path().join(name));
    succeeded(&pipeline(&whole, &SMALL).output().expect("pipeline.sh runs"));
    fs::create_dir(&bin).expect("a folder");
    with_rollout(
        &bin,
        r#"[[ $* != *'--shard '* ]] || printf '%s\n' "$*" | sed -E 's/.*--shard ([0-9/]+).*/\1/' >>"$log"
        [[ $* != *'--shard 0/2'* ]] || [ -e "$log.mended" ] || exit 74
        exec "$REAL" "$@""#,
    );
    let call = |more: &[&str]| {
        let arguments = [&SMALL[..], more].concat();
        let output =
            pipeline(&shards, &arguments).env("TROUPE_BIN", &bin).output().expect("pipeline.sh runs");
        let played = fs::read_to_string(bin.join("log")).unwrap_or_default();
        let _ = fs::remove_file(bin.join("log"));
        (output, played.lines().map(str::to_owned).collect::<Vec<String>>())
    };
    let (output, mut played) = call(&["--shards", "2", "--steps", "1"]);
    assert_eq!(output.status.code(), Some(74), "{}", String::from_utf8_lossy(&output.stderr));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("step 1: rollout --shard 0/2 failed with exit code 74"), "{stderr}");
    played.sort();
    assert_eq!(played, ["0/2", "0/2", "0/2", "1/2"]);
    fs::write(bin.join("log.mended"), "").expect("a file");
    let (output, played) = call(&["--shards", "2", "--steps", "1"]);
    succeeded(&output);
    assert_eq!(played, ["0/2"], "the other is whole");
    let (output, played) = call(&[]);
    succeeded(&output);
    assert!(played.is_empty(), "one process: {played:?}");
    assert_eq!(trained(&whole), trained(&shards));

    // Compression happens when the shards are joined.
    let (output, played) = call(&["--shards", "2", "--compress", "--steps", "3"]);
    succeeded(&output);
    assert_eq!(played.len(), 2);
    succeeded(
        &pipeline(&whole, &[&SMALL[..], &["--steps", "3"]].concat()).output().expect("pipeline.sh runs"),
    );
    let without_tasks = |run: &Path| {
        let mut made = trained(run);
        made.retain(|(name, _)| !name.ends_with("tasks.jsonl"));
        made
    };
    assert_eq!(without_tasks(&whole), without_tasks(&shards));
    let mut left: Vec<String> = contents(&shards).into_keys().collect();
    left.retain(|name| name.starts_with("steps/000003/"));
    assert_eq!(
        left,
        ["done", "metrics.jsonl", "samples.jsonl.zst", "tasks.jsonl.zst"]
            .map(|name| format!("steps/000003/{name}"))
    );
}

#[test]
fn shards_that_would_have_no_effect_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (more, cause) in [
        (&["--resident"][..], "--resident does not start"),
        (&["--device", "sim"], "--shards cannot play with --device sim"),
        (&["--stage", "rollout=cat"], "--stage rollout=... is another command"),
    ] {
        let arguments = [&["--shards", "2"], more].concat();
        let output = pipeline(&folder.path().join("run"), &arguments).output().expect("pipeline.sh runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(cause) && stderr.contains("hint: "), "{stderr}");
    }
}
