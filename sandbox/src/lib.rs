//! Runs programs that a model wrote, on this machine, without trusting them.
//!
//! A program gets an interpreter, its standard input, an empty directory and nothing else. Each worker is a warm
//! Python that forks once a program, so that a test costs a few milliseconds; workers are started as they are
//! needed and shared by all threads.
//!
//! # Covered
//!
//! | attempt | what stops it |
//! |---|---|
//! | network | a network namespace without interfaces; sockets are refused by the system call filter |
//! | files | an own root file system: system libraries and Python, read only; `/tmp`, empty, limited, gone afterwards; no `/proc`, `/sys`, `/home`, `/etc` |
//! | environment variables | none are there, of ours or otherwise |
//! | other processes | an own process namespace: none can be seen, signalled or traced |
//! | privileges | an unprivileged user of an own user namespace, no capabilities, `no_new_privs`, an allow list of system calls |
//! | processor time | measured for all threads while it runs, kill at the limit; each process is limited too |
//! | wall time | kill at the limit, and a judge that stops waiting even for a worker that hangs |
//! | memory | address space of each process, size of `/tmp`, size of every file |
//! | processes | one, unless the caller allows more; threads count |
//! | output | standard output and error are files in memory with a limited size |
//! | what outlives it | process 1 of the namespace ends, and the kernel kills everything in it before the verdict is given |
//! | forged verdicts | the exit status and the time are the kernel's word; expected outputs never enter the sandbox, comparison is the caller's; the program holds no descriptor of ours but its own input and output |
//! | programs that look for each other's remains | sources, inputs and outputs pass the fork server as descriptors, unread |
//!
//! The environment is the same each time: hash seed 0, UTF-8, no randomized addresses, `random` seeded with 0,
//! working directory `/tmp`, host name `sandbox`.
//!
//! # Not covered
//!
//! Faults of the kernel itself: this is a fence of system calls, not a virtual machine. Timing and cache side channels.
//! The content of the system's own library directories, which can be read. Clocks and `os.urandom` tell what they
//! tell, so a program that asks for them can differ from run to run. With more than one process allowed, memory is
//! limited for each and processor time of a child counts in the verdict when it has ended. Third-party packages are
//! not on the path. Other languages than Python.
//!
//! # Never without
//!
//! Every worker proves on start, by a program that tries, that the fences stand. If one is missing the answer is
//! exit 69 with a hint, and nothing is run. Needed: Linux 5.14 or newer on x86-64 or ARM64, user namespaces, and
//! Python 3.9 or newer. It works as root, who then becomes an unprivileged user, and as a plain user.

mod program;

#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod interpreter;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(not(target_os = "linux"))]
#[path = "unsupported.rs"]
mod pool;

pub use pool::Sandbox;
pub use program::{Entry, Execution, Limits, Program, Status};
