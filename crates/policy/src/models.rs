//! Models by name: a preset, a hub's model, a GGUF file or a directory becomes a directory that can be opened.
//!
//! A GGUF file is converted once. The policy directory that comes out stays in the user's cache, keyed by the file's
//! path, size and modification time and by the weights' type, and runs link its weights instead of writing them again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use record::stage;
use serde_json::Value;

use crate::digest;
use crate::directory::Policy;
use crate::durable;
use crate::files::{io_failure, show};
use crate::gguf;
use crate::hub::HubModel;
use crate::initial;
use crate::lock;
use crate::pretrained;
use crate::weights::ElementType;

/// A smaller file is converted in a moment, which is not worth a folder in the cache.
const SMALL: u64 = 64 << 20;

/// Changes with the conversion of GGUF files, so that older results are not used.
const CONVERSION: u32 = 1;

/// The directory of a model, fetched and converted where necessary. `dtype` is the type of the weights of a GGUF file.
///
/// # Errors
/// See [`HubModel::fetch`] and [`gguf::policy`]; 69 if there is no cache directory for a conversion.
pub fn directory(model: &Path, dtype: ElementType, quiet: bool) -> Result<PathBuf> {
    let found = match HubModel::parse(model)? {
        Some(hub) => hub.fetch(quiet)?,
        None if model == Path::new(pretrained::NAME) => pretrained::file(quiet)?,
        None => model.to_owned(),
    };
    if gguf::is_gguf(&found) { converted(&found, dtype, quiet) } else { Ok(found) }
}

/// Makes a policy from a GGUF file. A large file is converted in the cache, and the policy links those weights. `template`
/// holds further variables of the chat template, see [`initial::from_directory`].
pub fn from_gguf(
    root: &Path,
    file: &Path,
    dtype: ElementType,
    template: Option<&Value>,
    quiet: bool,
) -> Result<Policy> {
    let size = file.metadata().map_err(|error| io_failure(file, &error))?.len();
    if size < SMALL || digest::cache().is_none() {
        return gguf::policy(root, file, dtype, template);
    }
    initial::refuse_occupied(root)?;
    initial::from_directory(root, &converted(file, dtype, quiet)?, template)
}

/// The policy directory of a GGUF file in the user's cache, made if it is not there yet.
pub fn converted(file: &Path, dtype: ElementType, quiet: bool) -> Result<PathBuf> {
    let cache = digest::cache().ok_or_else(|| {
        Failure::unavailable("no cache directory: neither XDG_CACHE_HOME nor HOME is set")
            .hint("a GGUF file is converted once, into that directory: set XDG_CACHE_HOME")
    })?;
    let folder = cache.join("models");
    let root = folder.join(name(file, dtype)?);
    fs::create_dir_all(&folder).map_err(|error| io_failure(&folder, &error))?;
    let _lock = lock::lock_folder(&folder, &[])?;
    if Policy::open(&root).is_ok() {
        return Ok(root);
    }
    // A crash left it.
    durable::remove(&root)?;
    if !quiet {
        stage::note("policy", format_args!("converting {} once, into {}", show(file), show(&root)));
    }
    gguf::policy(&root, file, dtype, None)?;
    Ok(root)
}

/// The folder of a conversion: the file's name, and a hash of what identifies its content.
fn name(file: &Path, dtype: ElementType) -> Result<String> {
    let canonical = file.canonicalize().map_err(|error| io_failure(file, &error))?;
    let found = fs::metadata(&canonical).map_err(|error| io_failure(file, &error))?;
    let modified = (found.mtime(), found.mtime_nsec());
    let identity = (&canonical, found.dev(), found.ino(), found.len(), modified, dtype, CONVERSION);
    let hash = blake3::hash(format!("{identity:?}").as_bytes()).to_hex();
    let stem = canonical.file_stem().unwrap_or_default().to_string_lossy().replace(char::is_control, "_");
    Ok(format!("{stem}-{}", &hash.as_str()[..16]))
}
