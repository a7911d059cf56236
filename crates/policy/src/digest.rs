//! The digest of weights: the BLAKE3 hash of the weight files' bytes, in the order of their names.
//!
//! For a single file it equals the output of `b3sum model.safetensors`. Published versions record it. For
//! plain Hugging Face directories, which may be read-only, it is computed; for large files it is cached in
//! the user's cache directory, keyed by path, size and modification time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use record::failure::Result;

use crate::files::io_failure;
use crate::weights::Weights;

/// Weights up to this size, in bytes, are hashed again instead: it takes a few hundredths of a second.
const SMALL: usize = 64 << 20;

/// Bytes that are hashed before their memory is given back.
const PIECE: usize = 64 << 20;

/// The digest of mapped weights, 64 hexadecimal digits; on one core about 4 GiB a second.
pub(crate) fn of(weights: &Weights) -> String {
    let mut hasher = blake3::Hasher::new();
    for (_, bytes) in weights.files() {
        for piece in bytes.chunks(PIECE) {
            hasher.update(piece);
            weights.release();
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// The digest of an adapter, over the base's digest, the scale, and the digest of the adapter's weights.
pub(crate) fn of_adapter(weights: &str, scale: f32, base: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.as_bytes());
    hasher.update(&scale.to_le_bytes());
    hasher.update(weights.as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Like [`of`], but cached for large files.
pub(crate) fn cached(weights: &Weights) -> Result<String> {
    let size: usize = weights.files().map(|(_, bytes)| bytes.len()).sum();
    let slot = if size > SMALL { slot(weights)? } else { None };
    let Some(slot) = slot else { return Ok(of(weights)) };
    let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(digest) = fs::read_to_string(&slot).ok().filter(is_digest) {
        return Ok(digest);
    }
    let digest = of(weights);
    // A cache that cannot be written is no reason to fail.
    if let Some(parent) = slot.parent()
        && fs::create_dir_all(parent).is_ok()
    {
        let unfinished = slot.with_extension(std::process::id().to_string());
        if fs::write(&unfinished, &digest).is_ok() {
            let _ = fs::rename(&unfinished, &slot);
        }
    }
    Ok(digest)
}

/// The cache file for these weights; `None` if the user has no cache directory.
fn slot(weights: &Weights) -> Result<Option<PathBuf>> {
    let mut identity = String::new();
    for (path, _) in weights.files() {
        let canonical = path.canonicalize().map_err(|error| io_failure(path, &error))?;
        let metadata = fs::metadata(&canonical).map_err(|error| io_failure(path, &error))?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        identity += &format!("{:?}", (canonical, metadata.dev(), metadata.ino(), metadata.len(), modified));
    }
    let name = blake3::hash(identity.as_bytes()).to_hex();
    Ok(cache().map(|cache| cache.join("digests").join(&name.as_str()[..32])))
}

/// The folder of this project in the user's cache directory, if there is one.
pub(crate) fn cache() -> Option<PathBuf> {
    let home =
        |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| home("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("troupe"))
}
