//! The processes of a program, and the server that they call.
//!
//! Each start has another address, whose path is a secret: it says which episode a call belongs to, and ends with it. A process
//! gets the task on stdin and runs in a group of its own, which is killed with all descendants once it exits or is no longer needed.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use endpoint::{Answer, Call, Error, Limits, Server};
use record::failure::{Failure, Result};
use record::stage::note;
use serde_json::{Value, json};

use super::call::{Asked, Endpoint};
use super::episode::{Arrival, Event, Exit, Processes, Running, Start};
use super::preload::{Forked, Preloaded};
use super::roles::Settings;
use crate::external::processes::descendants;

/// The last bytes of stdout that are kept.
const OUTPUT: usize = 1 << 20;
/// How often a waiting call looks whether its client is still there.
const TICK: Duration = Duration::from_millis(100);
/// Names the process tree of a start in the environment of its processes.
const MARK: &str = "TROUPE_PROGRAM";
/// What every start has in its environment: telemetry of frameworks would wait for hosts that it cannot reach.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("OPENAI_API_KEY", "unused"),
    ("PYTHONHASHSEED", "0"),
    ("NO_PROXY", "127.0.0.1"),
    ("no_proxy", "127.0.0.1"),
    ("OPENAI_AGENTS_DISABLE_TRACING", "1"),
    ("CREWAI_DISABLE_TELEMETRY", "true"),
    ("OTEL_SDK_DISABLED", "true"),
];

/// Where the calls of each start go, by its secret.
type Sessions = Arc<Mutex<HashMap<String, Sender<Event>>>>;

/// Starts the program, and serves its calls.
pub struct Launcher {
    command: Vec<String>,
    keep_keys: bool,
    /// Modules, separated by commas.
    preload: Option<String>,
    preloaded: Option<Preloaded>,
    sessions: Sessions,
    server: Server,
}

impl Launcher {
    /// # Errors
    /// This machine gives no port: unavailable. Modules to preload, but no script of Python: usage.
    pub fn new(
        command: Vec<String>,
        keep_keys: bool,
        preload: Option<String>,
        settings: Settings,
    ) -> Result<Launcher> {
        if preload.is_some() && !(command[0].contains("python") && command.len() > 1) {
            return Err(Failure::usage("--preload is for a script of Python").hint("-- python3 team.py"));
        }
        let sessions = Sessions::default();
        let shared = (sessions.clone(), Mutex::default());
        let handler =
            move |call: &Call| handle(call, &shared.0, &settings, &shared.1).unwrap_or_else(Answer::Error);
        let server = Server::start("0", Limits::default(), None, handler)?;
        Ok(Launcher { command, keep_keys, preload, preloaded: None, sessions, server })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a call; waits for the policy.
fn handle(
    call: &Call,
    sessions: &Sessions,
    settings: &Settings,
    told: &Mutex<HashSet<&'static str>>,
) -> std::result::Result<Answer, Error> {
    let (secret, path) = call.path.trim_start_matches('/').split_once('/').unwrap_or_default();
    let ended =
        || Error::new(410, "this episode is over: every start of the program has its own address").last();
    let events = lock(sessions).get(secret).cloned().ok_or_else(ended)?;
    let endpoint = match (path, call.is_get) {
        ("v1/models", true) => {
            let models =
                settings.models().map(|model| json!({"id": model, "object": "model", "owned_by": "troupe"}));
            return Ok(Answer::Json(json!({"object": "list", "data": models.collect::<Vec<_>>()})));
        }
        ("v1/chat/completions", false) => Endpoint::Chat,
        ("v1/responses", false) => Endpoint::Responses,
        _ => return Err(Error::no_path(call)),
    };
    let asked = Asked::read(endpoint, &call.body, settings)?;
    for name in asked.overruled() {
        if lock(told).insert(name) {
            note(
                "envs",
                format!("the program sets {name}: rollout's flags decide, and {name} has no effect"),
            );
        }
    }
    let is_retry = call.header("x-stainless-retry-count").is_some_and(|count| count != "0");
    let (arrival, client) = Arrival::new(asked.clone(), is_retry);
    events.send(Event::Called(Box::new(arrival))).map_err(|_| ended())?;
    drop(events);
    let answer = loop {
        match client.answer.recv_timeout(TICK) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            Err(RecvTimeoutError::Timeout) if call.is_gone() => return Err(ended()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    Ok(match asked.call.stream {
        true => Answer::Events(Box::new(answer.events(&asked).into_iter())),
        false => Answer::Json(answer.body(&asked)),
    })
}

/// 128 random bits.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(Failure::io)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl Launcher {
    /// A command with the environment that all starts have.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        for (name, _) in std::env::vars_os() {
            // A second client of the program would spend money, once for each copy.
            let ends = ["API_KEY", "AUTH_TOKEN", "ACCESS_KEY"];
            if !self.keep_keys && ends.iter().any(|end| name.to_string_lossy().ends_with(end)) {
                command.env_remove(name);
            }
        }
        command.envs(ENVIRONMENT);
        command
    }

    /// A process with these variables: its number, its stdin and stdout, and its end.
    fn launch(&mut self, variables: &[(&str, &str)]) -> Result<(u32, Input, Output, End)> {
        if let Some(modules) = &self.preload {
            if self.preloaded.is_none() {
                self.preloaded = Some(Preloaded::new(&mut self.command(), modules, &self.command[1..])?);
            }
            let variables: Value = variables.iter().map(|(name, value)| (*name, *value)).collect();
            if let Some(preloaded) = &self.preloaded {
                let Forked { id, input, output, ended } = preloaded.start(&variables)?;
                return Ok((id, Box::new(input), Box::new(output), End::Forked(ended)));
            }
        }
        let mut command = self.command();
        command.args(&self.command[1..]).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        // SAFETY: prctl is one system call, which touches no memory; it runs in the child alone.
        #[cfg(target_os = "linux")]
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut child = command.spawn().map_err(|error| {
            Failure::work(format!("{}: {error}", self.command[0]))
                .hint("after `--` comes a program and its arguments, as in: -- python3 team.py")
        })?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok((child.id(), Box::new(input), Box::new(output), End::Child(child)))
            }
            _ => Err(Failure::work("a process without pipes")),
        }
    }
}

