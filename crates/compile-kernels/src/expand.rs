//! Expands a `.cu` file's local includes into one self-contained text.
//!
//! NVRTC then needs no include path, the text's hash can name the compiled kernel in the cache, and both
//! compilers read the same bytes. Only `#include "..."` is expanded: first from the folder of the including
//! file, then from the project's `cuda`. `#include <...>` is left to the compiler. Each file is included
//! once. `#line` keeps line numbers in messages right.

use std::path::{Path, PathBuf};

use crate::include_directory;

/// A source file with its includes expanded.
pub struct Expanded {
    /// The self-contained text.
    pub text: String,
    /// All files read.
    pub files: Vec<PathBuf>,
}

/// Expands the file at `path`.
pub fn expand(path: &Path) -> Result<Expanded, String> {
    expand_with(path, &|_, text| text)
}

/// [`expand`] with each file's text passed through `edit` first; tests use it to plant bugs.
pub fn expand_with(path: &Path, edit: &dyn Fn(&Path, String) -> String) -> Result<Expanded, String> {
    let mut expanded = Expanded { text: String::new(), files: Vec::new() };
    add(path, edit, &mut expanded)?;
    Ok(expanded)
}

fn add(path: &Path, edit: &dyn Fn(&Path, String) -> String, into: &mut Expanded) -> Result<(), String> {
    let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
    if into.files.contains(&path) {
        return Ok(());
    }
    into.files.push(path.clone());
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = edit(&path, text);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    into.text.push_str(&format!("#line 1 \"{name}\"\n"));
    for (index, line) in text.lines().enumerate() {
        match included(line) {
            Some(wanted) => {
                let beside = path.with_file_name(wanted);
                let found = if beside.exists() { beside } else { include_directory().join(wanted) };
                add(&found, edit, into).map_err(|cause| format!("{name}:{}: {cause}", index + 1))?;
                into.text.push_str(&format!("#line {} \"{name}\"\n", index + 2));
            }
            None if line.trim() == "#pragma once" => into.text.push('\n'),
            None => {
                into.text.push_str(line);
                into.text.push('\n');
            }
        }
    }
    Ok(())
}

/// The file that a line includes in quotes.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim().strip_prefix('"')?.split('"').next()
}
