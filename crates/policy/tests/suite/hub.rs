//! The layout of Hugging Face's download cache: a snapshot of links into a folder of blobs named by their hashes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{self, Kind};
use policy::initial;
use policy::tokenizer::Tokenizer;
use policy::weights::{ElementType, Weights};
use troupe_tests::golden;

/// A snapshot of a golden checkpoint, as a download leaves it.
fn snapshot(root: &Path, name: &str) -> PathBuf {
    let (blobs, snapshot) = (root.join("blobs"), root.join("snapshots/0123abcd"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (index, entry) in fs::read_dir(golden(name)).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let blob = format!("{index:040x}");
        fs::copy(&path, blobs.join(&blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(path.file_name().unwrap())).unwrap();
    }
    snapshot
}

#[test]
fn a_snapshot_of_links_is_read_and_copied() {
    for name in ["qwen2-4-2-bf16-shards", "qwen3-4-2-bf16", "llama-4-1-f16"] {
        let directory = tempfile::tempdir().unwrap();
        let snapshot = snapshot(directory.path(), name);
        let opened = Policy::open(&snapshot).unwrap();
        assert_eq!(opened.version, Policy::open(&golden(name)).unwrap().version);
        let config = Config::load(&opened.files).unwrap();
        let weights = Weights::open(&opened.files).unwrap();
        weights.check(&config).unwrap();
        let folder = fs::canonicalize(directory.path().join("blobs")).unwrap();
        assert_eq!(weights.folder().unwrap(), folder);
        graph::decoder(&config, &weights, Kind::GroupQuery).unwrap();

        let made = initial::from_directory(&directory.path().join("policy"), &snapshot, None).unwrap();
        assert_eq!(made.version, opened.version);
        for entry in fs::read_dir(&made.files).unwrap() {
            let path = entry.unwrap().path();
            assert!(!path.is_symlink(), "{}", path.display());
        }
    }
}

#[test]
fn types_and_stop_tokens_are_those_of_the_files() {
    let load = |name: &str| Config::load(&golden(name)).unwrap();
    assert_eq!(load("qwen3-4-2-bf16").dtype, ElementType::BF16);
    assert_eq!(load("qwen2-4-2-bf16-shards").dtype, ElementType::BF16);
    assert_eq!(load("llama-4-1-f16").dtype, ElementType::F16);
    // The tokenizer's end first, then what generation_config.json adds.
    assert_eq!(Tokenizer::load(&golden("qwen3-4-2-bf16")).unwrap().stop_ids(), [2, 1]);
}
