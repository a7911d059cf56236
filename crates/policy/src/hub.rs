//! Models by name: `policy init --from hf:ORG/NAME`, or `hf:ORG/NAME/FILE.gguf`, and `policy export --push ORG/NAME`, through the
//! hub's Python client.
//!
//! `huggingface_hub` knows the hub's address and login, shares its cache with `transformers`, resumes
//! interrupted downloads, and reads HF_HOME, HF_ENDPOINT, HF_TOKEN and proxies. The crate `hf-hub` would link
//! an HTTP stack of 75 to 300 packages for less, into programs that otherwise open no connection.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use record::failure::{Failure, Result};
use record::stage;
use record::{address, child};
use serde_json::{Value, json};

use crate::files::{exists, show};
use crate::json::read_json_if_present;

/// Prefix of a model's name on the command line.
const PREFIX: &str = "hf:";

/// In a copy of a hub's model: where it is from.
const SOURCE: &str = "source.json";

/// Downloads a snapshot or uploads a folder, and prints where it is, or what went wrong, as JSON.
const SCRIPT: &str = r#"
import json, os, sys
try:
    import huggingface_hub
    from huggingface_hub import snapshot_download
except ImportError:
    print(json.dumps({"kinds": ["ImportError"]}))
    sys.exit()
token = getattr(huggingface_hub, "get_token", lambda: None)
try:
    name, revision, file, folder = sys.argv[1], sys.argv[2] or None, sys.argv[3], sys.argv[4]
    if folder and not token():
        print(json.dumps({"kinds": ["NoToken"]}))
        sys.exit()
    if folder:
        api = huggingface_hub.HfApi()
        url = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
        print(json.dumps({"path": str(url)}))
        sys.exit()
    parts = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*", "README.md"]
    def get(parts, **more):
        return snapshot_download(
            name, revision=revision, ignore_patterns=[] if file else ["*/*", "consolidated*"],
            allow_patterns=[file] if file else parts, **more,
        )
    try:
        path = get(parts)
    except Exception as error:
        # Without a network: a cache that other programs filled may lack the last two.
        if "LocalEntryNotFoundError" not in (kind.__name__ for kind in type(error).__mro__):
            raise
        try:
            path = get(parts[:-2], local_files_only=True)
        except Exception:
            raise error
    path = os.path.join(path, file) if file else path
    if os.path.exists(path):
        print(json.dumps({"path": path}))
    else:
        print(json.dumps({"kinds": ["NoSuchFile"]}))
except KeyboardInterrupt:
    sys.exit(130)
except Exception as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(json.dumps({"kinds": kinds, "text": " ".join(str(error).split()), "token": token()}))
"#;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `ORG/NAME`.
    pub name: String,
    /// A branch, tag or commit; the newest if `None`.
    pub revision: Option<String>,
    /// One GGUF file of it; all files of a Hugging Face directory if `None`.
    pub file: Option<String>,
}

impl HubModel {
    /// The model that `hf:ORG/NAME[/FILE.gguf][@REVISION]` names; `None` for anything else.
    ///
    /// # Errors
    /// Something else after `hf:`: exit 2.
    pub fn parse(source: &Path) -> Result<Option<HubModel>> {
        let Some(text) = source.to_str().and_then(|text| text.strip_prefix(PREFIX)) else { return Ok(None) };
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let (name, file) = split_file(name);
        if !is_name(name) || revision.is_some_and(str::is_empty) {
            return Err(Failure::usage(format!("{}: no model's name on a hub", show(source))).hint(
                "names look like hf:Qwen/Qwen3-0.6B, hf:Qwen/Qwen3-0.6B@main for a revision, or \
                 hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf for a GGUF file",
            ));
        }
        let revision = revision.map(str::to_owned);
        Ok(Some(HubModel { name: name.to_owned(), revision, file: file.map(str::to_owned) }))
    }

