use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use serde_json::json;

use super::*;

const LIMITS: Limits = Limits { body: 1000, connections: 200, patience: Duration::from_millis(500) };

/// A server that answers `/echo` with the body, `/events` with three events, and waits in `/wait` until its client goes.
fn server(limits: Limits, key: Option<&str>, gone: Sender<()>) -> Server {
    let gone = Mutex::new(gone);
    let handler = move |call: &Call| match &*call.path {
        "/echo" => Answer::Json(call.body.clone()),
        "/events" => Answer::Events(Box::new((0..3).map(|number| json!({ "number": number })))),
        "/endless" => Answer::Events(Box::new(std::iter::repeat_n(json!("x".repeat(10_000)), 1 << 30))),
        "/wait" => {
            while !call.is_gone() {
                thread::sleep(Duration::from_millis(5));
            }
            gone.lock().expect("a lock").send(()).expect("a receiver");
            Answer::Json(Value::Null)
        }
        "/over" => Answer::Error(Error::new(410, "it has ended").code("ended").last()),
        "/panic" => panic!("as the test wants"),
        _ => Answer::Error(Error::no_path(call)),
    };
    Server::start("0", limits, key.map(str::to_owned), handler).expect("a server")
}

fn send(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    // The server may close the connection before all is written.
    let _ = stream.write_all(text.as_bytes());
    stream
}

fn ask(server: &Server, text: &str) -> String {
    let (mut stream, mut answer) = (send(server, text), Vec::new());
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn answers_are_json_events_or_errors() {
    let server = server(LIMITS, None, channel().0);
    let begins = |text: &str, status: &str| {
        let answer = ask(&server, text);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{text}: {answer}");
        answer
    };
    let answer = begins(&post("/echo?a=b", "", "{\"a\": 1}"), "200");
    assert!(answer.ends_with("\r\n\r\n{\"a\":1}") && answer.contains("application/json"), "{answer}");
    let answer = begins(&post("/events", "", "{}"), "200");
    for part in
        ["text/event-stream", "data: {\"number\":0}\n\n", "data: {\"number\":2}\n\n", "data: [DONE]\n\n"]
    {
        assert!(answer.contains(part), "{answer}");
    }
    let answer = begins(&post("/over", "", "{}"), "410");
    assert!(answer.contains("x-should-retry: false") && answer.contains("\"code\":\"ended\""), "{answer}");
    assert!(begins(&post("/other", "", "{}"), "404").contains("\"type\":\"not_found_error\""));
    begins(&post("/echo", "", "{"), "400");
    begins(&post("/echo", "", &"[".repeat(900)), "400");
    begins(&post("/panic", "", "{}"), "500");
    begins("DELETE /echo HTTP/1.1\r\nConnection: close\r\n\r\n", "405");
    begins(&post("/echo", "", &format!("\"{}\"", "x".repeat(998))), "200");
    let answer = begins(&post("/echo", "", &format!("\"{}\"", "x".repeat(3_000_000))), "413");
    assert!(answer.contains("longer than 1000 bytes"), "{answer}");
}

#[test]
fn a_key_opens_all_but_health() {
    let server = server(LIMITS, Some("secret"), channel().0);
    let status = |text: &str| ask(&server, text)[9..12].to_owned();
    for (headers, expected) in [
        ("Authorization: Bearer secret\r\n", "200"),
        ("authorization: bearer secret\r\n", "200"),
        ("", "401"),
        ("Authorization: Bearer secre\r\n", "401"),
        ("Authorization: Bearer secrets\r\n", "401"),
        ("Authorization: Bearer \u{fc}\r\n", "401"),
        ("Authorization: Basic secret\r\n", "401"),
    ] {
        assert_eq!(status(&post("/echo", headers, "1")), expected, "{headers}");
    }
    assert_eq!(status(&post("/health", "", "{}")), "404", "the handler's answer");
}

#[test]
fn a_client_that_goes_is_noticed() {
    let (gone, heard) = channel();
    let server = server(LIMITS, None, gone);
    let stream = send(&server, &post("/wait", "", "{}"));
    assert!(heard.recv_timeout(Duration::from_millis(200)).is_err());
    drop(stream);
    heard.recv_timeout(Duration::from_secs(10)).expect("noticed");
}

#[test]
fn slow_and_hostile_clients_leave_it_healthy() {
    let server = server(LIMITS, None, channel().0);
    let slow: Vec<TcpStream> = (0..150)
        .map(|number| match number % 5 {
            0 => send(&server, ""),
            1 => send(&server, "POST /echo HT"),
            2 => send(&server, "POST /echo HTTP/1.1\r\nContent-Length: 900\r\n\r\n\"x"),
            3 => send(&server, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\nx"),
            // An endless answer that nobody reads.
            _ => send(&server, &post("/endless", "", "{}")),
        })
        .collect();
    for number in 0..300 {
        let text = match number % 6 {
            0 => "\0\u{1}\u{2}\r\n\r\n".to_owned(),
            1 => format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
            2 => format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000)),
            3 => "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(),
            4 => {
                "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n12"
                    .to_owned()
            }
            _ => post("/echo", "", "nonsense"),
        };
        let answer = ask(&server, &text);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{number}: {answer}");
    }
    assert!(ask(&server, &post("/echo", "", "[7]")).ends_with("[7]"));
    let started = Instant::now();
    for mut stream in
        slow.into_iter().enumerate().filter(|(number, _)| number % 5 < 4).map(|(_, stream)| stream)
    {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "each was closed in time");
}

#[test]
fn connections_over_the_limit_wait() {
    let server = server(Limits { connections: 2, ..LIMITS }, None, channel().0);
    let idle = [send(&server, ""), send(&server, "")];
    // Served when patience with the idle ones ends.
    assert!(ask(&server, &post("/echo", "", "[7]")).ends_with("[7]"));
    drop(idle);
}

#[test]
fn it_stops_after_the_calls_in_progress() {
    let server = server(LIMITS, None, channel().0);
    let address = server.address();
    let stream = send(&server, &post("/wait", "", "{}"));
    thread::sleep(Duration::from_millis(200));
    let going = thread::spawn(move || {
        thread::sleep(Duration::from_millis(400));
        stream.shutdown(Shutdown::Both).expect("closed");
    });
    let started = Instant::now();
    drop(server);
    assert!((0.2..4.0).contains(&started.elapsed().as_secs_f64()), "{:?}", started.elapsed());
    going.join().expect("joined");
    assert!(TcpStream::connect(address).is_err(), "nothing listens any more");
    let refused =
        |address: &str| Server::start(address, LIMITS, None, |_: &Call| Answer::Json(Value::Null)).err();
    assert_eq!(refused("nowhere").expect("refused").code, record::failure::USAGE);
    assert_eq!(refused("0.0.0.0:0").expect("refused").code, record::failure::USAGE);
    let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let failure = refused(&busy.local_addr().expect("an address").to_string()).expect("refused");
    assert_eq!(failure.code, record::failure::UNAVAILABLE);
}
