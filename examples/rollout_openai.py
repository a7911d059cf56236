"""`rollout` by any OpenAI-compatible server, in about fifty lines: play and score whole teams of a served model, without weights.

    envs tasks plan-path --count 4 | python3 examples/rollout_openai.py http://localhost:8000/v1 MODEL 'envs step plan-path' |
      report evaluate

One candidate a turn, one agent after another. The lines are of a type of their own, `served`, which nothing is trained on: their tokens are
the server's. The key is OPENAI_API_KEY. Needs only Python. Left out: retries, several calls at once.
"""

import json
import os
import subprocess
import sys
import urllib.request

url, model, command = sys.argv[1:]
environment = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none")}


def step(**request):
    environment.stdin.write(json.dumps({"request": 1, **request}) + "\n")
    return json.loads(environment.stdout.readline())


def generate(messages, seed):
    body = {"model": model, "messages": messages, "max_tokens": 256, "temperature": 0.7, "seed": seed}
    request = urllib.request.Request(url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        answer = json.load(reply)
    return answer["choices"][0]["message"]["content"] or "", answer.get("usage", {})


counts = {"tasks": 0, "episodes": 0, "groups_expected": 0, "groups": 0, "samples": 0}
for line in map(json.loads, sys.stdin):
    if line["type"] != "task":
        continue
    name, state = f"0.{counts['episodes']}", step(task=line)
    agents, turns, total, turn, over = state["agents"], state.get("turns", 4), 0.0, 0, False
    about = {"v": 1, "step": 0, "env": line["env"], "task": line["task"], "episode": name}
    while not over and turn < turns:
        for agent in agents:
            prompt = state["observations"][agent]
            text, usage = generate(prompt, seed=counts["episodes"] * 1000 + turn)
            state = step(state=state["state"], agent=agent, action=text)
            reward, over = sum(state["rewards"].values()), state["terminated"]
            total += reward
            print(json.dumps({"type": "served", **about, "turn": turn, "agent": agent, "branch": 0, "id": f"{name}/{turn}/{agent}/0",
                              "selected": True, "model": model, "prompt": prompt, "completion": text, "reward": reward,
                              "rewards": state["rewards"], "completion_tokens": usage.get("completion_tokens")}))
            if over:
                break
        turn += 1
    success = state.get("success", False)
    stop = "success" if success else "terminated" if over else "turns"
    print(json.dumps({"type": "episode", **about, "success": success, "turns": turn, "reward": total, "stop": stop}))
    counts = {**counts, "tasks": counts["tasks"] + 1, "episodes": counts["episodes"] + 1}
print(json.dumps({"type": "end", "v": 1, "stage": "rollout", "ok": True, "step": 0, "counts": counts, "after": [], "timing": {}}))
