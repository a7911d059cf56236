//! The kind of policy in a directory, judged by its vocabulary size. A run's numeric defaults depend on it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The kinds, in the order of [`Flag::defaults`](crate::flags::Flag::defaults).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// A small preset of this project.
    Tiny,
    /// A language model with all weights trained.
    Pretrained,
    /// Adapters over a language model.
    Adapters,
}

/// The kind of a policy directory, or of a model in Hugging Face or PEFT format. A missing directory counts
/// as tiny; `policy` reports it later.
pub fn of(directory: &Path) -> PolicyKind {
    let depth = 8; // limit, because a base may refer to itself
    of_at(directory, depth)
}

/// The kind of an agent's policy in a run, or of the directory that it is to be copied from.
pub fn of_agent(run: &str, agent: &str, directory: &Path) -> PolicyKind {
    let own = Path::new(run).join("policies").join(agent);
    of(if !run.is_empty() && own.is_dir() { &own } else { directory })
}

fn of_at(directory: &Path, depth: usize) -> PolicyKind {
    let current = directory.join("current");
    let versions = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let newest = || {
        versions
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
            .max()
    };
    // A copy may have the link as text.
    let folder = Some(current).filter(|current| current.is_dir()).or_else(newest);
    let folder = folder.unwrap_or_else(|| directory.to_path_buf());
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
