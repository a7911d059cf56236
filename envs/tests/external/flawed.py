"""The example environment with one flaw, named by the second argument: each breaks the rule that is about it."""

import os
import sys

sys.path.insert(0, sys.argv.pop(1))
FLAW = sys.argv.pop(1)

from guess_number import GuessNumber

asked = 0


class Flawed(GuessNumber):
    def reset(self, spec):
        start = super().reset(spec)
        if FLAW == "timeout-is-success":
            start.state["turn"] = 0
        if FLAW == "unseen":
            start.observations["scout"] = ""
        return start

    def step(self, state, agent, text):
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
                return super().step(dict(state, found=False), agent, "")._replace(terminated=True, success=True)
        step = super().step(state, agent, text)
        if FLAW == "numbers":  # beyond what most readers of JSON keep
            step = step._replace(local=step.local * (0.5 if state.get("large", 2**70 + 1) != 2**70 + 1 else 1.0))
            step.state["large"] = 2**70 + 1
        if FLAW == "memory":
            step = step._replace(local=step.local / (1 + asked))
        if FLAW == "process":
            step = step._replace(local=step.local / (1 + os.getpid() % 1000))
        if FLAW == "range":
            step = step._replace(team=step.team * 1.5)
        if FLAW == "goes-on":
            step = step._replace(terminated=False)
        if FLAW == "pays-for-dawdling" and not step.success:
            step = step._replace(team=0.4 * step.components["narrows"])
        if FLAW == "early-success" and agent == "guesser" and step.components["narrows"] > 0.4:
            step = step._replace(terminated=True, success=True)
        if FLAW == "generous" and not step.components["format"]:
            step = step._replace(local=1.5)
        return step

    def probe(self, state, agent):
        probe = super().probe(state, agent)
        if FLAW == "no-oracle":
            raise ValueError("what is probe?")
        return probe._replace(best=str(state["low"] - 1)) if FLAW == "lazy-oracle" else probe

    def tasks(self, split, seed):
        return super().tasks("train" if FLAW == "leak" else split, 1)

    def respond(self, request):
        careless = FLAW == "dies-of-nonsense"
        if careless and (not isinstance(request.get("task", {}), dict) or not {"task", "state"} & set(request)):
            os._exit(1)
        return super().respond(request)


Flawed().main()
