//! Finds the ONNX Runtime library and holds the process's only environment.
//!
//! The library is loaded, not linked. `scripts/fetch-runtime.sh` downloads it once into the user's cache; programs
//! look in `ORT_DYLIB_PATH`, then there, then in the Python packages of their installation. Only that script
//! names the version. For GPUs, `scripts/fetch-cuda.sh` downloads the same version with its CUDA provider, a separate
//! library, and the provider's dependencies.

use device::cuda::{Library, open_library};
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use record::failure::{Failure, Result};
use serde::Serialize;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

const SCRIPT: &str = include_str!("../../scripts/fetch-runtime.sh");
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// The version that `scripts/fetch-runtime.sh` fetches.
pub fn fetched_version() -> &'static str {
    SCRIPT.lines().find_map(|line| line.strip_prefix("version=")).unwrap_or_default()
}

/// Sets the environment variables that ONNX Runtime and the libraries of its CUDA provider read: no telemetry, and fixed
/// workspaces of cuBLAS.
///
/// # Safety
/// No other thread may exist yet, because it could read the environment meanwhile.
pub unsafe fn set_variables() {
    // SAFETY: the caller's.
    unsafe {
        std::env::set_var("ORT_DISABLE_TELEMETRY", "1");
        // Eight times 4 MiB for each cuBLAS handle, made with it: otherwise a captured product allocates its workspace in
        // the CUDA graph, and may be another one than outside of it.
        if std::env::var_os("CUBLAS_WORKSPACE_CONFIG").is_none() {
            std::env::set_var("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
        }
    }
}

/// The build of the library that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The CPU build.
    Cpu,
    /// The build with the CUDA provider.
    Cuda,
}

impl Build {
    /// Its folder in the cache.
    fn folder(self) -> String {
        let version = fetched_version();
        match self {
            Build::Cpu => format!("onnxruntime-{version}"),
            Build::Cuda => format!("cuda-13.0/onnxruntime-gpu-{version}"),
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Build::Cpu => "./pipeline.sh setup fetches it once",
            Build::Cuda => "./pipeline.sh setup --device cuda fetches it once",
        }
    }
}

/// The build that this process uses; the first call decides.
pub fn select(build: Build) -> Build {
    static SELECTED: OnceLock<Build> = OnceLock::new();
    *SELECTED.get_or_init(|| build)
}

/// The library's path: `ORT_DYLIB_PATH`, else the downloaded one, else the one in the Python package.
pub fn find(build: Build) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return path.canonicalize().map_err(|error| {
            Failure::unavailable(format!("{VARIABLE}: {}: {error}", path.display()))
                .hint(format!("unset {VARIABLE} to use the library that ./pipeline.sh setup fetches"))
        });
    }
    let version = fetched_version();
    // File name in the makers' releases.
    let file = match cfg!(target_os = "macos") {
        true => format!("libonnxruntime.{version}.dylib"),
        false => format!("libonnxruntime.so.{version}"),
    };
    let fetched = cache().map(|cache| cache.join("troupe").join(build.folder()).join(&file));
    let installed =
        || if build == Build::Cpu { installed(&std::env::current_exe().ok()?, &file) } else { None };
    match fetched.filter(|path| path.is_file()).or_else(installed) {
        Some(path) => Ok(path),
        None => {
            let with = if build == Build::Cuda { " with CUDA" } else { "" };
            let message = format!("the ONNX Runtime library {version}{with} is missing");
            Err(Failure::unavailable(message).hint(build.hint()))
        }
    }
}

/// The libraries that the CUDA provider links, apart from the driver.
pub const LINKED: [Library; 3] = [Library::Runtime, Library::Cublas, Library::Random];

/// Loads the dependencies of the CUDA provider, and checks that the provider is in the library's folder.
pub fn open_cuda() -> Result<()> {
    open_library(Library::Driver)?;
    let path = find(select(Build::Cuda))?;
    let provider = path.with_file_name(provider("CUDA"));
    if !provider.is_file() {
        let message = format!("{}: this ONNX Runtime has no CUDA provider beside it", path.display());
        return Err(Failure::unavailable(message).hint(format!("unset {VARIABLE}; {}", Build::Cuda.hint())));
    }
    for library in LINKED {
        open_library(library)?;
    }
    Ok(())
}

