"""A heap of sticks: who takes the last one wins, who takes a single one goes on. The second player begins."""

from step_protocol import main


def tasks(split, seed):
    number = seed
    while True:
        number += 1
        yield f"{split}-{number}", {"sticks": 4 + number % 5, "name": f"{split}-{number}"}


def see(state):
    sight = f"{state['sticks']} sticks"
    return state, {agent: sight if state["turn"] == agent else None for agent in ("first", "second")}


def reset(spec):
    return see({"sticks": spec["sticks"], "turn": "second"}), ["first", "second"], "sequential", 12


def step(state, agent, text):
    if agent != state["turn"]:
        raise ValueError(f"it is not the turn of {agent}")
    text = text.strip()
    valid = text in ("1", "2", "3") and int(text) <= state["sticks"]
    taken = int(text) if valid else 1
    left = state["sticks"] - taken
    other = "first" if agent == "second" else "second"
    won = float(left == 0 and valid)
    after = {"sticks": left, "turn": agent if valid and taken == 1 else other}
    return see(after), {"team": won, "local": won}, {"format": float(valid)}, left == 0, won == 1.0


def probe(state, agent):
    if agent != state["turn"]:
        raise ValueError(f"it is not the turn of {agent}")
    over = state["sticks"] == 0
    return [] if over else ["1", "2", "3", "all"], None, over


if __name__ == "__main__":
    main("sticks", tasks, reset=reset, step=step, probe=probe)
