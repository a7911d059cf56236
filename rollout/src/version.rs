//! `rollout --version`: the build, and the ONNX Runtime that would be used.

use std::io::Write;

use record::failure::{Failure, Result};

use crate::runtime;

/// Writes the version to stdout. A missing library is part of the answer, not a failure.
///
/// # Errors
/// A stdout that cannot be written to.
pub fn print() -> Result<()> {
    let library = match runtime::find().and_then(|path| Ok((runtime::version()?, path))) {
        Ok((version, path)) => format!("ONNX Runtime {version} ({})", path.display()),
        Err(failure) => format!("no ONNX Runtime: {}", failure.message),
    };
    let text = format!("rollout {}\n{library}\n", record::stage::build());
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::closed(),
        _ => Failure::io(format!("writing the output: {error}")),
    })
}
