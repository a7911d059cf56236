"""NAME: an environment of Troupe to start from. Say here who acts, what they see, and what pays.

Two agents, one after another: a teller, who sees a number and says it, and a doubler, who sees what was said and says its double.
Replace `tasks`, `see`, `reset`, `step` and `probe`; `envs check` tells what is wrong:

    (python3 FILE tasks --count 50; python3 FILE tasks --split test --count 50) | envs check --env-command 'python3 FILE'
    ./pipeline.sh --env-command 'python3 FILE' --warmup 400 --steps 20 --run runs/NAME
"""

import hashlib
import random

from step_protocol import main

TURNS = 2


def tasks(split, seed):
    """(name, spec) for ever. The name says what the spec is; a digest of it keeps train and test apart, whatever the seed."""
    draws = random.Random(seed if split == "train" else 0)
    while True:
        spec = {"number": draws.randrange(1, 500)}
        name = str(spec["number"])
        if (hashlib.sha256(name.encode()).digest()[0] % 8 == 0) == (split == "test"):
            yield name, spec


def see(state):
    """The state, all that the future depends on, and the prompt of every agent, all that a policy gets to see: None lets it skip its turn."""
    said = "nothing" if state["said"] is None else state["said"]
    return state, {"teller": f"number {state['number']} teller", "doubler": f"said {said} doubler"}


def reset(spec):
    """The start: what is seen, the agents, "sequential", "parallel" or stages as lists, and the limit of turns."""
    return see({"number": spec["number"], "said": None, "done": False}), ["teller", "doubler"], "sequential", TURNS


def read(text):
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def step(state, agent, text):
    """What an action does: rewards in [0, 1] for the team and for the agent itself. A meaningless text earns 0."""
    if state["done"] or agent not in ("teller", "doubler"):
        raise ValueError("the episode is over, or there is no such agent")
    number = read(text)
    parts = {"format": float(number is not None)}
    if agent == "teller":
        right = number == state["number"]
        after = dict(state, said=number)
        # What the team would get if the doubler did its part: the tool of a team is paid for what it makes possible.
        return see(after), {"team": float(right), "local": float(right)}, parts, False, False
    right = number == 2 * state["number"]
    local = float(state["said"] is not None and number == 2 * state["said"])
    return see(dict(state, said=None, done=right)), {"team": float(right), "local": local}, parts, right, right


def probe(state, agent):
    """For `envs check` and demonstrations: actions to try, the best of them, and whether the task is solved."""
    if state["done"]:
        return [], None, True
    best = state["number"] if agent == "teller" else 2 * state["number"]
    return [str(best), str(best + 1), "0", "a word"], str(best), False


if __name__ == "__main__":
    main("NAME", tasks, reset=reset, step=step, probe=probe)
