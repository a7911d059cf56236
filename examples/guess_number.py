"""Guess the number: an environment in Python's standard library, for a team of two.

A number between two others is hidden. In every turn a scout proposes a number, and then a guesser, who sees the proposal,
says one and learns whether the hidden number is higher or lower. The team is rewarded for finding it, each agent for how
much of the range its number rules out (the scout for what its proposal would have done).

    python3 examples/guess_number.py tasks --count 32 --seed 7 |
      rollout --env-command 'python3 examples/guess_number.py' --policy run/policy --branches 8 | group | advantage | …

    (python3 examples/guess_number.py tasks --count 50; python3 examples/guess_number.py tasks --split test --count 50) |
      envs check --env-command 'python3 examples/guess_number.py'
    python3 examples/guess_number.py check        the same in one command
"""

import random

from troupe_rl import Environment, Probe, Start, Step, digest


def see(state):
    """The state, and what each agent sees of it: never the hidden number."""
    ground = f"low {state['low']} high {state['high']}"
    proposal = "" if state["proposal"] is None else f" {state['proposal']}"
    return state, {"scout": f"{ground} scout", "guesser": f"{ground} scout says{proposal} guesser"}


def read(text):
    """The number that a text says, or None. Digits alone: `int` would also take '1_0' and other scripts' digits."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


class GuessNumber(Environment):
    name = "guess-number"

    def tasks(self, split, seed):
        """Ranges and hidden numbers. Every eighth instance, by its digest, is a test task, so that no seed mixes the splits."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            low = draws.randrange(0, 80)
            high = low + draws.randrange(8, 20)
            spec = {"low": low, "high": high, "hidden": draws.randrange(low, high + 1)}
            instance = f"{low}-{high}-{spec['hidden']}"
            held_out = int(digest(instance)[:2], 16) % 8 == 0
            if held_out == (split == "test"):
                yield instance, spec

    def reset(self, spec):
        state = {"low": spec["low"], "high": spec["high"], "hidden": spec["hidden"], "proposal": None, "found": False}
        return Start(*see(state), ["scout", "guesser"], turns=6)

    def step(self, state, agent, text):
        if agent not in ("scout", "guesser"):
            raise ValueError(f"there is no agent {agent}")
        if state["found"]:
            raise ValueError("the episode is over: the number is found")
        number = read(text)
        state = dict(state, proposal=None)
        if number is None or not state["low"] <= number <= state["high"]:
            parts = {"format": float(number is not None), "narrows": 0.0}
            return Step(*see(state), local=0.1 * parts["format"], components=parts)
        before, hidden = state["high"] - state["low"] + 1, state["hidden"]
        found = number == hidden
        low = number + 1 if number < hidden else state["low"]
        high = number - 1 if number > hidden else state["high"]
        parts = {"format": 1.0, "narrows": 1.0 if found else 1 - (high - low + 1) / before}
        # Tenths are summed as whole numbers, because .1 + .9 need not be 1 in binary.
        team, local = float(found), (1 + 9 * parts["narrows"]) / 10
        if agent == "scout":
            return Step(*see(dict(state, proposal=number)), team, local, parts)
        return Step(*see(dict(state, low=low, high=high, found=found)), team, local, parts, found, found)

    def probe(self, state, agent):
        if state["found"]:
            return Probe([], solved=True)
        middle = (state["low"] + state["high"]) // 2
        numbers = [middle, state["low"], state["high"], state["low"] - 1, state["high"] + 1, state["hidden"] + 1]
        return Probe([str(number) for number in numbers] + [f" {middle}\n", "the middle"], str(state["hidden"]))


if __name__ == "__main__":
    GuessNumber().main()
