"""The example environment with one flaw, named by the first argument: each breaks the rule that is about it."""

import os
import sys

sys.path.insert(0, sys.argv.pop(1))
FLAW = sys.argv.pop(1)

import guess_number as sound
from step_protocol import main

asked = 0


def reset(spec):
    (state, seen), *rest = sound.reset(spec)
    if FLAW == "timeout-is-success":
        state["turn"] = 0
    if FLAW == "unseen":
        seen["scout"] = ""
    return (state, seen), *rest


def step(state, agent, text):
    global asked
    asked += 1
    if FLAW == "prints":
        print("playing", text)
    if FLAW == "refuses":
        int(text)
    if FLAW == "timeout-is-success":
        state = dict(state, turn=state["turn"] + (agent == "guesser"))
        if state["turn"] == 6:
            state["found"] = True
            return (state, {}), {"team": 0.0, "local": 0.0}, {}, True, True
    situation, rewards, parts, terminated, success = sound.step(state, agent, text)
    if FLAW == "numbers":  # beyond what most readers of JSON keep
        rewards["local"] *= 0.5 if state.get("large", 2**70 + 1) != 2**70 + 1 else 1.0
        situation[0]["large"] = 2**70 + 1
    if FLAW == "memory":
        rewards["local"] /= 1 + asked
    if FLAW == "process":
        rewards["local"] /= 1 + os.getpid() % 1000
    if FLAW == "range":
        rewards["team"] *= 1.5
    if FLAW == "goes-on":
        terminated = False
    if FLAW == "pays-for-dawdling" and not success:
        rewards["team"] = 0.4 * parts["narrows"]
    if FLAW == "early-success" and agent == "guesser" and parts["narrows"] > 0.4:
        terminated = success = True
    if FLAW == "generous" and not parts["format"]:
        rewards["local"] = 1.5
    return situation, rewards, parts, terminated, success


def probe(state, agent):
    probes, oracle, solved = sound.probe(state, agent)
    if FLAW == "no-oracle":
        raise ValueError("what is probe?")
    if FLAW == "lazy-oracle":
        oracle = str(state["low"] - 1)
    return probes, oracle, solved


def tasks(split, seed):
    return sound.tasks("train" if FLAW == "leak" else split, 1)


if FLAW == "dies-of-nonsense":
    import step_protocol

    respond = step_protocol.respond

    def careless(request, *functions):
        if not isinstance(request.get("task", {}), dict) or not {"task", "state"} & set(request):
            os._exit(1)
        return respond(request, *functions)

    step_protocol.respond = careless

main("guess-number", tasks, reset=reset, step=step, probe=probe)
