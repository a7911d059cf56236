//! `policy init --from hf:ORG/NAME` against the test's hub, through the installed Python client, or through a
//! stand-in if none is installed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use troupe_tests::skip;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file that takes long to come.
const LARGE: &str = "large.txt";

/// What the client does as far as `policy` relies on it: the client's arguments, cache, errors and environment.
const STAND_IN: &str = r#"
import fnmatch, json, os, urllib.error, urllib.request
class RepositoryNotFoundError(Exception): pass
class GatedRepoError(RepositoryNotFoundError): pass
class RevisionNotFoundError(Exception): pass
class LocalEntryNotFoundError(Exception): pass
def get(path):
    headers = {"Authorization": "Bearer " + os.environ["HF_TOKEN"]} if "HF_TOKEN" in os.environ else {}
    try:
        return urllib.request.urlopen(urllib.request.Request(os.environ["HF_ENDPOINT"] + path, headers=headers)).read()
    except urllib.error.HTTPError as error:
        kinds = {"GatedRepo": GatedRepoError, "RevisionNotFound": RevisionNotFoundError}
        raise kinds.get(error.headers["X-Error-Code"], RepositoryNotFoundError)(str(error))
def snapshot_download(repo_id, *, revision, allow_patterns, ignore_patterns, local_files_only=False):
    folder = os.path.join(os.environ["HF_HOME"], "hub", "models--" + repo_id.replace("/", "--"), "snapshots")
    try:
        info = json.loads(get(f"/api/models/{repo_id}/revision/{revision or 'main'}"))
    except OSError as error:
        if os.path.isdir(folder):
            found = os.path.join(folder, os.listdir(folder)[0])
            # It knows the model's files, and refuses a snapshot without one that is asked for.
            if "README.md" not in allow_patterns or os.path.exists(os.path.join(found, "README.md")):
                return found
        raise LocalEntryNotFoundError("cannot find it\n\nlocally: " + str(error))
    folder = os.path.join(folder, info["sha"])
    os.makedirs(folder, exist_ok=True)
    for name in (sibling["rfilename"] for sibling in info["siblings"]):
        of = lambda patterns: any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if of(allow_patterns) and not of(ignore_patterns):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            open(os.path.join(folder, name), "wb").write(get(f"/{repo_id}/resolve/{info['sha']}/{name}"))
    return folder
"#;

/// A whole model in one file.
const GGUF: &str = "small/qwen3.gguf";

/// Requests so far: first line and headers.
type Log = Arc<Mutex<Vec<String>>>;

/// A hub with the models `lab/tiny`, `lab/gated` and no other; the first transfer of its largest file to the client is cut.
struct Hub {
    endpoint: String,
    log: Log,
    stop: Arc<Mutex<bool>>,
}

impl Hub {
    fn start() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (log, stop) = (Log::default(), Arc::new(Mutex::new(false)));
        let (requests, stopped) = (log.clone(), stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if *stopped.lock().unwrap() {
                    return;
                }
                // A client that goes away is none of the hub's business.
                let _ = answer(&stream.unwrap(), &requests);
            }
        });
        Hub { endpoint, log, stop }
    }

    fn requests(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// From now on connections are refused.
    fn stop(&self) {
        *self.stop.lock().unwrap() = true;
        let _ = TcpStream::connect(self.endpoint.trim_start_matches("http://"));
    }
}

fn golden() -> PathBuf {
    troupe_tests::golden("qwen3-2-1-tied")
}

/// Name and content of the model's files, some of which a policy has no use for.
fn file(name: &str) -> Vec<u8> {
    match name {
        "pytorch_model.bin" | "onnx/model.onnx" => b"other formats".to_vec(),
        // The client writes pieces of 10 MiB.
        LARGE => vec![b'-'; 12 << 20],
        GGUF => fs::read(golden().join("../gguf/qwen3.gguf")).unwrap(),
        _ => fs::read(golden().join(name)).unwrap(),
    }
}

fn names() -> Vec<String> {
    let own = fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    own.chain(["pytorch_model.bin", "onnx/model.onnx", LARGE, GGUF].map(str::to_owned)).collect()
}

