//! `report compress`: streams of a run that no step reads any more, compressed.
//!
//! Left out: metrics, which are small, and evaluations, which every end of a run reads.

use std::io::ErrorKind;

use record::compressed;
use record::failure::{Failure, Result};
use record::stage;

use crate::arguments::Compress;
use crate::run;

/// Compresses files, and of runs the samples and tasks of committed steps.
///
/// # Errors
/// A file that is not there (2), or cannot be read or written (74).
pub fn run(arguments: &Compress) -> Result<()> {
    let (mut files, mut before, mut after) = (Vec::new(), 0, 0);
    for path in &arguments.paths {
        match path.is_dir() {
            true => files.extend(run::uncompressed(path)?),
            false if !path.exists() => {
                return Err(Failure::named_file(path, &ErrorKind::NotFound.into()));
            }
            false => files.push(path.clone()),
        }
    }
    files.retain(|path| path.extension().is_none_or(|extension| extension != "zst"));
    for path in &files {
        let (from, to) = compressed::compress(path)?;
        (before, after) = (before + from, after + to);
    }
    if !arguments.quiet {
        let (files, megabytes) =
            (stage::counted(files.len() as u64, "file"), |bytes: u64| bytes as f64 / 1e6);
        stage::note(
            "report",
            format!("{files}, {:.2} MB compressed to {:.2} MB", megabytes(before), megabytes(after)),
        );
    }
    Ok(())
}