/// The file in the package `onnxruntime` of the Python in which pip installed `program`.
fn installed(program: &Path, file: &str) -> Option<PathBuf> {
    let library = program.parent()?.parent()?.join("lib");
    let pythons = std::fs::read_dir(library).ok()?.flatten().map(|entry| entry.path());
    let mut places = pythons.flat_map(|python| {
        ["site-packages", "dist-packages"].map(|kind| python.join(kind).join("onnxruntime/capi").join(file))
    });
    places.find(|place| place.is_file())
}

fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))
}

/// The process's environment, created on first use. Telemetry is disabled twice: some builds respect only the
/// variable that `record::stage` sets, others only this call.
///
/// # Errors
/// 69: the library is missing or does not load.
pub fn environment() -> Result<&'static Environment> {
    static ENVIRONMENT: OnceLock<Result<Environment>> = OnceLock::new();
    ENVIRONMENT.get_or_init(load).as_ref().map_err(Failure::clone)
}

fn load() -> Result<Environment> {
    let path = find(select(Build::Cpu))?;
    let refused = |cause: &dyn std::fmt::Display| {
        Failure::unavailable(format!("{}: {cause}", path.display()))
            .hint(format!("./pipeline.sh setup fetches ONNX Runtime {}", fetched_version()))
    };
    let environment = ort::init_from(&path).map_err(|error| refused(&error))?;
    environment.with_name("troupe").with_telemetry(false).build().map_err(|error| refused(&error))
}

/// Opens a session over a graph, one session at a time: ONNX Runtime checks and registers a new operator
/// domain in two steps, and fails if two sessions race to do so.
pub fn open_session(mut builder: SessionBuilder, graph: &[u8]) -> ort::Result<Session> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    builder.commit_from_memory(graph)
}

/// The failure of a thread that cannot be started.
pub fn spawn_failure(error: &std::io::Error) -> Failure {
    Failure::unavailable(format!("a thread cannot be started: {error}"))
        .hint("fewer --threads, or a higher limit of processes and threads (`ulimit -u`)")
}

/// The file name of an execution provider's library.
pub fn provider(name: &str) -> String {
    format!("libonnxruntime_providers_{}.so", name.to_lowercase())
}

/// A library's description of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    pub version: String,
    pub path: String,
    /// Its execution providers, such as `CUDA`.
    pub providers: Vec<String>,
}

/// Loads the library of a build and asks for its description, without using it otherwise.
pub fn describe(build: Build) -> Result<Description> {
    let path = find(build)?;
    let (version, mut providers) = read_description(&path)
        .ok_or_else(|| Failure::unavailable(format!("{}: not ONNX Runtime", path.display())))?;
    // These are separate libraries and may be missing.
    let is_apart = |name: &str| ["CUDA", "Tensorrt"].contains(&name);
    providers.retain(|name| !is_apart(name) || path.with_file_name(provider(name)).is_file());
    Ok(Description { version, path: path.display().to_string(), providers })
}

/// The version of a library and its compiled-in execution providers.
fn read_description(path: &Path) -> Option<(String, Vec<String>)> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the symbol is looked up before it is called, and has had this type since the first version.
    // Texts are copied, or live as long as the library, which stays loaded. An unsupported API version is a
    // null pointer, and names are an array of the given length.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return None;
        }
        let symbol = libc::dlsym(library, c"OrtGetApiBase".as_ptr());
        if symbol.is_null() {
            return None;
        }
        let base: unsafe extern "C" fn() -> *const ort::sys::OrtApiBase = std::mem::transmute(symbol);
        let version = CStr::from_ptr(((*base()).GetVersionString)()).to_string_lossy().into_owned();
        let mut providers = Vec::new();
        if let Some(api) = ((*base()).GetApi)(ort::sys::ORT_API_VERSION).as_ref() {
            let (mut names, mut count) = (std::ptr::null_mut(), 0);
            if (api.GetAvailableProviders)(&mut names, &mut count).0.is_null() {
                for index in 0..usize::try_from(count).unwrap_or_default() {
                    let name = CStr::from_ptr(*names.add(index)).to_string_lossy();
                    providers.push(name.trim_end_matches("ExecutionProvider").to_owned());
                }
                let _ = (api.ReleaseAvailableProviders)(names, count);
            }
        }
        Some((version, providers))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_script_names_one_version() {
        let version = super::fetched_version();
        assert_eq!(version.split('.').count(), 3, "{version:?}");
        assert!(version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{version:?}");
    }
}