    /// The directory of its snapshot in the hub's cache, or its GGUF file there, downloaded if it is not there yet.
    ///
    /// # Errors
    /// There is no such model, or it needs a login: 65. No Python, package, or network: 69.
    pub fn fetch(&self, quiet: bool) -> Result<PathBuf> {
        let name = &self.name;
        if !quiet {
            stage::note("policy", format_args!("fetching {name} with huggingface_hub"));
        }
        let told = self.ask("", quiet)?;
        match told["path"].as_str() {
            Some(path) => Ok(PathBuf::from(path)),
            None => Err(self.failure(&told)),
        }
    }

    /// Uploads a folder and returns the model's address; a new model is private.
    ///
    /// # Errors
    /// No Python, package, token or network, or the hub refuses: 69.
    pub fn push(&self, folder: &Path, quiet: bool) -> Result<String> {
        let (name, folder) = (&self.name, show(folder));
        let told = self.ask(&folder, quiet)?;
        if let Some(address) = told["path"].as_str() {
            return Ok(address.to_owned());
        }
        let (cause, hint) = match (told["kinds"][0].as_str(), told["token"].as_str()) {
            (Some("ImportError"), _) => (
                "python3 has no package huggingface_hub".to_owned(),
                "python3 -m pip install huggingface_hub",
            ),
            (Some("NoToken"), _) => {
                ("no token, without which nothing is uploaded".to_owned(), "hf auth login, or set HF_TOKEN")
            }
            (_, token) => {
                let text = told["text"].as_str().unwrap_or("python3 failed");
                let text = address::hide(text, &token.into_iter().collect::<Vec<_>>());
                (text.chars().take(300).collect(), "check the name, and that the token may write there")
            }
        };
        Err(Failure::unavailable(format!("{name}: {cause}"))
            .hint(format!("{hint}; {folder} is complete: hf upload {name} {folder}")))
    }

