//! Decides whether tests can use the sandbox on this machine.
//!
//! It cannot work without user namespaces or Python. A test that needs it is then skipped, with a notice that
//! bypasses the harness, because the harness hides the output of passing tests. If the kernel supports the
//! sandbox and it still fails, the test fails; the kernel is asked directly, without the sandbox's code.
//! `TROUPE_SANDBOX=required` turns every skip into a failure.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use record::failure::UNAVAILABLE;
use sandbox::Sandbox;

/// The sandbox of this process; `None` if this machine cannot have one, with a notice on stderr.
///
/// # Panics
/// The sandbox should work here, but fails.
pub fn sandbox() -> Option<&'static Sandbox> {
    let failure = match Sandbox::shared() {
        Ok(sandbox) => return Some(sandbox),
        Err(failure) => failure,
    };
    assert_eq!(failure.code, UNAVAILABLE, "{}", failure.message);
    let lacking = LACKING.as_deref();
    let required = std::env::var("TROUPE_SANDBOX").is_ok_and(|wish| wish == "required");
    let Some(lacking) = lacking.filter(|_| !required) else {
        panic!("the sandbox should stand on this machine: {}", failure.message);
    };
    troupe_tests::skip::not_run(&format!("no sandbox ({lacking}): {}", failure.message));
    None
}

/// Returns true if there is a suitable Python.
pub fn has_python() -> bool {
    let question = "import sys; sys.exit(sys.version_info < (3, 9))";
    let answer = Command::new("python3").args(["-I", "-S", "-c", question]).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}

/// What the sandbox needs and the kernel lacks, found by asking the kernel; `None` if nothing.
static LACKING: LazyLock<Option<String>> = LazyLock::new(|| {
    if !has_python() {
        return Some("no python3 of version 3.9 or newer".to_owned());
    }
    let mut child = Command::new("python3");
    child.args(["-I", "-S", "-c", ""]).stderr(Stdio::null());
    // SAFETY: the closure makes system calls with constant arguments and nothing else; it does not allocate unless one
    // fails, and then the process ends.
    unsafe {
        child.pre_exec(|| {
            let fail = || Err(std::io::Error::last_os_error());
            let namespaces = libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWCGROUP;
            if libc::unshare(namespaces) != 0 {
                return fail();
            }
            let nothing = std::ptr::null::<libc::c_char>();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            if libc::mount(nothing, c"/".as_ptr(), nothing, private, nothing.cast()) != 0 {
                return fail();
            }
            // Called without arguments, an existing call reports that they are invalid.
            for call in [libc::SYS_mount_setattr, libc::SYS_open_tree, libc::SYS_move_mount] {
                if libc::syscall(call, -1, 0, 0, 0, 0) < 0 && *libc::__errno_location() == libc::ENOSYS {
                    return fail();
                }
            }
            Ok(())
        });
    }
    child.status().err().map(|error| format!("no namespaces of its own: {error}"))
});

#[allow(dead_code, reason = "only the tests of `envs` use it")]
/// Makes `command` run where the kernel refuses user namespaces, as in many containers.
pub fn without_namespaces(command: &mut Command) {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };
    let user = libc::CLONE_NEWUSER as u64;
    let flag = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(user), user).unwrap();
    let rule = || vec![SeccompRule::new(vec![flag.clone()]).unwrap()];
    let rules = [(libc::SYS_clone, rule()), (libc::SYS_unshare, rule())].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    // SAFETY: two system calls in the new process, on memory that was made before.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            seccompiler::apply_filter(&filter).map_err(std::io::Error::other)
        });
    }
}
