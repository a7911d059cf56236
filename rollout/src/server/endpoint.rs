//! The address of a server, and calls to it. Transient failures are retried, redirects are not followed, and
//! messages never contain the key.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use record::address;
use record::failure::{Failure, Result};
use record::stage;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode, Uri};

use super::answer::{self, Attempt, candidate, short};
use super::waits::Waits;
use super::{CONNECTIONS, Call, CallError, RetryPolicy};

/// The first pause before a retry; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, even if the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How many models of the server a hint lists.
const NAMED: usize = 10;

/// Address and settings of a server.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// The user's URL up to the `?`.
    url: String,
    pub model: String,
    /// Completion limit, if it differs from the other agents'.
    pub max_tokens: Option<u64>,
    /// The limit's key: `max_tokens`, or `max_completion_tokens`, which reasoning models require.
    pub limit: &'static str,
    /// Temperature, if it differs from the other agents'.
    pub temperature: Option<f64>,
    /// True if calls include a seed.
    pub seed: bool,
    key: Option<String>,
    agent: Agent,
    retry_policy: RetryPolicy,
    /// True if it was told that the server cannot be reached.
    told: AtomicBool,
    waits: Arc<Waits>,
}

impl Endpoint {
    /// The server of a URL with settings; asks which models there are, unless they name one.
    pub fn open(text: &str, retry_policy: RetryPolicy) -> Result<Endpoint> {
        let mut endpoint = Endpoint::parse(text, retry_policy)?;
        if endpoint.model.is_empty() {
            endpoint.model = endpoint.only_model()?;
        }
        Ok(endpoint)
    }

