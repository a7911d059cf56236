//! Starts a process in namespaces of its own and takes everything from it that it does not need.
//!
//! The new process is a copy of this one, which may have many threads, so until it becomes another program it may call
//! the kernel and nothing else: no allocation, no lock, no formatting. Everything that it needs is made before. Where it
//! fails, it says at which step and with which error number over a pipe, and the parent makes a sentence of it.
//!
//! What is started has one capability, `CAP_SYS_ADMIN` over its own user namespace: the fork server makes a process
//! and a mount namespace for each program with it. The programs themselves have none.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_long, c_ulong};
use record::failure::{Failure, Result};
use rustix::pipe::PipeFlags;

use super::root::Root;

/// The user and the group that programs see themselves as.
const INSIDE: u32 = 1000;
/// Whom root becomes: the user `nobody` wherever there is one.
const NOBODY: u32 = 65_534;

const NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

const CAP_SYS_ADMIN: c_ulong = 21;

/// Where the pipe to the parent is once the other descriptors are in place.
const MOVED_REPORT: RawFd = 4;

/// Most parts that a root file system can have: the new process keeps their descriptors on its stack.
const MOST_PARTS: usize = 256;

/// What is started.
pub struct Start<'a> {
    /// The file system that it finds.
    pub root: &'a Root,
    /// The program and its arguments.
    pub arguments: Vec<CString>,
    /// Its environment.
    pub environment: Vec<CString>,
    /// Becomes descriptor 3, the only one beside 0, 1 and 2, which are `/dev/null`.
    pub socket: OwnedFd,
}

/// A process that was started: process 1 of its namespace.
pub struct Process {
    /// Stands for it; readable when it has ended.
    pub descriptor: OwnedFd,
    /// Its number here.
    pub id: i32,
}

/// Steps of the new process, named in messages.
const STEPS: &[&str] = &[
    "waiting for the parent",
    "mount propagation",
    "open_tree",
    "mount_setattr of a part",
    "setgroups",
    "setresgid",
    "setresuid",
    "mounting a tmpfs",
    "chdir",
    "making a directory",
    "making a file",
    "making a link",
    "move_mount",
    "pivot_root",
    "detaching the old root",
    "mount_setattr of the root",
    "sethostname",
    "descriptors",
    "dropping capabilities",
    "no_new_privs",
    "execve",
];

/// Starts a process in namespaces of its own; as root it becomes the user nobody.
///
/// # Errors
/// A kernel that lacks something, or forbids it to this user: unavailable.
pub fn spawn(start: &Start<'_>) -> Result<Process> {
    // SAFETY: these calls read two numbers of the calling process and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if user == 0 {
        match enter_as(start, NOBODY, NOBODY, true) {
            Ok(process) => return Ok(process),
            // A root that may not become another user, in a container: its own identity is mapped instead.
            Err(Refusal::Identity(_)) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(enter_as(start, user, group, false)?)
}

enum Refusal {
    /// The user namespace cannot be given this identity.
    Identity(Failure),
    Other(Failure),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Identity(failure) | Refusal::Other(failure) => failure,
        }
    }
}

fn enter_as(start: &Start<'_>, user: u32, group: u32, groups: bool) -> std::result::Result<Process, Refusal> {
    let io = |what: &str, error: &dyn std::fmt::Display| {
        Refusal::Other(Failure::unavailable(format!("sandbox: {what}: {error}")))
    };
    let (go, mut say_go) = pipe().map_err(|error| io("pipe", &error))?;
    let (mut report, say_report) = pipe().map_err(|error| io("pipe", &error))?;
    let null =
        File::options().read(true).write(true).open("/dev/null").map_err(|error| io("/dev/null", &error))?;
    if start.root.parts.len() > MOST_PARTS {
        return Err(io("root", &"Python needs too many files outside the library directories"));
    }
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let child = Child {
        root: start.root,
        arguments: pointers(&start.arguments),
        environment: pointers(&start.environment),
        socket: start.socket.as_raw_fd(),
        null: null.as_raw_fd(),
        go: go.as_raw_fd(),
        say_go: say_go.as_raw_fd(),
        report: say_report.as_raw_fd(),
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
        return Err(Refusal::Other(
            Failure::unavailable(format!("sandbox: the kernel refuses new namespaces: {error}")).hint(
                "allow unprivileged user namespaces (sysctl user.max_user_namespaces, \
                 kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); in a container, \
                 a seccomp profile that allows unshare",
            ),
        ));
    }
    if id == 0 {
        child.run();
    }
    // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let process = Process { descriptor, id: id as i32 };
    drop((go, say_report));
    if let Err(error) = identify(process.id, user, group, groups) {
        process.kill();
        return Err(Refusal::Identity(
            Failure::unavailable(format!("sandbox: the user namespace cannot be given user {user}: {error}"))
                .hint("allow user namespaces to map identities, or run as a plain user"),
        ));
    }
    let mut words = [0_u8; 8];
    let told =
        say_go.write_all(b"g").and_then(|()| report.read(&mut words)).map_err(|error| io("pipe", &error))?;
    if told == 0 {
        return Ok(process);
    }
    process.kill();
    let step = u32::from_ne_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let number = i32::from_ne_bytes([words[4], words[5], words[6], words[7]]);
    let error = std::io::Error::from_raw_os_error(number);
    let name = STEPS.get(step).copied().unwrap_or("a step without a name");
    Err(Refusal::Other(Failure::unavailable(format!("sandbox: {name}: {error}")).hint(
        "the sandbox needs Linux 5.14 or newer, and in a container the right to mount in own namespaces",
    )))
}

