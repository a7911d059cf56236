//! Writes to stdout, and its failures.

use std::io::{self, Write};

use crate::failure::{Failure, Result};

/// Writes `bytes` to stdout at once, for output that is no record.
///
/// # Errors
/// [`Failure::closed`] if the reader closed the pipe; 74 if writing fails.
pub fn stdout(bytes: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(failure)
}

/// The failure of a write to the output; a closed pipe is none.
pub(crate) fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::closed(),
        _ => unwritten(&error),
    }
}

/// The output cannot be written (exit 74).
pub fn unwritten(error: &io::Error) -> Failure {
    Failure::io(format!("writing the output: {error}"))
}
