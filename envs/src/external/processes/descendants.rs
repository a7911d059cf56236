//! Ends every process that a process has started, including those that left its process group or outlived
//! their parent.
//!
//! Every process that we start has a mark in its environment, which its descendants inherit. We search the
//! processes of this machine for the mark, and for children of those found. A process that clears its
//! environment after its parent has ended is not found. Left out: namespaces and cgroups, which not every
//! machine grants.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that holds the mark.
pub const MARK: &str = "TROUPE_STARTED_BY";
/// Gives up after this many rounds on a process that starts others faster than they can be ended.
const ROUNDS: usize = 16;

/// A mark that no other process has, now or before.
pub fn mark() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // A process's number comes again after a while, its start does not.
    let started = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let started = started.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).unwrap_or("0");
    format!("{}-{started}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Kills what carries `mark` in the environment variable `name`, and its children, until there is none.
pub fn kill(name: &str, mark: &str) {
    let entry = format!("{name}={mark}");
    for _ in 0..ROUNDS {
        let found = marked(entry.as_bytes());
        if found.is_empty() {
            return;
        }
        for pid in found {
            // SAFETY: kill only sends a signal. The process was seen a moment ago.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// Returns true if a thread of process `id`, or of a descendant whose parents live, runs or waits for a disk.
pub fn is_busy(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path()).any(|thread| {
        let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
        // The name before the state may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        matches!(state, Some("R" | "D"))
            || children.split_whitespace().filter_map(|id| id.parse().ok()).any(is_busy)
    })
}

/// Processes with this entry in their environment, and their descendants. Ended processes are not listed,
/// because they have no environment.
fn marked(entry: &[u8]) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut others = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|own| own == entry) {
            found.insert(pid);
        } else if let Some((state, parent)) = state_and_parent(pid)
            && state != "Z"
        {
            others.push((pid, parent));
        }
    }
    // Children of those found, and theirs.
    while let Some(at) = others.iter().position(|(_, parent)| found.contains(parent)) {
        found.insert(others.swap_remove(at).0);
    }
    found
}

fn state_and_parent(pid: i32) -> Option<(String, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn computing_grandchildren_are_seen_and_sleeping_ones_are_not() {
        for (work, busy) in [("while :; do :; done", true), ("sleep 60", false)] {
            let mark = mark();
            let mut child = Command::new("sh")
                .args(["-c", "sh -c \"$0; :\"; :", work])
                .env(MARK, &mark)
                .spawn()
                .expect("sh starts");
            let (begun, mut looks) = (Instant::now(), 0);
            while looks < 20 && begun.elapsed() < Duration::from_secs(20) {
                looks = if is_busy(child.id()) == busy { looks + 1 } else { 0 };
                sleep(Duration::from_millis(1));
            }
            kill(MARK, &mark);
            child.wait().expect("it was ended");
            assert_eq!(looks, 20, "{work}");
        }
    }
}
