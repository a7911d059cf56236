//! Bodies: of calls, read within a limit, and of answers, whole or as events.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::Error;

/// The body of an answer.
pub enum Body {
    Whole(Option<Bytes>),
    /// Events, and what says that the connection is open.
    Events(Receiver<Bytes>, #[expect(dead_code, reason = "held")] Arc<()>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Body::Whole(bytes) => Poll::Ready(bytes.take()),
            Body::Events(events, _) => events.poll_recv(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Events(..) => SizeHint::default(),
        }
    }
}

fn response(status: u16, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub fn json(status: u16, value: &Value) -> Response<Body> {
    response(status, "application/json", Body::Whole(Some(value.to_string().into())))
}

pub fn error(error: &Error) -> Response<Body> {
    let mut response = json(error.status, &error.to_json());
    if error.is_final {
        response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

pub fn events(events: Receiver<Bytes>, connection: Arc<()>) -> Response<Body> {
    let mut response = response(200, "text/event-stream", Body::Events(events, connection));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// All of a call's body. Bytes beyond `limit` are read and forgotten, because a client that cannot write all of its call
/// may see a broken connection in place of the answer.
pub async fn read(incoming: Incoming, limit: usize, patience: Duration) -> Result<Vec<u8>, Error> {
    let (mut bytes, mut total) = (Vec::new(), 0);
    let mut incoming = pin!(incoming);
    let all = async {
        while let Some(frame) = poll_fn(|context| incoming.as_mut().poll_frame(context)).await {
            let Ok(data) = frame.map_err(|_| ())?.into_data() else { continue };
            total += data.len();
            if total <= limit {
                bytes.extend_from_slice(&data);
            }
        }
        Ok::<(), ()>(())
    };
    let outcome = timeout(patience, all).await;
    match outcome {
        _ if total > limit => {
            let message = format!("the body is longer than {limit} bytes");
            Err(Error::new(413, message).code("body_too_long").last())
        }
        Ok(Ok(())) => Ok(bytes),
        Ok(Err(())) => Err(Error::invalid("the body is cut or malformed")),
        Err(_) => Err(Error::new(408, format!("no whole body in {} s", patience.as_secs_f64()))),
    }
}
