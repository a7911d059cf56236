//! A program that answers one line of JSON for each line it is sent.
//!
//! A process that dies, exceeds the timeout, or answers another request is killed and replaced, and the
//! request is sent once more: requests are pure, so a retry changes nothing. Processes are kept for later
//! requests, one for each concurrent request.
//!
//! Descendants of a process end with it ([`descendants`]), and its stderr is passed on ([`errors`]). Left out: a sandbox. The
//! program belongs to the user, and runs as `sh -c` would run it.

pub(crate) mod descendants;
mod errors;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use record::read::MAX_LINE;
use record::stage::{interrupted, note};
use serde::Serialize;
use serde_json::value::RawValue;

use errors::{Errors, Told};

/// How long a process may take to exit once its stdin is closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a wait checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How the cause begins where a process gave no line in time.
const SILENT: &str = "no line within";
/// Characters of a line that is no answer.
const SHOWN: usize = 200;

/// The processes of one command.
pub struct Processes {
    command: String,
    timeout: Duration,
    pool: Mutex<Pool>,
    /// Told when a process comes back or ends.
    returned: Condvar,
    requests: AtomicU64,
    /// True once it was reported that a process was silent, which nothing else shows for minutes.
    told_silent: AtomicBool,
    told: Told,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Running>,
    /// Processes that answer a request, by number.
    busy: Vec<u64>,
    started: u64,
    /// Handles of states that no request will name again, by process.
    dropped: HashMap<u64, Vec<Box<RawValue>>>,
}

impl Processes {
    /// Processes that run `command`, each answer within `timeout`. None is started yet.
    pub fn new(command: &str, timeout: Duration) -> Processes {
        Processes {
            command: command.to_owned(),
            timeout,
            pool: Mutex::default(),
            returned: Condvar::new(),
            requests: AtomicU64::new(0),
            told_silent: AtomicBool::new(false),
            told: Told::default(),
        }
    }

    /// The answer to `request`, whose field `request` is filled in here, and the number of the process that gave it.
    ///
    /// # Errors
    /// Two processes in a row gave no answer: work. The answer says `error`: data.
    pub fn ask(&self, request: &impl Serialize) -> Result<(String, u64)> {
        let (line, number) = self.line(request, None)?;
        let (answer, process) = self.exchange_by(&line, number)?;
        Ok((accepted(answer)?, process))
    }

    /// The answer of one process to `request`, with the handles that were dropped since it was last asked.
    pub fn ask_process(&self, process: u64, request: &impl Serialize) -> Result<String> {
        let child = self.take(process)?;
        let dropped = self.lock().dropped.remove(&process);
        let (line, number) = self.line(request, dropped)?;
        let answer = self.put(child, &format!("{line}\n"), number).map_err(|cause| self.failure(cause))?;
        accepted(answer.0)
    }

    /// Remembers a handle of a process that nobody will name again.
    pub fn drop_handle(&self, process: u64, handle: Box<RawValue>) {
        self.lock().dropped.entry(process).or_default().push(handle);
    }

