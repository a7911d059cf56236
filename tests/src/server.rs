//! An OpenAI-compatible server that stands in for a real one, and fails on purpose. Left out: streams, and all but `/models` and
//! `/chat/completions`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// A request: its path, the key it came with, and its body.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Path of the URL.
    pub path: String,
    /// The header `Authorization`.
    pub key: String,
    /// The request's body; null if it is no JSON.
    pub body: Value,
}

/// What the server does with the n-th call of one body, from 0.
pub type Behavior = fn(usize, &Value) -> Reply;

/// An answer.
pub enum Reply {
    /// A message of the assistant.
    Text(&'static str),
    /// Text as a list of parts.
    Parts(&'static str),
    /// A status with headers, each ended by CR LF, and a body.
    Status(u16, &'static str, &'static str),
    /// None, for so long.
    Hang(Duration),
    /// The connection ends without an answer.
    Drop,
    /// A body that need not be JSON.
    Raw(&'static str),
}

/// It answers until the process ends.
pub struct StandInServer {
    /// The address for clients, with `/v1`.
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StandInServer {
    /// A server that has `models`.
    pub fn start(models: &'static [&'static str], behavior: Behavior) -> StandInServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, calls) = (asked.clone(), Arc::new(Mutex::new(HashMap::<String, usize>::new())));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, calls) = (log.clone(), calls.clone());
                thread::spawn(move || {
                    // The client may be gone.
                    let _ = answer(&stream, models, behavior, &log, &calls);
                });
            }
        });
        StandInServer { url, asked }
    }

    /// The requests to `path`.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.asked.lock().expect("requests").iter().filter(|asked| asked.path == path).cloned().collect()
    }
}

fn answer(
    mut stream: &TcpStream,
    models: &[&str],
    behavior: Behavior,
    log: &Mutex<Vec<Asked>>,
    calls: &Mutex<HashMap<String, usize>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    let (mut first, mut key, mut length) = (String::new(), String::new(), 0);
    lines.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? <= 2 {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => key = value.trim().to_owned(),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    log.lock().expect("requests").push(Asked { path: path.clone(), key, body: body.clone() });
    let mut reply = |status: u16, headers: &str, text: &str| {
        let length = text.len();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{text}"
        )
    };
    if path.ends_with("/models") {
        let data: Vec<Value> = models.iter().map(|model| json!({ "id": model })).collect();
        return reply(200, "", &json!({ "data": data }).to_string());
    }
    let count = {
        let mut calls = calls.lock().expect("calls");
        let count = calls.entry(body.to_string()).or_default();
        *count += 1;
        *count - 1
    };
    match behavior(count, &body) {
        Reply::Text(text) => reply(200, "", &completion(&json!(text))),
        Reply::Parts(text) => reply(200, "", &completion(&json!([{"type": "text", "text": text}]))),
        Reply::Raw(text) => reply(200, "", text),
        Reply::Status(status, headers, text) => reply(status, headers, text),
        Reply::Hang(time) => {
            thread::sleep(time);
            Ok(())
        }
        Reply::Drop => Ok(()),
    }
}

fn completion(content: &Value) -> String {
    let choice = json!({"message": {"role": "assistant", "content": content}, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 3});
    json!({ "choices": [choice], "usage": usage }).to_string()
}

/// A port on which nobody listens.
pub fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
