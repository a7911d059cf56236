//! An HTTP server for clients of OpenAI's API: hyper on a tokio thread, handlers on blocking threads.
//!
//! A handler gets the path and the JSON of a call and answers JSON, a stream of events, or an error in OpenAI's form.
//! Bodies, connections and waits are limited, so a hostile client costs one connection. HTTP/1.1 without TLS: a proxy
//! adds it. [`chat`] reads and writes `/chat/completions`.

mod body;
pub mod chat;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use record::failure::{Failure, Result};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};

use body::Body;

/// Events of a stream that wait for a slow client.
const EVENTS_AHEAD: usize = 64;
/// How long calls may go on when the server stops, and threads after them.
const GRACE: Duration = Duration::from_secs(5);
/// The variable that a key for clients is taken from.
pub const KEY_VARIABLE: &str = "TROUPE_API_KEY";
/// The path that needs no key.
const HEALTH: &str = "/health";

/// What clients may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a body; longer ones are answered 413.
    pub body: usize,
    /// Open connections, which is also the number of calls at once; more wait to be accepted.
    pub connections: usize,
    /// For the headers of a call, for its body, and for a client that takes no bytes of its answer.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { body: 4 << 20, connections: 512, patience: Duration::from_secs(30) }
    }
}

/// A call of a client.
pub struct Call {
    /// True for GET, which has no body; otherwise POST.
    pub is_get: bool,
    /// Without the part from `?` on.
    pub path: String,
    pub body: Value,
    headers: HeaderMap,
    connection: Weak<()>,
}

impl Call {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns true if the client closed its connection, so that nobody waits for an answer.
    pub fn is_gone(&self) -> bool {
        self.connection.strong_count() == 0
    }
}

/// What a handler answers.
pub enum Answer {
    Json(Value),
    /// Server-sent events, each sent when it comes, then `[DONE]`. Dropped when the client goes.
    Events(Box<dyn Iterator<Item = Value>>),
    Error(Error),
}

/// An error as OpenAI's API tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The HTTP status, from which its `type` follows.
    pub status: u16,
    pub message: String,
    /// A word for programs, such as `model_not_found`; may be empty.
    pub code: &'static str,
    /// True to tell clients not to try again, which some do after 408, 409, 429 and 5xx.
    pub is_final: bool,
}

impl Error {
    pub fn new(status: u16, message: impl Into<String>) -> Error {
        Error { status, message: message.into(), code: "", is_final: false }
    }

    /// The call is wrong: 400.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(400, message)
    }

    /// No such path: 404.
    pub fn no_path(call: &Call) -> Error {
        Error::new(404, format!("no {} {}", if call.is_get { "GET" } else { "POST" }, call.path))
    }

    /// Adds a word for programs.
    #[must_use]
    pub fn code(self, code: &'static str) -> Error {
        Error { code, ..self }
    }

    /// Adds that clients should not try again.
    #[must_use]
    pub fn last(self) -> Error {
        Error { is_final: true, ..self }
    }

    /// `{"error": {"message", "type", "param", "code"}}`.
    pub fn to_json(&self) -> Value {
        let kind = match self.status {
            401 | 403 => "authentication_error",
            404 => "not_found_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let code = (!self.code.is_empty()).then_some(self.code);
        serde_json::json!({"error": {"message": self.message, "type": kind, "param": null, "code": code}})
    }
}

/// What all calls share.
struct Shared<H> {
    limits: Limits,
    key: Option<String>,
    handler: H,
}

