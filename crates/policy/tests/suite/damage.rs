//! What disks, users and other programs do to a policy: it is seen, said, and never published further.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};

use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::initial;
use policy::publish;
use policy::retention::Retention;
use policy::side_files;
use policy::training_state::training_state;
use policy::weights::Weights;
use serde_json::Value;

use crate::publish::{entries, next, next_keeping};
use troupe_tests::skip;

/// Flips one bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn adapter_over(root: &Path, base: &Path) -> Policy {
    initial::from_base(root, base, &Adapter::new(2, 4.0, vec![Target::Query]), 1).unwrap()
}

/// Adds an output head to a checkpoint with a tied one: the embedding, with one bit changed or none.
fn add_head(files: &Path, changed: u8) {
    let path = files.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let mut head = header["model.embed_tokens.weight"].clone();
    let [from, to] = [0, 1].map(|at| head["data_offsets"][at].as_u64().unwrap() as usize);
    let mut values = bytes[start..][from..to].to_vec();
    values[7] ^= changed;
    let end = bytes.len() - start;
    head["data_offsets"] = serde_json::json!([end, end + values.len()]);
    header["lm_head.weight"] = head;
    let text = header.to_string().into_bytes();
    let length = (text.len() as u64).to_le_bytes();
    fs::write(&path, [&length[..], &text, &bytes[start..], &values].concat()).unwrap();
}

#[test]
fn a_head_that_is_not_the_one_it_is_tied_with_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, changed) in [("same", 0), ("other", 4)] {
        let files = crate::tiny(directory.path(), name).files;
        add_head(&files, changed);
        let checked = Weights::open(&files).unwrap().check(&Config::load(&files).unwrap());
        match changed {
            0 => checked.unwrap(),
            _ => {
                let failure = checked.unwrap_err();
                assert_eq!(failure.code, 65);
                assert!(
                    failure.message.contains("lm_head.weight is not the embedding"),
                    "{}",
                    failure.message
                );
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_seen_in_weights_bases_and_optimizer_state() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next(&first, "one");
    let second = Policy::open(&first.root).unwrap();
    second.verify().unwrap();
    assert!(training_state(&second).unwrap().is_some());
    flip(&second.files.join("optimizer.safetensors"));
    let failure = training_state(&second).unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("is not the one that was saved"), "{failure}");
    flip(&second.files.join("model.safetensors"));
    assert_eq!(Policy::open(&first.root).unwrap().verify().unwrap_err().code, 65);

    let adapter = adapter_over(&directory.path().join("adapter"), &first.files);
    adapter.verify().unwrap();
    flip(&first.files.join("model.safetensors"));
    let failure = adapter.verify().unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("not those of its digest"), "{failure}");
}

/// A kill after the new version became current, before older ones were removed.
#[test]
fn a_repeated_call_removes_what_the_first_did_not_come_to() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next(&first, "one");
    let second = Policy::open(&first.root).unwrap();
    let version = next(&second, "two");
    assert_eq!(entries(&first.root), [".lock", "current", "step-000000", "step-000001", "step-000002"]);
    let retention = Retention { keep: 1, pinned: std::slice::from_ref(&second.version) };
    assert_eq!(publish::published(&second, "two", &retention).unwrap(), Some(version));
    assert_eq!(entries(&first.root), [".lock", "current", "step-000001", "step-000002"]);
    // A later version stays, whoever repeats an earlier call.
    let third = Policy::open(&first.root).unwrap();
    next(&third, "three");
    publish::published(&second, "two", &retention).unwrap();
    assert_eq!(Policy::open(&first.root).unwrap().version.step, 3);
}

#[test]
fn a_link_to_a_version_that_was_removed_says_which_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next_keeping(&first, "one", 1, &[]).unwrap();
    fs::remove_file(first.root.join("current")).unwrap();
    symlink("step-000000", first.root.join("current")).unwrap();
    let failure = Policy::open(&first.root).unwrap_err();
    assert_eq!(
        (failure.code, failure.hint.as_deref()),
        (65, Some("let current point to one of: step-000001"))
    );
}