    /// The same without asking anybody: its model may be unknown.
    pub fn parse(text: &str, retry_policy: RetryPolicy) -> Result<Endpoint> {
        address::check("--policy", text)?;
        let (url, settings) = text.split_once('?').unwrap_or((text, ""));
        check(url)?;
        let url = url.trim_end_matches('/');
        let mut endpoint = Endpoint {
            url: url.to_owned(),
            model: String::new(),
            max_tokens: None,
            limit: "max_tokens",
            temperature: None,
            seed: true,
            key: key_in("OPENAI_API_KEY")?,
            agent: Agent::config_builder()
                .timeout_global(Some(retry_policy.timeout))
                .http_status_as_error(false)
                .max_redirects(0)
                .max_idle_connections(CONNECTIONS)
                .max_idle_connections_per_host(CONNECTIONS)
                .build()
                .into(),
            retry_policy,
            told: AtomicBool::new(false),
            waits: Waits::of(url, retry_policy)?,
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            if let Some(variable) = setting.strip_prefix("api_key_var=") {
                let missing = || Failure::usage(format!("--policy {url}: {variable} is not set"));
                endpoint.key = Some(key_in(variable)?.ok_or_else(missing)?);
                continue;
            }
            endpoint.set(setting).ok_or_else(|| {
                // The setting's value, or all of it, may be a key, so the message must not quote it.
                let named = setting.split_once('=').map(|(name, _)| name);
                let cause = named.map_or("a setting without =".to_owned(), |name| {
                    format!("no setting {name:?}, or not to such a value")
                });
                Failure::usage(format!("--policy {url}: {cause}")).hint(
                    "settings are model=NAME, max_tokens=N, max_completion_tokens=N, temperature=T, seed=none and \
                     api_key_var=NAME: 'http://HOST:PORT/v1?model=NAME&max_tokens=512'",
                )
            })?;
        }
        Ok(endpoint)
    }

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
            "seed" if value == "none" => self.seed = false,
            _ => return None,
        }
        Some(())
    }

    fn only_model(&self) -> Result<String> {
        let name = format!("'{}?model=NAME'", self.url);
        let list = self.patiently("/models", None, Ok).map_err(|refusal| match refusal {
            CallError::Run(failure) => failure,
            CallError::Episode(cause) => Failure::unavailable(cause).hint(format!("name the model: {name}")),
        })?;
        let models: Vec<&str> =
            list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
        match models[..] {
            [only] => Ok(only.to_owned()),
            [] => Err(self.failure("it lists no model", &format!("name one: {name}"))),
            _ => {
                let first: Vec<String> = models.iter().take(NAMED).map(|model| short(model)).collect();
                let more = if models.len() > NAMED { ", …" } else { "" };
                let hint = format!("name one: {name}; they are {}{more}", first.join(", "));
                Err(Failure::usage(format!("{}: it has {} models", self.url, models.len())).hint(hint))
            }
        }
    }

    fn failure(&self, cause: &str, hint: &str) -> Failure {
        Failure::unavailable(format!("{}: {cause}", self.url)).hint(hint)
    }

    /// A thread that makes calls until the server is dropped.
    pub fn answer(&self, waiting: &Mutex<Receiver<Call>>) {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Call { request, branch, body, answers }) = next else { return };
            let found = self.patiently("/chat/completions", Some(&body), |reply| candidate(&reply));
            // The receiver is gone if the run is over.
            let _ = answers.send((request, branch, found));
        }
    }

    /// Calls until there is an answer that `read` takes, or retries are used up.
    fn patiently<T>(
        &self,
        path: &str,
        body: Option<&Value>,
        read: impl Fn(Value) -> std::result::Result<T, answer::Fault>,
    ) -> std::result::Result<T, CallError> {
        let (mut pause, mut retries) = (PAUSE, self.retry_policy.retries);
        loop {
            let waiting = self.waits.begin();
            let reply = self.call(path, body);
            drop(waiting);
            let read = reply.and_then(|reply| read(reply).map_err(|fault| self.unusable(fault)));
            let (failed, wanted) = match read {
                Ok(found) => return Ok(found),
                Err(Attempt::Over(refusal)) => return Err(refusal),
                Err(Attempt::MayPass(failed, wanted)) => (failed, wanted),
            };
            if retries == 0 {
                return Err(failed);
            }
            retries -= 1;
            let wait = wanted.unwrap_or(pause).min(LONGEST_PAUSE);
            match &failed {
                CallError::Run(failure)
                    if !self.retry_policy.quiet && !self.told.swap(true, Ordering::Relaxed) =>
                {
                    stage::note(stage::name(), format!("{}; trying again", failure.message));
                }
                CallError::Run(_) => {}
                CallError::Episode(cause) => self.waits.tell_of_pause(cause, wait, wanted),
            }
            thread::sleep(wait);
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
        let (status, headers) = (response.status(), response.headers().clone());
        if let Some(encoding) = header(&headers, "content-encoding").filter(|name| *name != "identity") {
            let cause = format!("its answer is compressed ({}), which it was not asked for", short(encoding));
            let failure = self.failure(
                &self.without_key(&cause),
                "turn compression off, at the server or a proxy before it",
            );
            return Err(Attempt::Over(CallError::Run(failure)));
        }
        let text = response.body_mut().read_to_string().map_err(|error| self.lost(&error))?;
        if !status.is_success() {
            return Err(self.refused(status, &text, &headers));
        }
        let Ok(mut reply) = serde_json::from_str::<Value>(&text) else {
            let text = short(&self.without_key(&text));
            return Err(Attempt::Over(self.no_answer(&format!("its answer is no JSON: {text}"))));
        };
        self.strip_key(&mut reply);
        match answer::status_of_error(&reply) {
            // Some gateways report errors with status 200.
            Some(status) => Err(self.refused(status, &reply.to_string(), &headers)),
            None => Ok(reply),
        }
    }

    /// Interprets a status other than success.
    fn refused(&self, status: StatusCode, text: &str, headers: &HeaderMap) -> Attempt {
        let told: Value = serde_json::from_str(text).unwrap_or_default();
        let told = ["/error/message", "/message", "/detail", "/error"]
            .iter()
            .find_map(|at| told.pointer(at)?.as_str());
        let mut cause = format!("{}: {}", status.as_u16(), short(&self.without_key(told.unwrap_or(text))));
        let of_run = |cause: &str, hint: &str| Attempt::Over(CallError::Run(self.failure(cause, hint)));
        match status.as_u16() {
            300..=399 => {
                let place = short(&self.without_key(header(headers, "location").unwrap_or("nowhere")));
                of_run(
                    &format!("{}: it sends to {place}", status.as_u16()),
                    "only servers that --policy names are asked: name that one if it is yours",
                )
            }
            401 | 403 => of_run(
                &cause,
                "set OPENAI_API_KEY to a key that this server knows, or name its variable: ?api_key_var=NAME",
            ),
            404 => of_run(
                &cause,
                "the URL ends where /chat/completions follows, often in /v1; ?model=NAME names a model that it has",
            ),
            408 | 409 | 429 | 500.. => Attempt::MayPass(self.no_answer(&cause), retry_after(headers)),
            _ => {
                if self.seed && cause.contains("seed") {
                    cause += " (?seed=none leaves the seed out)";
                }
                Attempt::Over(self.no_answer(&cause))
            }
        }
    }

    /// Interprets an answer without a candidate.
    fn unusable(&self, fault: answer::Fault) -> Attempt {
        match fault {
            answer::Fault::MayPass(cause) => Attempt::MayPass(self.no_answer(&cause), None),
            answer::Fault::Over(cause) => Attempt::Over(self.no_answer(&cause)),
        }
    }

    fn no_answer(&self, cause: &str) -> CallError {
        CallError::Episode(format!("{}: {cause}", self.url))
    }

    /// Interprets a connection without an answer. If no connection was ever made, the run ends.
    fn lost(&self, error: &ureq::Error) -> Attempt {
        let refused =
            matches!(error, ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        let unknown = matches!(error, ureq::Error::HostNotFound | ureq::Error::ConnectionFailed);
        let fault = match error {
            ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl | ureq::Error::RequireHttpsOnly(_) => {
                return Attempt::Over(CallError::Run(
                    self.failure(&error.to_string(), "servers are http://HOST:PORT/v1"),
                ));
            }
            _ if refused || unknown => {
                CallError::Run(self.failure(
                    &format!("cannot be reached: {error}"),
                    "start the server, or check host and port",
                ))
            }
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Attempt::Over(CallError::Run(self.failure(
                        &format!("no connection by https: {error}"),
                        "its certificate is signed by an authority that browsers know; a server without one is http://HOST:PORT/v1",
                    )));
            }
            ureq::Error::Timeout(_) => {
                let seconds = self.retry_policy.timeout.as_secs_f64();
                self.no_answer(&format!("no answer in {seconds} s"))
            }
            _ => self.no_answer(&error.to_string()),
        };
        Attempt::MayPass(fault, None)
    }

    /// The server's text with the key removed, which it may quote.
    fn without_key(&self, text: &str) -> String {
        address::hide(text, &self.key.as_deref().into_iter().collect::<Vec<_>>())
    }

    fn strip_key(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.without_key(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.strip_key(item)),
            Value::Object(entries) => entries.values_mut().for_each(|item| self.strip_key(item)),
            _ => {}
        }
    }
}

