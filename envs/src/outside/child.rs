//! A program that answers one line of JSON for each line it is sent.
//!
//! A child that dies, stays silent longer than the timeout, or answers something else than it was asked is ended
//! and replaced, and the request is put once more: requests are pure, so asking twice changes nothing. Children are
//! kept for the next request; there are as many as there are requests at the same time.
//!
//! Left out: a sandbox. The program is the user's own, run as `sh -c` would run it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

/// How long a child may take to end once its stdin is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// The children of one command.
pub struct Children {
    command: String,
    timeout: Duration,
    idle: Mutex<Vec<Running>>,
    requests: AtomicU64,
}

impl Children {
    /// Children that run `command`, each answer within `timeout`. None is started yet.
    pub fn new(command: &str, timeout: Duration) -> Children {
        Children {
            command: command.to_owned(),
            timeout,
            idle: Mutex::new(Vec::new()),
            requests: AtomicU64::new(0),
        }
    }

    /// The answer to `request`, whose field `request` is filled in here.
    ///
    /// # Errors
    /// Two children in a row gave no answer: work. The answer says `error`: data.
    pub fn ask(&self, mut request: Map<String, Value>) -> Result<Map<String, Value>> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        request.insert("request".to_owned(), number.into());
        let line = Value::Object(request).to_string();
        let (answer, _) = self.exchange(&line, number)?;
        match answer.get("error") {
            None => Ok(answer),
            Some(Value::String(message)) => Err(Failure::data(message)),
            Some(other) => Err(Failure::data(other)),
        }
    }

    /// The answer to `line`, a request that carries `number`, read and as it came.
    ///
    /// # Errors
    /// Two children in a row gave no answer: work.
    pub fn exchange(&self, line: &str, number: u64) -> Result<(Map<String, Value>, String)> {
        let line = format!("{line}\n");
        let idle = self.lock().pop();
        let first = idle.map_or_else(|| self.start(), Ok).and_then(|child| self.put(child, &line, number));
        let answer = first.or_else(|_| self.start().and_then(|child| self.put(child, &line, number)));
        answer.map_err(|cause| Failure::work(format!("{}: {cause}", self.command)))
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

/// A child and the thread that reads what it says.
struct Running {
    process: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Running {
    fn start(command: &str) -> std::io::Result<Running> {
        // A group of its own, so that what a shell starts for it can be ended with it.
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (sender, answers) = channel();
        if let Some(output) = process.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines();
                lines.map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Ok(Running { input: process.stdin.take(), process, answers })
    }

    fn ask(&mut self, line: &str, timeout: Duration) -> std::result::Result<String, String> {
        let sent =
            self.input.as_mut().map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.gone());
        }
        self.answers.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {} s", timeout.as_secs_f64()),
            RecvTimeoutError::Disconnected => self.gone(),
        })
    }

    fn gone(&mut self) -> String {
        match self.wait(FAREWELL) {
            Some(status) => format!("ended without an answer ({status})"),
            None => "closed its output without an answer".to_owned(),
        }
    }

    fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if started.elapsed() >= patience {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input = None;
        if self.wait(FAREWELL).is_none() {
            if let Ok(group) = i32::try_from(self.process.id()) {
                // SAFETY: kill only sends a signal; the group is the child's own and the child is not yet reaped, so
                // the number belongs to nobody else.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            // Reaped, so that no zombie stays; it cannot fail in a way that matters after SIGKILL.
            let _ = self.process.wait();
        }
    }
}
