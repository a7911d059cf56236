//! Tests of the crate through its public interface and its program. Each test makes new small policies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helper functions too")]

mod adapter;
mod commands;
mod config;
mod damage;
mod export;
mod families;
mod fuzz;
mod gguf;
mod gguf_export;
mod graph;
mod hostile;
mod hub;
mod initial;
mod publish;
mod runaway;
mod sources;
mod text;
mod tokenizer;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use policy::directory::Policy;
use policy::initial::Preset;

/// A tiny policy at `root/NAME`.
fn tiny(root: &Path, name: &str) -> Policy {
    policy::initial::from_preset(&root.join(name), Preset::Tiny, 7).unwrap()
}

/// Every file below a directory with its bytes (links with their targets), except locks and records of adapters.
fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                pending.push(path);
            } else if metadata.is_symlink() {
                all.insert(name, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
            } else if name != ".lock" && !name.ends_with(".adapters") {
                all.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    all
}

/// `policy` with its cache in the folder where it runs.
fn command(here: &Path, arguments: &[&str]) -> Command {
    let mut policy = Command::new(env!("CARGO_BIN_EXE_policy"));
    policy.args(arguments).current_dir(here).env("XDG_CACHE_HOME", here.join("cache"));
    policy
}

fn policy(here: &Path, arguments: &[&str]) -> Output {
    command(here, arguments).output().unwrap()
}

fn told(output: &Output) -> String {
    troupe_tests::program::text(&output.stderr)
}
