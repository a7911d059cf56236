//! Selects the files of a Hugging Face directory that belong to a policy besides its weights.
//!
//! A downloaded folder holds more than a checkpoint: the same weights in other formats (next to new weights
//! they would be another model), optimizer states, version control. Configuration, tokenizer, chat templates,
//! license and any small unknown file are copied byte for byte; every other file is listed with the reason
//! for leaving it out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use record::failure::{Failure, Result};

use crate::adapter;
use crate::chat;
use crate::directory::Policy;
use crate::durable;
use crate::files::{io_failure, show};
use crate::layout::VERSION_FILE;
use crate::training_state::{OPTIMIZER, TRAINER_STATE};
use crate::weights::{INDEX, SINGLE};

/// Extensions of weights and optimizer states in formats that are not read.
const FOREIGN: &str = "bin ckpt engine ggml gguf h5 mlmodel msgpack nemo npz onnx ot pdparams pickle pkl pt pth \
                       safetensors tflite";
/// Folders of weights in other formats, by Meta and by converters.
const FOREIGN_FOLDERS: [&str; 6] = ["coreml", "gguf", "onnx", "openvino", "original", "tflite"];
/// Files that every checkpoint has, which are copied however large they are.
const OF_A_CHECKPOINT: &str = "added_tokens.json chat_template.jinja chat_template.json config.json generation_config.json \
                        merges.txt model.safetensors.index.json special_tokens_map.json tokenizer.json tokenizer.model \
                        tokenizer_config.json vocab.json";
/// Any other file above this size, in bytes, does not describe a model, and would be copied at every training step.
const LARGE: u64 = 64 << 20;

const OTHER_FORMAT: &str = "weights or training state that is not read";
const STATE: &str = "state of a training";

/// Something in a directory that is not part of the policy in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its path from there; a folder's ends in a slash.
    pub path: String,
    /// Why, in a few words.
    pub reason: &'static str,
}

/// What `policy init --from` does not copy from a policy's directory, sorted by path: neither the weights, which are copied
/// as such, nor a published version's account of how it was made.
pub fn left_out(policy: &Policy) -> Result<Vec<LeftOut>> {
    let mut own: BTreeSet<String> = BTreeSet::new();
    if policy.is_writable_layout() {
        own.extend([OPTIMIZER, TRAINER_STATE, VERSION_FILE].map(str::to_owned));
    }
    if policy.base.is_some() {
        own.insert(adapter::WEIGHTS.to_owned());
    } else {
        let weights = policy.weights()?;
        let names = weights.files().filter_map(|(path, _)| path.file_name()?.to_str());
        own.extend(names.map(str::to_owned));
    }
    let mut found = survey(&policy.files)?.left_out;
    found.retain(|left_out| !own.contains(&left_out.path));
    Ok(found)
}

/// Copies a policy's side files, everything except weights.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    bring(from, to, durable::copy)
}

/// Copies what a tokenizer and its chat template need.
pub(crate) fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    let needed = |name: &str| {
        OF_A_CHECKPOINT.split_whitespace().any(|known| known == name)
            || [chat::ARGUMENTS, chat::TOOL_USE_FILE].contains(&name)
    };
    let of_model = ["config.json", "generation_config.json", INDEX];
    let mut names =
        survey(from)?.files.into_iter().filter(|name| needed(name) && !of_model.contains(&name.as_str()));
    names.try_for_each(|name| durable::copy(&from.join(&name), &to.join(&name)))
}

/// Hard-links them from one version to the next: the files of a version never change.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    bring(from, to, durable::link)
}

fn bring(from: &Path, to: &Path, one: impl Fn(&Path, &Path) -> Result<()>) -> Result<()> {
    for file in survey(from)?.files {
        let brought = to.join(&file);
        let folder = brought.parent().unwrap_or(to);
        fs::create_dir_all(folder).map_err(|error| durable::failure(folder, &error))?;
        one(&from.join(&file), &brought)?;
    }
    Ok(())
}

