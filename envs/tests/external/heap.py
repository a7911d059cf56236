"""A heap of sticks that stays in this process, as an object: who takes the last stick has won. `shared`: copies are no copies. `count`: the
observation is the number of states kept here."""

import sys

from troupe_rl import Environment, Probe, Start, Step

FLAW = sys.argv.pop(1) if sys.argv[1:2] in (["shared"], ["count"]) else ""


class Sticks:
    def __init__(self, left):
        self.left = left


class Heap(Environment):
    name, handles = "heap", True

    def tasks(self, split, seed):
        left = 4 + (split == "test")
        while True:
            left += 2
            yield str(left), {"left": left}

    def see(self, heap):
        kept = len(self._states) if FLAW == "count" else heap.left
        return heap, {"player": f"{kept} sticks"}

    def reset(self, spec):
        return Start(*self.see(Sticks(spec["left"])), ["player"], turns=9)

    def step(self, heap, agent, text):
        heap.left -= min(heap.left, int(text)) if text in ("1", "2", "3") else 0
        won = heap.left == 0
        return Step(*self.see(heap), team=float(won), components={"left": heap.left / 100}, terminated=won, success=won)

    def fork(self, heap):
        return heap if FLAW == "shared" else super().fork(heap)

    def probe(self, heap, agent):
        return Probe([] if heap.left == 0 else ["1", "2", "all"], solved=heap.left == 0)


Heap().main()
