//! `report compress`: streams of a run that no step reads any more, compressed.
//!
//! Left out: metrics, which are small, and evaluations, which every end of a run reads.

use std::io::ErrorKind;

use record::compressed;
use record::failure::{Failure, Result};
use record::stage;

use crate::arguments::Compress;
use crate::run_directory;

/// Compresses files, and of runs the samples and tasks of committed steps.
///
/// # Errors
/// A file that is not there (2), or cannot be read or written (74).
pub fn run(arguments: &Compress) -> Result<()> {
    let (mut files, mut count, mut before, mut after) = (Vec::new(), 0, 0, 0);
    for path in &arguments.paths {
        match path.is_dir() {
            true => files.extend(run_directory::compressible_streams(path)?),
            false if path.is_file() || compressed::path(path).is_file() => files.push(path.clone()),
            false if path.exists() => {
                return Err(Failure::usage(format!("{}: not a file that can be replaced", path.display()))
                    .hint(
                        "name a regular file or a run directory; a pipe is compressed with: zstd < IN > OUT",
                    ));
            }
            false => return Err(Failure::named_file(path, &ErrorKind::NotFound.into())),
        }
    }
    files.retain(|path| path.extension().is_none_or(|extension| extension != "zst"));
    for path in &files {
        // None: another process did it, as a run with --compress does.
        if let Some((from, to)) = compressed::compress(path)? {
            (count, before, after) = (count + 1, before + from, after + to);
        }
    }
    if !arguments.quiet {
        let (files, megabytes) = (stage::counted(count, "file"), |bytes: u64| bytes as f64 / 1e6);
        stage::note(
            "report",
            format!("{files}, {:.2} MB compressed to {:.2} MB", megabytes(before), megabytes(after)),
        );
    }
    Ok(())
}