/// Files to copy, as paths from the directory, and the files left out.
#[derive(Default)]
struct Survey {
    files: Vec<String>,
    left_out: Vec<LeftOut>,
}

fn survey(root: &Path) -> Result<Survey> {
    let mut survey = Survey::default();
    survey.walk(root, "")?;
    survey.files.sort_unstable();
    survey.left_out.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(survey)
}

impl Survey {
    /// Walks a folder; `prefix` is its path from the directory, with a slash at the end.
    fn walk(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        // An index next to a single file is not read, and would send other programs to missing shards.
        let single = prefix.is_empty() && fs::symlink_metadata(folder.join(SINGLE)).is_ok();
        for entry in fs::read_dir(folder).map_err(|error| io_failure(folder, &error))? {
            let entry = entry.map_err(|error| io_failure(folder, &error))?;
            let path = entry.path();
            let name = entry
                .file_name()
                .into_string()
                .map_err(|_| Failure::data(format!("{}: the file's name is not UTF-8", show(&path))))?;
            let by_name = match single && name == INDEX {
                true => Some("an index of shards next to model.safetensors, which is read instead"),
                false => by_name(&name, prefix.is_empty()),
            };
            // A name that decides is not looked behind: an interrupted download leaves dangling links.
            let metadata = if by_name.is_some() { fs::symlink_metadata(&path) } else { fs::metadata(&path) };
            let metadata = metadata.map_err(|error| io_failure(&path, &error))?;
            let link = fs::symlink_metadata(&path).map_err(|error| io_failure(&path, &error))?;
            let strange = link.is_symlink() && link.uid() != metadata.uid();
            // SAFETY: takes no arguments and cannot fail.
            let user = unsafe { libc::geteuid() };
            let needed = is_among(OF_A_CHECKPOINT, &name);
            if strange && needed && ![0, user].contains(&link.uid()) {
                return Err(Failure::data(format!(
                    "{}: somebody else's link to another user's file",
                    show(&path)
                ))
                .hint("put the file itself there: what links lead to is copied into every version"));
            }
            let reason = by_name.or_else(|| match metadata.is_dir() {
                _ if strange && !needed => Some("a link to another user's file"),
                true if link.is_symlink() => Some("a link to a folder"),
                true => by_folder(&name),
                false if !metadata.is_file() => Some("not a file"),
                false if metadata.len() <= LARGE || needed => None,
                false => Some("larger than 64 MiB"),
            });
            let relative = format!("{prefix}{name}{}", if metadata.is_dir() { "/" } else { "" });
            match reason {
                Some(reason) => self.left_out.push(LeftOut { path: relative, reason }),
                None if metadata.is_dir() => self.walk(&path, &relative)?,
                None => self.files.push(relative),
            }
        }
        Ok(())
    }
}

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// Why something of this name is left out, whatever it is; `top` says whether it lies in the directory itself.
fn by_name(name: &str, top: bool) -> Option<&'static str> {
    let foreign = |name: &str| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| is_among(FOREIGN, &extension.to_ascii_lowercase()))
    };
    // Such as pytorch_model.bin.index.json, and model.onnx_data or model.onnx.data_1.
    let index = name.strip_suffix(".index.json").filter(|_| !(top && name == INDEX));
    if name.starts_with('.') || name == "__pycache__" {
        Some("hidden")
    } else if top && [OPTIMIZER, TRAINER_STATE, VERSION_FILE].contains(&name) {
        Some(STATE)
    } else if foreign(name) || index.is_some_and(foreign) || name.contains(".onnx") {
        Some(OTHER_FORMAT)
    } else {
        None
    }
}

/// Reason for leaving out a folder.
fn by_folder(name: &str) -> Option<&'static str> {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    if FOREIGN_FOLDERS.contains(&name) || name.ends_with(".mlpackage") {
        Some(OTHER_FORMAT)
    } else if numbered("checkpoint-") {
        Some("a separate checkpoint")
    } else if numbered("global_step") {
        Some(STATE)
    } else {
        None
    }
}
