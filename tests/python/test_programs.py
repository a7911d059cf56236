"""`envs program`: programs that talk to an OpenAI endpoint as environments, from a stand-in without an SDK to the SDKs' own."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, interpreter, lines, must, run

HERE = pathlib.Path(__file__).parent / "programs"


@pytest.fixture
def sums(tmp_path):
    """A folder with tasks and a policy for each role."""
    tasks = [{"question": f"{a} + {b}", "answer": str(a + b)} for a in range(6) for b in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    for seed, role in enumerate(("solver", "checker")):
        must(f"policy init {role} --preset tiny --seed {seed + 1}", tmp_path)
    return tmp_path


def world(what, flags="", python=sys.executable):
    script = f"{HERE}/stand_in.py {what}" if " " not in what and "/" not in what else what
    return f"envs program --roles solver,checker --tasks sums.jsonl {flags} -- {python} {script}"


def rollout(folder, command, flags, count=2, tasks=None, limit=6):
    """The lines that a rollout of `command` prints, without what differs between equal runs."""
    (folder / "tasks.jsonl").write_text(tasks or must(f"{command} tasks --count {count} --seed 7", folder))
    printed = must(f"rollout --env-command '{command}' --policy solver=solver --policy checker=checker --branches 3 "
                   f"--max-tokens {limit} --seed 5 --max-error-rate 1 --quiet {flags} < tasks.jsonl", folder)
    return [{key: value for key, value in line.items() if key != "timing"} for line in lines(printed)]


def marked():
    """Processes that a program of this test has left; other tests and users may run some, too."""
    found, own = [], f"PYTEST_CURRENT_TEST={os.environ['PYTEST_CURRENT_TEST']}".encode()
    for process in pathlib.Path("/proc").iterdir():
        try:
            environ = (process / "environ").read_bytes()
            if b"TROUPE_PROGRAM=" in environ and own in environ:
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found


SAMPLINGS = ["--sampling parallel", "--joint aligned --expand ends=1", "--joint aligned --expand all --turns 2", ""]


def test_a_program_plays_as_its_native_environment_does(sums):
    command = world("plain")
    for flags in SAMPLINGS:
        played = rollout(sums, command, flags)
        tasks = (sums / "tasks.jsonl").read_text()
        native = rollout(sums, f"{sys.executable} {HERE}/native.py", flags, tasks=tasks)
        assert [line for line in played if line["type"] == "error"] == []
        assert played == native, flags
        assert rollout(sums, world("plain", "--preload http.client"), flags) == played, flags
        assert sum(line["type"] == "sample" for line in played) >= 12, flags


def test_the_step_protocol_is_spoken_as_documented(sums):
    block = (ROOT / "docs/stream-format.md").read_text().split("```program\n")[1].split("```")[0]
    requests, answers = ("".join(line[2:] + "\n" for line in block.splitlines() if line[0] == mark) for mark in "→←")
    (sums / "requests").write_text(requests)
    assert must(f"{world('plain')} < requests", sums) == answers and answers.count("\n") == 4


def test_calls_at_once_give_the_same_bytes_with_any_number_of_threads(sums):
    for flags in SAMPLINGS[:2]:
        outputs = [rollout(sums, world("at-once"), f"{flags} --threads {threads}") for threads in (1, 2, 8)]
        assert [line for line in outputs[0] if line["type"] == "error"] == []
        assert outputs[0] == outputs[1] == outputs[2], flags
        assert {sample["turn"] for sample in outputs[0] if sample["type"] == "sample"} == {0, 1, 2}


def test_ends_are_scored(sums):
    by_what = {what: rollout(sums, world(what), "--sampling parallel", count=1)
               for what in ("crash", "silent", "null", "keys", "local", "leaves", "prints")}
    samples = {what: [line for line in played if line["type"] == "sample"] for what, played in by_what.items()}
    assert {(line["reward"], line["reward_components"]["crashed"]) for line in samples["crash"]} == {(0, 1)}
    assert {line["reward"] for line in samples["null"]} == {0}, "no answer is a wrong one"
    assert {line["reward_components"]["keys"] for line in samples["keys"]} == {1}, "no key but our own"
    assert {json.dumps(line["rewards"]) for line in samples["local"]} == {'{"team":0.5,"local":0.25}'.replace(":", ": ").replace(",", ", ")}
    assert len(samples["leaves"]) == len(samples["prints"]) == 6
    errors = {line["message"] for line in by_what["silent"] if line["type"] == "error"}
    assert len(errors) == 1 and "the program ended without a result line (the last line that it prints" in errors.pop()
    assert marked() == []
    command = f"{world('crash', '--crash error')}"
    errors = [line["message"] for line in rollout(sums, command, "", count=1) if line["type"] == "error"]
    assert errors == ["the program failed: it exited with code 1"]


def test_other_episodes_go_on_where_a_program_hangs_and_nothing_is_left(sums):
    played = rollout(sums, world("hangs", "--silence 1"), "--sampling parallel", count=2)
    errors = [line["message"] for line in played if line["type"] == "error"]
    assert len(errors) >= 2 and all("neither called a model nor ended in 1 s" in error for error in errors)
    assert marked() == []
    # Killed in the middle: the adapter sees that nobody reads it.
    started = subprocess.Popen(["bash", "-c", f"exec rollout --env-command '{world('hangs')}' --policy solver=solver --policy checker=checker "
                                "--branches 2 --max-tokens 4 --quiet < tasks.jsonl > /dev/null"], cwd=sums)
    until = time.time() + 30
    while len(marked()) < 3 and time.time() < until:
        time.sleep(0.1)
    assert len(marked()) >= 3
    started.send_signal(signal.SIGKILL)
    started.wait()
    until = time.time() + 10
    while marked() and time.time() < until:
        time.sleep(0.1)
    assert marked() == []


def test_a_program_that_is_not_deterministic_is_told_and_trains_without_copies(sums):
    code, table, _ = run(f"{world('random')} check", sums)
    assert code == 0 and re.search(r"deterministic  no: the program is not deterministic: call 2 \(checker\) differs here", table), table
    errors = [line["message"] for line in rollout(sums, world("random"), "", count=1) if line["type"] == "error"]
    assert len(errors) == 1 and "call 2 (checker) differs here" in errors[0] and "--no-copies" in errors[0]
    command = world("random", "--no-copies")
    played = rollout(sums, command, "--sampling parallel")
    assert sum(line["type"] == "sample" for line in played) == 12 and "error" not in {line["type"] for line in played}
    code, _, said = run(f"rollout --env-command '{command}' --policy solver=solver --policy checker=checker --branches 2 --quiet < tasks.jsonl", sums)
    assert code == 2 and "makes no copies" in said and "--sampling parallel" in said


def test_check_says_what_a_program_needs(sums):
    table = must(f"{world('plain')} check", sums)
    for row in ("calls          2 to 2 an episode", "roles          checker in 8, solver in 8, of 8 tasks", "crashed        0 of 8 tasks",
                "deterministic  yes", "methods        drmas, and c3 with --flags rollout='--expand ends=1'"):
        assert row in table, table
    command = world("plain").replace("solver,checker", "solver,checker,judge")
    assert "never acts     judge" in must(f"{command} check", sums)
    for what, told in (("silent", "fault          the program ended without a result line, in 8 of 8 tasks"), ("crash", "crashed        8 of 8 tasks")):
        code, table, _ = run(f"{world(what)} check", sums)
        assert told in table and code == (what == "silent"), table
    both = f"({world('plain')} tasks --count 2; {world('plain')} tasks --split test --count 2)"
    table = must(f"{both} | envs check --quiet --tasks 1 --episodes 3 --env-command '{world('plain')}'", sums)
    assert "BROKEN" not in table, table


def test_tasks_have_a_fixed_split(sums):
    names = {split: {line["task"] for line in lines(must(f"{world('plain')} tasks --split {split} --count 200 --seed {seed}", sums), "task")}
             for split in ("train", "test") for seed in (1, 2)}
    assert len(names["train"] | names["test"]) == 36 and not names["train"] & names["test"] and len(names["test"]) >= 2
    asked = lines(must(f"envs tasks --env-command '{world('plain')}' --ask 'What is 6 + 7?'", sums), "task")
    assert [(task["split"], task["spec"]["question"]) for task in asked] == [("asked", "What is 6 + 7?")]
    played = rollout(sums, world("answer"), "", tasks="".join(json.dumps(task) + "\n" for task in asked) + '{"type":"end","v":1,"stage":"envs","ok":true}\n')
    assert {(line["success"], line["reward"]) for line in played if line["type"] == "episode"} == {(False, 0)}
    for lines_of_file, told in (("[1]\n", "sums.jsonl:1: a task is a JSON object"), ("{\n", "sums.jsonl:1: "), ("\n", "there is no task in it")):
        (sums / "sums.jsonl").write_text(lines_of_file)
        code, _, said = run(f"{world('plain')} tasks", sums)
        assert code == 65 and told in said, said


def test_the_endpoint_refuses_what_it_does_not_do(sums):
    adapter = subprocess.Popen(["bash", "-c", world(f"{HERE}/calls.py tries")], cwd=sums, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def request(body):
        adapter.stdin.write(json.dumps(body) + "\n")
        adapter.stdin.flush()
        return json.loads(adapter.stdout.readline())

    begun = request({"request": "a", "task": {"spec": {"question": "6 + 7"}}})
    seen = json.loads(begun["observations"]["solver"][0]["content"])
    assert seen == {"path": 404, "secret": 410, "json": 400, "n": 400, "model": 404, "image": 400, "large": 413, "models": 404}
    ended = request({"request": "b", "state": begun["state"], "agent": "solver", "action": "13"})
    assert ended["terminated"] and ended["success"] and ended["rewards"]["team"] == 1
    for body, told in (({"state": 99, "agent": "solver", "action": ""}, "there is no state 99"), ({"state": begun["state"]}, "a request has a task"),
                       ({"state": begun["state"], "agent": "solver", "action": ""}, "this episode is over")):
        assert told in request(body)["error"]
    adapter.stdin.close()
    assert adapter.wait(10) == 0


@pytest.mark.parametrize("package, script, calls", [("openai", "team_sums", 2), ("langgraph", "team_langgraph", 3), ("agents", "team_agents_sdk", 2)])
def test_programs_of_frameworks_train_unchanged(sums, package, script, calls):
    command = world(f"{ROOT}/examples/agents/{script}.py", python=interpreter(package))
    # Few tasks, because an import of a framework takes seconds.
    (sums / "sums.jsonl").write_text("".join((sums / "sums.jsonl").read_text().splitlines(True)[:2]))
    assert "deterministic  yes" in must(f"{command} check", sums)
    # The Agents SDK ends with an error at an answer that the limit cut; a stop text ends these in time.
    ends = "--stop solver=e --stop checker=e"
    for flags in SAMPLINGS[:2]:
        played = rollout(sums, world(f"{ROOT}/examples/agents/{script}.py", f"--preload {package}", interpreter(package)), f"{flags} {ends}", 1, limit=100)
        assert [line for line in played if line["type"] == "error"] == [], flags
        assert len([line for line in played if line["type"] == "sample"]) >= 3 * calls, flags