type Input = Box<dyn Write + Send>;
type Output = Box<dyn Read + Send>;

/// What tells that a process has ended.
enum End {
    Child(Child),
    Forked(Receiver<ExitStatus>),
}

impl Start for Launcher {
    fn start(&mut self, spec: &Value) -> Result<Running> {
        let (secret, mark) = (secret()?, descendants::mark());
        let url = format!("http://{}/{secret}/v1", self.server.address());
        let variables = [("OPENAI_BASE_URL", &*url), ("OPENAI_API_BASE", &*url), (MARK, &*mark)];
        let (id, mut input, output, end) = self.launch(&variables)?;
        let (sender, events) = channel();
        lock(&self.sessions).insert(secret.clone(), sender.clone());
        let (task, output) = (format!("{spec}\n"), thread::spawn(move || tail(output)));
        let process = Arc::new(Process { id, mark, is_over: Mutex::new(false) });
        let watched = process.clone();
        thread::spawn(move || {
            // A program that reads no task has closed the pipe.
            let _ = input.write_all(task.as_bytes());
            drop(input);
            let status = watched.wait(end);
            let output = output.join().unwrap_or_default();
            let failed = match status {
                Ok(status) => failure_of(status),
                Err(error) => Some(error.to_string()),
            };
            let _ = sender.send(Event::Exited(Exit { failed, output }));
        });
        let session = Session { process, sessions: self.sessions.clone(), secret };
        Ok(Running { events, processes: Box::new(session) })
    }
}

fn failure_of(status: ExitStatus) -> Option<String> {
    let signal = status.signal().map(|signal| format!("it was ended by signal {signal}"));
    (!status.success()).then(|| {
        signal.unwrap_or_else(|| format!("it exited with code {}", status.code().unwrap_or_default()))
    })
}

/// The last bytes of `output`, all of which is read.
fn tail(mut output: impl Read) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > 2 * OUTPUT {
            kept.drain(..kept.len() - OUTPUT);
        }
    }
    kept
}

/// A process, its group and its descendants.
struct Process {
    id: u32,
    mark: String,
    is_over: Mutex<bool>,
}

impl Process {
    /// Waits until it exits, then ends its descendants and reaps it.
    fn wait(&self, end: End) -> std::io::Result<ExitStatus> {
        let ended = match end {
            End::Child(child) => {
                // SAFETY: all-zero bytes are a valid siginfo_t, which outlives the calls that fill it in.
                unsafe {
                    let mut info: libc::siginfo_t = std::mem::zeroed();
                    let flags = libc::WEXITED | libc::WNOWAIT;
                    while libc::waitid(libc::P_PID, self.id, &raw mut info, flags) != 0
                        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
                    {
                    }
                }
                Err(child)
            }
            End::Forked(ended) => Ok(ended.recv().map_err(std::io::Error::other)),
        };
        let mut is_over = lock(&self.is_over);
        self.kill();
        *is_over = true;
        ended.unwrap_or_else(|mut child| child.wait())
    }

    /// Kills all of it; its number is not reused, because it is not reaped yet, or was a moment ago.
    fn kill(&self) {
        if let Ok(group) = i32::try_from(self.id) {
            // SAFETY: kill only sends a signal.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        descendants::kill(MARK, &self.mark);
    }
}

/// A start's process and its address.
struct Session {
    process: Arc<Process>,
    sessions: Sessions,
    secret: String,
}

impl Processes for Session {
    fn is_busy(&self) -> bool {
        descendants::is_busy(self.process.id)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        lock(&self.sessions).remove(&self.secret);
        let is_over = lock(&self.process.is_over);
        if !*is_over {
            self.process.kill();
        }
    }
}
