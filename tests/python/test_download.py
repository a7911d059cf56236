"""`policy init --from hf:ORG/NAME` against the test's hub, through the installed Python client, or through a stand-in if none is installed."""
import http.server
import json
import os
import pathlib
import threading

import pytest
from conftest import ROOT, interpreter, refused, run

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOLDEN = ROOT / "tests/golden/qwen3-2-1-tied"
# The model's files, some of which a policy has no use for; the client writes pieces of 10 MiB.
LARGE, GGUF = "large.txt", "small/qwen3.gguf"
FILES = {path.name: path.read_bytes() for path in GOLDEN.iterdir()} | {
    "pytorch_model.bin": b"other formats", "onnx/model.onnx": b"other formats", LARGE: b"-" * (12 << 20),
    GGUF: (GOLDEN.parent / "gguf/qwen3.gguf").read_bytes()}

# What the client does as far as `policy` relies on it: the client's arguments, cache, errors and environment.
STAND_IN = r"""
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
"""


class Hub:
    """A hub with the models `lab/tiny`, `lab/gated` and no other; the first transfer of its largest file to the client is cut."""

    def __init__(self):
        self.requests, hub = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                hub.answer(self)

            do_GET = do_HEAD

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        """From now on connections are refused."""
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        path, before = request.path.split("?")[0], list(self.requests)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.command, path, headers))

        def reply(status, body=b"", sent=None, **more):
            request.send_response(status)
            for name, value in {"Content-Length": str(len(body)), "Connection": "close", **more}.items():
                request.send_header(name.replace("_", "-"), value)
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(body[:sent])
            request.close_connection = True

        def shown(value):
            reply(200, json.dumps(value).encode(), Content_Type="application/json")

        if path.startswith("/api/models/lab/gated/"):
            return reply(403, X_Error_Code="GatedRepo")
        if path.startswith("/api/models/lab/tiny/revision/"):
            if path.rsplit("/", 1)[1] not in (COMMIT, "main", "v1"):
                return reply(404, X_Error_Code="RevisionNotFound")
            return shown({"_id": "1", "id": "lab/tiny", "modelId": "lab/tiny", "sha": COMMIT, "private": False, "gated": False, "disabled": False,
                          "downloads": 0, "likes": 0, "tags": [], "siblings": [{"rfilename": name} for name in FILES]})
        if path == f"/api/models/lab/tiny/tree/{COMMIT}":
            return shown([{"type": "file", "path": name, "size": len(body), "oid": f"{len(name):040x}"} for name, body in FILES.items()])
        name = path.removeprefix(f"/lab/tiny/resolve/{COMMIT}/")
        if name not in FILES:
            return reply(404, X_Error_Code="RepoNotFound")
        body, own = FILES[name], {"X_Repo_Commit": COMMIT, "ETag": f'"{len(name):040x}"', "Accept_Ranges": "bytes"}
        if headers.get("range", "").startswith("bytes="):
            start = int(headers["range"][6:].split("-")[0])
            return reply(206, body[start:], **own, Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}")
        first = not any(method == "GET" and other == path for method, other, _ in before)
        cut = first and name == LARGE and "hf_hub" in headers.get("user-agent", "").lower()
        reply(200, body, len(body) - 1000 if cut else None, **own)


@pytest.fixture
def machine(tmp_path):
    """Runs `policy` on a machine that knows the hub, with the stand-in or the installed client."""
    package, hub = tmp_path / "python/huggingface_hub", Hub()
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)

    def policy(arguments, stand_in=True, **variables):
        variables |= {"PYTHONPATH": str(tmp_path / "python")} if stand_in else {}
        return run(f"unset HF_HUB_CACHE HF_HUB_OFFLINE; policy {arguments}", tmp_path, HF_HOME=f"{tmp_path}/hf", HF_ENDPOINT=hub.url, HF_TOKEN="secret",
                   XDG_CACHE_HOME=f"{tmp_path}/cache", no_proxy="127.0.0.1", **variables)
    policy.hub = hub
    return policy


