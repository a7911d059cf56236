"""Answers that `rollout` refuses, one mistake after another: prints what `check_env` says of each.

    python3 refused.py EXAMPLES              all mistakes in the shape of an answer, a line of JSON each
    python3 refused.py EXAMPLES FLAW check   a program with one of the other mistakes"""

import itertools
import json
import os
import sys

sys.path.insert(0, sys.argv[1])
from troupe import Environment, Start, Step, is_test  # noqa: E402
from troupe.check import check_env  # noqa: E402

STARTS = [
    {"turns": 0}, {"turns": 4.0}, {"turns": True}, {"agents": ["a", "a"]}, {"agents": "ab"}, {"order": [["a"], []]}, {"order": "both"},
    {"observations": {"a": 5, "b": "x"}}, {"observations": {"a": [{"role": "user"}], "b": "x"}}, {"reward_range": (1.0, 0.0)}, {"turn": "nobody"},
]
STEPS = [
    {"team": "good"}, {"team": True}, {"local": {"A": 0.5}}, {"local": {"a": 0.5, "b": 0.5, "seler": 0.5}}, {"local": {"a": "good", "b": 0}},
    {"components": {"part": "good"}}, {"info": "note"}, {"info": {"note": "é" * 2048}}, {"terminated": 1}, {"observations": {"a": 5, "b": "x"}},
    {"turn": "nobody"},
]


class Say(Environment):
    name = "say"

    def __init__(self, flaw="", start=None, step=None):
        super().__init__()
        self.flaw, self.start, self.outcome = flaw, start or {}, step or {}

    def tasks(self, split, seed):
        numbers = (number for number in itertools.count(0 if self.flaw == "seedless" else 1000 * seed) if is_test(str(number)) == (split == "test"))
        for number in itertools.islice(numbers, 17 if self.flaw == "ends" else None):
            yield str(number), number

    def reset(self, spec):
        return Start(**{"state": spec, "observations": {"a": str(spec), "b": "?"}, "agents": ["a", "b"], "turns": 1, **self.start})

    def step(self, state, agent, text):
        if self.flaw == "exits":
            os._exit(3)
        while self.flaw == "hangs":
            pass
        right = text == str(state)
        return Step(**{"state": state, "observations": {"a": str(state), "b": "?"}, "team": float(right), "components": {"size": 100.0}, **self.outcome})


if __name__ == "__main__":
    if len(sys.argv) > 2:
        Say(sys.argv[2]).main(sys.argv[3:])
    else:
        for part, flaws in ("start", STARTS), ("step", STEPS):
            for flaw in flaws:
                try:
                    check_env(Say(**{part: flaw}), tasks=1)
                    said = ""
                except AssertionError as error:
                    said = str(error)
                print(json.dumps([repr(flaw), said]))
