"""What stand_in.py does with `plain`, as an environment of its own: the same calls, rewards and components."""
import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    done = request.get("state") or {"spec": request["task"]["spec"], "said": []}
    if "action" in request:
        done["said"] = done["said"] + [request["action"]]
    said, question = done["said"], done["spec"]["question"]
    answer = {"request": request["request"], "state": done, "rewards": {"team": 0.0, "local": 0.0}, "terminated": False, "success": False}
    if len(said) < 2:
        role, text = ("checker", f"{question} {said[0]}") if said else ("solver", question)
        answer |= {"observations": {role: [{"role": "user", "content": text}]}, "turn": role}
    else:
        reward = (len(said[1]) % 7) / 10
        answer |= {"rewards": {"team": reward, "local": 0.0}, "terminated": True, "observations": {}, "reward_components": {"crashed": 0.0}}
    print(json.dumps({**answer, "agents": ["solver", "checker"], "order": "sequential", "turns": 8}), flush=True)
