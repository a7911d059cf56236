//! `rollout --version`: the build, and the ONNX Runtime and CUDA libraries that would be used, as text or JSON.

use device::cuda::{self, Library, open_library};
use record::failure::Result;
use record::{splice, write};
use serde_json::{Value, json};

use crate::arguments::Format;
use crate::engine::device::sdpa_kernel;
use crate::runtime::{self, Build, Description, LINKED};

/// Writes the version to stdout. A missing library is part of the answer, not a failure.
///
/// # Errors
/// A stdout that cannot be written to.
pub fn print(format: Format) -> Result<()> {
    let runtime = runtime::describe(Build::Cpu);
    if format == Format::Text {
        // At once: to find the CUDA libraries below may start a Python, and not every reader waits for them.
        let head = format!("rollout {}\n{}\n", record::stage::build(), describe(&runtime));
        write::stdout(head.as_bytes())?;
    }
    // A library that the user names is the only one.
    let with_cuda = std::env::var_os("ORT_DYLIB_PATH").is_none().then(|| runtime::describe(Build::Cuda));
    let gpus = cuda::gpus();
    let attention = sdpa_kernel();
    // Our products and kernels need two; the provider is linked with the others.
    let libraries: Vec<(String, Result<String>)> = [Library::Nvrtc, Library::CublasLt]
        .into_iter()
        .chain(LINKED)
        .map(|wanted| (wanted.file(), open_library(wanted).map(|found| found.to_string())))
        .collect();
    if format == Format::Json {
        let object = json!({
            "version": record::stage::build(),
            "onnxruntime": object(&runtime),
            "onnxruntime_cuda": with_cuda.as_ref().map(object),
            "gpus": gpus.as_ref().map(|found| &found.names[..]).unwrap_or_default(),
            "sdpa_kernel": found(&attention),
            "libraries": libraries.iter().map(|(file, path)| json!({"file": file, "path": found(path)})).collect::<Vec<_>>(),
        });
        return write::stdout(format!("{}\n", splice::json(&object)?).as_bytes());
    }
    let mut text = String::new();
    if let Some(with_cuda) = &with_cuda {
        text.push_str(&format!("with CUDA: {}\n", describe(with_cuda)));
    }
    text.push_str(&format!(
        "GPU: {}\n",
        gpus.map_or_else(|failure| failure.message, |gpus| gpus.to_string())
    ));
    let attention = attention.map_or_else(|failure| failure.message, |kernels| kernels.to_string());
    text.push_str(&format!("attention on a GPU: sdpa_kernel {attention}\n"));
    for (file, path) in libraries {
        let path = path.map_or("is not found".to_owned(), |path| format!("({path})"));
        text.push_str(&format!("{file} {path}\n"));
    }
    write::stdout(text.as_bytes())
}

fn describe(library: &Result<Description>) -> String {
    match library {
        Ok(Description { version, path, providers }) => {
            format!("ONNX Runtime {version} ({path}; providers: {})", providers.join(", "))
        }
        Err(failure) => format!("no ONNX Runtime: {}", failure.message),
    }
}

fn object(library: &Result<Description>) -> Value {
    match library {
        Ok(description) => json!(description),
        Err(failure) => json!({"version": null, "path": null, "error": failure.message}),
    }
}

fn found<T>(outcome: &Result<T>) -> Option<&T> {
    outcome.as_ref().ok()
}
