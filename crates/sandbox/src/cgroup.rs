//! A control group for each worker, if cgroups v2 are delegated to this user. It limits all kinds of memory
//! and the number of tasks, for the fork server and the program together.
//!
//! Resource limits apply in any case. They count address space and files separately; a group also counts what
//! the kernel allocates for a program, such as pipes and socket buffers. Follows the rules of Linux's
//! `cgroup-v2` documentation, "Delegation". Left out: cgroups v1, which cannot be delegated safely.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Tasks of a worker: the fork server, a program with its threads, and one spare while
/// programs follow each other.
const TASKS: &str = "20";
/// The attribute that the service manager sets on directories that it delegates.
const DELEGATED: &str = "user.delegate";

/// A group that lives as long as its worker.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Creates a group below a delegated one; `None` if no group is delegated.
    pub fn create() -> Option<Group> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = delegated(
            &fs::read_to_string("/proc/self/cgroup").ok()?,
            &fs::read_to_string("/proc/self/mountinfo").ok()?,
        )?;
        forget_the_dead(&parent);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("troupe-{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Group { path };
        // Kill the whole group: the kernel's choice of one process means nothing, because pipes and files
        // belong to no process.
        for (file, value) in [("pids.max", TASKS), ("memory.oom.group", "1")] {
            group.write(file, value).ok()?;
        }
        // This file does not exist if swap is not counted.
        let _ = group.write("memory.swap.max", "0");
        Some(group)
    }

    /// Moves a process into the group.
    pub fn add(&self, process: i32) -> std::io::Result<()> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// Limits what the group's processes hold to `bytes` more than now.
    pub fn limit_memory(&self, bytes: u64) -> std::io::Result<()> {
        let now = fs::read_to_string(self.path.join("memory.current"))?;
        let now: u64 = now.trim().parse().map_err(std::io::Error::other)?;
        self.write("memory.max", &(now + bytes).to_string())
    }

    /// Returns true if the kernel killed its processes because it was full.
    pub fn was_full(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        events.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count != "0"))
    }

    fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.path.join(file), value)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Kill its remaining processes; the kernel takes a moment to remove the last one.
        let _ = self.write("cgroup.kill", "1");
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Removes the groups of workers that have ended: one that is killed, or just exits, cannot remove its own.
fn forget_the_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("troupe-")?.split_once('-'));
        if owner.is_some_and(|(id, _)| !Path::new("/proc").join(id).exists()) {
            // Fails, as it should, for a group that still has a process.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The directory in which this process may create groups with both controllers: the parent of its group, if
/// the service manager delegated it to the user or the service. `cgroup` and `mounts` are `/proc/self/cgroup`
/// and `/proc/self/mountinfo`.
fn delegated(cgroup: &str, mounts: &str) -> Option<PathBuf> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let (root, mount) = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        kind.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
    })?;
    let inside = Path::new(own).strip_prefix(root).ok()?;
    let above = Path::new(mount).join(inside.parent()?);
    let enabled = fs::read_to_string(above.join("cgroup.subtree_control")).ok()?;
    let has = |name| enabled.split_whitespace().any(|controller| controller == name);
    // SAFETY: reads a number of this process, and cannot fail.
    let user = unsafe { libc::geteuid() };
    let own = user != 0 && fs::metadata(above.join("cgroup.procs")).ok()?.uid() == user;
    let given = || above.ancestors().take_while(|path| path.starts_with(mount)).any(marked);
    (has("memory") && has("pids") && (own || given())).then_some(above)
}

/// Returns true if the service manager has delegated this directory.
fn marked(path: &Path) -> bool {
    let mut value = [0_u8; 2];
    rustix::fs::getxattr(path, DELEGATED, &mut value).is_ok_and(|length| value[..length] == *b"1")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs `script` in a shell in a new group limited to 32 MiB; returns its exit code.
    fn run(script: &str) -> Option<(Option<i32>, bool)> {
        let Some(group) = Group::create() else {
            troupe_tests::skip::not_run("no control group is delegated to this user");
            return None;
        };
        let mut shell = Command::new("sh").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("sh");
        group.add(shell.id() as i32).expect("delegated");
        group.limit_memory(32 << 20).expect("the controller is on");
        let mut stdin = shell.stdin.take().expect("a pipe");
        stdin.write_all(script.as_bytes()).expect("the shell reads");
        drop(stdin);
        let code = shell.wait().expect("its end").code();
        let (path, full) = (group.path.clone(), group.was_full());
        drop(group);
        assert!(!path.exists());
        Some((code, full))
    }

    #[test]
    fn memory_is_limited_for_all_processes_together() {
        let Some(fits) = run("head -c 9M /dev/zero | tail -c 9M | wc -c >/dev/null") else { return };
        assert_eq!(fits, (Some(0), false));
        // Each stays below the limit; together they exceed it, and all are killed, including the shell.
        let two =
            "for n in 1 2; do (head -c 20M /dev/zero; sleep 1) | tail -c 20M >/dev/null & done; wait; exit 0";
        assert_eq!(run(two), Some((None, true)));
    }

    #[test]
    fn processes_are_limited() {
        let many = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do sleep 1 & done; wait";
        let Some((code, full)) = run(many) else { return };
        assert!(code.is_some_and(|code| code != 0) && !full);
        assert_eq!(run("for n in 1 2 3 4 5; do sleep 0.1 & done; wait"), Some((Some(0), false)));
    }

    #[test]
    fn groups_of_dead_processes_go() {
        let parent = std::env::temp_dir().join(format!("groups-{}", std::process::id()));
        let own = format!("troupe-{}-0", std::process::id());
        for name in ["troupe-4194305-0", "troupe-4194305-1", &own, "other"] {
            fs::create_dir_all(parent.join(name)).expect("a folder");
        }
        forget_the_dead(&parent);
        let left = fs::read_dir(&parent).expect("the folder").count();
        fs::remove_dir_all(&parent).expect("the folder");
        assert_eq!(left, 2);
    }

    #[test]
    fn only_what_is_delegated_is_taken() {
        let mounts = "30 1 0:26 / /sys rw - sysfs s rw\n31 1 0:27 / /nowhere/cgroup rw - cgroup2 c rw\n";
        assert_eq!(delegated("0::/a/b\n", mounts), None, "it is not there");
        assert_eq!(delegated("4:memory:/a\n", mounts), None, "cgroups v1");
        assert_eq!(delegated("0::/\n", mounts), None, "nothing is above");
    }
}