    /// A request as a line, and its number.
    fn line(&self, body: &impl Serialize, drop: Option<Vec<Box<RawValue>>>) -> Result<(String, u64)> {
        #[derive(Serialize)]
        struct Numbered<'a, B> {
            #[serde(flatten)]
            body: &'a B,
            #[serde(skip_serializing_if = "Option::is_none")]
            drop: Option<Vec<Box<RawValue>>>,
            request: u64,
        }
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let line = serde_json::to_string(&Numbered { body, drop, request }).map_err(Failure::work)?;
        Ok((line, request))
    }

    /// The answer to `line`, a request that carries `number`.
    ///
    /// # Errors
    /// Two processes in a row gave no answer: work.
    pub fn exchange(&self, line: &str, number: u64) -> Result<String> {
        self.exchange_by(line, number).map(|(answer, _)| answer)
    }

    fn exchange_by(&self, line: &str, number: u64) -> Result<(String, u64)> {
        let line = format!("{line}\n");
        let idle = self.take_idle();
        let first = idle.map_or_else(|| self.start(), Ok).and_then(|child| self.put(child, &line, number));
        let answer = first.or_else(|cause| match interrupted() {
            true => Err(cause),
            false => {
                if cause.starts_with(SILENT) && !self.told_silent.swap(true, Ordering::Relaxed) {
                    let told = format!("{}: {cause}; restarted, and asked once more", self.command);
                    note(record::stage::name(), told);
                }
                self.start().and_then(|child| self.put(child, &line, number))
            }
        });
        answer.map_err(|cause| self.failure(cause))
    }

    fn failure(&self, cause: String) -> Failure {
        match interrupted() {
            true => Failure::interrupted(),
            false => failure(&self.command, &cause),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<Running> {
        let mut pool = self.lock();
        let child = pool.idle.pop()?;
        pool.busy.push(child.number);
        Some(child)
    }

    /// The process of this number, once it is idle.
    fn take(&self, number: u64) -> Result<Running> {
        let mut pool = self.lock();
        loop {
            if let Some(place) = pool.idle.iter().position(|child| child.number == number) {
                pool.busy.push(number);
                return Ok(pool.idle.swap_remove(place));
            }
            if interrupted() || !pool.busy.contains(&number) {
                let cause = "the process that held the state of this episode has ended".to_owned();
                return Err(self.failure(cause));
            }
            let waited = self.returned.wait_timeout(pool, POLL_INTERVAL);
            pool = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn start(&self) -> std::result::Result<Running, String> {
        let number = {
            let mut pool = self.lock();
            pool.started += 1;
            let number = pool.started;
            pool.busy.push(number);
            number
        };
        Running::start(&self.command, &self.told, number).map_err(|error| {
            self.released(number, None);
            format!("could not be started: {error}")
        })
    }

    /// A process has answered, or is no more.
    fn released(&self, number: u64, child: Option<Running>) {
        let mut pool = self.lock();
        pool.busy.retain(|busy| *busy != number);
        match child {
            Some(child) => pool.idle.push(child),
            None => drop(pool.dropped.remove(&number)),
        }
        drop(pool);
        self.returned.notify_all();
    }

    fn put(&self, mut child: Running, line: &str, number: u64) -> std::result::Result<(String, u64), String> {
        let process = child.number;
        let answered = child.ask(line, self.timeout).and_then(|text| {
            let answer = fields(&text).map_err(|error| not_json(&text, child.lines, &error))?;
            match answer.get("request").is_some_and(|echo| echo.get().parse() == Ok(number)) {
                true => Ok((text, process)),
                false => Err(format!("its answer does not echo \"request\": {number}")),
            }
        });
        self.released(process, answered.is_ok().then_some(child));
        answered
    }
}

/// The fields of an answer, as text: numbers of any size keep their digits.
fn fields(answer: &str) -> serde_json::Result<BTreeMap<String, &RawValue>> {
    serde_json::from_str(answer)
}

/// An answer without an `error`.
fn accepted(answer: String) -> Result<String> {
    match fields(&answer).map_err(Failure::work)?.get("error") {
        None => Ok(answer),
        Some(error) => {
            Err(Failure::data(serde_json::from_str(error.get()).unwrap_or_else(|_| error.get().to_owned())))
        }
    }
}

/// Why an answer, so many lines after the program's start, is no JSON: Python and others write numbers that JSON does not have,
/// and what a program prints comes between its answers.
fn not_json(text: &str, line: u64, error: &serde_json::Error) -> String {
    let at = text.get(error.column().saturating_sub(2)..).unwrap_or_default().trim_start();
    match ["NaN", "Infinity", "-Infinity"].iter().find(|number| at.starts_with(**number)) {
        Some(number) => {
            format!("its answer holds {number}, which is no number in JSON (column {})", error.column())
        }
        None if text.trim_start().starts_with('{') => format!("its answer is no JSON object: {error}"),
        None => {
            let shown: String = text.chars().take(SHOWN).collect();
            format!(
                "line {line} of its output is no JSON object: {shown:?}; stdout is for answers, so print to stderr"
            )
        }
    }
}

/// The failure of `command`. If its first word is a file here, which a shell does not find by its name, the hint says how to run it.
fn failure(command: &str, cause: &str) -> Failure {
    let failure = Failure::work(format!("{command}: {cause}"));
    let file = command.split_whitespace().next().unwrap_or_default();
    match (cause.contains("exit status: 127") || cause.contains("exit status: 126"), file.ends_with(".py")) {
        (true, true) if Path::new(file).is_file() => {
            failure.hint(format!("did you mean 'python3 {command}'?"))
        }
        (true, false) if !file.contains('/') && Path::new(file).is_file() => {
            failure.hint(format!("did you mean './{command}'?"))
        }
        _ => failure,
    }
}

/// Runs `command` without input, and gives each line that it prints to `each`.
///
/// # Errors
/// No line for `timeout`, one that is too long or no UTF-8: work. An exit code other than 0: the same. What `each` fails
/// with.
pub fn lines(command: &str, timeout: Duration, mut each: impl FnMut(String) -> Result<()>) -> Result<()> {
    let failed = |cause: String| match interrupted() {
        true => Failure::interrupted(),
        false => failure(command, &cause),
    };
    let mut running = Running::start(command, &Told::default(), 0)
        .map_err(|error| failed(format!("could not be started: {error}")))?;
    running.input = None;
    while let Some(line) = running.line(b"", timeout).map_err(failed)? {
        each(line)?;
    }
    if !running.read.is_empty() {
        each(String::from_utf8_lossy(&std::mem::take(&mut running.read)).into_owned())?;
    }
    match running.end() {
        Some(status) if !status.success() => {
            let failure = failed(running.with_cause(format!("failed ({status})")));
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(failure.code);
            Err(Failure { code, ..failure })
        }
        _ => Ok(()),
    }
}

/// A process with its pipes, which never block.
struct Running {
    /// Its number among the processes of its command.
    number: u64,
    process: Child,
    /// Mark in the environment that identifies its descendants.
    mark: String,
    /// None once it is closed.
    input: Option<ChildStdin>,
    ended: bool,
    output: ChildStdout,
    errors: Errors,
    /// The beginning of the next answer.
    read: Vec<u8>,
    /// Lines read.
    lines: u64,
}

impl Running {
    fn start(command: &str, told: &Told, number: u64) -> io::Result<Running> {
        let mark = descendants::mark();
        // A new process group, so that the children of a shell can be killed with it.
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(command)
            .env(descendants::MARK, &mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let errors = Errors::new(process.stderr.take(), told.clone());
        let (input, read) = (Some(input), Vec::new());
        let running = Running { number, process, mark, input, ended: false, output, errors, read, lines: 0 };
        for descriptor in running.descriptors() {
            // SAFETY: fcntl sets flags of a descriptor that `running` keeps open, and touches no memory of ours.
            if unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(running)
    }

    /// The descriptors of its output, its input and its stderr.
    fn descriptors(&self) -> [RawFd; 3] {
        let input = self.input.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        [self.output.as_raw_fd(), input, self.errors.descriptor()]
    }

    /// Sends `line` and reads a line.
    fn ask(&mut self, line: &str, timeout: Duration) -> std::result::Result<String, String> {
        self.line(line.as_bytes(), timeout)?.ok_or_else(|| match self.end() {
            Some(status) => self.with_cause(format!("ended without an answer ({status})")),
            None => self.with_cause("closed its output without an answer".to_owned()),
        })
    }

    /// Sends `unsent` and reads a line; `None` if the process has closed a pipe.
    fn line(&mut self, mut unsent: &[u8], timeout: Duration) -> std::result::Result<Option<String>, String> {
        let deadline = Instant::now() + timeout;
        let mut searched = 0;
        let mut buffer = [0; 1 << 16];
        loop {
            // First, as one read may have brought several lines, and the end of the output comes after them.
            let end = self.read[searched..].iter().position(|byte| *byte == b'\n').map(|end| searched + end);
            if let Some(end) = end.filter(|_| unsent.is_empty()) {
                let rest = self.read.split_off(end + 1);
                let mut answer = std::mem::replace(&mut self.read, rest);
                answer.pop();
                self.lines += 1;
                return String::from_utf8(answer).map(Some).map_err(|_| "a line is not UTF-8".to_owned());
            }
            searched = end.unwrap_or(self.read.len());
            if self.read.len() > MAX_LINE {
                return Err(format!("a line is longer than {} MiB", MAX_LINE >> 20));
            }
            if Instant::now() >= deadline || interrupted() {
                return Err(format!("{SILENT} {} s", timeout.as_secs_f64()));
            }
            if let Some(input) = self.input.as_mut().filter(|_| !unsent.is_empty()) {
                match input.write(unsent) {
                    Ok(count) => unsent = &unsent[count..],
                    Err(error) if waits(&error) => {}
                    Err(_) => return Ok(None),
                }
            }
            self.errors.pass_on();
            match self.output.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => self.read.extend_from_slice(&buffer[..count]),
                Err(error) if waits(&error) => self.poll(!unsent.is_empty(), deadline),
                Err(error) => return Err(format!("its output cannot be read: {error}")),
            }
        }
    }

    /// Waits a little, at most until `deadline`, for output, or for room to write to it.
    fn poll(&self, writes: bool, deadline: Instant) {
        let [output, input, errors] = self.descriptors();
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let input = if writes { input } else { -1 };
        let mut entries =
            [entry(output, libc::POLLIN), entry(input, libc::POLLOUT), entry(errors, libc::POLLIN)];
        let left = deadline.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
        // SAFETY: the pointer and the count describe `entries`, which outlives the call. The next read or write shows
        // what it returns.
        unsafe { libc::poll(entries.as_mut_ptr(), 3, left.as_millis().max(1) as libc::c_int) };
    }

    /// Closes its stdin, waits a moment for it to exit, then kills its process group and its descendants.
    /// Returns its status if it exited by itself.
    fn end(&mut self) -> Option<ExitStatus> {
        self.input = None;
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let started = Instant::now();
        while !self.has_exited() && started.elapsed() < EXIT_TIMEOUT && !interrupted() {
            self.errors.pass_on();
            std::thread::sleep(Duration::from_millis(1));
        }
        let exited = self.has_exited();
        self.errors.pass_on();
        if let Ok(group) = i32::try_from(self.process.id()) {
            // SAFETY: kill only sends a signal. The group belongs to the child, and its id cannot be reused
            // before the child is reaped.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        descendants::kill(descendants::MARK, &self.mark);
        self.process.wait().ok().filter(|_| exited)
    }

    /// `cause`, with its last line on stderr.
    fn with_cause(&self, cause: String) -> String {
        match self.errors.last() {
            "" => cause,
            last => format!("{cause}: {last}"),
        }
    }

    /// Returns true if it has exited; it is not reaped.
    fn has_exited(&self) -> bool {
        // SAFETY: all-zero bytes are a valid siginfo_t, which outlives the call that fills it in.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.process.id(), &raw mut info, flags) != 0 || info.si_pid() != 0
        }
    }
}

/// Returns true if a read or a write has to be tried again.
fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
