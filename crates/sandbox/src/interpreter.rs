//! Finds the Python that programs run in, the first `python3` on the path, and the files that it needs.
//!
//! Left out: packages of a virtual environment; programs get the standard library only.

use std::path::PathBuf;
use std::process::Command;

use record::child;
use record::failure::{Failure, Result};
use serde::Deserialize;

/// Runs in the user's Python outside the sandbox. Importing modules maps the shared objects that they need.
const QUESTION: &str = r#"
import importlib, json, os, sys, sysconfig
for name in "bz2 ctypes decimal hashlib lzma math sqlite3 ssl uuid zlib zoneinfo".split():
    try:
        importlib.import_module(name)
    except ImportError:
        pass
with open("/proc/self/maps") as maps:
    mapped = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}
json.dump({
    "executable": os.path.realpath(sys._base_executable),
    "libraries": sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}),
    "landmarks": sorted({sysconfig.get_path(name, vars={"installed_base": sys.base_prefix, "base": sys.base_prefix,
                         "platbase": sys.base_exec_prefix, "installed_platbase": sys.base_exec_prefix})
                         for name in ("stdlib", "platstdlib")}),
    "objects": sorted(name for name in mapped if name.startswith("/") and os.path.exists(name)),
    "version": sys.version_info[:3],
}, sys.stdout)
"#;

/// A Python interpreter and the files that it needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Interpreter {
    /// Without symbolic links.
    pub executable: PathBuf,
    /// Directories of its standard library, without symbolic links.
    pub libraries: Vec<PathBuf>,
    /// The paths of `libraries` as the interpreter searches for them.
    pub landmarks: Vec<PathBuf>,
    /// Files that it maps, such as shared objects.
    pub objects: Vec<PathBuf>,
    /// Major, minor, patch.
    pub version: [u32; 3],
}

impl Interpreter {
    /// Finds the `python3` on the path.
    pub fn find() -> Result<Self> {
        let missing = |cause: String| {
            Failure::unavailable(format!("sandbox: python3{cause}"))
                .hint("install Python 3.9 or newer, as `python3` on the path")
        };
        let output = child::output(Command::new("python3").args(["-I", "-S", "-c", QUESTION]))
            .map_err(|error| missing(format!(": {error}")))?;
        let interpreter = serde_json::from_slice(&output.stdout).map_err(|error| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let cause = stderr.lines().last().map_or(error.to_string(), str::to_owned);
            missing(format!(" does not say where its parts are: {cause}"))
        });
        let interpreter: Interpreter = interpreter?;
        match interpreter.version >= [3, 9, 0] {
            true => Ok(interpreter),
            false => Err(missing(format!(" is version {}", interpreter.version_text()))),
        }
    }

    /// For example `3.11.7`.
    pub fn version_text(&self) -> String {
        self.version.map(|part| part.to_string()).join(".")
    }
}
