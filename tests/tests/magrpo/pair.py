"""Two writers who act at once: a minimal environment with a joint reward, over the step protocol.

The team's reward is the product of two numbers in [0, 1], one from each writer's text. With `own` in the task's spec each
writer also gets a tenth of its number. With `apart` they act one after the other, and the second's action is rewarded. An episode
ends only after its turns.
"""

import json
import sys

WRITERS = ["first", "second"]


def seen(state):
    return {writer: [{"role": "user", "content": f"{writer} {state['turn']}"}] for writer in WRITERS}


def answer(request):
    if "task" in request:
        spec = request["task"]["spec"]
        state = {"turn": 0, "own": spec.get("own", False), "apart": spec.get("apart", False), "said": {}}
        start = {"agents": WRITERS, "order": "sequential" if state["apart"] else "parallel", "turns": 3, "together": True}
        return {"state": state, "observations": seen(state), **start}
    texts = request["actions"] if "actions" in request else {request["agent"]: request["action"], **request.get("beside", {})}
    texts = {**request["state"]["said"], **texts}
    numbers = [sum(map(ord, texts.get(writer, ""))) % 11 / 10 for writer in WRITERS]
    waits = request["state"]["apart"] and len(texts) == 1
    state = dict(request["state"], turn=request["state"]["turn"] + (not waits), said=texts if waits else {})
    local = {writer: number / 10 if state["own"] else 0.0 for writer, number in zip(WRITERS, numbers)}
    rewards = {"team": numbers[0] * numbers[1], "local": local if "actions" in request else local[request["agent"]]}
    return {"state": state, "rewards": rewards, "terminated": False, "success": False, "observations": seen(state)}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"request": request["request"], **answer(request)}), flush=True)
