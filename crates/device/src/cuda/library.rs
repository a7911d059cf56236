//! Finds and loads NVIDIA's libraries. No part of CUDA is linked.
//!
//! A library is searched in `CUDA_PATH`, in the folders of `scripts/fetch-cuda.sh`, by the system's loader,
//! and in the `nvidia-*` packages of the Python on `PATH`. It is opened by its full path; `cudarc`,
//! which opens it by name, then finds it loaded. `cudarc` panics on a missing library, so every use
//! goes through [`open`] first.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
use record::failure::{Failure, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// libcuda, installed with the driver.
    Driver,
    /// The kernel compiler.
    Nvrtc,
    /// GEMMs.
    CublasLt,
    /// The older GEMM library, which ONNX Runtime uses.
    Cublas,
    /// The CUDA runtime, which ONNX Runtime uses.
    Runtime,
    /// Random numbers, which ONNX Runtime links but never calls for a decoder.
    Random,
    /// Neural network primitives, whose attention ONNX Runtime can use.
    Cudnn,
    /// Transport between GPUs.
    Nccl,
}

impl Library {
    /// The file name to search for, in the preferred version.
    pub fn file(self) -> String {
        let (files, versions) = self.names();
        format!("{}.{}", files[files.len() - 1], versions[0])
    }

    /// The files to open, in order, and the versions to try after `.so.`.
    fn names(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Library::Driver => (&["libcuda.so"], &["1"]),
            // NVRTC loads its builtins by name when it compiles.
            Library::Nvrtc => (&["libnvrtc-builtins.so", "libnvrtc.so"], &["13", "12"]),
            Library::CublasLt => (&["libcublasLt.so"], &["13", "12"]),
            Library::Nccl => (&["libnccl.so"], &["2"]),
            // From here on: the versions that ONNX Runtime 1.31 is linked with.
            Library::Cublas => (&["libcublasLt.so", "libcublas.so"], &["13"]),
            Library::Runtime => (&["libcudart.so"], &["13"]),
            Library::Random => (&["libcurand.so"], &["10"]),
            Library::Cudnn => (&["libcudnn.so"], &["9"]),
        }
    }

    fn present(self) -> bool {
        // SAFETY: these only try to open libraries by name; initializers of NVIDIA's libraries are benign.
        unsafe {
            match self {
                Library::Cublas | Library::Runtime | Library::Random | Library::Cudnn | Library::Nccl => {
                    let opened = Handle::open(Some(self.file()), RTLD_NOW | RTLD_GLOBAL);
                    opened.map(std::mem::forget).is_ok()
                }
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }

    fn missing(self) -> Failure {
        let (cause, part) = match self {
            Library::Driver => {
                return Failure::unavailable("no NVIDIA driver here (libcuda.so.1 is not found)")
                    .hint("use --device cpu, or install the driver");
            }
            Library::Nvrtc => {
                ("CUDA's compiler NVRTC is not found (libnvrtc.so.13 or .12)".to_owned(), "nvrtc")
            }
            Library::CublasLt => ("cuBLASLt is not found (libcublasLt.so.13 or .12)".to_owned(), "cublas"),
            Library::Nccl => ("NCCL is not found (libnccl.so.2)".to_owned(), "nccl"),
            Library::Cublas => (self.missing_for_onnx_runtime(), "cublas"),
            Library::Runtime | Library::Random => (self.missing_for_onnx_runtime(), "runtime"),
            Library::Cudnn => {
                return Failure::unavailable("cuDNN is not found (libcudnn.so.9)")
                    .hint("nothing needs it: it comes with PyTorch for CUDA 13, or as the package nvidia-cudnn-cu13");
            }
        };
        Failure::unavailable(cause)
            .hint(format!("./scripts/fetch-cuda.sh {part} fetches it, or set CUDA_PATH to an installed CUDA"))
    }

    fn missing_for_onnx_runtime(self) -> String {
        format!("ONNX Runtime needs {}, which is not found", self.file())
    }
}

/// Where a library was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Folder(PathBuf),
    /// By the system's loader.
    System,
}

