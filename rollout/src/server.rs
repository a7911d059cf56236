//! Agents that an OpenAI-compatible server plays: `--policy planner=http://HOST:PORT/v1?model=NAME`.
//!
//! A frozen partner of any size. It is asked for `POST /chat/completions`, one candidate a call, on threads of its own so that
//! generation goes on meanwhile. As with OpenAI's clients the key is in OPENAI_API_KEY, and what may pass (a lost
//! connection, 408, 409, 429, 5xx) is tried again with growing pauses, or after `Retry-After`. Tokens are the server's and unknown
//! here: the record has its texts and counts. Left out: streaming, tools, and log-probabilities.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use record::failure::{Failure, Result};
use record::philox::Draws;
use record::sample::Message;
use record::stage;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Response, StatusCode};

use crate::engine::Request;
use crate::episode::group::{Candidate, ServerTokens};
use crate::runtime;

/// Calls at the same time.
const CONNECTIONS: usize = 32;
/// The first pause before a call is repeated; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, also where the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a worker without other work waits for an answer before it looks for a task.
const POLL: Duration = Duration::from_millis(2);

/// How often and how long a server is asked.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For one answer.
    pub timeout: Duration,
    /// Repetitions of a call that failed in a way that may pass.
    pub retries: u32,
    /// Whether nobody is told that a server cannot be reached yet.
    pub quiet: bool,
}

/// Where a server is and what it is asked for.
#[derive(Debug)]
struct Endpoint {
    /// As the user wrote it, without what follows `?`.
    url: String,
    model: String,
    /// Completion limit, if not that of all agents.
    max_tokens: Option<u64>,
    /// The limit's key: `max_tokens`, or `max_completion_tokens` as models that reason want it.
    limit: &'static str,
    /// Temperature, if not that of all agents.
    temperature: Option<f64>,
    key: Option<String>,
    agent: Agent,
    patience: Patience,
    /// Whether it was told that the server cannot be reached.
    told: AtomicBool,
}

/// A server, and the threads that call it.
pub struct Server {
    endpoint: Arc<Endpoint>,
    calls: Sender<Call>,
}

/// A candidate to ask for.
struct Call {
    request: u64,
    branch: usize,
    body: Value,
    answers: Sender<Answer>,
}

/// Which candidate of which request came back.
type Answer = (u64, usize, std::result::Result<Candidate, CallError>);

/// Why there is no candidate.
#[derive(Debug)]
pub enum CallError {
    /// Nothing will come of other calls, either.
    Run(Failure),
    /// This prompt has no answer.
    Episode(String),
}

impl Server {
    /// Connects: asks which models there are, unless the URL names one.
    ///
    /// # Errors
    /// A URL that holds a key, or settings that do not exist, or https in a build without it (2); nobody answers, or the key
    /// is refused (69).
    pub fn open(text: &str, patience: Patience) -> Result<Server> {
        let (url, settings) = text.split_once('?').unwrap_or((text, ""));
        if url.contains('@') {
            return Err(Failure::usage("--policy: a URL with a name or a key in it, which the record would hold")
                .hint("put the key into OPENAI_API_KEY, or name another variable: 'http://HOST:PORT/v1?api_key_var=NAME'"));
        }
        if url.starts_with("https:") && !cfg!(feature = "https") {
            return Err(Failure::usage(format!("--policy {text}: this rollout was built without https"))
                .hint("build it with: cargo build --release -p rollout --features https"));
        }
        let mut endpoint = Endpoint {
            url: url.trim_end_matches('/').to_owned(),
            model: String::new(),
            max_tokens: None,
            limit: "max_tokens",
            temperature: None,
            key: key_in("OPENAI_API_KEY")?,
            agent: Agent::config_builder()
                .timeout_global(Some(patience.timeout))
                .http_status_as_error(false)
                .max_idle_connections(CONNECTIONS)
                .max_idle_connections_per_host(CONNECTIONS)
                .build()
                .into(),
            patience,
            told: AtomicBool::new(false),
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            if let Some(variable) = setting.strip_prefix("api_key_var=") {
                let missing = || Failure::usage(format!("--policy {text}: {variable} is not set"));
                endpoint.key = Some(key_in(variable)?.ok_or_else(missing)?);
                continue;
            }
            endpoint.set(setting).ok_or_else(|| {
                Failure::usage(format!("--policy {text}: no setting {setting:?}")).hint(
                    "settings are model=NAME, max_tokens=N, max_completion_tokens=N, temperature=T and api_key_var=NAME: \
                     'http://HOST:PORT/v1?model=NAME&max_tokens=512'",
                )
            })?;
        }
        if endpoint.model.is_empty() {
            endpoint.model = endpoint.only_model()?;
        }
        let endpoint = Arc::new(endpoint);
        let (calls, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..CONNECTIONS {
            let (endpoint, waiting) = (endpoint.clone(), waiting.clone());
            // They end with the server; never joined, because a call may take minutes.
            let started = thread::Builder::new().spawn(move || endpoint.answer(&waiting));
            started.map_err(|error| runtime::no_thread(&error))?;
        }
        Ok(Server { endpoint, calls })
    }

    /// The model, as the server calls it.
    pub fn model(&self) -> &str {
        &self.endpoint.model
    }

    /// A client for one thread.
    pub fn client(&self) -> Client {
        let (sender, answers) = channel();
        let (endpoint, calls) = (self.endpoint.clone(), self.calls.clone());
        Client { endpoint, calls, sender, answers, open: HashMap::new() }
    }
}

impl Endpoint {
    fn set(&mut self, setting: &str) -> Option<()> {
        let (key, value) = setting.split_once('=')?;
        match key {
            "model" if !value.is_empty() => self.model = value.to_owned(),
            "max_tokens" | "max_completion_tokens" => {
                self.max_tokens = Some(value.parse().ok().filter(|&tokens| tokens > 0)?);
                self.limit = if key == "max_tokens" { "max_tokens" } else { "max_completion_tokens" };
            }
            "temperature" => {
                self.temperature =
                    Some(value.parse().ok().filter(|&value: &f64| value >= 0.0 && value.is_finite())?);
            }
            _ => return None,
        }
        Some(())
    }

