//! Starts a process in new namespaces and strips it of everything it does not need.
//!
//! The new process is a copy of this one, which may have many threads. Until it calls `execve` it may only
//! make system calls: no allocation, no lock, no formatting. Everything it needs is prepared before the fork.
//! If a step fails it reports the step and the error number over a pipe.
//!
//! The started process keeps one capability, `CAP_SYS_ADMIN` in its user namespace: the fork server needs it
//! to create a PID and a mount namespace for each program. Programs have no capabilities.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_long, c_ulong};
use record::failure::{Failure, Result};
use rustix::pipe::PipeFlags;
use rustix::process::{Resource, Signal, WaitId, WaitIdOptions, getrlimit, pidfd_send_signal, waitid};

use super::rootfs::Root;

/// User and group ID inside the sandbox.
const INSIDE: u32 = 1000;
/// The user that root becomes: `nobody`.
const NOBODY: u32 = 65_534;

/// Bytes of stack of each thread.
const STACK: u64 = 8 << 20;

const NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

const CAP_SYS_ADMIN: c_ulong = 21;

/// Process 1 of its namespace.
pub struct Process {
    descriptor: OwnedFd,
    /// Its PID in our namespace.
    pub id: i32,
}

impl Process {
    /// Kills it, and with it everything in its PID namespace.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Executes `arguments` with `environment` in `root` and in new namespaces; root becomes `nobody`. `socket`
/// becomes descriptor 3. Descriptors 0 to 2 are `/dev/null`, and there are no others.
///
/// # Errors
/// The kernel lacks something, or forbids it to this user: unavailable.
pub fn spawn(
    root: &Root,
    arguments: &[CString],
    environment: &[CString],
    socket: &OwnedFd,
) -> Result<Process> {
    // SAFETY: these calls read two numbers of the calling process and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // In a container root may not be allowed to become another user; then map root to itself.
    if user == 0
        && let Ok(process) = spawn_as(root, arguments, environment, socket, NOBODY, NOBODY, true)?
    {
        return Ok(process);
    }
    spawn_as(root, arguments, environment, socket, user, group, false)?
}

/// Like [`spawn`]; the inner error means that the user namespace cannot get this identity.
fn spawn_as(
    root: &Root,
    arguments: &[CString],
    environment: &[CString],
    socket: &OwnedFd,
    user: u32,
    group: u32,
    groups: bool,
) -> Result<Result<Process>> {
    let unavailable = |what: &'static str| {
        move |error: std::io::Error| Failure::unavailable(format!("sandbox: {what}: {error}"))
    };
    let (go, mut signal_go) = pipe().map_err(unavailable("pipe"))?;
    let (mut report, send_report) = pipe().map_err(unavailable("pipe"))?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(unavailable("/dev/null"))?;
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let hard = getrlimit(Resource::Stack).maximum.unwrap_or(libc::RLIM_INFINITY);
    let child = Child {
        root,
        stack: [hard.min(STACK), hard],
        trees: vec![-1; root.parts.len()],
        arguments: pointers(arguments),
        environment: pointers(environment),
        socket: socket.as_raw_fd(),
        null: null.as_raw_fd(),
        go: go.as_raw_fd(),
        signal_go: signal_go.as_raw_fd(),
        report: send_report.as_raw_fd(),
        groups,
    };
    let mut descriptor: c_int = -1;
    let flags = c_long::from(NAMESPACES | libc::CLONE_PIDFD | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is a fork: the child continues on a copy of this stack. The
    // third argument is where the kernel writes a descriptor, an int that outlives the call. The child only makes
    // system calls (see `Child::run`, which never returns).
    let id = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut descriptor, 0, 0) };
    if id < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() == std::io::ErrorKind::WouldBlock {
            return Err(unavailable("no more processes (ulimit -u)")(error).hint("raise the limit"));
        }
        return Err(unavailable("the kernel refuses new namespaces")(error).hint(
            "allow unprivileged user namespaces (sysctl user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); in a container, \
             a seccomp profile that allows unshare",
        ));
    }
    if id == 0 {
        child.run();
    }
    // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
    let process = Process { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, id: id as i32 };
    drop((go, send_report));
    if let Err(error) = map_identity(process.id, user, group, groups) {
        process.kill();
        let cause = format!("sandbox: the user namespace cannot be given user {user}: {error}");
        return Ok(Err(Failure::unavailable(cause)
            .hint("allow user namespaces to map identities, or run as a plain user")));
    }
    let mut message = Vec::new();
    let read = signal_go.write_all(b"g").and_then(|()| report.read_to_end(&mut message));
    read.map_err(unavailable("pipe"))?;
    let Some((number, step)) = message.split_first_chunk() else { return Ok(Ok(process)) };
    process.kill();
    let error = std::io::Error::from_raw_os_error(i32::from_ne_bytes(*number));
    let step = String::from_utf8_lossy(step);
    Err(Failure::unavailable(format!("sandbox: {step}: {error}")).hint(
        "the sandbox needs Linux 5.14 or newer, and in a container the right to mount in own namespaces",
    ))
}

