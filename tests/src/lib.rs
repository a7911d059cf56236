//! Support for tests that see Troupe as its user does: programs, pipes, a run directory.
//!
//! The programs are built once for all tests of a run (`programs`), ONNX Runtime is fetched by the project's
//! script (`runtime`), and a `Pipeline` is one call of `pipeline.sh` with small numbers. What these helpers
//! leave out on purpose: any knowledge of a stage's insides; a test reads files and streams only.

pub mod program;
pub mod skip;
pub mod storm;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// A folder or file of the goldens; `TROUPE_GOLDEN` names another place for all, on a machine without the sources.
pub fn golden(name: &str) -> PathBuf {
    let here = || root().join("tests/golden");
    std::env::var_os("TROUPE_GOLDEN").map_or_else(here, PathBuf::from).join(name)
}

/// The folder with the workspace's programs, built once in the profile of the running test; `TROUPE_TEST_PROGRAMS` names another.
pub fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = std::env::var_os("TROUPE_TEST_PROGRAMS") {
            return PathBuf::from(folder);
        }
        let folder = std::env::current_exe().expect("this test's path");
        let folder = folder.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_path_buf();
        build("--bins --example judge");
        folder
    })
}

/// Builds a part of the workspace in the profile of the running test. A part with an example or a test has the features of test
/// builds; another would build several crates once more without them.
pub fn build(arguments: &str) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--workspace", "--locked", "--quiet"])
        .args(arguments.split(' '))
        .current_dir(root());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = outside_cargo(&mut cargo).status().expect("cargo runs");
    assert!(status.success(), "cargo build {arguments} fails");
}

/// Removes what cargo told this test about its package: ring's build script runs again where that differs, and most of the
/// workspace is built again after it.
pub fn outside_cargo(command: &mut Command) -> &mut Command {
    let names = std::env::vars_os().map(|(name, _)| name);
    let own = names.filter(|name| {
        ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|begin| name.to_string_lossy().starts_with(begin))
    });
    own.fold(command, |command, name| command.env_remove(name))
}

/// `update` for several processes, built once into the folder of the other programs, if MPI is there to build
/// and start it.
pub fn update_mpi() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let mpi = ["mpicc -show", "mpirun --version"];
        if let Some(missing) = mpi.iter().find(|command| run(command).0 != 0) {
            skip::not_run(&format!(
                "`{missing}` fails, so there is no MPI: apt-get install openmpi-bin libopenmpi-dev"
            ));
            return None;
        }
        let built = programs().join("update-mpi");
        if std::env::var_os("TROUPE_TEST_PROGRAMS").is_some() {
            return built.exists().then_some(built);
        }
        build("--features update/mpi --bin update-mpi");
        Some(built)
    });
    built.as_deref()
}

/// The command that starts `ranks` ranks of the command after it, on one machine and possibly as root.
pub fn mpirun(ranks: usize) -> String {
    let open = run("mpirun --version").1.contains("Open MPI");
    let own = if open { "--oversubscribe --bind-to none --quiet" } else { "" };
    // Open MPI removes the folder of all sessions when one ends, perhaps just when another has found it, so
    // each test gets a separate folder.
    format!(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
         OMPI_MCA_orte_tmpdir_base=\"$PWD\" mpirun {own} -n {ranks}"
    )
}

/// The path of ONNX Runtime's library, fetched when it is not there yet.
pub fn runtime() -> &'static str {
    static FETCHED: OnceLock<String> = OnceLock::new();
    FETCHED.get_or_init(|| {
        if let Ok(path) = std::env::var("ORT_DYLIB_PATH") {
            return path;
        }
        let output = Command::new(root().join("scripts/fetch-runtime.sh")).stderr(Stdio::inherit()).output();
        let output = output.expect("scripts/fetch-runtime.sh runs");
        assert!(output.status.success(), "scripts/fetch-runtime.sh failed");
        String::from_utf8(output.stdout).expect("a path").trim().to_string()
    })
}

/// A shell command with the workspace's programs on its path, ONNX Runtime named and telemetry off.
pub fn shell(command: &str) -> Command {
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(format!("set -o pipefail; {command}"));
    prepare(&mut bash);
    bash
}

/// Runs a shell command and returns its exit code, standard output and standard error.
pub fn run(command: &str) -> (i32, String, String) {
    let output = shell(command).output().expect("bash runs");
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Runs a shell command that must succeed and returns its standard output.
pub fn must(command: &str) -> String {
    let (code, stdout, stderr) = run(command);
    assert_eq!(code, 0, "{command}\n{stderr}");
    stdout
}

fn prepare(command: &mut Command) {
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", programs().display()))
        .env("ORT_DYLIB_PATH", runtime())
        .env("ORT_DISABLE_TELEMETRY", "1")
        .env("TROUPE_BIN", programs())
        .current_dir(root());
}

/// `pipeline.sh` on a run with the given arguments, ready to spawn.
pub fn pipeline(run: &Path, arguments: &[&str]) -> Command {
    let mut command = script();
    command.arg("--run").arg(run).args(arguments);
    command
}

/// `pipeline.sh` without arguments.
pub fn script() -> Command {
    let mut command = Command::new(root().join("pipeline.sh"));
    prepare(&mut command);
    command.stdin(Stdio::null());
    command
}

/// Every file below `directory`, by relative path, in order, without the objects called `timing`.
///
/// The lock file is left out, and how the run was called last (config.toml, stages), and so are the report and its cache, which are made of
/// the rest; so are links' targets (a link is shown as the path it names).
pub fn contents(directory: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(directory).expect("below").display().to_string();
            if path.is_symlink() {
                let target = std::fs::read_link(&path).expect("a link");
                found.insert(name, target.display().to_string().into_bytes());
            } else if path.is_dir() {
                if !["report.cache", "stages"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if name.ends_with(".jsonl") || name.ends_with(".json") {
                let text = std::fs::read_to_string(&path).expect("a text file");
                found.insert(name, without_timing(&text).into_bytes());
            } else if !["lock", "report.html", "config.toml"].contains(&name.as_str()) {
                found.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

/// The text without its `timing` objects, all else byte for byte.
pub fn without_timing(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(at) = rest.find("\"timing\":{") {
        kept.push_str(&rest[..at]);
        let mut depth = 0;
        let end = rest[at..].char_indices().find_map(|(offset, character)| {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (character == '}' && depth == 0).then_some(at + offset + 1)
        });
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    kept.push_str(rest);
    kept
}

/// The names and sizes that differ between two run directories; empty when they are the same.
pub fn differences(a: &Path, b: &Path) -> Vec<String> {
    let (left, right) = (contents(a), contents(b));
    let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| left.get(*name) != right.get(*name))
        .map(|name| {
            let size = |side: &std::collections::BTreeMap<String, Vec<u8>>| side.get(name).map(Vec::len);
            format!("{name}: {:?} bytes against {:?}", size(&left), size(&right))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn timing_goes_and_nothing_else() {
        let text = "{\"a\":1,\"timing\":{\"host\":\"x\",\"by\":{\"y\":2}},\"b\":3}\n{\"c\":4}\n";
        assert_eq!(super::without_timing(text), "{\"a\":1,,\"b\":3}\n{\"c\":4}\n");
    }
}