impl std::fmt::Display for Found {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Folder(folder) => write!(formatter, "{}", folder.display()),
            Found::System => formatter.write_str("where the system's loader looks"),
        }
    }
}

/// Loads a library.
pub fn open(library: Library) -> Result<Found> {
    static OPEN: Mutex<Vec<(Library, Found)>> = Mutex::new(Vec::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = open.iter().find(|(known, _)| *known == library) {
        return Ok(found.clone());
    }
    let found = search(library)?;
    open.push((library, found.clone()));
    Ok(found)
}

/// The version of cuDNN: 10,000 × major + 100 × minor + patch. `None` if it cannot be opened.
pub fn cudnn_version() -> Option<usize> {
    open(Library::Cudnn).ok()?;
    // SAFETY: the library is open, so this finds it loaded; the function has had this type in every version.
    unsafe {
        let library = Handle::open(Some(Library::Cudnn.file()), RTLD_NOW).ok()?;
        let version = library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0").map(|ask| ask());
        std::mem::forget(library);
        version.ok()
    }
}

fn search(library: Library) -> Result<Found> {
    if library != Library::Driver {
        let certain = [named_folders(), fetched_folders()].concat();
        if let Some(folder) = certain.iter().find(|folder| open_in(folder, library)) {
            return Ok(Found::Folder(folder.clone()));
        }
    }
    if library.present() {
        return Ok(Found::System);
    }
    if library != Library::Driver
        && let Some(folder) = python_folders().iter().find(|folder| open_in(folder, library))
        && library.present()
    {
        return Ok(Found::Folder(folder.clone()));
    }
    Err(library.missing())
}

/// The library folders in `CUDA_PATH`.
fn named_folders() -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("CUDA_PATH").filter(|value| !value.is_empty()).map(PathBuf::from)
    else {
        return Vec::new();
    };
    ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", ""]
        .map(|folder| root.join(folder))
        .into()
}

/// The package folders that `scripts/fetch-cuda.sh` fetched.
fn fetched_folders() -> Vec<PathBuf> {
    cache().map(|cache| subfolders(&cache.join("cuda-13.0"))).unwrap_or_default()
}

/// This project's cache folder of the user.
pub(crate) fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("troupe"))
}

/// `nvidia/*/lib` in the site-packages of the Python on `PATH`. Searched last, and only once.
fn python_folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        // If Python cannot be run, there are no such folders.
        let path = python_path().unwrap_or_default();
        path.lines()
            .filter(|line| !line.is_empty())
            .flat_map(|line| subfolders(&Path::new(line).join("nvidia")))
            .map(|package| package.join("lib"))
            .collect()
    })
}

/// `sys.path` of the active virtual environment's Python, or of the one on `PATH`, one path per line. Does
/// not use `Command::output`, which panics if the pipe cannot be read.
fn python_path() -> std::io::Result<String> {
    let mut python = record::stage::python();
    python.args(["-c", "import sys; print('\\n'.join(sys.path))"]);
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = python.spawn()?;
    let mut bytes = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut bytes));
    child.wait()?;
    read?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Folders in a folder, sorted by name; empty if it cannot be read.
fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .map(|entries| {
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
        })
        .unwrap_or_default();
    found.sort();
    found
}

/// Opens a library's files in a folder, for the rest of the process. Returns false if they are not there.
fn open_in(folder: &Path, library: Library) -> bool {
    let (files, versions) = library.names();
    versions.iter().any(|version| {
        let paths: Option<Vec<PathBuf>> =
            files.iter().map(|file| newest(folder, &format!("{file}.{version}"))).collect();
        paths.is_some_and(|paths| {
            paths.iter().all(|path| {
                // SAFETY: the initializers of NVIDIA's libraries are benign.
                let opened = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
                // Never closed, so that cudarc finds it by name.
                opened.map(std::mem::forget).is_ok()
            })
        })
    })
}

/// The file of that name, or with a longer version number after it.
fn newest(folder: &Path, name: &str) -> Option<PathBuf> {
    let exact = folder.join(name);
    if exact.is_file() {
        return Some(exact);
    }
    let longer = format!("{name}.");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&longer)))
        .collect();
    found.sort();
    found.pop()
}