fn answer(stream: &TcpStream, log: &Log) -> std::io::Result<()> {
    let mut request = String::new();
    let mut lines = BufReader::new(stream);
    while lines.read_line(&mut request)? > 2 {}
    let before = log.lock().unwrap().clone();
    log.lock().unwrap().push(request.clone());
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let mut stream = stream;
    let mut reply = |status: &str, headers: &str, body: &[u8], sent: usize| {
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )?;
        if method == "HEAD" { Ok(()) } else { stream.write_all(&body[..sent]) }
    };
    let mut refuse = |status: &str, code: &str| reply(status, &format!("X-Error-Code: {code}\r\n"), b"", 0);
    if path.starts_with("/api/models/lab/gated/") {
        return refuse("403 Forbidden", "GatedRepo");
    }
    if let Some(revision) = path.strip_prefix("/api/models/lab/tiny/revision/") {
        if ![COMMIT, "main", "v1"].contains(&revision) {
            return refuse("404 Not Found", "RevisionNotFound");
        }
        let siblings: Vec<Value> = names().iter().map(|name| json!({ "rfilename": name })).collect();
        let info = json!({
            "_id": "1", "id": "lab/tiny", "modelId": "lab/tiny", "sha": COMMIT, "private": false, "gated": false, "disabled": false,
            "downloads": 0, "likes": 0, "tags": [], "siblings": siblings,
        });
        let body = info.to_string();
        return reply("200 OK", "Content-Type: application/json\r\n", body.as_bytes(), body.len());
    }
    if path == format!("/api/models/lab/tiny/tree/{COMMIT}") {
        let entry = |name: &String| json!({ "type": "file", "path": name, "size": file(name).len(), "oid": format!("{:040x}", name.len()) });
        let body = Value::from_iter(names().iter().map(entry)).to_string();
        return reply("200 OK", "Content-Type: application/json\r\n", body.as_bytes(), body.len());
    }
    let Some(name) = path.strip_prefix(&format!("/lab/tiny/resolve/{COMMIT}/")) else {
        return refuse("404 Not Found", "RepoNotFound");
    };
    let content = file(name);
    let own = format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{:040x}\"\r\nAccept-Ranges: bytes\r\n", name.len());
    let start = request
        .to_ascii_lowercase()
        .split("range: bytes=")
        .nth(1)
        .and_then(|rest| rest.split('-').next()?.parse().ok());
    if let Some(start) = start {
        let range = format!("{own}Content-Range: bytes {start}-{}/{}\r\n", content.len() - 1, content.len());
        return reply("206 Partial Content", &range, &content[start..], content.len() - start);
    }
    let first = !before.iter().any(|request| request.starts_with(&format!("GET {path} ")));
    let cut = first && name == LARGE && request.to_ascii_lowercase().contains("hf_hub");
    reply("200 OK", &own, &content, if cut { content.len() - 1000 } else { content.len() })
}

/// A machine's state: the hub that it knows, and what its Python has.
struct Machine {
    folder: tempfile::TempDir,
    hub: Hub,
    python_path: Option<PathBuf>,
}

