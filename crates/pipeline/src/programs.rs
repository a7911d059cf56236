//! Finds and runs the programs of a run, and the libraries that they need.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use record::child;
use record::failure::{Failure, Result};
use serde_json::Value;

use crate::checks::Launcher;
use crate::command_line::Action;
use crate::settings::Settings;

/// The locations of programs and scripts, and their environment.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of the programs.
    bin: PathBuf,
    /// The folder of `pipeline.sh`.
    root: PathBuf,
    /// Their search path: the caller's programs before this project's, so that `python3` is the caller's.
    path: OsString,
    variables: Vec<(&'static str, OsString)>,
}

/// A failure whose program has already printed the cause.
pub fn silent(code: u8) -> Failure {
    Failure { code, ..Failure::work("") }
}

impl Programs {
    /// The programs of `pipeline.sh`, which names both folders.
    ///
    /// # Errors
    /// It was not `pipeline.sh` that started this.
    pub fn find() -> Result<Programs> {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let (Some(bin), Some(root)) = (named("TROUPE_BIN"), named("TROUPE_ROOT")) else {
            return Err(Failure::usage("troupe-pipeline is a part of pipeline.sh, which starts it")
                .hint("run ./pipeline.sh --help"));
        };
        let bin = std::path::absolute(&bin).map_err(|error| {
            Failure::io(format!("TROUPE_BIN: {error}"))
                .hint("name the folder of the programs with its whole path")
        })?;
        let mut path = named("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        path.push(":");
        path.push(&bin);
        Ok(Programs { bin, root: root.into(), path, variables: Vec::new() })
    }

    pub fn path_of(&self, program: &str) -> String {
        self.bin.join(program).display().to_string()
    }

    pub fn script(&self) -> PathBuf {
        self.root.join("pipeline.sh")
    }

    /// Adds an environment variable for all programs.
    pub fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    /// A command that runs one of this project's programs, or another one by path.
    pub fn command(&self, program: &str) -> Command {
        let own = self.bin.join(program);
        let mut command = Command::new(if own.is_file() { own } else { program.into() });
        command.env("PATH", &self.path).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program to its end.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let status = self.command(program).args(arguments).status();
        let status = status.map_err(|error| cannot_start(program, &error))?;
        match code_of(status) {
            0 => Ok(()),
            code => Err(silent(code)),
        }
    }

    /// What a program prints.
    pub fn printed(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(arguments).stdout(Stdio::piped());
        let output = command.spawn().and_then(child::wait_with_output);
        let output = output.map_err(|error| cannot_start(program, &error))?;
        match code_of(output.status) {
            0 => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            code => Err(silent(code)),
        }
    }

    /// Builds optional programs that this run needs, fetches missing libraries, and checks
    /// that all programs exist.
    ///
    /// # Errors
    /// Something cannot be built or fetched, or a GPU is not there.
    pub fn set_up(&mut self, settings: &Settings, launcher: Launcher, action: Option<&Action>) -> Result<()> {
        let ranks = settings.ranks > 1;
        if let Some(checkout) = std::env::var_os("TROUPE_CHECKOUT").filter(|_| ranks) {
            build(Path::new(&checkout), &["--features", "update/mpi", "--bin", "update-mpi"]).map_err(
                |failure| {
                    Failure { message: "update-mpi cannot be built".to_owned(), ..failure }
                        .hint("it needs an MPI with mpicc: libopenmpi-dev, mpich, or a module of the cluster")
                },
            )?;
        }
        let of_ranks = if ranks { &["update-mpi"][..] } else { &[] };
        for program in
            ["envs", "policy", "rollout", "group", "advantage", "update", "report"].iter().chain(of_ranks)
        {
            if !self.bin.join(program).is_file() {
                return Err(Failure::unavailable(format!("{} has no program {program}", self.bin.display()))
                    .hint("cargo build --release --workspace --bins builds them, and with --features update/mpi update-mpi"));
            }
        }
        let named = std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty());
        let (device, is_setup) = (settings.device.as_str(), matches!(action, Some(Action::Setup(_))));
        match (named, device.starts_with("cuda")) {
            (true, _) => Ok(()),
            (false, false) => self.fetch_runtime(),
            // Slurm's nodes and a later run have GPUs that this machine may lack.
            (false, true) if launcher == Launcher::Srun || is_setup => self.fetch_cuda(None),
            (false, true) => self.fetch_cuda(Some(device)),
        }
    }

    fn fetch_runtime(&mut self) -> Result<()> {
        let fetch = self.root.join("scripts/fetch-runtime.sh").display().to_string();
        let path = self.printed(&fetch, &[])?.trim_end().to_owned();
        if path.is_empty() {
            return Err(Failure::unavailable("ONNX Runtime could not be fetched")
                .hint("see the message above, or set ORT_DYLIB_PATH to libonnxruntime.so"));
        }
        self.set("ORT_DYLIB_PATH", path);
        Ok(())
    }

