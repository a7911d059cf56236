//! Headless Chromium over its debugging pipe: opens a page in a window of some size and runs a script in it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What Chromium is called; `CHROMIUM` names another.
const NAMES: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// A window of a browser.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: u64,
    session: String,
    /// Everything that was said without being asked: errors, requests.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Width of the window in pixels.
    pub width: u32,
    /// True if the reader prefers a dark page.
    pub dark: bool,
}

impl Browser {
    /// Starts a browser; `None`, with a notice, if this machine has none.
    pub fn start() -> Option<Browser> {
        let named = std::env::var("CHROMIUM").ok();
        let names: Vec<&str> = named.as_deref().map_or(NAMES.to_vec(), |name| vec![name]);
        let exists = |name: &&str| {
            let found = Command::new(name).arg("--version").stdin(Stdio::null()).output();
            found.is_ok_and(|output| output.status.success())
        };
        let Some(program) = names.into_iter().find(exists) else {
            troupe_tests::skip::not_run(
                "there is no Chromium, so no page was opened: apt-get install chromium-headless-shell, or CHROMIUM=PROGRAM",
            );
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // Chromium reads commands from its descriptor 3 and writes answers to 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", program]);
        shell.args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]);
        shell.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut process =
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a browser that starts");
        let input = process.stdin.take().expect("its pipe");
        let output = BufReader::new(process.stdout.take().expect("its pipe"));
        let (calls, session, events) = (0, String::new(), Vec::new());
        let mut browser = Browser { process, input, output, calls, session, events, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": parameters});
        if !self.session.is_empty() {
            call["sessionId"] = self.session.as_str().into();
        }
        self.input.write_all(format!("{call}\0").as_bytes()).expect("a browser that reads");
        loop {
            let mut message = Vec::new();
            self.output.read_until(0, &mut message).expect("a browser that answers");
            assert_eq!(message.pop(), Some(0), "the browser ended");
            let message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a page and waits until its charts are drawn.
    pub fn open(&mut self, page: &Path, view: View) {
        self.events.clear();
        let scheme = if view.dark { "dark" } else { "light" };
        let size =
            json!({"width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": view.width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        let begun = Instant::now();
        while self.run("document.documentElement?.dataset.drawn || ''") == "" {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}: never drawn", page.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Charts are drawn once their place has a size, and episodes are listed once the page stands.
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => done('')), 50)))");
    }

    /// The value of an expression in the page, awaited.
    pub fn run(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Errors of the page's scripts, messages on its console, and requests beyond its file.
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |event: &Value| {
            let parameters = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" => {
                    Some(event.to_string())
                }
                "Network.requestWillBeSent" => {
                    let address = parameters["request"]["url"].as_str()?;
                    let is_own = ["file:", "data:", "blob:"].iter().any(|own| address.starts_with(own));
                    (!is_own).then(|| format!("a request to {address}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complaint).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