fn pipe() -> std::io::Result<(File, File)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((File::from(read), File::from(write)))
}

/// Maps the user [`INSIDE`] of the new namespace to `user` outside.
fn map_identity(id: i32, user: u32, group: u32, groups: bool) -> std::io::Result<()> {
    if !groups {
        fs::write(format!("/proc/{id}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{id}/gid_map"), format!("{INSIDE} {group} 1"))?;
    fs::write(format!("/proc/{id}/uid_map"), format!("{INSIDE} {user} 1"))
}

/// Everything the new process needs, prepared before the fork.
struct Child<'a> {
    root: &'a Root,
    /// Soft and hard limit of the stack.
    stack: [u64; 2],
    /// A descriptor per part of the root.
    trees: Vec<c_int>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    socket: RawFd,
    null: RawFd,
    go: RawFd,
    signal_go: RawFd,
    report: RawFd,
    groups: bool,
}

/// The step that failed and its error number.
type Steps<T> = std::result::Result<T, (&'static str, i32)>;

/// A system call as a named step.
macro_rules! call {
    ($step:literal, $number:ident, $($argument:expr),+) => {
        check($step, libc::syscall(libc::$number, $($argument),+))
    };
}

impl Child<'_> {
    /// Runs the steps; reports the first that fails, and exits.
    fn run(mut self) -> ! {
        let Err((step, error)) = self.steps();
        // SAFETY: plain system calls on an owned descriptor, a number and a static text; the last one does
        // not return.
        unsafe {
            libc::syscall(libc::SYS_write, self.report, &raw const error, size_of_val(&error));
            libc::syscall(libc::SYS_write, self.report, step.as_ptr(), step.len());
            loop {
                libc::syscall(libc::SYS_exit_group, 70);
            }
        }
    }

    fn steps(&mut self) -> Steps<std::convert::Infallible> {
        let null = ptr::null::<c_char>();
        let here = c".".as_ptr();
        let nothing = c"".as_ptr();
        let sealed = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
        // SAFETY: every call gets numbers, pointers to zero-terminated texts and buffers that live in the parent's copied
        // memory or on this stack, with their right sizes. None allocates, and none touches state of the C library
        // other than errno of this thread.
        unsafe {
            libc::syscall(libc::SYS_close, self.signal_go);
            let mut byte = 0_u8;
            if libc::syscall(libc::SYS_read, self.go, &raw mut byte, 1) != 1 {
                return Err(("waiting for the parent", libc::EPIPE));
            }
            let shape = libc::MS_REC | libc::MS_PRIVATE;
            call!("mount propagation", SYS_mount, null, c"/".as_ptr(), null, shape, null)?;

            // Still as the outside user, who may read files that the inside user may not.
            for (part, tree) in self.root.parts.iter().zip(&mut self.trees) {
                let flags =
                    libc::OPEN_TREE_CLONE as c_int | libc::OPEN_TREE_CLOEXEC as c_int | libc::AT_RECURSIVE;
                let source = part.source.as_ptr();
                *tree = call!("open_tree", SYS_open_tree, libc::AT_FDCWD, source, flags)? as c_int;
                let further = if part.device { libc::MOUNT_ATTR_NOEXEC } else { libc::MOUNT_ATTR_NODEV };
                let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
                check("mount_setattr of a part", attributes(*tree, flags, sealed | further))?;
            }

            if self.groups {
                call!("setgroups", SYS_setgroups, 0, null)?;
            }
            call!("setresgid", SYS_setresgid, INSIDE, INSIDE, INSIDE)?;
            call!("setresuid", SYS_setresuid, INSIDE, INSIDE, INSIDE)?;

            let tmpfs = c"tmpfs".as_ptr();
            let site = self.root.site.as_ptr();
            let options = c"size=1m,nr_inodes=4096,mode=755".as_ptr();
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            call!("mounting a tmpfs", SYS_mount, tmpfs, site, tmpfs, flags, options)?;
            call!("chdir", SYS_chdir, site)?;
            libc::syscall(libc::SYS_umask, 0o022);
            for path in &self.root.directories {
                call!("making a directory", SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o755)?;
            }
            for path in &self.root.files {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
                let file = call!("making a file", SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644)?;
                libc::syscall(libc::SYS_close, file);
            }
            for (to, link) in &self.root.links {
                call!("making a link", SYS_symlinkat, to.as_ptr(), libc::AT_FDCWD, link.as_ptr())?;
            }
            for (part, tree) in self.root.parts.iter().zip(&self.trees) {
                let target = part.target.as_ptr();
                let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
                call!("move_mount", SYS_move_mount, *tree, nothing, libc::AT_FDCWD, target, flags)?;
            }
            // The old root is stacked on the new one and detached from there, so it needs no directory.
            call!("pivot_root", SYS_pivot_root, here, here)?;
            call!("detaching the old root", SYS_umount2, here, libc::MNT_DETACH)?;
            call!("chdir", SYS_chdir, c"/".as_ptr())?;
            check(
                "mount_setattr of the root",
                attributes(libc::AT_FDCWD, 0, sealed | libc::MOUNT_ATTR_NODEV),
            )?;
            call!("sethostname", SYS_sethostname, c"sandbox".as_ptr(), 7)?;
            libc::syscall(libc::SYS_setsid);
            libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE);
            call!("limiting the stack", SYS_prlimit64, 0, libc::RLIMIT_STACK, self.stack.as_ptr(), 0)?;
            self.signals();
            self.descriptors()?;
            self.capabilities()?;
            let executable = self.arguments[0];
            let arguments = self.arguments.as_ptr();
            call!("execve", SYS_execve, executable, arguments, self.environment.as_ptr())?;
        }
        Err(("execve", libc::EINVAL))
    }

    /// Resets signal handling. `execve` resets handlers, but keeps blocked and ignored signals.
    unsafe fn signals(&self) {
        let none = 0_u64;
        let default = [0_u64; 4];
        // SAFETY: the kernel's signal set is eight bytes and its sigaction four words on both supported architectures.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
            for signal in 1..=64 {
                libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, 0, 8);
            }
        }
    }

    unsafe fn descriptors(&mut self) -> Steps<()> {
        // SAFETY: plain system calls on descriptors that are open in this process.
        unsafe {
            // Above the five descriptors that follow.
            let moved = |from: RawFd| {
                call!("descriptors", SYS_fcntl, from, libc::F_DUPFD_CLOEXEC, 10).map(|moved| moved as RawFd)
            };
            let (socket, null) = (moved(self.socket)?, moved(self.null)?);
            self.report = moved(self.report)?;
            for (target, source) in [(0, null), (1, null), (2, null), (3, socket)] {
                call!("descriptors", SYS_dup3, source, target, 0)?;
            }
            // The report pipe stays open until execve closes it, which tells the parent of success.
            call!("descriptors", SYS_dup3, self.report, 4, libc::O_CLOEXEC)?;
            self.report = 4;
            call!("descriptors", SYS_close_range, 5, u32::MAX, 0)?;
        }
        Ok(())
    }

    unsafe fn capabilities(&self) -> Steps<()> {
        // SAFETY: plain system calls; the two structures of capset are as linux/capability.h says for version 3.
        unsafe {
            for capability in (0..64).filter(|&capability| capability != CAP_SYS_ADMIN) {
                // Fails harmlessly for capabilities that this kernel does not have.
                libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            let kept = 1_u32 << CAP_SYS_ADMIN;
            let header = [0x2008_0522_u32, 0];
            let sets = [kept, kept, kept, 0, 0, 0];
            call!("dropping capabilities", SYS_capset, header.as_ptr(), sets.as_ptr())?;
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            call!("dropping capabilities", SYS_prctl, libc::PR_CAP_AMBIENT, raise, CAP_SYS_ADMIN, 0, 0)?;
            call!("no_new_privs", SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
        }
        Ok(())
    }
}

/// Calls `mount_setattr` to restrict a mount.
unsafe fn attributes(place: c_int, flags: c_int, set: u64) -> c_long {
    // struct mount_attr: what to set, what to clear, propagation, a user namespace.
    let attributes = [set, 0, 0, 0];
    let path = if place == libc::AT_FDCWD { c"/" } else { c"" };
    // SAFETY: the structure has the size that is given, and the text ends with zero.
    unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            place,
            path.as_ptr(),
            flags,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    }
}

fn check(step: &'static str, result: c_long) -> Steps<c_long> {
    if result < 0 {
        // SAFETY: the address of this thread's errno is always valid.
        return Err((step, unsafe { *libc::__errno_location() }));
    }
    Ok(result)
}
