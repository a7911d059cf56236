//! `rollout --version`: the build, and the ONNX Runtime and the CUDA that would be used.

use std::io::Write;

use device::cuda::{self, Library, open_library};
use record::failure::{Failure, Result};

use crate::runtime::{self, Build, LINKED, provider};

/// Writes the version to stdout. A missing library is part of the answer, not a failure.
///
/// # Errors
/// A stdout that cannot be written to.
pub fn print() -> Result<()> {
    let mut text = format!("rollout {}\n{}\n", record::stage::build(), library(Build::Cpu));
    if std::env::var_os("ORT_DYLIB_PATH").is_none() {
        text.push_str(&format!("with CUDA: {}\n", library(Build::Cuda)));
    }
    text.push_str(&format!("GPU: {}\n", cuda::gpus().unwrap_or_else(|failure| failure.message)));
    // Our own products and kernels need two, the provider is linked with the others.
    for wanted in [Library::Nvrtc, Library::CublasLt].into_iter().chain(LINKED) {
        let place = match open_library(wanted) {
            Ok(found) => format!("({found})"),
            Err(_) => "is not found".to_owned(),
        };
        text.push_str(&format!("{} {place}\n", wanted.file()));
    }
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::closed(),
        _ => Failure::io(format!("writing the output: {error}")),
    })
}

/// A build of ONNX Runtime in one line.
fn library(build: Build) -> String {
    match runtime::describe(build) {
        Ok((description, path)) => {
            // These are libraries of their own, and may be left out.
            let apart = |name: &str| ["CUDA", "Tensorrt"].contains(&name);
            let beside = |name: &str| path.with_file_name(provider(name)).is_file();
            let names = description.providers.iter().map(String::as_str);
            let providers: Vec<&str> = names.filter(|&name| !apart(name) || beside(name)).collect();
            format!(
                "ONNX Runtime {} ({}; providers: {})",
                description.version,
                path.display(),
                providers.join(", ")
            )
        }
        Err(failure) => format!("no ONNX Runtime: {}", failure.message),
    }
}
