"""`rollout` by any OpenAI-compatible server, in about eighty lines: play and score whole teams of a served model, without weights.

    envs tasks plan-path --count 4 | python3 examples/rollout_openai.py http://localhost:8000/v1 MODEL 'envs step plan-path' |
      report evaluate

One candidate a turn, one agent after another. The lines are of a type of their own, `served`, which nothing is trained on: their tokens are
the server's. The key is OPENAI_API_KEY. Needs only Python. Left out: agents who act at once, retries, several calls at once.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback


def write(line):
    try:
        print(json.dumps(line, ensure_ascii=False), flush=True)
    except BrokenPipeError:  # the reader went away
        os._exit(0)


def fail(code, cause, hint):  # without an `end` line the next stage refuses what was written
    print(f"rollout_openai.py: {cause}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


if len(sys.argv) != 4:
    fail(2, f"three arguments are needed, not {len(sys.argv) - 1}", "rollout_openai.py http://localhost:8000/v1 MODEL 'envs step plan-path' < TASKS")
url, model, command = sys.argv[1:]
environment = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", bufsize=1)
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none")}


def step(**request):
    try:
        environment.stdin.write(json.dumps({"request": 1, **request}) + "\n")
        answer = json.loads(environment.stdout.readline())
    except (OSError, ValueError) as error:
        fail(1, f"`{command}` did not answer: {error}", "it reads a request a line and answers each: `envs step NAME`, or a program of yours")
    return answer if "error" not in answer else fail(1, f"`{command}`: {answer['error']}", "are the tasks those of this environment?")


def generate(messages, seed):
    body = {"model": model, "messages": messages, "max_tokens": 256, "temperature": 0.7, "seed": seed}
    request = urllib.request.Request(url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            answer = json.load(reply)
        choice = answer["choices"][0]
        return choice["message"]["content"] or "", choice.get("finish_reason") or "stop", answer.get("usage") or {}
    except (OSError, ValueError, LookupError, TypeError) as error:  # of no connection, of a status, of an answer that is none
        fail(69, f"{url}: {type(error).__name__}: {error}", "the URL ends where /chat/completions follows; the key is OPENAI_API_KEY")


counts = {"tasks": 0, "episodes": 0, "solved": 0, "errors": 0, "groups_expected": 0, "groups": 0, "samples": 0}
for stream in (sys.stdin, sys.stdout):
    stream.reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale
for line in map(json.loads, sys.stdin):
    if line["type"] != "task":
        continue
    name, state = f"0.{counts['episodes']}", step(task=line)
    agents, turns, total, turn, over, parent = state["agents"], state.get("turns", 4), 0.0, 0, False, None
    about = {"v": 1, "step": 0, "shard": "0/1", "env": line["env"], "task": line["task"], "episode": name}
    while not over and turn < turns:
        for agent in agents:
            prompt, id = state["observations"][agent], f"{name}/{turn}/{agent}/0"
            if prompt is None:  # it skips its turn
                continue
            text, finish, usage = generate(prompt, seed=counts["episodes"] * 1000 + turn)
            state = step(state=state["state"], agent=agent, action=text)
            reward, over = sum(state["rewards"].values()), state["terminated"]
            total += reward
            later = [other for other in agents[agents.index(agent) + 1:] if not over and state["observations"][other] is not None]
            last = not over and turn + 1 == turns and not later
            write({"type": "served", **about, "turn": turn, "agent": agent, "branch": 0, "id": id, "parent": parent, "selected": True,
                   "policy": url, "model": model, "prompt": prompt, "completion": text, "prompt_tokens": usage.get("prompt_tokens"),
                   "completion_tokens": usage.get("completion_tokens"), "finish_reason": "length" if finish == "length" else "stop",
                   "reward": reward, "rewards": state["rewards"], "reward_components": state.get("reward_components", {}),
                   "terminated": over, "truncated": last})
            parent = id
            if over:
                break
        turn += 1
    success = state.get("success", False)
    stop = "success" if success else "terminated" if over else "turns"
    write({"type": "episode", **about, "success": success, "turns": turn, "reward": total, "stop": stop})
    counts |= {"tasks": counts["tasks"] + 1, "episodes": counts["episodes"] + 1, "solved": counts["solved"] + success}
write({"type": "end", "v": 1, "stage": "rollout", "ok": True, "step": 0, "shard": "0/1", "counts": counts, "after": [], "timing": {}})
