//! What kind of policy a directory holds, by its vocabulary: the numbers of a run default by it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The columns of the numbers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// A preset of this project.
    Tiny,
    /// A language model, all of whose weights are trained.
    Pretrained,
    /// Adapters of one.
    Adapters,
}

/// The kind of a policy directory, or of one in Hugging Face or PEFT format; tiny if it does not exist, which
/// `policy` will report.
pub fn of(directory: &Path) -> PolicyKind {
    let depth = 8; // a base of a base of itself
    of_at(directory, depth)
}

fn of_at(directory: &Path, depth: usize) -> PolicyKind {
    let current = directory.join("current");
    let folder = if current.is_dir() { current } else { directory.to_path_buf() };
    let read =
        |name: &str| -> Option<Value> { serde_json::from_slice(&fs::read(folder.join(name)).ok()?).ok() };
    if let Some(adapter) = read("adapter_config.json") {
        let beside = directory.join("base");
        let base = if beside.is_dir() {
            Some(beside)
        } else {
            adapter["base_model_name_or_path"].as_str().map(PathBuf::from)
        };
        return match base.filter(|_| depth > 0).map(|base| of_at(&base, depth - 1)) {
            Some(PolicyKind::Tiny) | None => PolicyKind::Tiny,
            Some(_) => PolicyKind::Adapters,
        };
    }
    match read("config.json").and_then(|config| config["vocab_size"].as_u64()) {
        Some(size) if size >= 1000 => PolicyKind::Pretrained,
        _ => PolicyKind::Tiny,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_tells() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let of = |name: &str| of(&folder.path().join(name));
        write("tiny/current/config.json", "{\"vocab_size\":64}");
        write("model/config.json", "{\"vocab_size\":32000}");
        let base = |name: &str| {
            format!("{{\"base_model_name_or_path\":\"{}\"}}", folder.path().join(name).display())
        };
        write("a/current/adapter_config.json", &base("tiny"));
        write("b/adapter_config.json", &base("model"));
        write("loop/adapter_config.json", &base("loop"));
        write("broken/config.json", "{");
        assert_eq!(of("tiny"), PolicyKind::Tiny);
        assert_eq!(of("model"), PolicyKind::Pretrained);
        assert_eq!(of("a"), PolicyKind::Tiny);
        assert_eq!(of("b"), PolicyKind::Adapters);
        for none in ["loop", "broken", "nowhere"] {
            assert_eq!(of(none), PolicyKind::Tiny, "{none}");
        }
    }
}
