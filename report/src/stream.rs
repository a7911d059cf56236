//! A stream in a file, read line by line.

use std::fs::File;
use std::path::Path;

use record::failure::{Failure, Result};
use record::read::{Kind, Line, Reader};
use record::sample::Sample;

/// A line that a visitor is shown.
pub enum Seen<'a> {
    /// A sample, checked.
    Sample(&'a Sample),
    /// Any other line.
    Other(&'a Line),
}

/// Opens a file for reading.
///
/// # Errors
/// 74 with the path.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
}

/// Shows every line of a file to `visit`. Messages name the file by `name`.
///
/// # Errors
/// What reading or `visit` find wrong.
pub fn read(path: &Path, name: &str, mut visit: impl FnMut(Seen) -> Result<()>) -> Result<()> {
    let mut reader = Reader::new(name, open(path)?);
    while let Some(line) = reader.next()? {
        match line.kind {
            Kind::Sample => visit(Seen::Sample(&Sample::parse(&line)?))?,
            _ => visit(Seen::Other(&line))?,
        }
    }
    Ok(())
}
