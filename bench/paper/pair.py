"""A game of one turn or more that two play at once, or one alone: what `orders.py` and `coop_small.py` have in common."""

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))
from troupe_rl import Environment, Probe, Start, Step, digest  # noqa: E402, F401


def options(text):
    """A command line with `--agents`; `text` is its help."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, choices=[1, 2], default=2)
    return parser


class Pair(Environment):
    """A game has `draw(draws)`, name and spec of an instance; `begin(spec)`, its first state; and `see(state)`, the state and what
    each agent sees of it."""

    pair, single, turns = [], "", 1

    @property
    def both(self):
        return self.options.agents == 2

    def has(self, method):
        return super().has(method) and (method != "joint" or self.both)

    def step(self, state, agent, text):
        return self.beside(state, agent, text, None)

    def tasks(self, split, seed):
        """Every eighth instance, by its digest, is a test task."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            name, spec = self.draw(draws)
            if (int(digest(name)[:2], 16) % 8 == 0) == (split == "test"):
                yield name, spec

    def reset(self, spec):
        agents, order = (self.pair, "parallel") if self.both else ([self.single], "sequential")
        return Start(*self.see(self.begin(spec)), agents, order, self.turns)
