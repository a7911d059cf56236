//! Runs model-written programs on this machine without trusting them.
//!
//! A program gets an interpreter, its standard input, an empty directory and nothing else. Each worker is a warm
//! Python that forks once per program, so a test costs a few milliseconds. Workers start on demand and are shared by
//! all threads.
//!
//! # Covered
//!
//! | attempt | protection |
//! |---|---|
//! | network | a network namespace without interfaces; the system call filter refuses sockets, except a private connected pair |
//! | files | a separate root file system: system libraries, time zones and Python, read-only; an empty `/tmp` of limited size, deleted afterwards; no `/proc`, `/sys`, `/home`, `/etc` |
//! | environment variables | none are set |
//! | other processes | a new PID namespace: no other process can be seen, signalled or traced |
//! | locks on library files | a lock succeeds and excludes nobody |
//! | privileges | an unprivileged user in a new user namespace, no capabilities, `no_new_privs`, an allow list of system calls |
//! | processor time | measured over all threads while it runs, killed at the limit; also `RLIMIT_CPU` |
//! | wall time | killed at the limit; the judge stops waiting even if the worker hangs |
//! | memory | address space, size of `/tmp`, size of every file; with cgroups v2, all of it together |
//! | processes | one, with up to sixteen additional threads |
//! | output | stdout and stderr are files in memory of limited size |
//! | surviving processes | the program is process 1 of its namespace: when it ends the kernel kills everything else in it |
//! | forged verdicts | exit status and time come from the kernel; expected outputs never enter the sandbox and the caller compares; the program holds no descriptor of ours except its input and output |
//! | remains of earlier programs | sources, inputs and outputs pass the fork server as descriptors, unread |
//!
//! Every run sees the same environment: hash seed 0, UTF-8, no randomized addresses, `random` seeded with 0,
//! working directory `/tmp`, host name `sandbox`.
//!
//! # Not covered
//!
//! Bugs of the kernel: this is a fence of system calls, not a virtual machine. Timing and cache side channels. The
//! system's library directories can be read. Clocks and `os.urandom` are real, so a program that reads them may differ
//! from run to run. Third-party packages are not on the path. Languages other than Python.
//!
//! # No fallback
//!
//! On start every worker runs a program that tests each restriction. If one is missing, the result is exit 69
//! with a hint, and nothing else runs.
//!
//! Requirements: Linux 5.14 or newer on x86-64 or ARM64, user namespaces, Python 3.9 or newer. Root (who then
//! becomes an unprivileged user) and plain users can run it. Hard limits (`ulimit -H`) below the sandbox's
//! apply; a limit that is too low is an error that names it. If cgroups v2 are delegated (by a user's service
//! manager, or to a service with `Delegate=yes`), each worker also has a control group.

mod program;

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod interpreter;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod rootfs;
#[cfg(target_os = "linux")]
mod worker;

/// Other systems have no namespaces, so nothing runs there.
#[cfg(not(target_os = "linux"))]
mod pool {
    use record::failure::{Failure, Result};

    /// The sandbox; this system has none.
    pub enum Sandbox {}

    impl Sandbox {
        pub fn shared() -> Result<&'static Sandbox> {
            Err(Failure::unavailable("the sandbox for model-written programs needs Linux")
                .hint("run this in a Linux machine or container"))
        }

        pub fn run(&self, _program: &crate::Program<'_>) -> Result<crate::Execution> {
            match *self {}
        }
    }
}

pub use pool::Sandbox;
pub use program::{Entry, Execution, Limits, Program, Status};
