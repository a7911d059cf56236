//! A fork server: it is started, tested, given one program after another, and killed if it does not answer.
//!
//! Requests and replies are JSON packets over a socket. Sources, inputs and outputs are in-memory files whose
//! descriptors travel with the request; `server.py` explains why.

use std::ffi::CString;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use record::stage::interrupted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    recv, send, sendmsg, socketpair,
};
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;
use serde_json::json;

use super::cgroup::Group;
use super::interpreter::Interpreter;
use super::namespaces::{Process, spawn};
use super::rootfs::Root;
use super::{Entry, Execution, Limits, Program, Status};

const SERVER: &str = include_str!("server.py");
/// A program that tests the restrictions and prints those that do not hold.
const PROBE: &str = include_str!("probe.py");
/// The output of [`PROBE`] if all hold.
const FENCED: &str = "fenced\n";

/// Time limit for starting a worker, and for its answer after a program's wall time.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which a wait checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of stderr to keep: the end, where a traceback names the error.
const ERROR_BYTES: u64 = 4096;

/// The inputs for starting workers.
pub struct Setup {
    pub interpreter: Interpreter,
    pub root: Root,
    /// The system call filters, in the kernel's format.
    pub filters: [Vec<u8>; 2],
}

/// A running fork server.
pub struct Worker {
    process: Process,
    socket: OwnedFd,
    /// Address space of the bare interpreter, in bytes.
    base: u64,
    /// `None` if cgroups are not delegated. Dropped after the process, so that the directory is empty.
    group: Option<Group>,
}

#[derive(Deserialize)]
struct Reply {
    failure: Option<String>,
    limit: Option<String>,
    exit: Option<i32>,
    signal: Option<i32>,
    #[serde(default)]
    cpu: f64,
}

impl Worker {
    /// Starts a worker and tests its restrictions.
    ///
    /// # Errors
    /// Something it needs is missing: unavailable.
    pub fn start(setup: &Setup) -> Result<Worker> {
        check_hard_limits(0, &Limits::default())?;
        let kind = SocketType::SEQPACKET;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(|error| Failure::unavailable(format!("sandbox: socketpair: {error}")))?;
        let texts = |texts: &[&str]| -> Result<Vec<CString>> {
            texts.iter().map(|text| CString::new(*text).map_err(broken)).collect()
        };
        let executable = setup.interpreter.executable.to_string_lossy();
        let arguments = texts(&[&executable, "-S", "-s", "-B", "-X", "utf8", "-c", SERVER])?;
        // Fewer arenas, because each takes address space from the threads.
        let environment = texts(&["PYTHONHASHSEED=0", "LC_ALL=C.UTF-8", "MALLOC_ARENA_MAX=1"])?;
        let process = spawn(&setup.root, &arguments, &environment, &theirs)?;
        drop(theirs);
        let group = Group::create().filter(|group| group.add(process.id).is_ok());
        let mut worker = Worker { process, socket, base: 0, group };
        let hexadecimal =
            |filter: &Vec<u8>| filter.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let message = json!({"filters": setup.filters.each_ref().map(hexadecimal)}).to_string();
        send(&worker.socket, message.as_bytes(), SendFlags::NOSIGNAL).map_err(broken)?;
        let reply = worker.reply(REPLY_TIMEOUT)?.ok_or_else(|| broken("it does not start"))?;
        if let Some(failure) = reply.failure {
            return Err(broken(failure).hint("see that python3 runs, and that it is 3.9 or newer"));
        }
        worker.base = address_space(worker.process.id)?;
        worker.try_fences()?;
        Ok(worker)
    }

    fn try_fences(&mut self) -> Result<()> {
        let output = match self.run(&Program::python(PROBE, ""))? {
            Some(execution) if execution.stdout == FENCED && execution.is_success() => return Ok(()),
            Some(execution) => execution.stdout + &execution.stderr,
            None => "the test did not end".to_owned(),
        };
        let output = output.trim_end().replace('\n', "; ");
        Err(Failure::unavailable(format!("sandbox: a fence does not hold: {output}"))
            .hint("model-written programs are not run on this machine; Linux 5.14 or newer is needed"))
    }

    pub fn is_grouped(&self) -> bool {
        self.group.is_some()
    }

    /// Returns true if the kernel killed it because its control group was full, which
    /// the last program caused.
    pub fn was_full(&self) -> bool {
        self.group.as_ref().is_some_and(Group::was_full)
    }

