"""A heap of sticks: who takes the last one wins, who takes a single one goes on. The second player begins. With `--named` a `turn` says
who acts, and nobody else's observation is sent."""

import argparse

from troupe_rl import Environment, Probe, Start, Step

parser = argparse.ArgumentParser()
parser.add_argument("--named", action="store_true")


class Sticks(Environment):
    name, parser = "sticks", parser

    def tasks(self, split, seed):
        number = seed
        while True:
            number += 1
            yield f"{split}-{number}", {"sticks": 4 + number % 5, "name": f"{split}-{number}"}

    def see(self, state):
        sight = f"{state['sticks']} sticks"
        seen = {agent: sight if state["turn"] == agent else None for agent in ("first", "second")}
        return state, {state["turn"]: sight} if self.options.named else seen

    def turn(self, state):
        return state["turn"] if self.options.named else None

    def reset(self, spec):
        state = {"sticks": spec["sticks"], "turn": "second"}
        return Start(*self.see(state), ["first", "second"], turns=12, turn=self.turn(state))

    def step(self, state, agent, text):
        if agent != state["turn"]:
            raise ValueError(f"it is not the turn of {agent}")
        text = text.strip()
        valid = text in ("1", "2", "3") and int(text) <= state["sticks"]
        taken = int(text) if valid else 1
        left = state["sticks"] - taken
        other = "first" if agent == "second" else "second"
        won = float(left == 0 and valid)
        after = {"sticks": left, "turn": agent if valid and taken == 1 else other}
        return Step(*self.see(after), won, won, {"format": float(valid)}, left == 0, won == 1.0, self.turn(after))

    def probe(self, state, agent):
        if agent != state["turn"]:
            raise ValueError(f"it is not the turn of {agent}")
        over = state["sticks"] == 0
        return Probe([] if over else ["1", "2", "3", "all"], None, over)


if __name__ == "__main__":
    Sticks().main()
