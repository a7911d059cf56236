"""Two who act at once, with one flaw, named by the second argument; the first is where the module is."""

import sys

sys.path.insert(0, sys.argv.pop(1))
FLAW = sys.argv.pop(1)

from troupe_rl import Environment, Probe, Start, Step, is_test

SIGHTS = {"left": "say 1", "right": "say 1"}


class Both(Environment):
    name = "both"

    def tasks(self, split, seed):
        while True:
            seed += 1
            if is_test(str(seed)) == (split == "test"):
                yield str(seed), seed

    def reset(self, spec):
        return Start({"over": False, "solved": False}, SIGHTS, list(SIGHTS), "parallel", turns=1)

    def joint(self, state, actions):
        right = [text.strip() == "1" for text in actions.values()]
        team, local, first = float(all(right)), dict.fromkeys(SIGHTS, 0.0), next(iter(actions))
        if FLAW == "ordered" and first == "right":
            team /= 2
        if FLAW == "first-earns":
            local[first] = 0.2
        if FLAW == "names-one":
            del local["right"]
        if FLAW == "flat":
            team = 0.5
        return Step({"over": True, "solved": all(right)}, SIGHTS, team, local, terminated=True, success=all(right))

    def beside(self, state, agent, text, others):
        if others is None:
            return Step(state, SIGHTS, local={agent: 0.3 if FLAW == "private" and text == "0" else 0.0})
        step = self.joint(state, {agent: text, **others})
        return step._replace(local=step.local.get(agent, 0.0))

    def probe(self, state, agent):
        return Probe([] if state["over"] else ["1", "0"], None if state["over"] else "1", state["solved"])


Both().main()