@pytest.mark.parametrize("stand_in", [True, False])
def test_model_is_downloaded_by_its_name(machine, tmp_path, stand_in):
    client = {} if stand_in else {"PATH": f"{os.path.dirname(interpreter('huggingface_hub'))}:{os.environ['PATH']}"}

    def policy(arguments, code=0):
        found, printed, said = machine(arguments, stand_in, **client)
        assert found == code, said
        return printed if code == 0 and arguments.startswith("fetch") else said

    def not_made(source, code):
        said = policy(f"init made --from {source}", code)
        assert not (tmp_path / "made").exists()
        return "".join(line for line in said.splitlines(keepends=True) if ": fetching " not in line)

    hub = machine.hub
    assert policy("init tiny --from hf:lab/tiny").startswith("policy: fetching lab/tiny with huggingface_hub\n")
    assert (tmp_path / "tiny/current/model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert json.loads((tmp_path / "tiny/current/source.json").read_text()) == {"hub": "lab/tiny", "revision": COMMIT}
    assert all(headers.get("authorization") == "Bearer secret" for _, path, headers in hub.requests if "lab/tiny" in path), "HF_TOKEN"
    assert not any(".bin" in path or ".onnx" in path for _, path, _ in hub.requests)
    assert (tmp_path / f"hf/hub/models--lab--tiny/snapshots/{COMMIT}/config.json").exists(), "HF_HOME"
    # Nothing is fetched where something is there already.
    count = len(hub.requests)
    assert policy("init tiny --from hf:lab/tiny", 2).startswith("policy: tiny: already there\n") and len(hub.requests) == count
    assert not_made("hf:lab/gated", 65).startswith("policy: hf:lab/gated: its owner asks for a login before")
    absent = not_made("hf:lab/none", 65)
    assert absent.startswith("policy: hf:lab/none: the hub has no such model, or it is private\nhint: check the name")
    assert not_made("hf:lab/tiny@v2", 65).startswith('policy: hf:lab/tiny: there is no revision "v2"\n')
    assert policy("init pinned --from hf:lab/tiny@v1 --quiet") == ""
    # An adapter rests on the cache's snapshot, and says so when it is exported.
    assert policy("init adapter --from hf:lab/tiny --adapter rank=2,alpha=4 --quiet") == ""
    policy("export adapter exported")
    config = json.loads((tmp_path / "exported/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("lab/tiny", COMMIT)
    # One file of a model that has several.
    directory = policy(f"fetch hf:lab/tiny/{GGUF} --quiet").rstrip()
    assert (pathlib.Path(tmp_path, directory) / "current/config.json").is_file()
    assert not_made("hf:lab/tiny/large.gguf", 65).startswith("policy: hf:lab/tiny: the model has no file large.gguf\nhint: ")
    hub.stop()
    assert policy("init cached --from hf:lab/tiny --quiet") == ""
    offline = not_made("hf:lab/other", 69)
    assert offline.startswith("policy: hf:lab/other: it cannot be downloaded, and the cache has no copy: ") and len(offline.splitlines()) == 2
    assert offline.endswith("hf download lab/other --local-dir other; copy other here, then --from other\n")
    assert "tiny" not in offline, "no advice to make random weights"
    resumed = any(LARGE in path and headers.get("range", "").startswith("bytes=10485760-") for _, path, headers in hub.requests)
    assert stand_in or resumed, "a transfer that was cut is resumed"


def test_missing_models_name_the_command_that_fetches_them(machine, tmp_path):
    (tmp_path / "python/huggingface_hub/__init__.py").write_text("raise ImportError()")
    said = refused(machine("init made --from hf:lab/tiny"), 69)
    assert "".join(line for line in said.splitlines(keepends=True) if ": fetching " not in line) == (
        "policy: hf:lab/tiny: python3 has no package huggingface_hub\nhint: python3 -m pip install huggingface_hub; or on a machine "
        "with a network: hf download lab/tiny --local-dir tiny; copy tiny here, then --from tiny\n")
    for name in ("hf:", "hf:a/b/c", "hf:../x", "hf:lab/tiny@", "hf:-x/y"):
        said = refused(machine(f"init made --from {name}"), 2)
        assert said.startswith(f"policy: {name}: no model's name on a hub\nhint: names look like hf:")
    assert refused(machine("check hf:lab/tiny"), 2) == (
        "policy: hf:lab/tiny: no such directory\nhint: make a policy of it first: policy init DIR --from hf:lab/tiny\n")
