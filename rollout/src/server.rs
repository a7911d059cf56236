//! Agents that an OpenAI-compatible server plays: `--policy planner=http://HOST:PORT/v1?model=NAME`.
//!
//! A frozen partner of any size, called by `POST /chat/completions`, one candidate per call, in separate
//! threads so that generation goes on meanwhile. The key comes from OPENAI_API_KEY, as with OpenAI's clients.
//! Transient failures (a lost connection, 408, 409, 429, 5xx) are retried with growing pauses, or after
//! `Retry-After`. The server's token ids are unknown; the record has texts and counts. Left out: streaming,
//! log-probabilities, compression, and redirects, because a server that the user did not name must
//! never be asked.

mod answer;
mod endpoint;
mod waits;

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use policy::tools;
use record::failure::{Failure, Result};
use record::philox::Draws;
use serde_json::{Value, json};

use crate::episode::group::Candidate;
use crate::generator::{Generated, Generator, GeneratorTimes, GroupRequest};
use crate::prompts::{Prompt, PromptCache};
use crate::runtime;
use endpoint::Endpoint;
pub use endpoint::key_in;

/// Concurrent calls.
const CONNECTIONS: usize = 32;
/// How long an idle worker waits for an answer before it looks for a task.
const POLL: Duration = Duration::from_millis(2);

/// Timeouts and retries of calls.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// For one answer.
    pub timeout: Duration,
    /// Retries of a call after a transient failure.
    pub retries: u32,
    /// True to print no note while a server cannot be reached.
    pub quiet: bool,
}

/// A server and its calling threads.
pub struct Server {
    endpoint: Arc<Endpoint>,
    calls: Sender<Call>,
}

/// A call for one candidate.
struct Call {
    request: u64,
    branch: usize,
    body: Value,
    answers: Sender<Answer>,
}

/// Request id, index of the candidate, and the result.
type Answer = (u64, usize, std::result::Result<Candidate, CallError>);

/// Why there is no candidate.
#[derive(Debug)]
pub enum CallError {
    /// Other calls would fail, too.
    Run(Failure),
    /// Only this prompt has no answer.
    Episode(String),
}

/// Checks a URL and its settings without asking anybody.
///
/// # Errors
/// A URL that leads nowhere or holds a key, settings that do not exist, or https in a build without it (2).
pub fn check(text: &str, retry_policy: RetryPolicy) -> Result<()> {
    Endpoint::parse(text, retry_policy).map(drop)
}

impl Server {
    /// Connects: lists the models, unless the URL names one.
    ///
    /// # Errors
    /// A URL that leads nowhere or holds a key, or settings that do not exist, or https in a build without it
    /// (2); no answer, or a refused key (69).
    pub fn open(text: &str, retry_policy: RetryPolicy) -> Result<Server> {
        let endpoint = Arc::new(Endpoint::open(text, retry_policy)?);
        let (calls, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..CONNECTIONS {
            let (endpoint, waiting) = (endpoint.clone(), waiting.clone());
            // The threads end with the server. They are never joined, because a call may take minutes.
            let started = thread::Builder::new().spawn(move || endpoint.answer(&waiting));
            started.map_err(|error| runtime::spawn_failure(&error))?;
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
        let (open, prompts, waiting) = (HashMap::new(), PromptCache::default(), Duration::ZERO);
        Client { endpoint, calls, sender, answers, open, prompts, waiting }
    }
}

/// One thread's calls.
pub struct Client {
    endpoint: Arc<Endpoint>,
    calls: Sender<Call>,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
    /// Candidates of each request, by branch.
    open: HashMap<u64, Vec<Option<std::result::Result<Candidate, CallError>>>>,
    prompts: PromptCache,
    waiting: Duration,
}

impl Generator for Client {
    /// Submits a conversation. Its tokens are the server's: the prompt has none.
    fn submit(&mut self, request: GroupRequest<'_>) -> Result<Arc<Prompt>> {
        let prompt = self.prompts.get(request.messages, request.tools, || Ok((Vec::new(), false)))?;
        let Endpoint { model, max_tokens, limit, temperature, seed, .. } = &*self.endpoint;
        let sampling = request.sampling.params;
        let temperature = temperature.unwrap_or(match sampling.greedy {
            true => 0.0,
            // Sent as its shortest decimal, as in the record.
            false => sampling.temperature.to_string().parse().unwrap_or(1.0),
        });
        let messages = match request.tools {
            None => json!(request.messages),
            Some(_) => tools::structured(request.messages, request.tools, true).into(),
        };
        self.open.insert(request.id, request.streams.iter().map(|_| None).collect());
        for (branch, stream) in request.streams.iter().enumerate() {
            let mut body = json!({
                "model": model,
                "messages": messages,
                *limit: max_tokens.unwrap_or(u64::from(request.sampling.max_tokens)),
                "temperature": temperature,
            });
            if let Some(tools) = request.tools {
                body["tools"] = tools.clone();
            }
            if *seed {
                body["seed"] = json!(Draws::new(*stream).below(1 << 31));
            }
            if sampling.top_p < 1.0 {
                body["top_p"] = json!(sampling.top_p);
            }
            if sampling.top_k > 0 {
                body["top_k"] = json!(sampling.top_k);
            }
            if sampling.min_p > 0.0 {
                body["min_p"] = json!(sampling.min_p);
            }
            if !request.sampling.stop.is_empty() {
                body["stop"] = json!(request.sampling.stop);
            }
            let answers = self.sender.clone();
            // Its threads live as long as the server.
            let _ = self.calls.send(Call { request: request.id, branch, body, answers });
        }
        Ok(prompt)
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    fn advance(&mut self, wait: bool) -> Result<Vec<Generated>> {
        let started = Instant::now();
        let mut complete: Vec<Generated> = Vec::new();
        let mut next = self.answers.recv_timeout(if wait { POLL } else { Duration::ZERO });
        while let Ok((request, branch, answer)) = next {
            if let Some(candidates) = self.open.get_mut(&request) {
                candidates[branch] = Some(answer);
                if candidates.iter().all(Option::is_some) {
                    let candidates = self.open.remove(&request).unwrap_or_default();
                    let candidates: std::result::Result<Vec<Candidate>, CallError> =
                        candidates.into_iter().flatten().collect();
                    complete.push((
                        request,
                        match candidates {
                            Ok(candidates) => Ok(candidates),
                            Err(CallError::Episode(cause)) => Err(cause),
                            Err(CallError::Run(failure)) => return Err(failure),
                        },
                    ));
                }
            }
            next = self.answers.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        self.waiting += started.elapsed();
        Ok(complete)
    }

    fn times(&self) -> GeneratorTimes {
        GeneratorTimes { waiting: self.waiting, ..GeneratorTimes::default() }
    }
}
