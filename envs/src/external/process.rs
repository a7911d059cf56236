//! A program that answers one line of JSON for each line it is sent.
//!
//! A process that dies, exceeds the timeout, or answers another request is killed and replaced, and the request is sent
//! once more: requests are pure, so a retry changes nothing. Processes are kept for the next request; there are as many
//! as there are concurrent requests.
//!
//! Left out: a sandbox. The program is the user's own, run as `sh -c` would run it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use record::stage::interrupted;
use serde_json::{Map, Value};

/// How long a process may take to exit once its stdin is closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a wait checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The processes of one command.
pub struct Processes {
    command: String,
    timeout: Duration,
    idle: Mutex<Vec<Running>>,
    requests: AtomicU64,
}

impl Processes {
    /// Processes that run `command`, each answer within `timeout`. None is started yet.
    pub fn new(command: &str, timeout: Duration) -> Processes {
        Processes {
            command: command.to_owned(),
            timeout,
            idle: Mutex::new(Vec::new()),
            requests: AtomicU64::new(0),
        }
    }

    /// The answer to `request`, whose field `request` is filled in here.
    ///
    /// # Errors
    /// Two processes in a row gave no answer: work. The answer says `error`: data.
    pub fn ask(&self, mut request: Value) -> Result<Map<String, Value>> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        request["request"] = number.into();
        let (answer, _) = self.exchange(&request.to_string(), number)?;
        match answer.get("error") {
            None => Ok(answer),
            Some(Value::String(message)) => Err(Failure::data(message)),
            Some(other) => Err(Failure::data(other)),
        }
    }

    /// The answer to `line`, a request that carries `number`, read and as it came.
    ///
    /// # Errors
    /// Two processes in a row gave no answer: work.
    pub fn exchange(&self, line: &str, number: u64) -> Result<(Map<String, Value>, String)> {
        let line = format!("{line}\n");
        let idle = self.lock().pop();
        let first = idle.map_or_else(|| self.start(), Ok).and_then(|child| self.put(child, &line, number));
        let answer = first.or_else(|cause| match interrupted() {
            true => Err(cause),
            false => self.start().and_then(|child| self.put(child, &line, number)),
        });
        answer.map_err(|cause| match interrupted() {
            true => Failure::interrupted(),
            false => Failure::work(format!("{}: {cause}", self.command)),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Running>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> std::result::Result<Running, String> {
        Running::start(&self.command).map_err(|error| format!("could not be started: {error}"))
    }

    fn put(
        &self,
        mut child: Running,
        line: &str,
        number: u64,
    ) -> std::result::Result<(Map<String, Value>, String), String> {
        let text = child.ask(line, self.timeout)?;
        let answer: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| format!("its answer is no JSON object: {error}"))?;
        if answer.get("request").and_then(Value::as_u64) != Some(number) {
            return Err(format!("its answer does not echo \"request\": {number}"));
        }
        self.lock().push(child);
        Ok((answer, text))
    }
}

/// A process and the thread that reads its output.
struct Running {
    process: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Running {
    fn start(command: &str) -> std::io::Result<Running> {
        // A process group of its own, so that what a shell starts can be killed with it.
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (sender, answers) = channel();
        let input = process.stdin.take();
        if let Some(input) = &input {
            set_nonblocking(input)?;
        }
        if let Some(output) = process.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines();
                lines.map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Ok(Running { input, process, answers })
    }

    fn ask(&mut self, line: &str, timeout: Duration) -> std::result::Result<String, String> {
        let deadline = Instant::now() + timeout;
        let silent = || format!("no answer within {} s", timeout.as_secs_f64());
        let sent = self.input.as_mut().map(|input| send(input, line.as_bytes(), deadline));
        match sent {
            Some(Ok(())) => {}
            Some(Err(error)) if error.kind() == ErrorKind::TimedOut => return Err(silent()),
            _ => return Err(self.gone()),
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) if left.is_zero() || interrupted() => return Err(silent()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn gone(&mut self) -> String {
        match self.wait(EXIT_TIMEOUT) {
            Some(status) => format!("ended without an answer ({status})"),
            None => "closed its output without an answer".to_owned(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Option<std::process::ExitStatus> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if started.elapsed() >= timeout {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes writes to `input` non-blocking, so that a process that reads nothing cannot block this one for ever.
fn set_nonblocking(input: &ChildStdin) -> std::io::Result<()> {
    let descriptor = input.as_raw_fd();
    // SAFETY: fcntl reads and sets flags of a descriptor that `input` keeps open, and touches no memory of ours.
    let outcome = unsafe {
        match libc::fcntl(descriptor, libc::F_GETFL) {
            -1 => -1,
            flags => libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    if outcome == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes all of `bytes`.
///
/// # Errors
/// `TimedOut` when the child has not read them by `deadline`, or a signal asks the program to stop.
fn send(input: &mut ChildStdin, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match input.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || interrupted() {
                    return Err(ErrorKind::TimedOut.into());
                }
                let mut entry = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                let timeout = left.min(POLL_INTERVAL).as_millis().max(1) as libc::c_int;
                // SAFETY: the pointer and the count describe `entry`, which outlives the call. Whatever it
                // returns, the next write tells.
                unsafe { libc::poll(&raw mut entry, 1, timeout) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input = None;
        if self.wait(EXIT_TIMEOUT).is_none() {
            if let Ok(group) = i32::try_from(self.process.id()) {
                // SAFETY: kill only sends a signal; the group is the child's own and the child is not yet reaped, so
                // the id belongs to nobody else.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            // Reaped, so that no zombie stays; it cannot fail in a way that matters after SIGKILL.
            let _ = self.process.wait();
        }
    }
}
