"""A role that an OpenAI-compatible server plays, against a test server that fails on purpose."""
import collections
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest
from conftest import Server, closed_port, lines, must, pipeline, refused, run, trained


@pytest.fixture
def folder(tmp_path):
    """A policy for the tool, and tasks."""
    must("policy init tool --preset tiny --seed 3; envs tasks plan-path --count 6 --seed 5 > tasks", tmp_path)
    return tmp_path


def rollout(planner, more="", key="secret"):
    return (f"OPENAI_API_KEY={key} rollout --policy tool=tool --policy 'planner={planner}' --branches 4 --turns 2 --max-tokens 8 --seed 7 --quiet "
            f"{more} < tasks")


def moody(models=("large",)):
    """A server that answers, but not at first: overload, a lost connection, and another status that passes."""
    calls = collections.Counter()

    def reply(body):
        seed, asked = body["seed"], json.dumps(body)
        calls[asked] += 1
        if calls[asked] == 1 and seed % 4 < 3:
            return ((503, "busy", {"Retry-After": "0"}), None, (429, '{"error": {"message": "slow down"}}', {"Retry-After": "0.01"}))[seed % 4]
        return "no move at all" if seed % 3 else "d3 c3"
    return Server(reply, models)


def test_served_role_plays_and_the_others_are_trained(folder):
    server = moody()
    found = lines(must(f"{rollout(server.url, '--threads 1')} | tee played | group --quiet | advantage --quiet", folder))
    samples, served = ([line for line in found if line["type"] == kind] for kind in ("sample", "served"))
    assert len(samples) >= 24 and all(sample["agent"] == "tool" and isinstance(sample["advantage"], float) for sample in samples)
    assert len(served) >= 6
    for line in served:
        assert [line[name] for name in ("agent", "model", "selected", "prompt_tokens", "completion_tokens")] == ["planner", "large", True, 11, 3]
        assert line["reward"] is not None and isinstance(line["prompt"], list) and line.get("completion_ids") is None
        assert "group" not in line and "advantage" not in line, "nothing is compared with it"
    # Counted in the end line of rollout, apart from the trained agents.
    counts = lines((folder / "played").read_text())[-1]["counts"]
    planner = counts["served"]["planner"]
    assert counts["samples"] == len(samples) and "planner" not in counts["agents"]
    assert [planner[name] for name in ("samples", "completion_tokens", "prompt_tokens")] == [len(served) * times for times in (1, 3, 11)]
    # What it was asked: as OpenAI's clients ask, and again where a call failed in a way that passes.
    assert len(server.asked) > len(served), "nothing was repeated"
    for key, body in server.asked:
        assert (key, body["model"], body["max_tokens"], body["temperature"]) == ("Bearer secret", "large", 8, 1)
        assert isinstance(body["messages"][0]["content"], str)
    # Equal bytes for any number of threads, if the server gives equal answers.
    texts = []
    for threads, at in ((1, server), (3, moody())):
        text = must(f"{rollout(at.url, f'--threads {threads}')} | grep -v '\"type\":\"end\"'", folder)
        texts.append(text.replace(at.url.split(":")[-1], "PORT"))
    assert texts[0] == texts[1]
    # update trains the tool and lets the rest pass; it cannot train the planner.
    must("group --quiet < played | advantage --quiet | update --policy tool=tool --quiet", folder)
    assert os.readlink(folder / "tool/current") == "step-000001"
    refused(run(f"update --policy planner={server.url} < played", folder), 2, "a server's policy is not trained\nhint: leave it out")


def test_settings_of_the_url_and_parallel_sampling(folder):
    server = Server(lambda body: "d3", ("a", "b"))
    url = f"{server.url}?model=b&max_completion_tokens=300&temperature=0.2&api_key_var=OTHER_KEY"
    served = lines(must(f"export OTHER_KEY=$' other\\n'; {rollout(url, '--sampling parallel')}", folder), "served")
    # Each of the four episodes of a task calls the server with another seed.
    assert len(server.asked) == len(served) >= 24
    key, body = server.asked[0]
    assert key == "Bearer other" and (body["model"], body["max_completion_tokens"], body["temperature"]) == ("b", 300, 0.2) and "max_tokens" not in body
    # A team that is served as a whole is evaluated.
    end = lines(must(f"rollout --policy '{server.url}?model=a' --temperature 0 --turns 1 --quiet < tasks", folder))[-1]
    assert (end["ok"], end["counts"]["samples"], end["counts"]["episodes"]) == (True, 0, 6)
    assert server.asked[-1][1]["temperature"] == 0