    fn only_model(&self) -> Result<String> {
        let list = self.patiently("/models", None).map_err(|refusal| match refusal {
            CallError::Run(failure) => failure,
            CallError::Episode(cause) => {
                self.failure(&cause, "name the model: 'http://HOST:PORT/v1?model=NAME'")
            }
        })?;
        let models: Vec<&str> =
            list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
        match models[..] {
            [only] => Ok(only.to_owned()),
            [] => Err(self.failure("it lists no model", "name one: 'http://HOST:PORT/v1?model=NAME'")),
            _ => Err(Failure::usage(format!("{}: it has {} models", self.url, models.len())).hint(format!(
                "name one: '{}?model=NAME'; they are {}",
                self.url,
                models.join(", ")
            ))),
        }
    }

    fn failure(&self, cause: &str, hint: &str) -> Failure {
        Failure::unavailable(format!("{}: {cause}", self.url)).hint(hint)
    }

    /// A thread that calls until the server is dropped.
    fn answer(&self, waiting: &Mutex<Receiver<Call>>) {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Call { request, branch, body, answers }) = next else { return };
            let candidate =
                self.patiently("/chat/completions", Some(&body)).and_then(|reply| candidate(&reply));
            // Nobody waits for it any more where the run is over.
            let _ = answers.send((request, branch, candidate));
        }
    }

    /// Calls until there is an answer or patience is at its end.
    fn patiently(&self, path: &str, body: Option<&Value>) -> std::result::Result<Value, CallError> {
        let (mut pause, mut retries) = (PAUSE, self.patience.retries);
        loop {
            let (failed, wanted) = match self.call(path, body) {
                Ok(reply) => return Ok(reply),
                Err(Attempt::Over(refusal)) => return Err(refusal),
                Err(Attempt::MayPass(failed, wanted)) => (failed, wanted),
            };
            if retries == 0 {
                return Err(failed);
            }
            retries -= 1;
            if let CallError::Run(failure) = &failed
                && !self.patience.quiet
                && !self.told.swap(true, Ordering::Relaxed)
            {
                stage::note(stage::name(), format!("{}; trying again", failure.message));
            }
            thread::sleep(wanted.unwrap_or(pause).min(LONGEST_PAUSE));
            pause *= 2;
        }
    }

    fn call(&self, path: &str, body: Option<&Value>) -> std::result::Result<Value, Attempt> {
        let url = format!("{}{path}", self.url);
        let key = self.key.as_ref().map(|key| format!("Bearer {key}"));
        let sent = match body {
            Some(body) => {
                let request = self.agent.post(&url).header("Content-Type", "application/json");
                let request = key.iter().fold(request, |request, key| request.header("Authorization", key));
                request.send(body.to_string())
            }
            None => {
                let request = self.agent.get(&url);
                key.iter().fold(request, |request, key| request.header("Authorization", key)).call()
            }
        };
        let mut response = sent.map_err(|error| self.lost(&error))?;
        let status = response.status();
        let text = response.body_mut().read_to_string().map_err(|error| self.lost(&error))?;
        if status.is_success() {
            let cause = || {
                Attempt::Over(CallError::Episode(format!(
                    "{}: its answer is no JSON: {}",
                    self.url,
                    short(&text)
                )))
            };
            return serde_json::from_str(&text).map_err(|_| cause());
        }
        Err(self.refused(status, &text, retry_after(&response)))
    }

    /// What a status other than success means.
    fn refused(&self, status: StatusCode, text: &str, wanted: Option<Duration>) -> Attempt {
        let told: Value = serde_json::from_str(text).unwrap_or_default();
        let told = ["/error/message", "/message", "/detail", "/error"]
            .iter()
            .find_map(|at| told.pointer(at)?.as_str());
        let cause = format!("{}: {}", status.as_u16(), short(told.unwrap_or(text)));
        let of_run = |hint: &str| Attempt::Over(CallError::Run(self.failure(&cause, hint)));
        match status.as_u16() {
            401 | 403 => of_run(
                "set OPENAI_API_KEY to a key that this server knows, or name its variable: ?api_key_var=NAME",
            ),
            404 => of_run(
                "the URL ends where /chat/completions follows, often in /v1; ?model=NAME names a model that it has",
            ),
            408 | 409 | 429 | 500.. => {
                Attempt::MayPass(CallError::Episode(format!("{}: {cause}", self.url)), wanted)
            }
            _ => Attempt::Over(CallError::Episode(format!("{}: {cause}", self.url))),
        }
    }

    /// What a connection without an answer means: one that is never made ends the run.
    fn lost(&self, error: &ureq::Error) -> Attempt {
        let refused =
            matches!(error, ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        let unknown = matches!(error, ureq::Error::HostNotFound | ureq::Error::ConnectionFailed);
        let fault =
            match error {
                ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl | ureq::Error::RequireHttpsOnly(_) => {
                    return Attempt::Over(CallError::Run(
                        self.failure(&error.to_string(), "servers are http://HOST:PORT/v1"),
                    ));
                }
                _ if refused || unknown => CallError::Run(self.failure(
                    &format!("cannot be reached: {error}"),
                    "start the server, or check host and port",
                )),
                ureq::Error::Timeout(_) => {
                    let seconds = self.patience.timeout.as_secs_f64();
                    CallError::Episode(format!("{}: no answer in {seconds} s", self.url))
                }
                _ => CallError::Episode(format!("{}: {error}", self.url)),
            };
        Attempt::MayPass(fault, None)
    }
}

