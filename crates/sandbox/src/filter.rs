//! The allow list of system calls for programs.
//!
//! Any other call fails with `ENOSYS`, which a C library takes as "this kernel is too old" and Python turns
//! into an `OSError`. This includes `clone3`, whose flags a filter cannot see; the C library then falls back
//! to `clone`. Not listed: processes, sockets, tracing, namespaces, mounts, keys, System V shared memory,
//! io_uring and everything about other users. A call of another architecture kills the process.

use std::collections::BTreeMap;

use record::failure::{Failure, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// The numbers of calls by name.
macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls allowed with any arguments.
const ALWAYS: &[libc::c_long] = calls! {
    // Files: the root file system decides what can be opened.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_openat SYS_close SYS_close_range
    SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_lseek SYS_fcntl SYS_flock SYS_fsync
    SYS_fdatasync SYS_ftruncate SYS_truncate SYS_fallocate SYS_copy_file_range SYS_sendfile SYS_getdents64
    SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_unlinkat SYS_renameat2 SYS_linkat SYS_symlinkat
    SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_utimensat SYS_umask SYS_dup
    SYS_dup3 SYS_pipe2
    // Waiting.
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_eventfd2 SYS_nanosleep
    SYS_clock_nanosleep SYS_setitimer SYS_getitimer SYS_wait4 SYS_waitid
    // Memory.
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_mincore SYS_msync
    // Threads and signals; the PID namespace holds nobody else.
    SYS_futex SYS_set_robust_list SYS_get_robust_list SYS_set_tid_address SYS_rseq SYS_membarrier
    SYS_sched_yield SYS_sched_getaffinity SYS_gettid SYS_exit SYS_exit_group SYS_rt_sigaction
    SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait SYS_rt_sigsuspend SYS_rt_sigpending
    SYS_sigaltstack SYS_kill SYS_tkill SYS_tgkill SYS_restart_syscall
    // Identity, limits and clocks.
    SYS_getpid SYS_getppid SYS_getpgid SYS_getsid SYS_setsid SYS_setpgid SYS_getuid SYS_geteuid SYS_getgid
    SYS_getegid SYS_getgroups SYS_getresuid SYS_getresgid SYS_getrusage SYS_prlimit64 SYS_getrlimit
    SYS_setrlimit SYS_times SYS_uname SYS_sysinfo SYS_getrandom SYS_clock_gettime SYS_clock_getres
    SYS_gettimeofday
};

/// Older variants of some calls above, which ARM64 never had.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_getdents SYS_mkdir SYS_rmdir SYS_unlink SYS_rename
    SYS_renameat SYS_link SYS_symlink SYS_readlink SYS_chmod SYS_dup2 SYS_pipe SYS_poll SYS_select
    SYS_epoll_wait SYS_epoll_create SYS_alarm SYS_pause SYS_getpgrp SYS_time
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Requests that `ioctl` may make: is this a terminal, and descriptor flags.
const REQUESTS: &[u64] =
    &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIOCLEX, libc::FIONCLEX, libc::FIONREAD, libc::FIONBIO];

/// Commands of `fcntl` that lock or lease a file.
const LOCKS: &[libc::c_int] =
    &[libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_SETLEASE];

/// Flags of `clone` that create namespaces or share more than a thread needs.
const NEVER: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PTRACE
    | libc::CLONE_PARENT) as u64;

/// The filters in the kernel's format, eight bytes per instruction, in the order in which they are installed.
///
/// The first makes every file lock succeed without taking one. A real lock on a library file would block the
/// host's programs, and in a sandbox of one process a lock excludes nobody. The second is the allow list.
///
/// # Errors
/// An architecture that the filter's compiler does not know: unavailable.
pub fn programs() -> Result<[Vec<u8>; 2]> {
    let locks = LOCKS.iter().map(|&command| rule(1, Compare::Eq, command as u64));
    let pretended =
        BTreeMap::from([(libc::SYS_flock, Vec::new()), (libc::SYS_fcntl, locks.collect::<Result<_>>()?)]);

    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        ALWAYS.iter().chain(OLDER).map(|&number| (number, Vec::new())).collect();
    let requests = REQUESTS.iter().map(|&request| rule(1, Compare::Eq, request));
    allowed.insert(libc::SYS_ioctl, requests.collect::<Result<_>>()?);
    // Only threads: no processes or namespaces.
    let thread = libc::CLONE_THREAD as u64;
    allowed.insert(libc::SYS_clone, vec![rule(0, Compare::MaskedEq(NEVER | thread), thread)?]);
    // An event loop needs an unnamed connected pair to wake itself. It cannot reach any other process.
    allowed.insert(libc::SYS_socketpair, vec![rule(0, Compare::Eq, libc::AF_UNIX as u64)?]);
    allowed.insert(libc::SYS_recvfrom, Vec::new());
    let unnamed = SeccompCondition::new(4, Length::Qword, Compare::Eq, 0).map_err(unavailable)?;
    allowed.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![unnamed]).map_err(unavailable)?]);
    Ok([
        compile(pretended, SeccompAction::Errno(0), SeccompAction::Allow)?,
        compile(allowed, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?,
    ])
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    action: SeccompAction,
    otherwise: SeccompAction,
) -> Result<Vec<u8>> {
    let architecture = std::env::consts::ARCH.try_into().map_err(unavailable)?;
    let filter = SeccompFilter::new(rules, otherwise, action, architecture).map_err(unavailable)?;
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
