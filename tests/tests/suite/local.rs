//! `rollout --local DIR`: the processes of a machine read weights from one copy on a local disk. The copy is
//! made once and is complete or absent, and the output has the same bytes as without a copy.

use std::fs;
use std::path::Path;

use troupe_tests::{must, pipeline, run, skip, without_timing};

/// A policy, an adapter over it, another that is published after it, and tasks.
fn prepare(place: &Path) {
    must(&format!(
        "cd '{}' && policy init full --preset tiny --seed 7 >log && policy init adapter --from full --adapter rank=4,alpha=8 --seed 1 >log && \
         envs tasks plan-path --count 8 --seed 5 >tasks",
        place.display()
    ));
}

fn rollout(policy: &str, more: &str) -> String {
    format!(
        "rollout --policy {policy} --branches 2 --turns 1 --max-tokens 4 --seed 3 --threads 1 {more} <tasks"
    )
}

/// The copies in a folder that have their names, and whatever else is there but the lock.
fn copies(folder: &Path) -> (Vec<String>, Vec<String>) {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names.into_iter().partition(|name| !name.starts_with('.'))
}

#[test]
fn processes_that_start_at_once_copy_a_version_once_and_write_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, node) = (folder.path(), folder.path().join("node"));
    prepare(place);
    for (policy, made) in [("full", 1), ("adapter", 2)] {
        let at = |command: &str| must(&format!("cd '{}' && {command}", place.display()));
        let _ = fs::remove_dir_all(&node);
        let shards = |more: &str| {
            at(&format!(
                "for i in 0 1 2 3; do {} 2>said-$i & done; wait; cat out-?",
                rollout(policy, &format!("--shard $i/4 {more}")).replace("<tasks", "<tasks >out-$i")
            ))
        };
        let plain = shards("");
        assert!(plain.lines().count() > 16, "{plain}");
        assert_eq!(without_timing(&shards("--local node/deep")), without_timing(&plain), "{policy}");
        let said = at("cat said-?");
        assert_eq!(said.matches(": copied ").count(), 1, "{said}");
        let (whole, rest) = copies(&node.join("deep"));
        assert_eq!((whole.len(), rest.len()), (made, 0), "{whole:?} {rest:?}");
        // Nor does the next one.
        assert!(!at(&format!("{} 2>&1 >out", rollout(policy, "--local node/deep"))).contains("copied"));
    }
}

#[test]
fn a_new_version_takes_the_place_of_the_old_one_unless_somebody_uses_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, node) = (folder.path(), folder.path().join("node"));
    prepare(place);
    let at = |command: &str| must(&format!("cd '{}' && {command}", place.display()));
    let play = |policy: &str| at(&rollout(policy, "--quiet --local node"));
    play("full");
    play("adapter");
    let before = copies(&node).0;
    let samples = at(
        "policy init other --preset tiny --seed 9 >log && envs demo plan-path --count 4 --seed 7 | policy encode --policy full",
    );
    fs::write(place.join("demonstrations"), samples).expect("a file");
    at("update --quiet --policy full --objective nll --lr 1e-3 <demonstrations");
    // The adapter rests on the old version, which is a separate copy.
    let used = fs::File::open(node.join(&before[1]).join(".in-use")).expect("the copy");
    used.lock_shared().expect("in use");
    let plain = at(&rollout("full", "--quiet"));
    assert_eq!(without_timing(&play("full")), without_timing(&plain));
    let (after, rest) = copies(&node);
    assert!(rest.is_empty() && after.contains(&before[1]), "{before:?} {after:?} {rest:?}");
    assert!(after.iter().any(|name| name.contains("step-000001")), "{after:?}");
    drop(used);
    play("other");
    play("full");
    let (after, _) = copies(&node);
    assert!(after.iter().filter(|name| name.starts_with("full-")).count() == 1, "{after:?}");
    assert!(after.iter().any(|name| name.starts_with("other-")), "{after:?}");
}

