//! What `rollout` reports about the libraries that a GPU needs: where each is found, and which is missing. The test needs no
//! GPU, driver or network: the libraries are empty ones from the C compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A bare machine: no cache, no CUDA, a Python without packages.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().expect("a folder") };
        machine.python("");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A `python3` that looks for packages only here.
    fn python(&self, site: &str) {
        let program = self.path("bin/python3");
        std::fs::create_dir_all(self.path("bin")).expect("a folder");
        std::fs::write(&program, format!("#!/bin/sh\necho '{site}'\n")).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("executable");
    }

    /// An empty library with its usual soname (up to the first number).
    fn library(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        let inside: Vec<&str> = file.split('.').take(3).collect();
        let inside = format!("-Wl,-soname,{}", inside.join("."));
        let made =
            Command::new("cc").args(["-shared", "-x", "c", "/dev/null", &inside, "-o"]).arg(&path).status();
        assert!(made.expect("cc runs").success());
        path
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
        command
            .args(arguments)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("ORT_DISABLE_TELEMETRY", "1");
        for name in ["CUDA_PATH", "ORT_DYLIB_PATH", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).output().expect("rollout runs")
    }

    /// The line of `--version` that begins so.
    fn line(&self, begins: &str, variables: &[(&str, &Path)]) -> String {
        let output = self.run(&["--version"], variables);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().find(|line| line.starts_with(begins));
        line.unwrap_or_else(|| panic!("no line {begins}: {text}")).to_owned()
    }

    /// The error of `--device cuda`: one sentence and a hint.
    fn refusal(&self, variables: &[(&str, &Path)]) -> String {
        let output = self.run(&["--policy", "anything", "--device", "cuda"], variables);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(text.lines().count() == 2 && text.contains("\nhint: "), "{text}");
        text
    }
}

/// The CPU build of ONNX Runtime, fetched if it is missing.
fn runtime() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-runtime.sh");
    let output = Command::new(script).output().expect("scripts/fetch-runtime.sh runs");
    assert!(output.status.success(), "{output:?}");
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end())
}

/// Returns true if this machine has the library after all.
fn is_installed(machine: &Machine, file: &str) -> bool {
    !machine.line(file, &[]).ends_with("is not found")
}

#[test]
fn libraries_are_found_in_every_search_path() {
    let machine = Machine::new();
    let file = "libcurand.so.10";
    if !is_installed(&machine, file) {
        machine.library("python/nvidia/cu13/lib/libcurand.so.10");
        machine.python(&machine.path("python").display().to_string());
        let found = machine.path("python/nvidia/cu13/lib");
        assert_eq!(machine.line(file, &[]), format!("{file} ({})", found.display()));
        machine.python("");
    }
    // In the cache, with a longer version; then in `CUDA_PATH`, which comes first.
    machine.library("cache/troupe/cuda-13.0/nvidia-curand-1/libcurand.so.10.4.1");
    let found = machine.path("cache/troupe/cuda-13.0/nvidia-curand-1");
    assert_eq!(machine.line(file, &[]), format!("{file} ({})", found.display()));
    machine.library("toolkit/lib64/libcurand.so.10");
    let (toolkit, found) = (machine.path("toolkit"), machine.path("toolkit/lib64"));
    assert_eq!(machine.line(file, &[("CUDA_PATH", &toolkit)]), format!("{file} ({})", found.display()));
}

#[test]
fn the_runtime_is_described_with_its_providers() {
    let machine = Machine::new();
    let described = machine.line("ONNX Runtime", &[("ORT_DYLIB_PATH", &runtime())]);
    assert!(described.contains("providers: ") && described.ends_with("CPU)"), "{described}");
    let missing = machine.line("no ONNX Runtime", &[]);
    assert!(missing.contains("is missing"), "{missing}");
    let broken = machine.library("broken/libonnxruntime.so");
    let line = machine.line("no ONNX Runtime", &[("ORT_DYLIB_PATH", &broken)]);
    assert!(line.ends_with("libonnxruntime.so: not ONNX Runtime"), "{line}");
}

#[test]
fn every_missing_piece_is_named() {
    let machine = Machine::new();
    if machine.line("GPU", &[]).contains("no NVIDIA driver") {
        let text = machine.refusal(&[]);
        assert!(
            text.starts_with("rollout: no NVIDIA driver here (libcuda.so.1 is not found)\nhint: "),
            "{text}"
        );
    }
    // With a driver, which is only opened.
    machine.library("driver/libcuda.so.1");
    let driver = machine.path("driver");
    let with_driver = ("LD_LIBRARY_PATH", driver.as_path());
    let text = machine.refusal(&[with_driver]);
    assert!(text.contains("with CUDA is missing\nhint: ./pipeline.sh setup --device cuda"), "{text}");
    let runtime = machine.library("runtime/libonnxruntime.so");
    let named = ("ORT_DYLIB_PATH", runtime.as_path());
    let text = machine.refusal(&[with_driver, named]);
    assert!(text.contains("no CUDA provider beside it\nhint: unset ORT_DYLIB_PATH"), "{text}");
    machine.library("runtime/libonnxruntime_providers_cuda.so");
    if !is_installed(&machine, "libcudart.so.13") {
        let text = machine.refusal(&[with_driver, named]);
        assert!(
            text.contains(
                "needs libcudart.so.13, which is not found\nhint: ./scripts/fetch-cuda.sh runtime fetches"
            ),
            "{text}"
        );
    }
}
