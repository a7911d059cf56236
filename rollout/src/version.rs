//! `rollout --version`: the build, and the ONNX Runtime and the CUDA that would be used.

use std::io::Write;

use record::failure::{Failure, Result};

use crate::runtime::{self, Build};

/// Writes the version to stdout. A missing library is part of the answer, not a failure.
///
/// # Errors
/// A stdout that cannot be written to.
pub fn print() -> Result<()> {
    let library = |build| match runtime::find(build).and_then(|path| Ok((runtime::version(build)?, path))) {
        Ok((version, path)) => format!("ONNX Runtime {version} ({})", path.display()),
        Err(failure) => format!("no ONNX Runtime: {}", failure.message),
    };
    let mut text = format!("rollout {}\n{}\n", record::stage::build(), library(Build::Processor));
    if std::env::var_os("ORT_DYLIB_PATH").is_none() {
        text.push_str(&format!("with CUDA: {}\n", library(Build::Cuda)));
    }
    text.push_str(&format!("CUDA: {}\n", device::cuda::installation()));
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::closed(),
        _ => Failure::io(format!("writing the output: {error}")),
    })
}
