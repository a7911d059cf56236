//! Refuses an argument of `policy init --from` that is no model, and hints at the right one.

use std::fs;
use std::path::{Path, PathBuf};

use policy::{gguf, hub};
use record::failure::{Failure, Result};

/// Refuses anything that is not a model directory.
///
/// # Errors
/// Exit 65, or 2 if nothing exists at the path, with the command that works if the intention can be guessed.
pub fn check(source: &Path) -> Result<()> {
    let shown = source.to_string_lossy().replace(char::is_control, "\u{fffd}");
    let refused = |cause: &str, hint: String| Err(Failure::data(format!("{shown}: {cause}")).hint(hint));
    if gguf::is_gguf(source) {
        let hint = format!(
            "make a policy of the file first: policy init run/base --from {shown}; then --from run/base"
        );
        return refused("an adapter rests on a directory, not on a GGUF file", hint);
    }
    if source.is_file() {
        return refused("neither a directory nor a GGUF file", takes());
    }
    if !source.exists() && !source.is_symlink() {
        let absent = |hint: String| Err(Failure::usage(format!("{shown}: no such directory")).hint(hint));
        return absent(match is_hub_name(&shown) {
            true => format!("if that is a model's name on a hub: --from hf:{shown}"),
            false => takes(),
        });
    }
    let is_model = ["current", "config.json", "adapter_config.json"]
        .iter()
        .any(|name| source.join(name).symlink_metadata().is_ok());
    match files(source).first() {
        Some(file) if !is_model => refused(
            "no Hugging Face directory, but it holds a GGUF file",
            format!("name the file: --from {}", file.display()),
        ),
        _ => Ok(()),
    }
}

fn takes() -> String {
    "--from takes a directory with config.json, tokenizer.json and model.safetensors, a policy directory, a hub's model as \
     hf:ORG/NAME, or a GGUF file"
        .to_owned()
}

/// Returns true if it looks like `Qwen/Qwen3-0.6B`.
fn is_hub_name(text: &str) -> bool {
    text.contains('/') && hub::is_name(text)
}

/// The GGUF files of a directory, sorted.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| gguf::is_gguf(path)).collect();
    files.sort();
    files
}