/// How a call failed.
enum Attempt {
    Over(CallError),
    /// Another may succeed, after this pause if the server named one.
    MayPass(CallError, Option<Duration>),
}

/// A key in an environment variable; none where it is empty or unset.
fn key_in(variable: &str) -> Result<Option<String>> {
    let key = std::env::var(variable).unwrap_or_default().trim().to_owned();
    if key.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(Failure::usage(format!("{variable} holds characters that no key has")));
    }
    Ok(Some(key).filter(|key| !key.is_empty()))
}

fn retry_after<T>(response: &Response<T>) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The candidate in an answer.
fn candidate(reply: &Value) -> std::result::Result<Candidate, CallError> {
    let choice = &reply["choices"][0];
    let text = match &choice["message"]["content"] {
        Value::String(text) => text.clone(),
        // An empty answer.
        Value::Null if choice["message"].is_object() => String::new(),
        _ => {
            return Err(CallError::Episode(format!(
                "its answer has no message: {}",
                short(&reply.to_string())
            )));
        }
    };
    let tokens = |key: &str| reply["usage"][key].as_u64();
    let usage = ServerTokens { prompt: tokens("prompt_tokens"), completion: tokens("completion_tokens") };
    Ok(Candidate {
        text,
        ids: Vec::new(),
        logprobs: Vec::new(),
        stopped: choice["finish_reason"] != "length",
        usage,
    })
}

/// One thread's calls.
pub struct Client {
    endpoint: Arc<Endpoint>,
    calls: Sender<Call>,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
    /// Candidates of each request, by branch.
    open: HashMap<u64, Vec<Option<std::result::Result<Candidate, CallError>>>>,
}

impl Client {
    /// Submits a conversation, of which the branches of `request` are asked for.
    pub fn submit(&mut self, request: &Request, messages: &[Message]) {
        let Endpoint { model, max_tokens, limit, temperature, .. } = &*self.endpoint;
        let sampling = request.sampling;
        let temperature = temperature.unwrap_or(match sampling.greedy {
            true => 0.0,
            // The shortest decimal, as in the record.
            false => sampling.temperature.to_string().parse().unwrap_or(1.0),
        });
        self.open.insert(request.id, request.streams.iter().map(|_| None).collect());
        for (branch, stream) in request.streams.iter().enumerate() {
            let mut body = json!({
                "model": model,
                "messages": messages,
                *limit: max_tokens.unwrap_or(request.max_tokens as u64),
                "temperature": temperature,
                "seed": Draws::new(*stream).below(1 << 31),
            });
            if sampling.top_p < 1.0 {
                body["top_p"] = json!(sampling.top_p);
            }
            if sampling.top_k > 0 {
                body["top_k"] = json!(sampling.top_k);
            }
            let answers = self.sender.clone();
            // Its threads live as long as the server.
            let _ = self.calls.send(Call { request: request.id, branch, body, answers });
        }
    }

    /// Whether nothing is awaited.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// The requests that are complete by now, with their candidates in order. Whoever has nothing else to do may `wait` for
    /// a moment.
    pub fn advance(&mut self, wait: bool) -> Vec<(u64, std::result::Result<Vec<Candidate>, CallError>)> {
        let mut complete = Vec::new();
        let mut next = self.answers.recv_timeout(if wait { POLL } else { Duration::ZERO });
        while let Ok((request, branch, answer)) = next {
            if let Some(candidates) = self.open.get_mut(&request) {
                candidates[branch] = Some(answer);
                if candidates.iter().all(Option::is_some) {
                    let candidates = self.open.remove(&request).unwrap_or_default();
                    complete.push((request, candidates.into_iter().flatten().collect()));
                }
            }
            next = self.answers.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        complete
    }
}
