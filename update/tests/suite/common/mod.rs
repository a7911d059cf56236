//! A policy directory made of a golden checkpoint, its stream, and `update` as a user runs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use policy::directory::Policy;
use policy::weights::{ElementType, Weights};
use serde_json::Value;
use tempfile::TempDir;
pub use troupe_tests::golden;
use troupe_tests::program::{lines, run_on, start, texts};

/// The golden checkpoint that most tests train.
pub const GOLDEN: &str = "qwen3-2-1-tied";

/// The program; `TROUPE_TEST_PROGRAMS` names another folder of programs.
pub fn program() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_update"));
    std::env::var_os("TROUPE_TEST_PROGRAMS").map_or_else(built, |folder| Path::new(&folder).join("update"))
}

/// What a call of `update` did.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The lines of stdout.
    pub fn lines(&self) -> Vec<Value> {
        lines(&self.stdout)
    }

    /// The lines of one type.
    pub fn of_type(&self, kind: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["type"] == kind).collect()
    }

    /// The only metrics line.
    pub fn metrics(&self) -> Value {
        let mut metrics = self.of_type("metrics");
        assert_eq!(metrics.len(), 1, "{self:?}");
        metrics.remove(0)
    }

    /// The `end` line.
    pub fn end(&self) -> Value {
        let mut ends = self.of_type("end");
        assert_eq!(ends.len(), 1, "{self:?}");
        ends.remove(0)
    }

    /// Exit code 0, or the whole outcome in the panic.
    pub fn ok(self) -> Outcome {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// stdout without times.
    pub fn without_timing(&self) -> Vec<Value> {
        let mut lines = self.lines();
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("timing")));
        lines
    }
}

/// A folder for one test, with policies in it.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: TempDir::new().unwrap() }
    }

    /// A policy directory with a golden checkpoint as its version 0.
    pub fn policy(&self, name: &str, golden_name: &str) -> PathBuf {
        let root = self.folder.path().join(name);
        let files = root.join("step-000000");
        fs::create_dir_all(&files).unwrap();
        for entry in fs::read_dir(golden(golden_name)).unwrap() {
            let path = entry.unwrap().path();
            let own = ["samples.jsonl", "gradient.json", "gradient.safetensors", "logprobs.json"];
            if !own.contains(&path.file_name().unwrap().to_str().unwrap()) {
                fs::copy(&path, files.join(path.file_name().unwrap())).unwrap();
            }
        }
        std::os::unix::fs::symlink("step-000000", root.join("current")).unwrap();
        root
    }

    /// `update` in the folder, which is how policies can be named by their names. The golden streams were recorded by no
    /// policy of these tests, so unless a test says otherwise they may differ by any gap.
    pub fn update(&self, arguments: &str, input: &str) -> Outcome {
        let trains = !["--max-logprob-gap", "--check", "nll"].iter().any(|said| arguments.contains(said));
        self.run(&format!("{arguments}{}", if trains { " --max-logprob-gap 0" } else { "" }), input)
    }

    /// `update` with these arguments alone.
    pub fn run(&self, arguments: &str, input: &str) -> Outcome {
        let output = run_on(&mut self.command(arguments), input);
        let (code, stdout, stderr) = texts(&output);
        Outcome { code: code.unwrap_or(-1), stdout, stderr }
    }

    /// `update`, waiting for its input.
    pub fn spawn(&self, arguments: &str) -> std::process::Child {
        start(&mut self.command(arguments))
    }

    fn command(&self, arguments: &str) -> Command {
        let mut update = Command::new(program());
        update.args(arguments.split_whitespace()).current_dir(self.folder.path());
        // The golden steps are one step of the optimizer at the whole rate.
        for (flag, value) in [("--minibatches", "1"), ("--lr-warmup", "0")] {
            if !arguments.contains(flag) {
                update.args([flag, value]);
            }
        }
        update
    }
}

/// The version that a policy directory's `current` is.
pub fn version(root: &Path) -> String {
    Policy::open(root).unwrap().version.to_string()
}

/// A golden stream whose samples name a version.
pub fn stream(golden_name: &str, version: &str) -> String {
    fs::read_to_string(golden(golden_name).join("samples.jsonl")).unwrap().replace("0:DIGEST", version)
}

/// A stream whose samples were changed by `change`, which gets the sample's index too.
pub fn edited(stream: &str, mut change: impl FnMut(usize, &mut Value)) -> String {
    let mut text = String::new();
    for (index, line) in stream.lines().enumerate() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        if value["type"] == "sample" {
            change(index, &mut value);
        }
        text.push_str(&format!("{value}\n"));
    }
    text
}

/// Every file of a policy directory with its bytes, links as the path they name.
pub fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() {
                found.insert(
                    path.clone(),
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                );
            } else if path.is_dir() {
                folders.push(path);
            } else if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// The weights of the version that `current` is, by name.
pub fn weights(root: &Path) -> BTreeMap<String, Vec<f32>> {
    let weights = Weights::open(&root.join("current")).unwrap();
    weights.names().map(|name| (name.to_owned(), weights.to_f32(name).unwrap())).collect()
}

/// One policy `p` and a whole stream of its samples.
pub fn one() -> (Place, PathBuf, String) {
    let place = Place::new();
    let root = place.policy("p", GOLDEN);
    let input = stream(GOLDEN, &version(&root));
    (place, root, input)
}

/// Returns true if a version was added to a policy.
pub fn published(root: &Path) -> bool {
    root.join("step-000001").exists()
}

/// The f32 masters of a bf16 or f16 version, out of its two files, as bits.
pub fn masters(root: &Path) -> BTreeMap<String, Vec<u32>> {
    let files = root.join("current");
    let published = Weights::open(&files).unwrap();
    let beside = Weights::open_file(&files.join("optimizer.safetensors")).unwrap();
    let master = |name: &str| -> Vec<u32> {
        if published.tensor(name).unwrap().dtype == ElementType::F16 {
            let whole = beside.to_f32(&format!("master.{name}")).unwrap();
            return whole.into_iter().map(f32::to_bits).collect();
        }
        let lower = beside.tensor(&format!("lower.{name}")).unwrap();
        let halves = lower.bytes.as_chunks::<2>().0.iter().map(|&two| u16::from_le_bytes(two));
        let values = published.to_f32(name).unwrap();
        values
            .into_iter()
            .zip(halves)
            .map(|(value, half)| update::weights::join(value, half).to_bits())
            .collect()
    };
    published.names().map(|name| (name.to_owned(), master(name))).collect()
}