impl Process {
    /// Ends it, and with it everything in its process namespace.
    pub fn kill(&self) {
        // It may be gone already, which is what is wanted.
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, rustix::process::Signal::KILL);
        let ended = rustix::process::WaitIdOptions::EXITED;
        let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(self.descriptor.as_fd()), ended);
    }
}

fn pipe() -> std::io::Result<(File, File)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((File::from(read), File::from(write)))
}

/// Says who the user [`INSIDE`] of the new namespace is outside.
fn identify(id: i32, user: u32, group: u32, groups: bool) -> std::io::Result<()> {
    if !groups {
        fs::write(format!("/proc/{id}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{id}/gid_map"), format!("{INSIDE} {group} 1"))?;
    fs::write(format!("/proc/{id}/uid_map"), format!("{INSIDE} {user} 1"))
}

/// What the new process needs, all of it made before it begins.
struct Child<'a> {
    root: &'a Root,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    socket: RawFd,
    null: RawFd,
    go: RawFd,
    say_go: RawFd,
    report: RawFd,
    groups: bool,
}

impl Child<'_> {
    /// Goes through the steps; at the first that fails it reports and ends.
    fn run(&self) -> ! {
        let Err((step, error)) = self.steps();
        let mut words = [0_u8; 8];
        words[..4].copy_from_slice(&step.to_ne_bytes());
        words[4..].copy_from_slice(&error.to_ne_bytes());
        // Step 17 moves it.
        let report = if step > 17 { MOVED_REPORT } else { self.report };
        // SAFETY: plain system calls on an own descriptor and an own buffer; the last one does not return.
        unsafe {
            libc::syscall(libc::SYS_write, report, words.as_ptr(), words.len());
            loop {
                libc::syscall(libc::SYS_exit_group, 70);
            }
        }
    }

    fn steps(&self) -> std::result::Result<std::convert::Infallible, (u32, i32)> {
        let null = ptr::null::<c_char>();
        let here = c".".as_ptr();
        let nothing = c"".as_ptr();
        let sealed = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
        // SAFETY: every call gets numbers, pointers to zero-terminated texts and buffers that live in the parent's copied
        // memory or on this stack, with their right sizes. None allocates, and none touches state of the C library
        // other than errno of this thread.
        unsafe {
            libc::syscall(libc::SYS_close, self.say_go);
            let mut byte = 0_u8;
            if libc::syscall(libc::SYS_read, self.go, &raw mut byte, 1) != 1 {
                return Err((0, libc::EPIPE));
            }
            let shape = libc::MS_REC | libc::MS_PRIVATE;
            check(1, libc::syscall(libc::SYS_mount, null, c"/".as_ptr(), null, shape, null))?;

            // As the user outside, who may read what the user inside may not.
            let mut trees = [-1_i32; MOST_PARTS];
            for (part, tree) in self.root.parts.iter().zip(&mut trees) {
                let flags =
                    libc::OPEN_TREE_CLONE as c_int | libc::OPEN_TREE_CLOEXEC as c_int | libc::AT_RECURSIVE;
                let source = part.source.as_ptr();
                let opened = check(2, libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source, flags))?;
                *tree = opened as c_int;
                let further = if part.device { libc::MOUNT_ATTR_NOEXEC } else { libc::MOUNT_ATTR_NODEV };
                let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
                check(3, attributes(opened as c_int, flags, sealed | further))?;
            }

            if self.groups {
                check(4, libc::syscall(libc::SYS_setgroups, 0, null))?;
            }
            check(5, libc::syscall(libc::SYS_setresgid, INSIDE, INSIDE, INSIDE))?;
            check(6, libc::syscall(libc::SYS_setresuid, INSIDE, INSIDE, INSIDE))?;

            let tmpfs = c"tmpfs".as_ptr();
            let site = self.root.site.as_ptr();
            let options = c"size=1m,nr_inodes=4096,mode=755".as_ptr();
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            check(7, libc::syscall(libc::SYS_mount, tmpfs, site, tmpfs, flags, options))?;
            check(8, libc::syscall(libc::SYS_chdir, site))?;
            libc::syscall(libc::SYS_umask, 0o022);
            for path in &self.root.directories {
                check(9, libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o755))?;
            }
            for path in &self.root.files {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
                let file =
                    check(10, libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644))?;
                libc::syscall(libc::SYS_close, file);
            }
            for (to, link) in &self.root.links {
                check(11, libc::syscall(libc::SYS_symlinkat, to.as_ptr(), libc::AT_FDCWD, link.as_ptr()))?;
            }
            for (part, tree) in self.root.parts.iter().zip(trees) {
                let target = part.target.as_ptr();
                let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
                check(12, libc::syscall(libc::SYS_move_mount, tree, nothing, libc::AT_FDCWD, target, flags))?;
            }
            // The old root is put over the new one and taken away from there: no place has to be made for it.
            check(13, libc::syscall(libc::SYS_pivot_root, here, here))?;
            check(14, libc::syscall(libc::SYS_umount2, here, libc::MNT_DETACH))?;
            check(8, libc::syscall(libc::SYS_chdir, c"/".as_ptr()))?;
            check(15, attributes(libc::AT_FDCWD, 0, sealed | libc::MOUNT_ATTR_NODEV))?;
            check(16, libc::syscall(libc::SYS_sethostname, c"sandbox".as_ptr(), 7))?;
            libc::syscall(libc::SYS_setsid);
            libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE);
            self.signals();
            self.descriptors()?;
            self.capabilities()?;
            let executable = self.arguments[0];
            let arguments = self.arguments.as_ptr();
            check(20, libc::syscall(libc::SYS_execve, executable, arguments, self.environment.as_ptr()))?;
        }
        Err((20, libc::EINVAL))
    }

    /// Signals as a fresh process finds them: execve resets handlers, but keeps what is blocked or ignored.
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

    unsafe fn descriptors(&self) -> std::result::Result<(), (u32, i32)> {
        // SAFETY: plain system calls on descriptors that are open in this process.
        unsafe {
            // Out of the way of the four that follow.
            let socket = check(17, libc::syscall(libc::SYS_fcntl, self.socket, libc::F_DUPFD_CLOEXEC, 10))?;
            let null = check(17, libc::syscall(libc::SYS_fcntl, self.null, libc::F_DUPFD_CLOEXEC, 10))?;
            let report = check(17, libc::syscall(libc::SYS_fcntl, self.report, libc::F_DUPFD_CLOEXEC, 10))?;
            for (target, source) in [(0, null), (1, null), (2, null), (3, socket)] {
                check(17, libc::syscall(libc::SYS_dup3, source, target, 0))?;
            }
            // The report stays until execve closes it: that is how the parent learns of success.
            check(17, libc::syscall(libc::SYS_dup3, report, MOVED_REPORT, libc::O_CLOEXEC))?;
            check(17, libc::syscall(libc::SYS_close_range, 5, u32::MAX, 0))?;
        }
        Ok(())
    }

    unsafe fn capabilities(&self) -> std::result::Result<(), (u32, i32)> {
        // SAFETY: plain system calls; the two structures of capset are as linux/capability.h says for version 3.
        unsafe {
            for capability in (0..64).filter(|&capability| capability != CAP_SYS_ADMIN) {
                // Numbers that this kernel does not know are refused, and need no dropping.
                libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            let kept = 1_u32 << CAP_SYS_ADMIN;
            let header = [0x2008_0522_u32, 0];
            let sets = [kept, kept, kept, 0, 0, 0];
            check(18, libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            check(18, libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, raise, CAP_SYS_ADMIN, 0, 0))?;
            check(19, libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        }
        Ok(())
    }
}

/// `mount_setattr` that only ever takes rights away.
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

fn check(step: u32, result: c_long) -> std::result::Result<c_long, (u32, i32)> {
    if result < 0 {
        // SAFETY: the address of this thread's errno is always valid.
        return Err((step, unsafe { *libc::__errno_location() }));
    }
    Ok(result)
}