/// A server that listens until it is dropped. Drop waits some seconds for calls that are being answered.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `HOST:PORT`, or at a port of this machine alone (`PORT`; 0 chooses one). With a `key` every call but
    /// `/health` needs `Authorization: Bearer KEY`.
    ///
    /// # Errors
    /// 2: no address, or one that others reach without a key; 69: it is in use, or another's.
    pub fn start(
        address: &str,
        limits: Limits,
        key: Option<String>,
        handler: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Result<Server> {
        let listener = listen(address, key.is_some())?;
        let failure = |error: std::io::Error| Failure::unavailable(format!("{address}: {error}"));
        let address = listener.local_addr().map_err(failure)?;
        listener.set_nonblocking(true).map_err(failure)?;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().max_blocking_threads(limits.connections);
        let runtime = runtime.build().map_err(failure)?;
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::new(Shared { limits, key, handler });
        let run = move || {
            runtime.block_on(serve(listener, shared, stopped));
            runtime.shutdown_timeout(GRACE);
        };
        let thread = thread::Builder::new().name("endpoint".to_owned()).spawn(run).map_err(failure)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(address: &str, has_key: bool) -> Result<TcpListener> {
    let place =
        if address.parse::<u16>().is_ok() { format!("127.0.0.1:{address}") } else { address.to_owned() };
    let places: Vec<SocketAddr> = match place.to_socket_addrs() {
        Ok(places) => places.collect(),
        Err(error) => {
            return Err(Failure::usage(format!("{address}: no address to listen at: {error}")).hint(
                "name HOST:PORT, or only a port, which this machine alone can reach: 127.0.0.1:8000, 8000",
            ));
        }
    };
    if !has_key && !places.iter().all(|place| place.ip().is_loopback()) {
        return Err(Failure::usage(format!("{address}: others may reach that address, and there is no key"))
            .hint(format!("put a key for clients into {KEY_VARIABLE}, or listen at 127.0.0.1")));
    }
    TcpListener::bind(&places[..]).map_err(|error| {
        Failure::unavailable(format!("{address}: cannot listen there: {error}"))
            .hint("another program may use that port: choose another, or 0 for any that is free")
    })
}

async fn serve<H>(listener: TcpListener, shared: Arc<Shared<H>>, stopped: oneshot::Receiver<()>)
where
    H: Fn(&Call) -> Answer + Send + Sync + 'static,
{
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let open = Arc::new(GracefulShutdown::new());
    let accepting = tokio::spawn(accept(listener, shared, open.clone()));
    let _ = stopped.await;
    accepting.abort();
    let _ = accepting.await;
    if let Some(open) = Arc::into_inner(open) {
        let _ = tokio::time::timeout(GRACE, open.shutdown()).await;
    }
}

async fn accept<H>(listener: tokio::net::TcpListener, shared: Arc<Shared<H>>, open: Arc<GracefulShutdown>)
where
    H: Fn(&Call) -> Answer + Send + Sync + 'static,
{
    let free = Arc::new(Semaphore::new(shared.limits.connections));
    let patience = shared.limits.patience;
    while let Ok(permit) = free.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of files, perhaps: some are closed meanwhile.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience.as_millis() as u32);
        let shared = shared.clone();
        let service = service_fn(move |request| answer(request, shared.clone()));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(patience);
        let connection = open.watcher().watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _ = connection.await;
            drop(permit);
        });
    }
}

/// Reads a call, has it handled on another thread, and begins the answer.
async fn answer<H>(
    request: Request<Incoming>,
    shared: Arc<Shared<H>>,
) -> std::result::Result<Response<Body>, Infallible>
where
    H: Fn(&Call) -> Answer + Send + Sync + 'static,
{
    // While anyone holds it, the connection is open.
    let connection = Arc::new(());
    let call = match read(request, &shared, Arc::downgrade(&connection)).await {
        Ok(call) => call,
        Err(error) => return Ok(body::error(&error)),
    };
    let (head, answer) = oneshot::channel();
    tokio::task::spawn_blocking(move || match (shared.handler)(&call) {
        Answer::Json(value) => drop(head.send(body::json(200, &value))),
        Answer::Error(error) => drop(head.send(body::error(&error))),
        Answer::Events(events) => {
            let Some(connection) = call.connection.upgrade() else { return };
            let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
            drop(head.send(body::events(receiver, connection)));
            let sent = |event: String| sender.blocking_send(event.into()).is_ok();
            let mut events = events.map(|event| format!("data: {event}\n\n"));
            if events.all(sent) {
                let _ = sender.blocking_send("data: [DONE]\n\n".into());
            }
        }
    });
    // A handler that panicked sends nothing.
    Ok(answer.await.unwrap_or_else(|_| body::error(&Error::new(500, "the server failed"))))
}

async fn read<H>(
    request: Request<Incoming>,
    shared: &Shared<H>,
    connection: Weak<()>,
) -> std::result::Result<Call, Error> {
    let (head, incoming) = request.into_parts();
    let path = head.uri.path().to_owned();
    let is_open = path == HEALTH || shared.key.as_ref().is_none_or(|key| knows(&head.headers, key));
    // Also of calls that are refused: clients who cannot send all of a call read no answer.
    let read =
        body::read(incoming, if is_open { shared.limits.body } else { 0 }, shared.limits.patience).await;
    if !is_open {
        let message = "no key, or a wrong one: send Authorization: Bearer KEY";
        return Err(Error::new(401, message).code("invalid_api_key"));
    }
    let bytes = read?;
    let is_get = head.method == Method::GET;
    let body = match head.method {
        Method::GET => Value::Null,
        Method::POST => serde_json::from_slice(&bytes)
            .map_err(|error| Error::invalid(format!("the body is no JSON: {error}")))?,
        other => return Err(Error::new(405, format!("no method {other}: GET or POST"))),
    };
    Ok(Call { is_get, path, body, headers: head.headers, connection })
}

/// Returns true if the headers have the key; takes as long for every key of its length.
fn knows(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let given = given
        .get(..7)
        .filter(|scheme| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map_or(&b""[..], |_| &given[7..]);
    let differ = given.iter().zip(key.as_bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == key.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests;
