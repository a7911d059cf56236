"""Dining philosophers: N agents at once, forks between them, and a meal for whoever holds both of its own.

The mechanics are those of the benchmark DPBench (arXiv 2602.13255), but what an eater says is ignored: there its release
frees forks before others grab, and takes them away again.

    python3 examples/philosophers.py --set philosophers=5 tasks --count 32 |
      rollout --env-command 'python3 examples/philosophers.py --set philosophers=5' --policy run/policy | group | advantage | …

    (python3 examples/philosophers.py --set reward=four tasks --count 4;
     python3 examples/philosophers.py --set reward=four tasks --split test --count 4) |
      envs check --env-command 'python3 examples/philosophers.py --set reward=four'

Settings, of the tasks alone: philosophers=3 (a number from 2 to 15, or several with commas between them), reward=meals (the meals of a
step over the optimum, to the team) or four (at the end a quarter each for no deadlock, fairness, actions that did something,
and meals over the optimum: doing nothing earns 0.75), local=none or own (an agent's own meals, too), index=on or off (whether an
agent is told its number), encoding=full or compact (few words, for tiny policies):

    at 2 3 moves 5 ok 1 L 0 R 2 goal   =>   L      philosopher 2 of 3 in the fifth step has had 1 meal; left is free (1: taken), right
                                                   is its own; it grabs left (R: right, D: puts down, none: waits)

A step: hungry philosophers put forks down, then free forks are grabbed, the lower number first. Whoever holds both eats (a meal) and
gives both back at the end of the next step. All hungry with one fork each is a deadlock, which ends the episode. Fork i is left
of philosopher i and right of the one before. Left out: talking to neighbors.
"""

import hashlib
import itertools
import random
import sys

from step_protocol import main

TURNS = 12
ACTIONS = ("GRAB_LEFT", "GRAB_RIGHT", "RELEASE", "WAIT")
COMPACT = dict(zip(ACTIONS, ("L", "R", "D", "none")))
# The most meals in 12 steps by N: a search over all states up to 6 (`optimum`), schedules around the table beyond.
OPTIMUM = {2: 4, 3: 6, 4: 8, 5: 11, 6: 13, 7: 15, 8: 18, 9: 19, 10: 22, 11: 24, 12: 27, 13: 29, 14: 31, 15: 33}
FREE = -1


def play(forks, actions):
    """One step. forks[i] is who holds fork i, or FREE; actions are texts or None. Returns the forks, who begins to eat, and who did
    something."""
    count = len(forks)
    left, right = list(range(count)), [(i + 1) % count for i in range(count)]
    eats = [forks[left[i]] == i == forks[right[i]] for i in range(count)]
    after, did = list(forks), list(eats)
    for i, action in enumerate(actions):
        if action == "RELEASE" and not eats[i] and i in forks:
            after, did[i] = [FREE if holder == i else holder for holder in after], True
    for i, action in enumerate(actions):
        fork = {"GRAB_LEFT": left[i], "GRAB_RIGHT": right[i]}.get(action)
        if fork is not None and not eats[i] and after[fork] == FREE:
            after[fork], did[i] = i, True
    begins = [not eats[i] and after[left[i]] == i == after[right[i]] for i in range(count)]
    # What an eater gives back can be grabbed in the next step.
    return [FREE if holder != FREE and eats[holder] else holder for holder in after], begins, did


def is_deadlock(forks):
    return sorted(forks) == list(range(len(forks)))


def fairness(meals):
    """1 less the normalized Gini coefficient; 1 where nobody ate."""
    count, total = len(meals), sum(meals)
    if total == 0 or count < 2:
        return 1.0
    gini = sum(abs(a - b) for a in meals for b in meals) / (2 * count * total)
    return 1.0 - gini * count / (count - 1)


def optimum(count, turns):
    """The most meals of `count` philosophers in `turns` steps, by a search over all states: for a few of them."""
    def choices(forks, i):
        left, right = i, (i + 1) % count
        eats = lambda j: forks[j] == j == forks[(j + 1) % count]
        if eats(i):
            return ["WAIT"]
        grabs = [name for name, fork in (("GRAB_LEFT", left), ("GRAB_RIGHT", right))
                 if forks[fork] == FREE or forks[fork] != i and not eats(forks[fork])]
        return grabs + (["RELEASE"] if i in forks else []) + ["WAIT"]

    start = (FREE,) * count
    moves, queue = {}, [start]
    while queue:
        forks = queue.pop()
        if forks in moves or is_deadlock(forks):
            continue
        best = {}
        for actions in itertools.product(*(choices(forks, i) for i in range(count))):
            after, begins, _ = play(forks, actions)
            best[tuple(after)] = max(best.get(tuple(after), 0), sum(begins))
        moves[forks] = best
        queue.extend(best)
    worth = {}
    for _ in range(turns):
        worth = {forks: max(meals + worth.get(after, 0) for after, meals in best.items()) for forks, best in moves.items()}
    return worth[start]


def names(count):
    return [f"philosopher-{i + 1}" for i in range(count)]


def tasks(split, seed):
    """Tables by number. All of one size are alike; every eighth number, by its digest, is of the test split."""
    draws = random.Random(seed if split == "train" else 0)
    for place in itertools.count():
        count = SETTINGS["philosophers"][place % len(SETTINGS["philosophers"])]
        table = draws.randrange(10**6)
        instance = f"{count}-{table}"
        if (hashlib.sha256(instance.encode()).digest()[0] % 8 == 0) == (split == "test"):
            yield instance, {"philosophers": count, "table": table, **{key: SETTINGS[key] for key in ("reward", "local", "index", "encoding")}}


