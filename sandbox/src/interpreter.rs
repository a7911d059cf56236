//! The Python that programs run in: found as a shell would find it, and asked which files belong to it.
//!
//! Left out: choosing among several. The first `python3` on the path is taken; a virtual environment's packages are
//! not, because programs get the standard library only.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use record::failure::{Failure, Result};
use serde::Deserialize;

/// Run by the user's own Python outside the sandbox. Importing what needs shared objects brings them into the map.
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

/// The oldest Python whose standard library has what the fork server needs.
const OLDEST: [u32; 2] = [3, 9];

/// A Python interpreter and the files that it needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Interpreter {
    /// The program itself, without symbolic links.
    pub executable: PathBuf,
    /// Directories of its standard library, without symbolic links.
    pub libraries: Vec<PathBuf>,
    /// The same as the interpreter itself will look for them.
    pub landmarks: Vec<PathBuf>,
    /// Files that it maps, shared objects among them.
    pub objects: Vec<PathBuf>,
    /// Its version: major, minor, patch.
    pub version: [u32; 3],
}

impl Interpreter {
    /// The `python3` of the path.
    ///
    /// # Errors
    /// None, one that cannot describe itself, or one that is too old: unavailable.
    pub fn find() -> Result<Self> {
        let missing = |cause: String| {
            Failure::unavailable(cause).hint("install Python 3.9 or newer, as `python3` on the path")
        };
        let output = Command::new("python3")
            .args(["-I", "-S", "-c", QUESTION])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| missing(format!("sandbox: python3: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it said nothing");
            return Err(missing(format!("sandbox: python3 does not say where its parts are: {last}")));
        }
        let interpreter: Interpreter = serde_json::from_slice(&output.stdout).map_err(|error| {
            missing(format!("sandbox: python3 does not say where its parts are: {error}"))
        })?;
        if interpreter.version[..2] < OLDEST[..] {
            return Err(missing(format!("sandbox: python3 is version {}", interpreter.version_text())));
        }
        Ok(interpreter)
    }

    /// For example `3.11.7`.
    pub fn version_text(&self) -> String {
        self.version.map(|part| part.to_string()).join(".")
    }
}