#[test]
fn a_version_stays_while_adapters_rest_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let base = crate::tiny(here, "base");
    let near = adapter_over(&here.join("near"), &base.root);
    next_keeping(&base, "one", 1, &[]).unwrap();
    let second = Policy::open(&base.root).unwrap();
    fs::create_dir(here.join("elsewhere")).unwrap();
    let far = adapter_over(&here.join("elsewhere/far"), &second.files);
    for input in ["two", "three", "four"] {
        next_keeping(&Policy::open(&base.root).unwrap(), input, 1, &[]).unwrap();
    }
    let steps = |steps: &[u64]| steps.iter().map(|step| format!("step-{step:06}")).collect::<Vec<_>>();
    let there =
        || entries(&base.root).into_iter().filter(|name| name.starts_with("step")).collect::<Vec<_>>();
    assert_eq!(there(), steps(&[0, 1, 4]));
    for root in [&near.root, &far.root] {
        Policy::open(root).unwrap().verify().unwrap();
    }
    // Nor is it replaced.
    let failure = next_keeping(&base, "other", 1, &[]).unwrap_err();
    assert!(failure.message.contains("an adapter depends on version 1:"), "{failure}");
    // Both move together; one that is removed no longer counts; one from elsewhere may only have moved.
    let moved = tempfile::tempdir().unwrap();
    fs::rename(here, moved.path().join("run")).unwrap();
    let root = |name: &str| moved.path().join("run").join(name);
    Policy::open(&root("near")).unwrap().verify().unwrap();
    next_keeping(&Policy::open(&root("base")).unwrap(), "five", 1, &[]).unwrap();
    assert!(root("base/step-000000").exists());
    fs::remove_dir_all(root("near")).unwrap();
    next_keeping(&Policy::open(&root("base")).unwrap(), "six", 1, &[]).unwrap();
    assert!(!root("base/step-000000").exists() && root("base/step-000001").exists());
}

#[test]
fn a_link_to_another_users_file_is_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    if fs::metadata(&plain).unwrap().uid() != 0 {
        skip!("only root can make another user's link");
    }
    let source = crate::tiny(directory.path(), "source").files;
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, plain.join(path.file_name().unwrap())).unwrap();
    }
    let secret = directory.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let link = |name: &str, target: &Path| -> PathBuf {
        let link = plain.join(name);
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        link
    };
    link("own.txt", &secret);
    lchown(link("notes.txt", &secret), Some(1000), None).unwrap();
    let left_out = side_files::left_out(&Policy::open(&plain).unwrap()).unwrap();
    assert!(
        left_out
            .iter()
            .any(|file| file.path == "notes.txt" && file.reason == "a link to another user's file")
    );
    let made = initial::from_directory(&directory.path().join("made"), &plain, None).unwrap();
    assert!(!made.files.join("notes.txt").exists() && made.files.join("own.txt").exists());
    lchown(link("tokenizer.json", &source.join("tokenizer.json")), Some(1000), None).unwrap();
    let failure = initial::from_directory(&directory.path().join("refused"), &plain, None).unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("another user's file"), "{failure}");
}

#[test]
fn names_reach_no_terminal_raw() {
    let failure = Policy::open(Path::new("/nowhere/\x1b[2Jname\r")).unwrap_err();
    assert!(!failure.message.contains(char::is_control), "{:?}", failure.message);
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error_of_reading_and_not_missing() {
    let traces = std::process::Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    if !traces.is_ok_and(|status| status.success()) {
        skip!("strace is not here, or may not trace");
    }
    let directory = tempfile::tempdir().unwrap();
    let root = crate::tiny(directory.path(), "p").root;
    for name in ["current", "step-000000/config.json", "step-000000/version.json"] {
        let output = std::process::Command::new("strace")
            .args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "inject=statx,newfstatat,readlink,openat:error=EIO",
                "-P",
            ])
            .arg(root.join(name))
            .arg(env!("CARGO_BIN_EXE_policy"))
            .arg("check")
            .arg(&root)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{name}: {stderr}");
        assert!(stderr.contains(name) && stderr.contains("Input/output error"), "{name}: {stderr}");
    }
}
