//! Compiles CUDA C++ to machine code with NVRTC, which needs neither a GPU nor a
//! driver, and caches the results.
//!
//! The result is a CUBIN for one architecture rather than PTX. A driver refuses PTX of a newer
//! compiler, and compiling to a CUBIN reports registers and spills. Kernels include nothing, so
//! CUDA's headers are not needed.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use record::failure::{Failure, Result};

use super::library::{self, Library};
use crate::kernel::Source;

/// Options besides the architecture. Contraction stays at the compiler's default; kernels that must match the
/// CPU bit for bit spell out their operations.
const OPTIONS: [&str; 2] = ["--std=c++17", "--ptxas-options=-v"];

/// A source compiled for one architecture.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The CUBIN.
    pub image: Vec<u8>,
    /// Resources by kernel; empty if the code came from the cache.
    pub usage: BTreeMap<String, Usage>,
}

/// Resources of a kernel, as reported by ptxas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Registers per thread.
    pub registers: u32,
    /// Spilled bytes per thread.
    pub spilled: u32,
    /// Static shared memory per block, in bytes.
    pub shared: u32,
}

/// The name of the architecture to compile for: the exact one with all its features, if NVRTC knows it.
pub fn architecture(major: i32, minor: i32) -> String {
    let exact = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{exact}")
}

/// The version of NVRTC.
pub fn version() -> Result<(i32, i32)> {
    library::open(Library::Nvrtc)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open; two out-parameters.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|error| broken(&error))?;
    Ok((major, minor))
}

/// Compiles `source`, or takes its machine code from the cache.
///
/// # Errors
/// 69: NVRTC is not found; 1: the source does not compile (with the compiler's messages).
pub(crate) fn cached(source: &Source, architecture: &str) -> Result<Vec<u8>> {
    let path = cache_path(source, architecture, version()?);
    if let Some(image) =
        path.as_deref().and_then(|path| std::fs::read(path).ok()).filter(|image| !image.is_empty())
    {
        return Ok(image);
    }
    let image = compile(source, architecture)?.image;
    // Without a writable cache, later runs only have to compile again.
    if let Some(path) = path {
        let _ = store(&path, &image);
    }
    Ok(image)
}

/// Path in the cache, named by a hash of everything that determines the machine code.
fn cache_path(source: &Source, architecture: &str, version: (i32, i32)) -> Option<PathBuf> {
    let mut hasher = blake3::Hasher::new();
    for part in [source.text, architecture, &format!("{version:?}"), &OPTIONS.join(" ")] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let name = format!("{}.cubin", &hasher.finalize().to_hex()[..32]);
    Some(library::cache()?.join("kernels").join(name))
}

/// Writes atomically, even if two processes write at once.
fn store(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(
        ".{}.{}",
        std::process::id(),
        path.file_name().unwrap_or_default().to_string_lossy()
    ));
    std::fs::write(&temporary, image)?;
    std::fs::rename(&temporary, path)
}

/// Compiles `source` for `architecture`, such as `sm_90a`.
///
/// # Errors
/// 69: NVRTC is not found; 1: the source does not compile (with the compiler's messages).
pub fn compile(source: &Source, architecture: &str) -> Result<Compiled> {
    library::open(Library::Nvrtc)?;
    let program = Program::new(source)?;
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    options.extend(OPTIONS.map(str::to_owned));
    // SAFETY: the program is alive.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    let log = program.log();
    if let Err(error) = compiled {
        let words = log.lines().find(|line| line.contains("error")).unwrap_or(&log).trim().to_owned();
        return Err(Failure::work(format!("{} for {architecture}: {error}: {words}", source.name)));
    }
    Ok(Compiled { image: program.image()?, usage: usage(&log) })
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Self> {
        let text = CString::new(source.text).map_err(Failure::work)?;
        let name = CString::new(source.name).map_err(Failure::work)?;
        result::create_program(&text, Some(&name)).map(Program).map_err(|error| broken(&error))
    }

    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let bytes: Vec<c_char> = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        if bytes.last() != Some(&0) {
            return String::new();
        }
        // SAFETY: the text ends with a zero inside the vector.
        unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy().into_owned()
    }

    fn image(&self) -> Result<Vec<u8>> {
        let mut size = 0usize;
        // SAFETY: the program is alive, and the vector has the size that it was asked for.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut size).result().map_err(|error| broken(&error))?;
            let mut image = vec![0u8; size];
            sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()).result().map_err(|error| broken(&error))?;
            Ok(image)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; a failure only leaks memory of this process.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn broken(error: &dyn std::fmt::Display) -> Failure {
    Failure::unavailable(format!("CUDA's compiler NVRTC: {error}"))
        .hint("./scripts/fetch-cuda.sh nvrtc fetches one that is known to work")
}

/// Parses the report of ptxas.
fn usage(log: &str) -> BTreeMap<String, Usage> {
    let mut all = BTreeMap::new();
    let mut kernel: Option<String> = None;
    let before = |line: &str, word: &str| -> Option<u32> {
        line[..line.find(word)?].split_whitespace().next_back()?.parse().ok()
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().map(str::to_owned);
        }
        let Some(kernel) = &kernel else { continue };
        let entry: &mut Usage = all.entry(kernel.clone()).or_default();
        if let Some(bytes) = before(line, "bytes spill stores") {
            entry.spilled = bytes;
        }
        if let Some(registers) = before(line, "registers") {
            entry.registers = registers;
        }
        if let Some(bytes) = before(line, "bytes smem") {
            entry.shared = bytes;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_ptxas_is_parsed() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'a' for 'sm_90a'\n\
                   ptxas info    : Function properties for a\n    8 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n\
                   ptxas info    : Used 255 registers, used 1 barriers, 132 bytes smem\n\
                   ptxas info    : Compiling entry function 'b' for 'sm_90a'\n\
                   ptxas info    : Used 18 registers\n";
        let found = usage(log);
        assert_eq!(found["a"], Usage { registers: 255, spilled: 20, shared: 132 });
        assert_eq!(found["b"], Usage { registers: 18, spilled: 0, shared: 0 });
    }

    #[test]
    fn hopper_and_later_have_exact_names() {
        assert_eq!(
            [(8, 0), (8, 9), (9, 0), (10, 0)].map(|(a, b)| architecture(a, b)),
            ["sm_80", "sm_89", "sm_90a", "sm_100a"]
        );
    }
}