    /// Runs `program` to its end; `None` if it could not be killed in time. The worker is unusable
    /// after `None` or an error.
    ///
    /// # Errors
    /// The worker is broken: unavailable. The program is to blame only if [`Worker::was_full`].
    pub fn run(&mut self, program: &Program<'_>) -> Result<Option<Execution>> {
        let limits = &program.limits;
        check_hard_limits(self.base + limits.memory_bytes, limits)?;
        let kind = match program.entry {
            Entry::Script => "script",
            Entry::Compile => "compile",
            Entry::Call(_) => "call",
            Entry::Solve(_) => "solve",
        };
        let request = json!({
            "kind": kind,
            "function": program.entry.function(),
            "source": program.source.len(),
            "cpu": limits.cpu_seconds,
            "wall": limits.wall_seconds,
            "memory": self.base + limits.memory_bytes,
            "output": limits.output_bytes,
            "scratch": limits.scratch_bytes,
        });
        let (source, stdin) = (memory(program.source)?, memory(program.stdin)?);
        let (stdout, stderr, result) = (memory("")?, memory("")?, memory("")?);
        let files = [&source, &stdin, &stdout, &stderr, &result].map(AsFd::as_fd);
        if let Some(group) = &self.group {
            group
                .limit_memory(limits.memory_bytes + limits.scratch_bytes + 3 * limits.output_bytes)
                .map_err(broken)?;
        }
        self.request(request.to_string().as_bytes(), &files)?;
        let Some(reply) = self.reply(Duration::from_secs_f64(limits.wall_seconds) + REPLY_TIMEOUT)? else {
            return Ok(None);
        };
        if let Some(failure) = reply.failure {
            return Err(broken(failure));
        }
        let written = size(&stdout)?.max(size(&stderr)?);
        let stdout = read(&stdout, 0, limits.output_bytes)?;
        let stderr = read(&stderr, size(&stderr)?.saturating_sub(ERROR_BYTES), ERROR_BYTES)?;
        let out_of_memory = || stderr.lines().last().is_some_and(|line| line.starts_with("MemoryError"));
        let status = match (reply.limit.as_deref(), reply.exit) {
            _ if reply.cpu >= limits.cpu_seconds => Status::CpuTime,
            (Some("cpu"), _) => Status::CpuTime,
            (Some(_), _) => Status::WallTime,
            _ if written >= limits.output_bytes => Status::Output,
            (None, Some(code)) if code != 0 && out_of_memory() => Status::Memory,
            (None, Some(code)) => Status::Exited(code),
            (None, None) => Status::Signal(reply.signal.unwrap_or(0)),
        };
        let result = match program.entry.function() {
            Some(_) if status == Status::Exited(0) => Some(read(&result, 0, limits.output_bytes)?),
            _ => None,
        };
        Ok(Some(Execution { stdout, stderr, result, status, cpu_seconds: reply.cpu }))
    }

    fn request(&self, message: &[u8], files: &[BorrowedFd<'_>; 5]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(files));
        sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(broken)?;
        Ok(())
    }

    /// The next reply; `None` after `timeout`.
    fn reply(&self, timeout: Duration) -> Result<Option<Reply>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let step = Timespec::try_from(left.min(POLL_INTERVAL)).map_err(broken)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&step)) {
                Ok(0) if left.is_zero() => return Ok(None),
                Ok(0) | Err(rustix::io::Errno::INTR) if interrupted() => return Err(Failure::interrupted()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(broken(error)),
            }
        }
        let mut buffer = [0_u8; 8192];
        let (length, _) = recv(&self.socket, &mut buffer, RecvFlags::empty()).map_err(broken)?;
        if length == 0 {
            return Err(broken("it has ended"));
        }
        serde_json::from_slice(&buffer[..length]).map(Some).map_err(broken)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// If a hard limit of this process is lower than the sandbox's, it applies instead. Fails if programs would
/// then end differently, or the sandbox could not work.
///
/// # Errors
/// Names the first limit that is too low: unavailable.
fn check_hard_limits(address_space: u64, limits: &Limits) -> Result<()> {
    for (resource, name, needed) in [
        (Resource::As, "bytes of address space (ulimit -Hv)", address_space),
        (Resource::Cpu, "seconds of processor time (ulimit -Ht)", limits.cpu_seconds as u64 + 2),
        (Resource::Fsize, "bytes of a file (ulimit -Hf)", limits.output_bytes),
        (Resource::Stack, "bytes of stack (ulimit -Hs)", 1 << 20),
        (Resource::Nofile, "open files (ulimit -Hn)", 32),
    ] {
        if let Some(hard) = getrlimit(resource).maximum.filter(|hard| *hard < needed) {
            return Err(Failure::unavailable(format!(
                "sandbox: the hard limit is {hard} {name}, and {needed} are needed"
            ))
            .hint("raise the limit where this shell was started, or lower what programs may use"));
        }
    }
    Ok(())
}

fn broken(cause: impl std::fmt::Display) -> Failure {
    Failure::unavailable(format!("sandbox: the fork server: {cause}"))
}

fn memory(content: &str) -> Result<File> {
    let file = File::from(memfd_create("program", MemfdFlags::CLOEXEC).map_err(Failure::io)?);
    file.write_all_at(content.as_bytes(), 0)?;
    Ok(file)
}

fn size(file: &File) -> Result<u64> {
    Ok(file.metadata()?.len())
}

fn read(file: &File, from: u64, most: u64) -> Result<String> {
    let mut bytes = vec![0_u8; size(file)?.saturating_sub(from).min(most) as usize];
    file.read_exact_at(&mut bytes, from)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Address space of process `id` in bytes.
fn address_space(id: i32) -> Result<u64> {
    let path = format!("/proc/{id}/status");
    let status = std::fs::read_to_string(&path).map_err(|error| broken(format!("{path}: {error}")))?;
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse().ok());
    kibibytes.map(|count: u64| count << 10).ok_or_else(|| broken(format!("{path} has no VmSize")))
}