def test_server_gets_the_sampling_of_its_agent(folder):
    server = Server(lambda body: "d3")
    must(f"rollout --policy tool=tool --policy 'planner={server.url}' --branches 2 --turns 1 --max-tokens 8 --temperature 0.5 --quiet "
         "--temperature planner=1.5 --max-tokens planner=9 --top-p planner=0.75 --min-p planner=0.25 --stop 'planner=</plan>' < tasks", folder)
    body = server.asked[0][1]
    assert [body.get(key) for key in ("temperature", "max_tokens", "top_p", "min_p", "stop", "top_k", "tools")] == [
        1.5, 9, 0.75, 0.25, ["</plan>"], None, None]


def test_run_trains_beside_a_server_and_goes_on(folder):
    url = moody().url

    def play(name, steps):
        trained(folder / name, f"--policies tool={folder}/tool --policies planner={url} --steps {steps} --tasks 4 --turns 2 --max-tokens 8 "
                "--eval-tasks 3 --eval-every 2 --kl 0.01")

    play("whole", 2), play("parts", 1), play("parts", 2)
    assert os.readlink(folder / "whole/policies/tool/current") == "step-000002" and sorted(os.listdir(folder / "whole/policies")) == ["done", "tool"]
    must("for run in whole parts; do grep -v '\"end\"' $run/steps/000002/samples.jsonl > $run/samples; done; cmp whole/samples parts/samples; "
         "cmp whole/policies/tool/current/model.safetensors parts/policies/tool/current/model.safetensors", folder)
    # The report's episodes have what the server said.
    page = (folder / "whole/report.html").read_text()
    assert "d3 c3" in page and '"policy":"large"' in page
    refused(pipeline(folder / "other", f"--policies planner={url} --policies tool=http://x/v1"), 2, "servers play all agents")


FAILED = '{"choices": [{"message": {"content": ""}, "finish_reason": "error", "error": {"message": "overloaded"}}]}'
UNSCORED = "episodes could not be scored"


@pytest.mark.parametrize(("reply", "more", "code", "told", "error"), [
    ((401, '{"error": {"message": "bad key"}}'), "", 69, ": 401: bad key\nhint: set OPENAI_API_KEY", None),
    ((404, "nothing here"), "", 69, ": 404: nothing here\nhint: the URL ends where", None),
    # One prompt that has no answer ends its episode; too many of them end the run.
    ((400, '{"message": "too long"}'), "", 1, UNSCORED, "400: too long"),
    ((200, "<html>"), "", 1, UNSCORED, "its answer is no JSON: <html>"),
    ((200, "{}"), "--server-retries 0", 1, UNSCORED, "its answer has no message: {}"),
    ((200, FAILED), "--server-retries 0", 1, UNSCORED, "its answer ended with an error: overloaded"),
    ((200, "\x1f", {"Content-Encoding": "gzip"}), "", 69, "its answer is compressed (gzip)", None),
    ((302, "", {"Location": "http://127.0.0.1:1/internal"}), "", 69,
     ": 302: it sends to http://127.0.0.1:1/internal\nhint: only servers that --policy names are asked", None),
])
def test_fault_of_a_server_is_one_line_and_a_hint(folder, reply, more, code, told, error):
    result = run(rollout(Server(lambda body: reply).url, more), folder)
    refused(result, code, told)
    errors = [json.dumps(line) for line in lines(result[1], "error")] if error else []
    assert error is None or '"boundary": "policy"' in errors[0] and error in json.loads(errors[0])["message"], result[1]


def test_server_that_hangs_or_fails_at_times(folder):
    slow = Server(lambda body: time.sleep(2))
    _, printed, said = run(rollout(slow.url, "--server-timeout 0.3 --server-retries 1"), folder)
    assert UNSCORED in said and "no answer in 0.3 s" in printed
    some = Server(lambda body: "d3" if body["seed"] % 4 else (422, "no"))
    must(rollout(some.url, "--max-error-rate 1"), folder)