#[test]
fn what_cannot_be_copied_is_said_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    prepare(place);
    let at = |command: &str| run(&format!("cd '{}' && {command}", place.display()));
    for unwritable in ["tasks/node", "/proc/none"] {
        let (code, stdout, stderr) = at(&rollout("full", &format!("--quiet --local {unwritable}")));
        assert_eq!(code, 74, "{stderr}");
        assert!(
            stderr.starts_with(&format!("rollout: {unwritable}: ")) && stderr.lines().count() <= 2,
            "{stderr}"
        );
        assert!(!stdout.contains("\"type\":\"sample\""), "{stdout}");
    }
    // A copy that was damaged later.
    assert_eq!(at(&rollout("full", "--quiet --local node")).0, 0);
    let copy = place.join("node").join(&copies(&place.join("node")).0[0]);
    let mut bytes = fs::read(copy.join("model.safetensors")).expect("the weights");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(copy.join("model.safetensors"), bytes).expect("written");
    let (code, _, stderr) = at(&rollout("full", "--quiet --local node"));
    assert_eq!(code, 65, "{stderr}");
    assert!(stderr.contains("hint: what is in node are copies: remove the damaged one"), "{stderr}");
    fs::remove_dir_all(copy).expect("removed");
    assert_eq!(at(&rollout("full", "--quiet --local node")).0, 0);
}

/// Killed at each of the calls that a copy is made with.
#[test]
fn a_killed_copy_leaves_nothing_half() {
    if run("strace -V").0 != 0 {
        skip!("there is no strace: apt-get install strace");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (place, node) = (folder.path(), folder.path().join("node"));
    prepare(place);
    let at = |command: &str| run(&format!("cd '{}' && {command}", place.display()));
    let plain = at(&rollout("full", "--quiet")).1;
    let mut killed = 0;
    for call in ["mkdir", "copy_file_range", "fsync", "rename", "flock"] {
        for when in 1..=4 {
            let _ = fs::remove_dir_all(&node);
            let strace = format!("strace -f -qq -o trace -e inject={call}:signal=KILL:when={when}");
            let (code, ..) = at(&format!("{strace} {}", rollout("full", "--quiet --local node")));
            killed += usize::from(code != 0);
            if node.exists() {
                for name in copies(&node).0 {
                    let (code, _, stderr) = run(&format!("policy check '{}'", node.join(name).display()));
                    assert_eq!(code, 0, "{call} {when}: {stderr}");
                }
            }
            let (code, stdout, stderr) = at(&rollout("full", "--quiet --local node"));
            assert_eq!(code, 0, "{call} {when}: {stderr}");
            assert_eq!(without_timing(&stdout), without_timing(&plain), "{call} {when}");
            let (whole, rest) = copies(&node);
            assert_eq!((whole.len(), rest.len()), (1, 0), "{call} {when}: {whole:?} {rest:?}");
        }
    }
    assert!(killed >= 8, "{killed}");
}

#[test]
fn a_run_reads_from_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let [plain, local, node] = ["plain", "local", "node"].map(|name| folder.path().join(name));
    let small = "--warmup 12 --tasks 6 --branches 4 --eval-every 2 --policies per-role --steps";
    let node_text = node.display().to_string();
    let call = |run: &Path, more: &str| {
        let arguments: Vec<&str> = small.split(' ').chain(more.split(' ')).collect();
        let output = pipeline(run, &arguments).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    call(&plain, "3");
    call(&local, &format!("1 --local {node_text} --shards 2"));
    call(&local, &format!("2 --local {node_text} --resident"));
    call(&local, &format!("3 --local {node_text}"));
    let policies = |run: &Path| {
        let mut made = troupe_tests::contents(run);
        made.retain(|name, _| {
            name.starts_with("policies") || name.ends_with("/done") || name.starts_with("eval")
        });
        made
    };
    // It has ended three times, and so has more evaluations.
    let (plain, local) = (policies(&plain), policies(&local));
    let differ: Vec<&String> = plain.keys().filter(|name| plain.get(*name) != local.get(*name)).collect();
    assert!(differ.is_empty() && plain.keys().any(|name| name.starts_with("eval")), "{differ:?}");
    let (whole, rest) = copies(&node);
    assert_eq!((whole.len(), rest.len()), (2, 0), "{whole:?} {rest:?}");
    assert!(whole.iter().all(|name| name.contains("step-00000")), "{whole:?}");
}