    /// The programs find installed and fetched libraries by themselves, ONNX Runtime with CUDA among them: naming the plain one would
    /// keep `rollout` off the GPU. Only missing libraries are fetched, and none for a GPU that is not there.
    fn fetch_cuda(&self, device: Option<&str>) -> Result<()> {
        let told = self.printed("rollout", &["--version", "--format", "json"])?;
        let told: Value = serde_json::from_str(&told)
            .map_err(|error| Failure::work(format!("rollout --version --format json: {error}")))?;
        let gpus = told["gpus"].as_array().map_or(0, Vec::len);
        if let Some(device) = device.filter(|device| highest_number(device) >= gpus) {
            return Err(Failure::unavailable(format!(
                "--device {device}: this machine has {gpus} NVIDIA GPUs"
            ))
            .hint("rollout --version names the driver and its GPUs; --device cpu needs none"));
        }
        let parts = [
            ("libcudart", "runtime"),
            ("libcurand", "runtime"),
            ("libcublas", "cublas"),
            ("libcublasLt", "cublas"),
            ("libnvrtc", "nvrtc"),
        ];
        let missing = |library: &Value| {
            let name = library["file"].as_str()?.split('.').next()?;
            let part = parts.iter().find(|(of, _)| *of == name)?.1;
            library["path"].is_null().then_some(part)
        };
        let mut needed: Vec<&str> =
            told["libraries"].as_array().into_iter().flatten().filter_map(missing).collect();
        needed.sort_unstable();
        needed.dedup();
        if told["onnxruntime_cuda"]["path"].is_null() {
            needed.insert(0, "onnxruntime");
        }
        if needed.is_empty() {
            return Ok(());
        }
        let fetch = self.root.join("scripts/fetch-cuda.sh").display().to_string();
        self.printed(&fetch, &needed).map(drop)
    }

    /// The version of `rollout` and its ONNX Runtime, without its path, or why ONNX Runtime is not found.
    ///
    /// # Errors
    /// `rollout` is not this project's program, or ONNX Runtime cannot be opened.
    pub fn build(&self, device: &str) -> Result<String> {
        let child = self.command("rollout").arg("--version").stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| cannot_start("rollout", &error))?;
        // `rollout --version` goes on to search for CUDA libraries; do not wait for that.
        let mut lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        let mut line = || lines.as_mut().and_then(|lines| lines.next()?.ok()).unwrap_or_default();
        let (version, runtime) = (line(), line());
        drop(lines);
        std::thread::spawn(move || child.wait());
        if !version.starts_with("rollout ") || !runtime.contains("ONNX Runtime") {
            return Err(Failure::work(format!("rollout --version says {version}"))
                .hint("is that rollout of another build?"));
        }
        let runtime = runtime.split(" (").next().unwrap_or_default();
        let runtime = runtime.split(':').next().unwrap_or_default();
        if runtime.ends_with("no ONNX Runtime") && !device.starts_with("cuda") {
            let named = self.variables.iter().find(|(name, _)| *name == "ORT_DYLIB_PATH");
            let named = named.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("ORT_DYLIB_PATH"));
            let named = named.map_or("not named".to_owned(), |path| Path::new(&path).display().to_string());
            return Err(Failure::unavailable(format!("rollout cannot open ONNX Runtime, {named}"))
                .hint("rollout --version says more"));
        }
        Ok(format!("{version}\n{runtime}"))
    }
}

/// The highest number in the name of a device or a list of them: 7 of `cuda:0-7`, 0 of `cuda`.
fn highest_number(device: &str) -> usize {
    let numbers = device.split_once(':').map_or("0", |(_, numbers)| numbers);
    numbers.split([',', '-']).map(|number| number.parse().unwrap_or(usize::MAX)).max().unwrap_or(0)
}

fn build(checkout: &Path, what: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--workspace", "--locked"]).args(what).current_dir(checkout);
    // stdout carries the run's output, so cargo may not write to it.
    let status = cargo.stdout(Stdio::null()).status().map_err(|error| cannot_start("cargo", &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::work("the build failed").hint("see the message above"))
    }
}

/// The error for a program that does not start.
pub fn cannot_start(program: &str, error: &std::io::Error) -> Failure {
    Failure::unavailable(format!("{program} cannot be started: {error}"))
        .hint("see that it is there and may be run, and that there is memory for one more process")
}

/// A process's exit code by shell convention: 128 + N for signal N.
pub fn code_of(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