def reset(spec):
    count = spec["philosophers"]
    if not isinstance(count, int) or not 2 <= count <= 15:
        raise ValueError("philosophers: not a number from 2 to 15")
    state = {"spec": spec, "forks": [FREE] * count, "meals": [0] * count, "step": 0, "did": 0}
    return see(state), names(count), "parallel", TURNS


def see(state):
    """The state, and what each sees of it: itself and its two forks."""
    forks, count = state["forks"], len(state["forks"])

    def fork(i, number):
        return {FREE: "free", i: "yours"}.get(forks[number], "taken")

    def short(i):
        number = {"free": 0, "taken": 1, "yours": 2}
        who = f"{i + 1} {count} " if state["spec"]["index"] == "on" else ""
        return (f"at {who}moves {state['step'] + 1} ok {state['meals'][i]} L {number[fork(i, i)]} R {number[fork(i, (i + 1) % count)]} goal")

    def sight(i):
        if state["spec"].get("encoding") == "compact":
            return short(i)
        left, right = fork(i, i), fork(i, (i + 1) % count)
        who = f"philosopher {i + 1} of {count}, " if state["spec"]["index"] == "on" else ""
        mood = "eating" if left == right == "yours" else "hungry"
        return (f"You are {who}{mood}. Step {state['step'] + 1} of {TURNS}. Meals {state['meals'][i]}. Left fork {left}, right fork {right}. "
                f"Say GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT.")

    return state, {name: sight(i) for i, name in enumerate(names(count))}


def read(text, encoding="full"):
    """The action that a text says, or None."""
    if encoding == "compact":
        return next((action for action, word in COMPACT.items() if word == text.strip()), None)
    word = text.strip().rstrip(".").upper().replace(" ", "_")
    return word if word in ACTIONS else None


def joint(state, actions):
    agents, spec = names(len(state["forks"])), state["spec"]
    if any(agent not in agents for agent in actions):
        raise ValueError("there is no such philosopher")
    if state["step"] >= TURNS or is_deadlock(state["forks"]):
        raise ValueError("the episode is over")
    said = [read(actions[agent], spec.get("encoding")) if agent in actions else "WAIT" for agent in agents]
    forks, begins, did = play(state["forks"], said)
    did = [done or action == "WAIT" for done, action in zip(did, said)]
    meals = [own + begin for own, begin in zip(state["meals"], begins)]
    state = dict(state, forks=forks, meals=meals, step=state["step"] + 1, did=state["did"] + sum(did))
    stuck = is_deadlock(forks)
    over = stuck or state["step"] == TURNS
    best = OPTIMUM[len(agents)]
    components = {f"{agent}.ate": float(begin) for agent, begin in zip(agents, begins)}
    components |= {f"{agent}.did": float(done) for agent, done in zip(agents, did)}
    team = sum(begins) / best
    if spec["reward"] == "four":
        parts = {
            "alive": float(not stuck),
            "fairness": fairness(meals),
            "effective": state["did"] / (len(agents) * state["step"]),
            "throughput": min(sum(meals) / best, 1.0),
        }
        components |= parts if over else {}
        team = sum(parts.values()) / 4 if over else 0.0
    local = {agent: float(begin) if spec["local"] == "own" else 0.0 for agent, begin in zip(agents, begins)}
    # Two meals each are possible for any number of them.
    success = over and not stuck and min(meals) >= 2
    return see(state), {"team": team, "local": local}, components, over, success


def step(state, agent, text, others):
    """One agent's action beside those of the others, who wait where nobody says what they do."""
    situation, rewards, components, over, success = joint(state, {**(others or {}), agent: text})
    own = {name.removeprefix(f"{agent}."): value for name, value in components.items() if name.startswith(f"{agent}.") or "." not in name}
    return situation, {"team": rewards["team"], "local": rewards["local"][agent]}, own, over, success


def probe(state, agent):
    solved = state["step"] == TURNS and min(state["meals"]) >= 2
    if state["spec"].get("encoding") == "compact":
        return [f" {word}" for word in COMPACT.values()], None, solved
    return [*ACTIONS, "", " wait\n", "GRAB", "eat"], None, solved


def habit(state, agent):
    """What is demonstrated half of the time: any free fork of its own, and where none is free to put down or to wait."""
    forks, count = state["forks"], len(state["forks"])
    i = names(count).index(agent)
    draws = random.Random(f"{forks} {state['step']} {agent}")
    free = [action for action, fork in (("GRAB_LEFT", i), ("GRAB_RIGHT", (i + 1) % count)) if forks[fork] == FREE]
    action = draws.choice(free or ["RELEASE", "WAIT"])
    return f" {COMPACT[action]}" if state["spec"].get("encoding") == "compact" else action


def settings(words):
    """The values of --set, which are taken out of `words`."""
    known = {"philosophers": [3], "reward": "meals", "local": "none", "index": "on", "encoding": "full"}
    choices = {"reward": ("meals", "four"), "local": ("none", "own"), "index": ("on", "off"), "encoding": ("full", "compact")}
    while "--set" in words:
        place = words.index("--set")
        name, _, value = words[place + 1].partition("=") if place + 1 < len(words) else ("", "", "")
        del words[place:place + 2]
        if name == "philosophers" and all(part.isdigit() and 2 <= int(part) <= 15 for part in value.split(",")):
            known[name] = [int(part) for part in value.split(",")]
        elif value in choices.get(name, ()):
            known[name] = value
        else:
            sys.exit(f"philosophers.py: --set {name}={value}: not one of philosophers=2 to 15, reward=meals|four, local=none|own, "
                     "index=on|off, encoding=full|compact")
    return known


if __name__ == "__main__":
    SETTINGS = settings(sys.argv)
    main("philosophers", tasks, reset=reset, step=step, probe=probe, joint=joint, act=habit)
