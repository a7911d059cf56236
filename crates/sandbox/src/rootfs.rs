//! The root file system of a sandbox, as a list of parts that [`super::namespaces`] mounts.
//!
//! The parts are the system's library directories, time zones, Python and five harmless devices, all read-only. Left out: `/etc`,
//! `/home`, `/root`, `/proc`, `/sys`, `/run`, `/var` and programs other than the interpreter.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};

use super::interpreter::Interpreter;

/// Where Linux distributions keep shared objects and time zones.
const LIBRARIES: &str =
    "/lib /lib32 /lib64 /usr/lib /usr/lib32 /usr/lib64 /usr/local/lib /etc/ld.so.cache /usr/share/zoneinfo";

const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A file or directory of the host, seen inside at the same path.
pub struct Part {
    /// The absolute path outside.
    pub source: CString,
    /// The path inside, relative to the new root.
    pub target: CString,
    /// True for devices. Device files are disabled on all other mounts.
    pub device: bool,
}

/// The layout of a root file system.
pub struct Root {
    /// An existing directory outside, as the mount point of the new root.
    pub site: CString,
    /// Directories to make, each after its parent, relative to the new root.
    pub directories: Vec<CString>,
    /// Empty files to make, for parts that are files.
    pub files: Vec<CString>,
    /// Symbolic links to make: target and path.
    pub links: Vec<(CString, CString)>,
    /// The mounted parts.
    pub parts: Vec<Part>,
}

impl Root {
    /// Plans the root file system for `interpreter` on this machine.
    ///
    /// # Errors
    /// A path contains a zero byte, or there is no directory to mount on: unavailable.
    pub fn plan(interpreter: &Interpreter) -> Result<Root> {
        let mut shown: Vec<PathBuf> = Vec::new();
        let mut links: Vec<(PathBuf, PathBuf)> = Vec::new();
        for path in LIBRARIES.split(' ').map(PathBuf::from) {
            match std::fs::read_link(&path) {
                Ok(target) => links.push((target, path)),
                Err(_) if path.exists() => shown.push(path),
                Err(_) => {}
            }
        }
        let own = interpreter.libraries.iter().chain(&interpreter.landmarks).chain(&interpreter.objects);
        let own = own.chain([&interpreter.executable]);
        for path in own.filter(|path| path.exists()) {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            let seen = |path: &Path| {
                shown.iter().any(|part| path.starts_with(part))
                    || links.iter().any(|(_, link)| path.starts_with(link))
            };
            let hidden = [path.clone(), real].into_iter().filter(|path| !seen(path));
            let hidden: BTreeSet<PathBuf> = hidden.collect();
            shown.extend(hidden);
        }
        let parts: Vec<PathBuf> = shown.into_iter().chain(DEVICES.iter().map(PathBuf::from)).collect();

        let mut directories: BTreeSet<PathBuf> = ["/tmp", "/dev"].iter().map(PathBuf::from).collect();
        let mut files = Vec::new();
        for path in parts.iter().chain(links.iter().map(|(_, link)| link)) {
            directories.extend(path.ancestors().skip(1).map(Path::to_path_buf));
        }
        for path in &parts {
            if path.is_dir() {
                directories.insert(path.clone());
            } else {
                files.push(inside(path)?);
            }
        }
        directories.remove(Path::new("/"));
        let site = ["/tmp", "/var", "/usr"].into_iter().find(|path| Path::new(path).is_dir());
        let site =
            site.ok_or_else(|| Failure::unavailable("sandbox: neither /tmp nor /var nor /usr is there"))?;
        Ok(Root {
            site: text(Path::new(site))?,
            directories: directories.iter().map(|path| inside(path)).collect::<Result<_>>()?,
            files,
            links: links.iter().map(|(to, link)| Ok((text(to)?, inside(link)?))).collect::<Result<_>>()?,
            parts: parts
                .iter()
                .map(|path| {
                    Ok(Part { source: text(path)?, target: inside(path)?, device: path.starts_with("/dev") })
                })
                .collect::<Result<_>>()?,
        })
    }
}

fn inside(path: &Path) -> Result<CString> {
    text(path.strip_prefix("/").unwrap_or(path))
}

fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::unavailable(format!("sandbox: {}: a path with a zero byte", path.display())))
}
