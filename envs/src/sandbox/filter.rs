//! The system calls that a program may make: everything that computing needs, by name, and nothing else.
//!
//! What is not listed fails with `ENOSYS`, which a C library takes as "this kernel is too old" and Python turns into an
//! `OSError`; so does `clone3`, whose flags a filter cannot see, and the C library then asks `clone`. Sockets, tracing,
//! namespaces, mounts, keys, shared memory of System V, asynchronous I/O rings and everything about other users are
//! not listed. A call of another architecture kills the process.

use std::collections::BTreeMap;

use record::failure::{Failure, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Calls allowed whatever their arguments.
const ALWAYS: &[libc::c_long] = &[
    // Files: what can be opened at all is the root file system's business.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_umask,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    // Threads and signals; only its own processes can be named.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigpending,
    libc::SYS_sigaltstack,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_restart_syscall,
    // Questions about itself, and clocks.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
];

/// The older spellings of some calls above, which ARM64 never had.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_getdents,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_readlink,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_create,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_getpgrp,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Further calls of a program that may have more than one process. `clone` is in neither list: see [`program`].
#[cfg(target_arch = "x86_64")]
const SEVERAL: &[libc::c_long] = &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_execve, libc::SYS_arch_prctl];
#[cfg(not(target_arch = "x86_64"))]
const SEVERAL: &[libc::c_long] = &[libc::SYS_execve];

/// Requests that `ioctl` may make: whether this is a terminal, and flags of a descriptor.
const REQUESTS: &[u64] = &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIOCLEX, libc::FIONCLEX, libc::FIONREAD];

/// Flags of `clone` that make namespaces or share more than a thread needs.
const NEVER: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PTRACE
    | libc::CLONE_PARENT) as u64;

/// The filter as the kernel reads it, eight bytes an instruction, for programs of one process or of `several`.
///
/// # Errors
/// A processor that the filter's compiler does not know: unavailable.
pub fn program(several: bool) -> Result<Vec<u8>> {
    let more = if several { SEVERAL } else { &[] };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALWAYS.iter().chain(OLDER).chain(more).map(|&number| (number, Vec::new())).collect();
    let mut requests = Vec::new();
    for &request in REQUESTS {
        requests.push(rule(1, Compare::Eq, request)?);
    }
    rules.insert(libc::SYS_ioctl, requests);
    let thread = libc::CLONE_THREAD as u64;
    // With one process `clone` makes threads only; with several also processes, but no namespaces.
    let clone = if several {
        rule(0, Compare::MaskedEq(NEVER), 0)?
    } else {
        rule(0, Compare::MaskedEq(NEVER | thread), thread)?
    };
    rules.insert(libc::SYS_clone, vec![clone]);
    // A domain of 1 is AF_UNIX: a pair of ends without a name.
    rules.insert(libc::SYS_socketpair, vec![rule(0, Compare::Eq, libc::AF_UNIX as u64)?]);
    let architecture = std::env::consts::ARCH.try_into().map_err(unavailable)?;
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture).map_err(unavailable)?;
    let code: BpfProgram = filter.try_into().map_err(unavailable)?;
    let mut bytes = Vec::with_capacity(code.len() * 8);
    for instruction in code {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    Ok(bytes)
}

fn rule(argument: u8, compare: Compare, value: u64) -> Result<SeccompRule> {
    let condition = SeccompCondition::new(argument, Length::Dword, compare, value).map_err(unavailable)?;
    SeccompRule::new(vec![condition]).map_err(unavailable)
}

fn unavailable(cause: impl std::fmt::Display) -> Failure {
    Failure::unavailable(format!("sandbox: no system call filter for this machine: {cause}"))
}
