//! Shards: `rollout --shard` deals tasks in turn, and whatever order their streams are joined in, `update` makes the bytes of
//! one process. `pipeline.sh --shards` repeats those that fail, and no others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use troupe_tests::{contents, must, pipeline, programs, without_timing};

/// Samples, episodes and other lines, without the shard's `end`.
fn lines(text: &str, shard: &str) -> Vec<String> {
    let text = text.replace(&format!("\"shard\":\"{shard}\""), "");
    text.lines().filter(|line| !line.starts_with("{\"type\":\"end\"")).map(str::to_owned).collect()
}

#[test]
fn any_number_of_shards_in_any_order_trains_the_same_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    let at = |command: &str| must(&format!("cd '{}' && {command}", place.display()));
    at("policy init policy --preset tiny --seed 7 >log && envs tasks plan-path --count 48 --seed 5 >tasks");
    // A random policy earns nothing; scored by their branch its samples are worth an update.
    let score = r#"sed -E 's/"branch":([0-9]+)(.*)"reward":[-0-9.e]+/"branch":\1\2"reward":\1/'"#;
    let mut whole: Option<(Vec<String>, String)> = None;
    for count in [1, 2, 3, 8] {
        let mut joined = Vec::new();
        for shard in (0..count).map(|number| format!("{number}/{count}")) {
            let rollout =
                "rollout --quiet --policy policy --branches 3 --turns 2 --max-tokens 6 --seed 3 --step 9";
            let text = at(&format!("{rollout} --shard {shard} <tasks | {score}"));
            assert!(text.contains(&format!("\"counts\":{{\"tasks\":{}", 48 / count)), "{shard}: {text}");
            fs::write(place.join(format!("shard-{}", shard.replace('/', "-"))), &text).expect("a file");
            joined.extend(lines(&text, &shard));
        }
        joined.sort();
        let numbers: Vec<usize> = (0..count).collect();
        let reversed: Vec<usize> = numbers.iter().rev().copied().collect();
        let odd_first: Vec<usize> =
            [1, 0].iter().flat_map(|odd| (0..count).filter(move |number| number % 2 == *odd)).collect();
        for order in [numbers, reversed, odd_first] {
            let files: Vec<String> = order.iter().map(|number| format!("shard-{number}-{count}")).collect();
            let metrics = at(&format!(
                "rm -rf copy && cp -r policy copy && cat {} | group --quiet | advantage --quiet | \
                 update --quiet --policy copy --lr 1e-3 --minibatches 2 --seed 4 | grep '\"type\":\"metrics\"' && \
                 cksum <copy/step-000001/model.safetensors && cksum <copy/step-000001/optimizer.safetensors",
                files.join(" ")
            ));
            let (expected, trained) = whole.get_or_insert_with(|| (joined.clone(), without_timing(&metrics)));
            assert!(*expected == joined, "{count} shards play something else");
            assert_eq!(*trained, without_timing(&metrics), "{count} shards joined as {order:?}");
        }
    }
}

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
