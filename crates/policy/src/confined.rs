//! Runs untrusted code in a child process with limits on memory, stack and time.
//!
//! A chat template is a program, and a tokenizer nearly one: a few characters make either allocate all memory
//! or overflow the stack, which no thread survives. The child is a fork without exec, so every program that
//! links this crate has it; it answers requests over pipes until the parent closes them or dies. Left out: a
//! private file system, because the code in the child cannot open files.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Bytes that the child may allocate beyond the inherited ones.
const MEMORY: u64 = 1 << 30;
/// Longest duration of a request, in multiples of its processor time: the machine may be busy with other things.
const PATIENCE: u32 = 60;
/// Longest message, in bytes.
const LONGEST: u64 = 256 << 20;

/// A child process that answers requests, one at a time. Dropping it ends the child.
#[derive(Debug)]
pub(crate) struct Confined {
    pid: libc::pid_t,
    /// None once the child is dead.
    pipes: Mutex<Option<(PipeWriter, PipeReader)>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// The request took too much processor time.
    Time,
    /// There was no answer for [`PATIENCE`] times as long.
    Silence,
    /// Memory or stack ran out.
    Memory,
    /// The child died of an earlier request, or was killed.
    Gone,
}

impl Confined {
    /// Starts a child that answers with `serve`.
    pub(crate) fn start(serve: impl FnMut(&[u8]) -> Vec<u8>) -> io::Result<Confined> {
        let (requests, to_child) = io::pipe()?;
        let (from_child, replies) = io::pipe()?;
        // SAFETY: the child only allocates, which glibc allows after a fork, computes, and uses its two pipes; it does not
        // return from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // A panic must not unwind into the parent's code.
                let _ = catch_unwind(AssertUnwindSafe(|| child(requests, replies, serve)));
                // SAFETY: ends the process without the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Confined { pid, pipes: Mutex::new(Some((to_child, from_child))) }),
        }
    }

    /// The answer to a request, which may take `seconds` of processor time.
    pub(crate) fn ask(&self, seconds: u32, request: &[u8]) -> Result<Vec<u8>, Death> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (to_child, from_child) = pipes.as_mut().ok_or(Death::Gone)?;
        let asked = to_child.write_all(&seconds.to_le_bytes()).and_then(|()| write(to_child, request));
        asked.and_then(|()| read(from_child)).map_err(|_| {
            *pipes = None;
            self.reap()
        })
    }

    /// Ends the child, if it has not ended.
    fn reap(&self) -> Death {
        let mut status = 0;
        // SAFETY: `status` is valid; the child has not been waited for, so its number has not been reused.
        // The signal does not change a child that has already ended.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &raw mut status, 0);
        }
        match libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)) {
            Some(libc::SIGPROF) => Death::Time,
            Some(libc::SIGALRM) => Death::Silence,
            Some(libc::SIGABRT | libc::SIGSEGV) => Death::Memory,
            _ => Death::Gone,
        }
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        if self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            self.reap();
        }
    }
}

/// The child's life: until the parent closes the pipe.
fn child(
    mut requests: PipeReader,
    mut replies: PipeWriter,
    mut serve: impl FnMut(&[u8]) -> Vec<u8>,
) -> io::Result<()> {
    confine(requests.as_raw_fd(), replies.as_raw_fd())?;
    loop {
        let mut seconds = [0; 4];
        requests.read_exact(&mut seconds)?;
        let request = read(&mut requests)?;
        limit_time(u32::from_le_bytes(seconds));
        let reply = serve(&request);
        limit_time(0);
        write(&mut replies, &reply)?;
    }
}

/// Ends this process after `seconds` of processor time, or after [`PATIENCE`] times this duration; 0 lifts the limits.
fn limit_time(seconds: u32) {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer =
        libc::itimerval { it_interval: none, it_value: libc::timeval { tv_sec: seconds.into(), tv_usec: 0 } };
    // SAFETY: the pointer is to a valid timer, and none is asked for; both signals end this process.
    unsafe {
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
        libc::alarm(seconds * PATIENCE);
    }
}

/// Gives up all of the parent's descriptors but two, and memory above the limit on Linux; macOS takes a limit and does not hold it.
fn confine(requests: i32, replies: i32) -> io::Result<()> {
    let linux = cfg!(target_os = "linux");
    let pages = if linux { std::fs::read_to_string("/proc/self/statm")? } else { String::new() };
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // Otherwise whoever reads the parent's output would wait for this process, too.
    let (low, high) = (requests.min(replies), requests.max(replies));
    close(0, low - 1);
    close(low + 1, high - 1);
    close(high + 1, i32::MAX);
    // SAFETY: no pointers but those to the limits, which are valid.
    unsafe {
        // The parent decides what an interruption ends.
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::signal(libc::SIGPROF, libc::SIG_DFL);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        if !linux {
            return Ok(());
        }
        libc::getrlimit(libc::RLIMIT_AS, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(pages * libc::sysconf(libc::_SC_PAGESIZE) as u64 + MEMORY);
        match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Closes the descriptors from `first` to `last`, whichever are open.
fn close(first: i32, last: i32) {
    #[cfg(target_os = "linux")]
    if first <= last {
        // SAFETY: no pointers are passed, and this process does not use these descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    // SAFETY: as above.
    #[cfg(not(target_os = "linux"))]
    for descriptor in first..=last.min(unsafe { libc::getdtablesize() } - 1) {
        // SAFETY: as above.
        unsafe { libc::close(descriptor) };
    }
}

fn write(pipe: &mut PipeWriter, message: &[u8]) -> io::Result<()> {
    pipe.write_all(&(message.len() as u64).to_le_bytes())?;
    pipe.write_all(message)
}

fn read(pipe: &mut PipeReader) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    pipe.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length as usize];
    pipe.read_exact(&mut message)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Confined {
        Confined::start(|request| match request {
            b"memory" => vec![1; 2 << 30],
            b"stack" => vec![recurse(1) as u8],
            b"time" => loop {
                std::hint::black_box(request);
            },
            b"wait" => {
                std::thread::sleep(std::time::Duration::from_millis(1500));
                request.to_vec()
            }
            b"panic" => panic!("no"),
            other => other.iter().rev().copied().collect(),
        })
        .expect("a child")
    }

    #[allow(unconditional_recursion, reason = "what is tested")]
    fn recurse(depth: u64) -> u64 {
        std::hint::black_box([depth; 64])[0] + recurse(depth + 1)
    }

    #[test]
    fn a_child_dies_alone_and_of_a_known_cause() {
        let cases = [
            ("memory", Death::Memory),
            ("stack", Death::Memory),
            ("time", Death::Time),
            ("panic", Death::Gone),
        ];
        for (request, death) in cases {
            let child = start();
            assert_eq!(child.ask(1, b"abc"), Ok(b"cba".to_vec()));
            assert_eq!(child.ask(1, request.as_bytes()), Err(death), "{request}");
            assert_eq!(child.ask(1, b"abc"), Err(Death::Gone));
        }
    }

    /// As on a machine whose processors are busy with something else.
    #[test]
    fn a_child_that_waits_for_a_processor_is_not_ended() {
        assert_eq!(start().ask(1, b"wait"), Ok(b"wait".to_vec()));
    }

    #[test]
    fn a_child_ends_with_its_handle() {
        let child = start();
        let pid = child.pid;
        drop(child);
        // SAFETY: asks whether there is such a process.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }
}
