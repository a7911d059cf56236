//! `export`: a run's team as one folder for other programs. The work is done by a Python program, which this one carries.

use std::process::Stdio;

use record::failure::Result;
use record::stage;

use crate::programs::{cannot_start, code_of, silent};

const EXPORT: &str = include_str!("export.py");
/// What the folder gets to play the team.
const PLAY: &str = include_str!("run_team.py");

/// Writes the team of a run to a new folder. `base` is what others call the base of its adapters; one from a hub has a name.
///
/// # Errors
/// No run with an evaluation, or the folder is there already (2); an incomplete run (65); no Python (69).
pub fn team(run: &str, folder: &str, base: Option<&str>) -> Result<()> {
    let mut command = stage::python();
    command.args(["-c", EXPORT, run, folder, base.unwrap_or_default(), PLAY]).stdin(Stdio::null());
    let status = command.status().map_err(|error| cannot_start("python3", &error))?;
    if status.success() { Ok(()) } else { Err(silent(code_of(status))) }
}
