"""`rollout --serve` and `pipeline.sh ask`: clients as they are, hostile ones, and the same answers as a rollout."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest
from conftest import BIN, ROOT, interpreter, lines, must, run


@contextlib.contextmanager
def served(flags, **variables):
    """A server of policies at a free port, stopped by SIGTERM; its port."""
    command = [f"{BIN}/rollout", "--serve", "0", *flags.split()]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    said = []
    try:
        for line in server.stderr:
            said.append(line)
            found = re.search(r"http://127.0.0.1:(\d+)/v1 serves", line)
            if found:
                threading.Thread(target=server.stderr.read, daemon=True).start()
                yield int(found[1])
                break
        assert server.poll() is None, said
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) == 0
    finally:
        server.kill()
        server.wait()


def call(port, path, body=None, headers=None):
    """Status and JSON, or the events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.headers["content-type"] == "text/event-stream":
        events = text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return answer.status, [json.loads(event[len("data: "):]) for event in events[:-2]]
    return answer.status, json.loads(text)


def chat(port, **body):
    status, answer = call(port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 6 + 7?"}], **body})
    assert status == 200, answer
    return answer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """SmolLM2, twice: itself, and an adapter of it."""
    folder = tmp_path_factory.mktemp("models")
    must(f"policy init {folder}/base --preset smollm2 --quiet && policy init {folder}/adapter --from {folder}/base --adapter rank=4,alpha=8 --quiet")
    return folder


def test_a_greedy_answer_is_that_of_a_rollout(model):
    flags = f"--policy {model}/base --max-tokens 24"
    task = "envs tasks math --count 2 --set encoding=full"
    samples = lines(must(f"{task} | rollout {flags} --temperature 0 --workflow single --quiet"), "sample")
    with served(f"--policy solver={model}/base --policy checker={model}/adapter --max-tokens 24") as port:
        for sample in samples:
            for name in ("solver", "checker"):  # a new adapter changes nothing
                answer = chat(port, model=name, messages=sample["prompt"], temperature=0, logprobs=True)
                choice = answer["choices"][0]
                told = [token["logprob"] for token in choice["logprobs"]["content"]]
                stopped = sample["finish_reason"] == "stop"
                assert choice["message"]["content"] == sample["completion"] and choice["finish_reason"] == sample["finish_reason"]
                assert told == sample["completion_logprobs"][:len(told)] and len(told) == len(sample["completion_ids"]) - stopped
                assert answer["usage"]["prompt_tokens"] == len(sample["prompt_ids"])
                assert answer["usage"]["completion_tokens"] == len(sample["completion_ids"])
                spoken = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
                assert spoken.decode() == sample["completion"]
                chunks = chat(port, model=name, messages=sample["prompt"], temperature=0, stream=True, logprobs=True, stream_options={"include_usage": True})
                deltas = [chunk["choices"][0] for chunk in chunks[:-1]]
                assert "".join(delta["delta"].get("content", "") for delta in deltas) == sample["completion"]
                assert [token["logprob"] for delta in deltas for token in (delta["logprobs"] or {"content": []})["content"]] == told
                assert deltas[-1]["finish_reason"] == sample["finish_reason"] and chunks[-1]["usage"] == answer["usage"]
                assert len(deltas) > 5  # token by token


def test_settings_of_a_call(model):
    with served(f"--policy solver={model}/base --max-tokens 12 --threads 2") as port:
        def say(**settings):
            return chat(port, model="solver", **settings)["choices"][0]
        assert say(seed=1) == say(seed=1) and len({say(seed=seed)["message"]["content"] for seed in range(6)}) > 2
        assert len({say()["message"]["content"] for _ in range(6)}) > 2
        whole = say(temperature=0, max_tokens=40)["message"]["content"]
        cut = say(temperature=0, max_tokens=40, stop=["zebra", whole[5:9]])
        assert cut["message"]["content"] == whole[:whole.find(whole[5:9])] and cut["finish_reason"] == "stop"
        chunks = chat(port, model="solver", temperature=0, max_tokens=40, stop=whole[5:9], stream=True)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == cut["message"]["content"]
        assert say(max_completion_tokens=3, temperature=0)["finish_reason"] == "length"
        # Calls of many clients at once are those of one after another.
        alone = [say(seed=seed) for seed in range(24)]
        together = [None] * 24

        def ask(seed):
            together[seed] = say(seed=seed)
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(24)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert together == alone


def test_hostile_calls_leave_it_healthy(model):
    with served(f"--policy solver={model}/base --max-tokens 8", TROUPE_API_KEY="secret-4711") as port:
        key = {"Authorization": "Bearer secret-4711"}
        assert call(port, "/health") == (200, {"status": "ok"})
        assert call(port, "/v1/models")[0] == 401 and call(port, "/v1/chat/completions", {})[0] == 401
        assert [entry["id"] for entry in call(port, "/v1/models", headers=key)[1]["data"]] == ["solver"]
        slow = []
        for number in range(60):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall([b"", b"POST /v1/chat/comp", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 500\r\n\r\n{"][number % 3])
            slow.append(connection)
        ask = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
        hostile = [
            (400, b"{"), (400, b"\xff\xfe"), (400, b"[" * 100_000), (400, b"null"), (400, {}), (404, {**ask, "model": "other"}), (400, {**ask, "n": 2}),
            (400, {**ask, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            (400, {**ask, "messages": [{"role": "user", "content": "word " * 600_000}]}), (413, b"x" * 6_000_000),
            (400, {**ask, "messages": [{"role": "user", "content": "a" * 400_000}]}), (400, {**ask, "messages": [{"role": "king", "content": "x"}]}),
            (400, {**ask, "temperature": -1}), (400, {**ask, "stop": [""]}), (400, {**ask, "max_tokens": -5}), (200, {**ask, "max_tokens": 4, "stop": ["\0", "\u0fff"]}),
            (200, {**ask, "messages": [{"role": "user", "content": "<|im_end|>\0\u202e" * 20}]}), (200, {**ask, "response_format": {"type": "json_object"}}),
        ]
        for number in range(8):
            for expected, body in hostile:
                status, answer = call(port, "/v1/chat/completions", body, key)
                assert status == expected, (body if len(str(body)) < 300 else str(body)[:300], answer)
                assert status == 200 or set(answer["error"]) == {"message", "type", "param", "code"}
            # Clients that go in the middle of an answer.
            gone = socket.create_connection(("127.0.0.1", port))
            text = json.dumps({**ask, "max_tokens": 2000, "stream": number % 2 == 0})
            gone.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer secret-4711\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            gone.recv(10) if number % 2 == 0 else None
            gone.close()
        assert call(port, "/health")[0] == 200
        assert call(port, "/v1/chat/completions", {**ask, "temperature": 0}, key)[1]["usage"]["completion_tokens"] <= 8
        assert all(connection.fileno() >= 0 for connection in slow)


def test_the_openai_sdk(model):
    program = """
import os, sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="unused")
assert [model.id for model in client.models.list()] == ["solver"]
ask = dict(model="solver", messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "What is 6 + 7?"}], temperature=0)
answer = client.chat.completions.create(**ask, logprobs=True)
text = answer.choices[0].message.content
assert text and answer.usage.total_tokens > 10 and answer.choices[0].logprobs.content[0].logprob <= 0
stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text and chunks[-1].usage == answer.usage
tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}]
messages = ask["messages"] + [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "13"}]
assert client.chat.completions.create(model="solver", messages=messages, tools=tools, stream=False).choices[0].finish_reason in ("stop", "length", "tool_calls")
try:
    client.chat.completions.create(model="nobody", messages=ask["messages"])
    sys.exit("a model that is none")
except openai.NotFoundError as error:
    assert error.code == "model_not_found" and "solver" in str(error)
"""
    python = interpreter("openai")
    with served(f"--policy solver={model}/base --max-tokens 12") as port:
        done = subprocess.run([python, "-c", program, f"http://127.0.0.1:{port}/v1"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_what_cannot_be_served_is_refused(model):
    for flags, cause in (
        ("--serve 0 --policy http://127.0.0.1:1/v1", "--serve needs a directory"),
        (f"--serve nowhere --policy {model}/base", "nowhere: no address to listen at"),
        (f"--serve 0.0.0.0:0 --policy {model}/base", "there is no key"),
        (f"--serve 0 --policy {model}/base --turns 2", "cannot be used with"),
    ):
        code, _, said = run(f"rollout {flags}")
        assert code == 2 and cause in said, (flags, said)


def test_a_trained_team_is_asked_and_served(tmp_path):
    """Tiny policies: who speaks in which order, not how well."""
    team = f"{tmp_path}/run"
    must(f"./pipeline.sh --env math --workflow check --policies per-role --steps 1 --tasks 2 --branches 2 --warmup 1 --eval-tasks 4 --run {team}", ROOT)
    questions = "has 4 loses 1\nhas 2 gets 3\n"
    told = lines_of(must(f"printf '{questions}' | ./pipeline.sh ask {team} --json", ROOT))
    assert [[turn["agent"] for turn in answer["turns"]] for answer in told] == [["solver", "checker"]] * 2
    assert told[0]["answer"] == told[0]["turns"][1]["text"] and "has 4 loses 1" in json.dumps(told[0]["turns"][0]["prompt"])
    text = must(f"./pipeline.sh ask {team} 'has 4 loses 1'", ROOT)
    assert text.startswith("[0 solver]") and "\n[0 checker]" in text and text.splitlines()[-1].startswith("answer (checker): ")
    code, _, said = run(f"./pipeline.sh ask {team} 'What is love?'")
    assert code == 65 and "is no short story" in said and "hint: " in said
    code, _, said = run("./pipeline.sh ask nowhere 'What is 6 + 7?'")
    assert code == 2 and "no run with policies is there" in said
    server = subprocess.Popen(["./pipeline.sh", "serve", team, "0"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)/v1 serves checker, solver", server.stderr.readline())[1])
        assert chat(port, model="checker", max_tokens=2)["model"] == "checker"
        server.terminate()
        assert server.wait(15) == 0
    finally:
        server.kill()


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]