/// Refuses a URL that is invalid or contains a key.
fn check(url: &str) -> Result<()> {
    let refuse = |cause: &str| {
        Err(Failure::usage(format!("--policy {url}: {cause}")).hint("servers are http://HOST:PORT/v1"))
    };
    if url.contains(|c: char| !c.is_ascii_graphic()) {
        return refuse("a URL holds no blanks and no letters beyond ASCII");
    }
    let parsed = url.parse::<Uri>().ok().and_then(|uri| uri.authority().cloned());
    let Some(authority) = parsed.filter(|authority| !authority.host().is_empty()) else {
        return refuse("no URL of a server");
    };
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0) && !text.starts_with('+');
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return refuse("the port is not a number from 1 to 65535");
    }
    if url.to_ascii_lowercase().starts_with("https:") && !cfg!(feature = "https") {
        return Err(Failure::usage(format!("--policy {url}: this rollout was built without https"))
            .hint("build it with its default features: cargo build --release --workspace --bins"));
    }
    Ok(())
}

/// A key in an environment variable; `None` if it is empty or unset.
pub fn key_in(variable: &str) -> Result<Option<String>> {
    let key = std::env::var(variable).unwrap_or_default().trim().to_owned();
    if key.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(Failure::usage(format!("{variable} holds characters that no key has")));
    }
    Ok(Some(key).filter(|key| !key.is_empty()))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    Duration::try_from_secs_f64(header(headers, "retry-after")?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_lead_nowhere_are_refused_before_anything_is_asked() {
        for url in [
            "http://127.0.0.1:99999/v1",
            "http://127.0.0.1:/v1",
            "http://127.0.0.1:-1/v1",
            "http://127.0.0.1:0/v1",
            "http://127.0.0.1:+1/v1",
            "http://127.0.0.1:1x/v1",
            "http://[::1/v1",
            "http://",
            "http:///v1",
            "http://:80/v1",
            "http://a:8 0/v1",
            "http://ä/v1",
        ] {
            let failure = check(url).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(url), "{url}: {failure:?}");
        }
        for url in [
            "http://127.0.0.1:65535/v1",
            "http://host",
            "http://[::1]:8000/v1",
            "http://[::1]/v1/",
            "http://a.b-c/",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        let retry_policy = RetryPolicy { timeout: Duration::from_secs(1), retries: 0, quiet: true };
        let failure = Endpoint::open("http://h/v1?api_key=sk-SECRET-4711", retry_policy).unwrap_err();
        assert!(failure.code == 2 && !format!("{failure:?}").contains("SECRET"), "{failure:?}");
    }
}
