"""NAME: an environment of Troupe to start from. Say here who acts, what they see, and what pays.

Two agents, one after another: a teller, who sees a number and says it, and a doubler, who sees what was said and says its double.
Replace `tasks`, `see`, `reset`, `step` and `probe`; `check` finds mistakes, and `envs check` asks other processes, too:

    python3 FILE check
    (python3 FILE tasks --count 50; python3 FILE tasks --split test --count 50) | envs check --env-command 'python3 FILE'
    ./pipeline.sh --env-command 'python3 FILE' --warmup 400 --steps 20 --run runs/NAME
"""

import random

from troupe_rl import Environment, Probe, Start, Step, is_test


def see(state):
    """The state, all that the future depends on, and the prompt of every agent, all that a policy gets to see: None lets it skip its turn."""
    said = "nothing" if state["said"] is None else state["said"]
    return state, {"teller": f"number {state['number']} teller", "doubler": f"said {said} doubler"}


def read(text):
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


class Game(Environment):
    name = "NAME"

    def tasks(self, split, seed):
        """(name, spec) forever. The name says what the spec is; a digest of it keeps train and test apart, whatever the seed."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            number = draws.randrange(1, 500)
            if is_test(str(number)) == (split == "test"):
                yield str(number), {"number": number}

    def reset(self, spec):
        """The start: the state and its observations, the agents, and the limit of turns."""
        return Start(*see({"number": spec["number"], "said": None, "done": False}), ["teller", "doubler"], turns=2)

    def step(self, state, agent, text):
        """What an action does: rewards in [0, 1] for the team and for the agent itself. A meaningless text earns 0."""
        if state["done"] or agent not in ("teller", "doubler"):
            raise ValueError("the episode is over, or there is no such agent")
        number = read(text)
        parts = {"format": float(number is not None)}
        if agent == "teller":
            right = float(number == state["number"])
            # What the team would get if the doubler did its part: the tool of a team is paid for what it makes possible.
            return Step(*see(dict(state, said=number)), team=right, local=right, components=parts)
        right = number == 2 * state["number"]
        local = float(right and state["said"] == state["number"])
        after = see(dict(state, said=None, done=right))
        return Step(*after, team=float(right), local=local, components=parts, terminated=right, success=right)

    def probe(self, state, agent):
        """For checks and demonstrations: actions to try, the best of them, and whether the task is solved."""
        if state["done"]:
            return Probe([], solved=True)
        best = state["number"] if agent == "teller" else 2 * state["number"]
        return Probe([str(best), str(best + 1), "0", "a word"], str(best))


if __name__ == "__main__":
    Game().main()
