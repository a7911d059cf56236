"""A program with a mistake that is named by the second argument; the first is where the module is."""

import itertools
import os
import sys

sys.path.insert(0, sys.argv[1])
from troupe_rl import Environment, Start, Step, is_test  # noqa: E402


class Say(Environment):
    name = "say"

    def __init__(self, flaw):
        super().__init__()
        self.flaw = flaw

    def tasks(self, split, seed):
        numbers = (number for number in itertools.count(0 if self.flaw == "seedless" else 1000 * seed) if is_test(str(number)) == (split == "test"))
        for number in itertools.islice(numbers, 17 if self.flaw == "ends" else None):
            yield str(number), number

    def reset(self, spec):
        return Start(spec, {"a": str(spec), "b": "?"}, ["a", "b"], turns=1)

    def step(self, state, agent, text):
        if self.flaw == "exits":
            os._exit(3)
        while self.flaw == "hangs":
            pass
        right = text == str(state)
        return Step(state, {"a": str(state), "b": "?"}, float(right), components={"size": 100.0})


Say(sys.argv[2]).main(sys.argv[3:])
