//! How a crate declares its CUDA kernels. For build scripts:
//!
//! ```no_run
//! compile_kernels::declare("kernels");
//! ```
//! reads every `kernels/*.cu`, writes `$OUT_DIR/kernels.rs` with one `device::Kernel` per kernel (its source
//! for NVRTC, its parameters, its entry in the simulator), and compiles the source into the crate with the
//! host's C++ compiler. Both compilers see the same text: a `.cu` file with its local includes expanded.
//! `cuda/device.cuh` documents the kernel language.
//!
//! A C++17 compiler (`c++`, or `CXX`) is needed to build Troupe. No part of CUDA is.

// Cargo reads a build script's stdout.
#![allow(clippy::print_stdout)]

mod emit;
mod expand;
mod signature;

use std::path::{Path, PathBuf};

pub use emit::{architecture, host_wrapper};
pub use expand::{Expanded, expand, expand_with};
pub use signature::{Parameter, Signature, in_f16, signatures};

/// The folder of `device.cuh`, of the headers that kernels of several crates include, and of the simulator.
pub fn include_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")
}

/// The simulator's source files in [`include_directory`].
pub const SIMULATOR: [&str; 2] = ["simulator.cpp", "simulator_wgmma.cpp"];

/// C++ compiler flags for the simulator and kernels: no contraction of `a * b + c`, because results
/// must not depend on the compiler; no strict aliasing, because kernels load vectors through casts; no
/// C++ library at run time.
pub const FLAGS: [&str; 6] = [
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-Wno-unknown-pragmas",
];

fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").cpp_link_stdlib(None).opt_level(2).debug(false).include(include_directory());
    build.warnings(true);
    for flag in FLAGS {
        build.flag_if_supported(flag);
    }
    // Apple's ucontext.h refuses to compile without `_XOPEN_SOURCE`; `_DARWIN_C_SOURCE` restores what that
    // hides. Its functions are deprecated without a replacement.
    if std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple") {
        build.define("_XOPEN_SOURCE", "700").define("_DARWIN_C_SOURCE", None);
        build.flag("-Wno-deprecated-declarations");
    }
    build
}

/// Compiles the simulator's code into the crate whose build script calls this.
pub fn simulator() {
    let directory = include_directory();
    for name in ["simulator.h", "context.h"].iter().chain(&SIMULATOR) {
        println!("cargo:rerun-if-changed={}", directory.join(name).display());
    }
    compiler().files(SIMULATOR.map(|name| directory.join(name))).compile("simulator");
    println!("cargo:rustc-link-lib=m");
}

/// Declares every `*.cu` in `directory` (relative to the crate) as described in the crate's header.
///
/// Fails the build with a message if a source cannot be read, parsed or compiled.
pub fn declare(directory: &str) {
    if let Err(cause) = try_declare(directory) {
        println!("cargo:warning=kernels: {cause}");
        eprintln!("kernels: {cause}");
        std::process::exit(1);
    }
}

fn try_declare(directory: &str) -> Result<(), String> {
    let variable =
        |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: not a build script"));
    let (root, out) = (PathBuf::from(variable("CARGO_MANIFEST_DIR")?), PathBuf::from(variable("OUT_DIR")?));
    let package = variable("CARGO_PKG_NAME")?.replace('-', "_");
    let directory = root.join(directory);
    println!("cargo:rerun-if-changed={}", directory.display());
    println!("cargo:rerun-if-changed={}", include_directory().display());

    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    paths.sort();
    let mut modules = Vec::new();
    let mut build = compiler();
    for path in &paths {
        let expanded = expand(path)?;
        for read in &expanded.files {
            println!("cargo:rerun-if-changed={}", read.display());
        }
        let file = stem(path);
        let signatures =
            signatures(&expanded.text).map_err(|cause| format!("{}: {cause}", path.display()))?;
        let others: Vec<Signature> = signatures.iter().filter_map(Signature::in_f16).collect();
        let text = in_f16(&expanded.text, &signatures);
        let mut add = |name: String, text: &str, signatures: Vec<Signature>| -> Result<(), String> {
            let source = out.join(format!("{name}.cu"));
            write(&source, text)?;
            let wrapper = out.join(format!("{name}.cpp"));
            write(&wrapper, &emit::host_wrapper(&package, text, &signatures))?;
            build.file(&wrapper);
            modules.push(emit::Module { name, file: file.clone(), source, signatures });
            Ok(())
        };
        if !others.is_empty() {
            add(format!("{file}_f16"), &text, others)?;
        }
        add(file.clone(), &expanded.text, signatures)?;
    }
    if !paths.is_empty() {
        build.compile(&format!("{package}_kernels"));
    }
    write(&out.join("kernels.rs"), &emit::rust(&package, &modules))
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
