//! What a server may send in place of an answer: a candidate, or a refusal, never a panic, soon.
//!
//! `TROUPE_FUZZ_SECONDS=60 cargo test -p rollout --test suite fuzz` goes on for that long instead.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use record::philox::Stream;
use record::sample::Message;
use rollout::arguments::CommandLine;
use rollout::generator::{Generator, GroupRequest};
use rollout::server::{RetryPolicy, Server};
use troupe_tests::storm;

const TOKENS: [&str; 24] = [
    "\r\n",
    "\r\n\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 99999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Content-Encoding: gzip\r\n",
    "Location: http://127.0.0.1:1/\r\n",
    "Retry-After: 0\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 503 Busy\r\n",
    "ffffffff\r\n",
    "\0",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "null",
    "\\ud800",
    "1e999",
    "\"error\":{\"code\":429},",
    "\"choices\":[],",
    "\"content\":3,",
    "\u{1b}[2J",
];

const ANSWER: &str = r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"d3 c3"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
const PARTS: &str =
    r#"{"choices":[{"message":{"content":[{"type":"text","text":"d3"}]},"finish_reason":"length"}]}"#;

/// JSON as servers send it.
fn plain(json: &[u8]) -> Vec<u8> {
    let length = json.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), json].concat()
}

/// Answers as servers send them, whole and in chunks.
fn answers() -> Vec<Vec<u8>> {
    let (first, rest) = ANSWER.split_at(40);
    let chunks = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
        first.len(),
        rest.len()
    );
    let busy = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}";
    vec![plain(ANSWER.as_bytes()), plain(PARTS.as_bytes()), chunks.into_bytes(), busy.into()]
}

/// A server that sends the bytes at hand and hangs up.
fn server(answer: Arc<Mutex<Vec<u8>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { continue };
            let _ = connection.set_read_timeout(Some(Duration::from_millis(200)));
            let mut asked = Vec::new();
            let mut buffer = [0; 4096];
            // The request ends with its JSON.
            while !asked.ends_with(b"}") {
                match connection.read(&mut buffer) {
                    Ok(count @ 1..) => asked.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            let answer = answer.lock().expect("the answer").clone();
            let _ = connection.write_all(&answer);
        }
    });
    format!("http://127.0.0.1:{port}/v1?model=m")
}

#[test]
fn fuzz_answers_of_a_server() {
    let (seeds, answer) = (answers(), Arc::new(Mutex::new(Vec::new())));
    let bodies = [ANSWER, PARTS].map(|body| body.as_bytes().to_vec());
    let url = server(answer.clone());
    let retry_policy = RetryPolicy { timeout: Duration::from_secs(2), retries: 0, quiet: true };
    let server = Server::open(&url, retry_policy).expect("a server");
    let mut client = server.client();
    let flags = CommandLine::parse_from(["rollout", "--policy", "p", "--max-tokens", "4"]).arguments;
    let sampling = flags.resolve().expect("usable flags").sampling.common;
    let message = Message { role: "user".to_owned(), content: "say".to_owned() };
    let (mut all, mut taken) = (0, 0);
    for number in storm::inputs(60) {
        // The first are as they should be.
        let sound = (number as usize) < seeds.len();
        let bytes = match (sound, number % 2) {
            (true, _) => seeds[number as usize].clone(),
            // Damage inside an answer that arrives whole, and to all of it.
            (_, 0) => plain(&storm::damaged(&bodies, &TOKENS, number)),
            _ => storm::damaged(&seeds, &TOKENS, number),
        };
        *answer.lock().expect("the answer") = bytes.clone();
        let streams = vec![Stream::named(number, &[])];
        let messages = std::slice::from_ref(&message);
        let request =
            GroupRequest { id: number, messages, tools: None, after: None, streams, sampling: &sampling };
        let began = Instant::now();
        client.submit(request).expect("a conversation");
        let found = loop {
            match client.advance(true) {
                Ok(found) if found.is_empty() => {}
                Ok(mut found) => break found.pop().and_then(|(_, candidates)| candidates.ok()),
                Err(_) => break None,
            }
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            assert!(began.elapsed() < Duration::from_secs(10), "input {number} has no outcome: {shown}");
        };
        assert!(!sound || found.is_some() == (number < 3), "{number}: {found:?}");
        taken += u64::from(found.is_some());
        all += 1;
    }
    eprintln!("{all} answers, {taken} taken");
}
