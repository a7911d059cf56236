//! Which files of a Hugging Face directory belong to a policy beside its weights, and which merely lie there.
//!
//! A folder that was downloaded or trained in holds more than a checkpoint: the same weights in other formats, which beside
//! new weights would be another model, optimizers, version control. Configuration, tokenizer, chat templates, license and
//! whatever small file nobody here knows are kept, byte for byte; what is left out can be asked for, so that it can be said.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

use crate::adapter;
use crate::directory::{Policy, VERSION_FILE};
use crate::durable;
use crate::json::{io_failure, show};
use crate::publish::{OPTIMIZER, TRAINER_STATE};
use crate::weights::{INDEX, SINGLE, Weights};

/// Endings of weights, and of an optimizer's state, in formats that are not read.
const FOREIGN: [&str; 19] = [
    "bin",
    "ckpt",
    "engine",
    "ggml",
    "gguf",
    "h5",
    "mlmodel",
    "msgpack",
    "nemo",
    "npz",
    "onnx",
    "ot",
    "pdparams",
    "pickle",
    "pkl",
    "pt",
    "pth",
    "safetensors",
    "tflite",
];
/// Folders of weights in other formats: Meta's, and those of converters.
const FOREIGN_FOLDERS: [&str; 6] = ["coreml", "gguf", "onnx", "openvino", "original", "tflite"];
/// Files that are read from a checkpoint, however large they are.
const READ: [&str; 12] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    INDEX,
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];
/// Any other file beyond this, in bytes, is no description of a model, and would be copied at every step of a training.
const LARGE: u64 = 64 << 20;

const HIDDEN: &str = "hidden";
const OTHER_FORMAT: &str = "weights or training state that is not read";
const STATE: &str = "state of a training";
const CHECKPOINT: &str = "a checkpoint of its own";
const STALE_INDEX: &str = "an index of shards beside model.safetensors, which is what is read";
const TOO_LARGE: &str = "larger than 64 MiB";
const LINK: &str = "a link to a folder";
const NO_FILE: &str = "not a file";

/// Something that lies in a directory and is not part of the policy in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its path from there; a folder's ends in a slash.
    pub path: String,
    /// Why, in a few words.
    pub reason: &'static str,
}

/// Files to copy, and what stays behind.
#[derive(Debug, Default)]
struct Survey {
    /// Paths from the directory, a folder's files together.
    files: Vec<PathBuf>,
    left_out: Vec<LeftOut>,
}

/// What `policy init --from` leaves behind in the directory of a policy, sorted by path. Not mentioned are the weights, which
/// are copied as such, and of a published version what says how it was made.
///
/// # Errors
/// The directory cannot be read.
pub fn left_out(policy: &Policy) -> Result<Vec<LeftOut>> {
    let mut own: BTreeSet<String> = BTreeSet::new();
    if policy.is_writable_layout() {
        own.extend([OPTIMIZER, TRAINER_STATE, VERSION_FILE].map(str::to_owned));
    }
    if policy.base.is_some() {
        own.insert(adapter::WEIGHTS.to_owned());
    } else {
        let weights = Weights::open(&policy.files)?;
        let names = weights.files().filter_map(|(path, _)| path.file_name()?.to_str());
        own.extend(names.map(str::to_owned));
    }
    let mut found = survey(&policy.files)?.left_out;
    found.retain(|left_out| !own.contains(&left_out.path));
    Ok(found)
}

/// Copies what belongs to the policy in a directory beside its weights.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    for file in survey(from)?.files {
        let copied = to.join(&file);
        let folder = copied.parent().unwrap_or(to);
        fs::create_dir_all(folder).map_err(|error| durable::failure(folder, &error))?;
        durable::copy(&from.join(&file), &copied)?;
    }
    Ok(())
}

fn survey(root: &Path) -> Result<Survey> {
    let mut survey = Survey::default();
    // An index that is not read would send other programs to shards that are not there.
    let stale = fs::symlink_metadata(root.join(SINGLE)).is_ok().then_some(INDEX);
    look(root, Path::new(""), stale, &mut survey)?;
    survey.files.sort_unstable();
    survey.left_out.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(survey)
}

/// Looks through the folder `inside` of the directory `root`.
fn look(root: &Path, inside: &Path, stale: Option<&str>, survey: &mut Survey) -> Result<()> {
    let folder = root.join(inside);
    for entry in fs::read_dir(&folder).map_err(|error| io_failure(&folder, &error))? {
        let entry = entry.map_err(|error| io_failure(&folder, &error))?;
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Err(Failure::data(format!("{}: the file's name is not UTF-8", show(&path))));
        };
        let relative = inside.join(name);
        let top = inside.as_os_str().is_empty();
        let reason = match stale.filter(|&stale| top && stale == name) {
            Some(_) => Some(STALE_INDEX),
            None => by_name(name, top),
        };
        // What its name decides is not looked at: a download that was cut leaves links that lead nowhere.
        let metadata = match reason {
            Some(_) => fs::symlink_metadata(&path),
            None => fs::metadata(&path),
        };
        let metadata = metadata.map_err(|error| io_failure(&path, &error))?;
        let linked = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let reason = match reason {
            Some(reason) => Some(reason),
            None if metadata.is_dir() && linked => Some(LINK),
            None if metadata.is_dir() => by_folder(name),
            None if !metadata.is_file() => Some(NO_FILE),
            None if metadata.len() > LARGE && !READ.contains(&name) => Some(TOO_LARGE),
            None => None,
        };
        match reason {
            Some(reason) => {
                let slash = if metadata.is_dir() { "/" } else { "" };
                survey.left_out.push(LeftOut { path: format!("{}{slash}", show(&relative)), reason });
            }
            None if metadata.is_dir() => look(root, &relative, stale, survey)?,
            None => survey.files.push(relative),
        }
    }
    Ok(())
}

/// Why something of this name is left out, whatever it is; `top` says whether it lies in the directory itself.
fn by_name(name: &str, top: bool) -> Option<&'static str> {
    let extension = |name: &str| Path::new(name).extension()?.to_str().map(str::to_ascii_lowercase);
    let foreign = |name: &str| extension(name).is_some_and(|extension| FOREIGN.contains(&extension.as_str()));
    // Such as pytorch_model.bin.index.json, and model.onnx_data or model.onnx.data_1.
    let index = name.strip_suffix(".index.json").filter(|_| !(top && name == INDEX));
    if name.starts_with('.') || name == "__pycache__" {
        Some(HIDDEN)
    } else if top && [OPTIMIZER, TRAINER_STATE, VERSION_FILE].contains(&name) {
        Some(STATE)
    } else if foreign(name) || index.is_some_and(foreign) || name.contains(".onnx") {
        Some(OTHER_FORMAT)
    } else {
        None
    }
}

/// The same for a folder.
fn by_folder(name: &str) -> Option<&'static str> {
    let counted = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    if FOREIGN_FOLDERS.contains(&name) || name.ends_with(".mlpackage") {
        Some(OTHER_FORMAT)
    } else if counted("checkpoint-") {
        Some(CHECKPOINT)
    } else if counted("global_step") {
        Some(STATE)
    } else {
        None
    }
}