    /// What the client prints about a download, or the upload of a folder.
    fn ask(&self, folder: &str, quiet: bool) -> Result<Value> {
        let name = &self.name;
        let mut command = stage::python();
        let (revision, file) = (self.revision.as_deref(), self.file.as_deref());
        command.args(["-c", SCRIPT, name, revision.unwrap_or_default(), file.unwrap_or_default(), folder]);
        command.stdin(Stdio::null());
        if quiet || !io::stderr().is_terminal() {
            command.env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
        }
        if std::env::var_os("HF_HUB_VERBOSITY").is_none() {
            command.env("HF_HUB_VERBOSITY", "error");
        }
        command.stdout(Stdio::piped()).stderr(if quiet { Stdio::null() } else { Stdio::inherit() });
        let output = command.spawn().and_then(child::wait_with_output).map_err(|error| {
            Failure::unavailable(format!("{PREFIX}{name}: python3 cannot be started: {error}"))
                .hint(self.by_hand("install Python and huggingface_hub"))
        })?;
        // Other output of the package comes before this line.
        let last = String::from_utf8_lossy(&output.stdout)
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok());
        Ok(last.unwrap_or_default())
    }

    /// The failure for an exception of the client.
    fn failure(&self, told: &Value) -> Failure {
        let kinds: Vec<&str> =
            told["kinds"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is = |kind: &str| kinds.contains(&kind);
        let name = &self.name;
        let tokens: Vec<&str> = told["token"].as_str().into_iter().collect();
        let text = address::hide(told["text"].as_str().unwrap_or("python3 failed"), &tokens);
        let text: String = text.chars().take(300).collect();
        let failed = |cause: &str| format!("{PREFIX}{name}: {cause}");
        if is("ImportError") {
            let cause = failed("python3 has no package huggingface_hub");
            return Failure::unavailable(cause).hint(self.by_hand("python3 -m pip install huggingface_hub"));
        }
        if is("GatedRepoError") {
            return Failure::data(failed("its owner asks for a login before it can be downloaded"))
                .hint("accept the terms on the model's page, then hf auth login, or set HF_TOKEN");
        }
        if is("RepositoryNotFoundError") {
            return Failure::data(failed("the hub has no such model, or it is private"))
                .hint("check the name; of a private model set HF_TOKEN or type hf auth login");
        }
        if is("NoSuchFile") {
            let file = self.file.as_deref().unwrap_or_default();
            return Failure::data(failed(&format!("the model has no file {file}")))
                .hint("the model's page lists its files; names are case-sensitive");
        }
        if is("RevisionNotFoundError") {
            let revision = self.revision.as_deref().unwrap_or("main");
            return Failure::data(failed(&format!("there is no revision {revision:?}")))
                .hint("revisions are branches, tags or commits; leave @… out for the newest");
        }
        if ["LocalEntryNotFoundError", "OfflineModeIsEnabled", "OSError", "TransportError"]
            .into_iter()
            .any(is)
        {
            return Failure::unavailable(failed(&format!(
                "it cannot be downloaded, and the cache has no copy: {text}"
            )))
            .hint(
                self.by_hand(
                    "check the network, HF_ENDPOINT and HF_HUB_OFFLINE, and run the same command again",
                ),
            );
        }
        Failure::unavailable(failed(&text)).hint(self.by_hand("run the same command again: it resumes"))
    }

    /// A hint that ends with the way without a network.
    fn by_hand(&self, first: &str) -> String {
        let name = &self.name;
        let folder = name.rsplit('/').next().unwrap_or(name);
        let revision =
            self.revision.as_ref().map_or(String::new(), |revision| format!(" --revision {revision}"));
        let (file, path) = match &self.file {
            Some(file) => (format!(" {file}"), format!("{folder}/{file}")),
            None => (String::new(), folder.to_owned()),
        };
        format!(
            "{first}; or on a machine with a network: hf download {name}{file}{revision} --local-dir {folder}; copy {folder} \
             here, then --from {path}"
        )
    }

    /// The model of which a directory is a snapshot in the hub's cache, or an unchanged copy that says so.
    ///
    /// # Errors
    /// A file that says it and cannot be read.
    pub fn of(directory: &Path) -> Result<Option<HubModel>> {
        if let Some(source) = read_json_if_present(&directory.join(SOURCE))? {
            let text = |key: &str| source[key].as_str().map(str::to_owned);
            return Ok(text("hub").filter(|name| is_name(name)).map(|name| HubModel {
                name,
                revision: text("revision"),
                file: None,
            }));
        }
        Ok(HubModel::of_snapshot(directory))
    }

    /// Reads name and commit from the path: `models--ORG--NAME/snapshots/COMMIT`.
    fn of_snapshot(directory: &Path) -> Option<HubModel> {
        let canonical = directory.canonicalize().ok()?;
        let mut parts = canonical.iter().rev().map(|part| part.to_str());
        let (revision, folder, repository) = (parts.next()??, parts.next()??, parts.next()??);
        let name = repository.strip_prefix("models--").filter(|_| folder == "snapshots")?.replace("--", "/");
        is_name(&name).then(|| HubModel { name, revision: Some(revision.to_owned()), file: None })
    }

    /// What a copy in `files` of a snapshot at `from` says of itself; `None` if it is of no hub or says it already.
    pub(crate) fn note(from: &Path, files: &Path) -> Result<Option<(PathBuf, Value)>> {
        let path = files.join(SOURCE);
        let model = if exists(&path)? { None } else { HubModel::of_snapshot(from) };
        Ok(model.map(|HubModel { name, revision, .. }| (path, json!({ "hub": name, "revision": revision }))))
    }
}

/// Splits `ORG/NAME/FILE.gguf`; the file may be in a folder.
fn split_file(text: &str) -> (&str, Option<&str>) {
    match text.match_indices('/').nth(1) {
        Some((at, _)) if text.ends_with(".gguf") => (&text[..at], Some(&text[at + 1..])),
        _ => (text, None),
    }
}

/// Returns true if a text can be a model's name: `NAME` or `ORG/NAME`.
pub fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.chars().all(known)
    };
    text.split('/').count() <= 2 && text.split('/').all(is_part)
}