impl Machine {
    fn new(stand_in: bool) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("python/huggingface_hub");
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join("__init__.py"), STAND_IN).unwrap();
        let python_path = stand_in.then(|| folder.path().join("python"));
        Machine { folder, hub: Hub::start(), python_path }
    }

    fn policy(&self, arguments: &[&str]) -> Output {
        let here = self.folder.path();
        let mut command = crate::command(here, arguments);
        command
            .env("HF_HOME", here.join("hf"))
            .env("HF_ENDPOINT", &self.hub.endpoint)
            .env("HF_TOKEN", "secret");
        command.env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE").env("no_proxy", "127.0.0.1");
        if let Some(path) = &self.python_path {
            command.env("PYTHONPATH", path);
        }
        command.output().unwrap()
    }

    /// What a failure told, its notes aside.
    fn refused(&self, source: &str, code: i32) -> String {
        let output = self.policy(&["init", "made", "--from", source]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(!self.folder.path().join("made").exists());
        told.lines().filter(|line| !line.contains(": fetching ")).map(|line| format!("{line}\n")).collect()
    }
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What holds with the stand-in and with the client itself.
fn downloads(machine: &Machine) {
    let here = machine.folder.path();
    let made = machine.policy(&["init", "tiny", "--from", "hf:lab/tiny"]);
    assert_eq!(made.status.code(), Some(0), "{}", told(&made));
    assert!(told(&made).starts_with("policy: fetching lab/tiny with huggingface_hub\n"), "{}", told(&made));
    let weights = fs::read(here.join("tiny/current/model.safetensors")).unwrap();
    assert!(weights == file("model.safetensors"));
    let source: Value =
        serde_json::from_slice(&fs::read(here.join("tiny/current/source.json")).unwrap()).unwrap();
    assert_eq!(source, json!({"hub": "lab/tiny", "revision": COMMIT}));
    let requests = machine.hub.requests();
    let of_model = requests.iter().filter(|request| request.contains("lab/tiny"));
    let mut keys =
        of_model.map(|request| request.to_ascii_lowercase().contains("authorization: bearer secret"));
    assert!(keys.all(|key| key), "HF_TOKEN: {requests:?}");
    assert!(
        !requests.iter().any(|request| request.contains(".bin") || request.contains(".onnx")),
        "{requests:?}"
    );
    assert!(
        here.join("hf/hub/models--lab--tiny/snapshots").join(COMMIT).join("config.json").exists(),
        "HF_HOME"
    );

    // Nothing is fetched where something is there already.
    let count = machine.hub.requests().len();
    let again = machine.policy(&["init", "tiny", "--from", "hf:lab/tiny"]);
    assert_eq!(
        (again.status.code(), told(&again).starts_with("policy: tiny: already there\n")),
        (Some(2), true)
    );
    assert_eq!(machine.hub.requests().len(), count);

    assert!(
        machine
            .refused("hf:lab/gated", 65)
            .starts_with("policy: hf:lab/gated: its owner asks for a login before")
    );
    let absent = machine.refused("hf:lab/none", 65);
    assert!(
        absent.starts_with(
            "policy: hf:lab/none: the hub has no such model, or it is private\nhint: check the name"
        ),
        "{absent}"
    );
    let revision = machine.refused("hf:lab/tiny@v2", 65);
    assert!(revision.starts_with("policy: hf:lab/tiny: there is no revision \"v2\"\n"), "{revision}");
    let pinned = machine.policy(&["init", "pinned", "--from", "hf:lab/tiny@v1", "--quiet"]);
    assert_eq!((pinned.status.code(), told(&pinned).as_str()), (Some(0), ""));
    // An adapter rests on the cache's snapshot, and says so when it is exported.
    let adapter = machine.policy(&[
        "init",
        "adapter",
        "--from",
        "hf:lab/tiny",
        "--adapter",
        "rank=2,alpha=4",
        "--quiet",
    ]);
    assert_eq!((adapter.status.code(), told(&adapter).as_str()), (Some(0), ""));
    let exported = machine.policy(&["export", "adapter", "exported"]);
    assert_eq!(exported.status.code(), Some(0), "{}", told(&exported));
    let config: Value =
        serde_json::from_slice(&fs::read(here.join("exported/adapter_config.json")).unwrap()).unwrap();
    assert_eq!(
        (&config["base_model_name_or_path"], &config["revision"]),
        (&json!("lab/tiny"), &json!(COMMIT))
    );

    // One file of a model that has several.
    let fetched = machine.policy(&["fetch", &format!("hf:lab/tiny/{GGUF}"), "--quiet"]);
    assert_eq!((fetched.status.code(), told(&fetched).as_str()), (Some(0), ""));
    let directory = String::from_utf8_lossy(&fetched.stdout).trim_end().to_owned();
    assert!(std::path::Path::new(&directory).join("current/config.json").is_file(), "{directory}");
    let wrong = machine.refused("hf:lab/tiny/large.gguf", 65);
    assert!(wrong.starts_with("policy: hf:lab/tiny: the model has no file large.gguf\nhint: "), "{wrong}");

    machine.hub.stop();
    let cached = machine.policy(&["init", "cached", "--from", "hf:lab/tiny", "--quiet"]);
    assert_eq!((cached.status.code(), told(&cached).as_str()), (Some(0), ""));
    let offline = machine.refused("hf:lab/other", 69);
    assert!(
        offline.starts_with("policy: hf:lab/other: it cannot be downloaded, and the cache has no copy: "),
        "{offline}"
    );
    let hint = "hf download lab/other --local-dir other; copy other here, then --from other\n";
    assert!(offline.ends_with(hint) && offline.lines().count() == 2, "{offline}");
    assert!(!offline.contains("tiny"), "no advice to make random weights: {offline}");
}

#[test]
fn a_model_is_downloaded_by_its_name() {
    downloads(&Machine::new(true));
}

#[test]
fn a_model_is_downloaded_by_its_name_with_the_client_itself() {
    let import = Command::new("python3").args(["-c", "import huggingface_hub"]).output().unwrap();
    if !import.status.success() {
        assert!(
            std::env::var_os("TROUPE_HUB").is_none_or(|wanted| wanted != "required"),
            "no package huggingface_hub"
        );
        skip!("python3 has no package huggingface_hub");
    }
    let machine = Machine::new(false);
    downloads(&machine);
    let requests = machine.hub.requests();
    let resumed = |request: &String| {
        request.contains(LARGE) && request.to_ascii_lowercase().contains("range: bytes=10485760-")
    };
    assert!(requests.iter().any(resumed), "a transfer that was cut is resumed: {requests:?}");
}

#[test]
fn missing_models_name_the_command_that_fetches_them() {
    let machine = Machine::new(true);
    fs::write(machine.folder.path().join("python/huggingface_hub/__init__.py"), "raise ImportError()")
        .unwrap();
    assert_eq!(
        machine.refused("hf:lab/tiny", 69),
        "policy: hf:lab/tiny: python3 has no package huggingface_hub\nhint: python3 -m pip install huggingface_hub; or on a machine \
         with a network: hf download lab/tiny --local-dir tiny; copy tiny here, then --from tiny\n"
    );
    for name in ["hf:", "hf:a/b/c", "hf:../x", "hf:lab/tiny@", "hf:-x/y"] {
        let told = machine.refused(name, 2);
        assert!(
            told.starts_with(&format!("policy: {name}: no model's name on a hub\nhint: names look like hf:")),
            "{told}"
        );
    }
    let unmade = machine.policy(&["check", "hf:lab/tiny"]);
    let expected = "policy: hf:lab/tiny: no such directory\nhint: make a policy of it first: policy init DIR --from hf:lab/tiny\n";
    assert_eq!(told(&unmade), expected);
}
