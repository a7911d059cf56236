"""Tests of the programs, `pipeline.sh` and run directories as a user sees them, and of the Python in examples/, bench/ and scripts/, by pytest.

    python3 -m pytest tests/python

`cargo test --workspace` runs them too (tests/tests/suite/python.rs). TROUPE_BIN names a folder with the programs, else
they are in target/debug. A package's interpreter is target/python/PACKAGE/bin/python, which .ci/packages makes, or
the one that TROUPE_TEST_PYTHON names; without the package its tests are skipped, and TROUPE_NOT_RUN's file lists them.
"""
import http.server
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
BIN = os.environ.get("TROUPE_BIN") or str(ROOT / "target/debug")
os.environ.update(TROUPE_BIN=BIN, PATH=f"{BIN}:{os.environ['PATH']}", ORT_DISABLE_TELEMETRY="1", PYTHONDONTWRITEBYTECODE="1")
if "ORT_DYLIB_PATH" not in os.environ:
    os.environ["ORT_DYLIB_PATH"] = subprocess.run([ROOT / "scripts/fetch-runtime.sh"], check=True, capture_output=True, text=True).stdout.strip()


def run(command, cwd=ROOT, **variables):
    """Exit code, stdout and stderr of a shell command."""
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=cwd, env={**os.environ, **variables},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def must(command, cwd=ROOT, **variables):
    """The output of a shell command that must succeed."""
    code, printed, said = run(command, cwd, **variables)
    assert code == 0, f"{command}\n{said}"
    return printed


def pipeline(run_directory, flags="", cwd=ROOT, **variables):
    """Exit code, stdout and stderr of `pipeline.sh --run RUN FLAGS`; the flags are words of a shell."""
    return run(f"{ROOT}/pipeline.sh --run {shlex.quote(str(run_directory))} {flags}", cwd, **variables)


def trained(run_directory, flags="", **variables):
    """The output of `pipeline.sh`, which must succeed."""
    code, printed, said = pipeline(run_directory, flags, **variables)
    assert code == 0, f"{flags}\n{printed}{said}"
    return printed


def refused(result, code, *causes):
    """The message of a result of `run`, which has this exit code and names these causes."""
    assert result[0] == code and all(cause in result[2] for cause in causes), (causes, result)
    return result[2]


def wait_until(condition, process, seconds=600):
    """Waits until something holds, while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def without_timing(text):
    """A text without its `timing` objects, all else byte for byte."""
    inner = r"\{[^{}]*\}"
    for _ in range(3):
        inner = r"\{(?:[^{}]|" + inner + r")*\}"
    return re.sub(f'"timing":{inner}', "", text)


def contents(directory):
    """Every file below a directory, by relative path, without times; a link's content is its target.

    Left out: the lock, how the run was called last (config.toml, stages), and the report and its cache, made of the rest."""
    found = {}
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name not in ("report.cache", "stages") or folder != str(directory)]
        for path in (pathlib.Path(folder, name) for name in files + [name for name in folders if os.path.islink(f"{folder}/{name}")]):
            name = str(path.relative_to(directory))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif name not in ("lock", "report.html", "config.toml"):
                found[name] = without_timing(path.read_text()) if path.suffix in (".json", ".jsonl") else path.read_bytes()
    return found


def differences(one, other):
    """The names of the files that differ between two run directories."""
    left, right = contents(one), contents(other)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def lines(text, kind=None):
    """The JSON lines of a text, all or of one type."""
    found = [json.loads(line) for line in text.splitlines()]
    return [line for line in found if kind in (None, line.get("type"))]


def interpreter(package):
    """A Python that can import `package`; skips the test if there is none."""
    own = ROOT / "target/python" / package.split(".")[0] / "bin/python"
    python = str(own) if own.exists() else os.environ.get("TROUPE_TEST_PYTHON", "python3")
    if run(f"{shlex.quote(python)} -W ignore -c 'import {package}'")[0]:
        pytest.skip(f"{python} cannot import {package}: run .ci/packages (all but PyTorch), or set TROUPE_TEST_PYTHON")
    return python


def keeps_the_contract(command, tasks=3, episodes=3):
    """`envs check` of an environment program, of which no rule is broken; its table."""
    both = f"({command} tasks --count {tasks}; {command} tasks --split test --count {tasks})"
    table = must(f"{both} | envs check --quiet --tasks 1 --episodes {episodes} --env-command {shlex.quote(command)}")
    assert len(table.splitlines()) >= 12 and "BROKEN" not in table, f"{command}: {table}"
    return table


def trains(command, folder, flags="", tasks=2):
    """A training step of one policy for all agents; its samples."""
    policy = folder / "policy"
    must(f"rm -rf {policy}; policy init {policy} --preset tiny --seed 1; {command} tasks --count {tasks} --seed 7 | "
         f"rollout --env-command {shlex.quote(command)} --policy {policy} --branches 3 --max-tokens 4 --seed 7 --quiet {flags} | "
         f"group --quiet | advantage --quiet | tee {folder}/samples | update --policy {policy} --quiet > {folder}/metrics")
    assert os.readlink(policy / "current") == "step-000001", command
    return lines((folder / "samples").read_text(), "sample")


def plays(command, *texts):
    """The environment's answers to these texts, each said by the next agent that acts, from its first task on."""
    task = lines(must(f"{command} tasks --count 1"))[0]
    program = subprocess.Popen(["bash", "-c", command], cwd=ROOT, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(request):
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    answers = [ask({"task": task})]
    agents, turn = answers[0]["agents"], 0
    for text in texts:
        seen = answers[-1]["observations"]
        turn = next(at for at in range(turn, turn + len(agents)) if seen.get(agents[at % len(agents)]) is not None)
        answers.append(ask({"state": answers[-1]["state"], "agent": agents[turn % len(agents)], "action": text}))
        turn += 1
    program.stdin.close()
    assert program.wait() == 0
    return answers


class Server:
    """An OpenAI-compatible server; `reply(body)` is an answer's text or parts, a status with a body and perhaps headers, or None for no answer."""

    def __init__(self, reply, models=("large",)):
        self.asked, server = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def send(self, status, text, headers={}):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self):
                self.send(200, json.dumps({"data": [{"id": model} for model in models]}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.headers["Authorization"], body))
                said = reply(body)
                message = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
                usage = {"prompt_tokens": 11, "completion_tokens": 3}
                if said is not None:
                    self.send(*(said if isinstance(said, tuple) else (200, json.dumps({"choices": [message], "usage": usage}))))

            def log_message(self, *_):
                pass

        listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{listening.server_port}/v1"


def closed_port():
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pytest_runtest_logreport(report):
    """Lists skipped tests in the file that TROUPE_NOT_RUN names, as Rust's tests do."""
    if report.skipped and os.environ.get("TROUPE_NOT_RUN"):
        with open(os.environ["TROUPE_NOT_RUN"], "a", encoding="utf-8") as listed:
            listed.write(f"NOT RUN: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}\n")