@pytest.mark.parametrize(("planner", "more", "code", "cause"), [
    ("URL", "", 2, "it has 2 models\nhint: name one: '"),
    ("URL?modle=a", "", 2, 'no setting "modle", or not to such a value\nhint: settings are model=NAME'),
    ("http://127.0.0.1:512349/v1", "", 2, "the port is not a number from 1 to 65535"),
    ("http://host:/v1?model=a", "", 2, "--policy http://host:/v1: the port is not"),
    ("http://ho st/v1?model=a", "", 2, "a URL holds no blanks"),
    ("URL?model=a", "--joint aligned", 2, "--joint: a server's agent has one candidate"),
    ("URL", "--server-timeout 0", 2, "--server-timeout 0: must be above 0 seconds"),
    ("CLOSED", "--server-retries 1", 69, "cannot be reached"),
    ("http://key@host/v1", "", 2, "hint: put the key into OPENAI_API_KEY"),
    ("http://host/v1?api_key_var=TROUPE_NO_KEY", "", 2, "TROUPE_NO_KEY is not set"),
    ("NO_TLS", "", 69, "no connection by https: "),
])
def test_server_that_cannot_be_asked_is_refused(folder, planner, more, code, cause):
    if planner == "NO_TLS":  # It speaks http where https is asked for.
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), daemon=True).start()
        planner = f"https://127.0.0.1:{listener.getsockname()[1]}/v1?model=a"
    planner = planner.replace("URL", moody(("a", "b")).url).replace("CLOSED", f"http://127.0.0.1:{closed_port()}")
    refused(run(rollout(planner, more), folder), code, cause)


def test_server_that_nobody_vouches_for_is_refused(folder):
    """Its certificate is self-signed, so a client says nothing after the greeting."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make a certificate with")
    port = closed_port()
    must("openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1",
         folder)
    with subprocess.Popen(["openssl", "s_server", "-quiet", "-www", "-key", "key.pem", "-cert", "cert.pem", "-port", str(port)], cwd=folder,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.01)
        said = refused(run(rollout(f"https://127.0.0.1:{port}/v1?model=a"), folder), 69, "no connection by https: ", "certificate")
        server.kill()
    assert said.count("hint: its certificate") == 1


def test_error_with_status_200_is_asked_again(folder):
    """Errors that come with status 200, or in place of a candidate, may pass like others."""
    calls = collections.Counter()

    def reply(body):
        assert "seed" not in body, "seed=none leaves it out"
        calls[json.dumps(body)] += 1
        return ("d3", (200, '{"error": {"code": 429, "message": "slow down"}}', {"Retry-After": "0"}), [{"type": "text", "text": "d3"}],
                (503, "busy", {"Retry-After": "0"}), "d3")[calls[json.dumps(body)] % 5]

    server = Server(reply)
    served = lines(must(rollout(f"{server.url}?seed=none"), folder), "served")
    assert len(server.asked) > len(served) >= 6 and all(line["completion"] == "d3" for line in served)


@pytest.mark.parametrize(("reply", "code", "shown"), [
    ((401, '{"error": {"message": "no key Bearer sk-SECRET\\/4711"}}'), 69, "no key Bearer ***"),
    ((400, "no key sk-SECRET/4711"), 1, "400: no key ***"),
    ((200, "no JSON but sk-SECRET/4711"), 1, ""),
    ((302, "", {"Location": "http://x/?key=sk-SECRET/4711"}), 69, ""),
    ("my key is sk-SECRET/4711", 0, "my key is ***"),
])
def test_key_that_a_server_quotes_is_told_nobody(folder, reply, code, shown):
    """Like proxies that echo the request."""
    server = Server(lambda body: reply)
    found, printed, said = run(rollout(server.url, key="sk-SECRET/4711"), folder)
    assert found == code and {key for key, _ in server.asked} == {"Bearer sk-SECRET/4711"}
    assert "SECRET" not in printed + said and shown in printed + said, printed + said


def test_long_wait_is_told(folder):
    server = Server(lambda body: (429, "{}", {"Retry-After": "99999"}))
    command = rollout(server.url).replace("--quiet", "").replace("OPENAI_API_KEY=secret", "exec")
    with subprocess.Popen(["bash", "-c", command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as playing:
        line = next(line for line in playing.stderr if "429" in line)
        playing.kill()
    assert line.endswith("429: {}; trying again in 60 s (it asks for 99999 s)\n")


def test_many_models_are_not_all_named(folder):
    said = refused(run(rollout(moody([f"m{number}" for number in range(11)]).url), folder), 2, "it has 11 models")
    assert said.rstrip().endswith("m8, m9, …")
