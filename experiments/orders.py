"""Orders: work that two can share out, against a clock. An environment for `rollout --env-command`; hunt.py trains on it.

Four orders are open. In a turn an agent fills one, the limit of its tokens; a turn later an order is worth a quarter less. Two agents
who act at once can fill two a turn, if they take different ones without a word to each other. One agent fills one a
turn. Both see the same text, say the same words, and have four turns, so an answer takes the same tokens:

    at c3 f1 a0 j9 goal 1   =>  c3        the first of two agents, or one agent in turns 0 and 2
    at c3 f1 a0 j9 goal 2   =>  j9        the second, or one agent in turns 1 and 3

Who fills all at once earns 0.875 of 1 with two agents and 0.625 with one; two who always take the same earn what one does.

    --agents 1|2   who works [2]
    --limit N      words of an agent that count in a turn [1]
    --clock X      what an order loses a turn, of 1 [0.25]

    (python3 experiments/orders.py tasks --count 50; python3 experiments/orders.py tasks --split test --count 50) |
      envs check --env-command 'python3 experiments/orders.py'
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from troupe import Environment, Probe, Start, Step, digest  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--agents", type=int, choices=[1, 2], default=2)
parser.add_argument("--clock", type=float, default=0.25)
parser.add_argument("--limit", type=int, default=1)
ORDERS, TURNS = 4, 4
PAIR = ["first", "second"]


def see(state):
    """The state, and what an agent sees of it: the open orders, and which of two it is."""
    text = f"at {' '.join(state['open'])} goal"
    if OPTIONS.agents == 1:
        return state, {"worker": f"{text} {1 + state['time'] % 2}"}
    return state, {agent: f"{text} {1 + role}" for role, agent in enumerate(PAIR)}


def taken(state, text):
    """The open orders among the first words of a text."""
    return {word for word in text.split()[: OPTIONS.limit] if word in state["open"]}


def turn(state, texts):
    """What the texts of a turn earn together: their share of all orders, by what an order is worth by now."""
    if not state["open"]:
        raise ValueError("the episode is over: no order is open")
    done = set().union(*(taken(state, text) for text in texts))
    left = [order for order in state["open"] if order not in done]
    return Step(*see({"open": left, "time": state["time"] + 1}), worth(state, done), terminated=not left, success=not left)


def worth(state, done):
    return max(0.0, 1 - OPTIONS.clock * state["time"]) * len(done) / ORDERS


class Orders(Environment):
    name, parser = "orders", parser

    def setup(self):
        global OPTIONS
        OPTIONS = self.options

    def has(self, method):
        return super().has(method) and (method != "joint" or OPTIONS.agents == 2)

    def step(self, state, agent, text):
        return self.beside(state, agent, text, None)

    def tasks(self, split, seed):
        """Four of a hundred words. Every eighth instance, by its digest, is a test task."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            orders = [f"{'abcdefghij'[word // 10]}{word % 10}" for word in draws.sample(range(100), ORDERS)]
            name = "".join(orders)
            if (int(digest(name)[:2], 16) % 8 == 0) == (split == "test"):
                yield name, {"orders": orders}

    def reset(self, spec):
        agents, order = (PAIR, "parallel") if OPTIONS.agents == 2 else (["worker"], "sequential")
        return Start(*see({"open": spec["orders"], "time": 0}), agents, order, TURNS)

    def beside(self, state, agent, text, others):
        """One agent's action, given the other's choice if both act at once. `alone` is its reward without the other agent."""
        if agent not in see(state)[1]:
            raise ValueError(f"there is no agent {agent}")
        both = turn(state, [text, *(others or {}).values()])
        return both._replace(components={"alone": worth(state, taken(state, text))})

    def joint(self, state, actions):
        return turn(state, list(actions.values()))

    def probe(self, state, agent):
        """Two share out the work if the first takes it from the front and the second from the back."""
        some = state["open"]
        if not some:
            return Probe([], solved=True)
        draws = random.Random(f"{' '.join(some)} {agent}")
        texts = [f" {draws.choice(some)}", f" {some[0]} {some[0]}", " a0", f" {draws.choice(some)} {draws.choice(some)}"]
        best = some[: OPTIONS.limit] if agent != "second" else some[::-1][: OPTIONS.limit]
        return Probe(texts, "".join(f" {order}" for order in best))

    def demonstrate(self, state, agent):
        """Who is demonstrated takes any open orders: how to name them is shown, and not how to share them out."""
        if not state["open"]:
            return Probe([], solved=True)
        some = random.Random(f"{agent} {' '.join(state['open'])}").sample(state["open"], min(OPTIONS.limit, len(state["open"])))
        return Probe(self.probe(state, agent).actions, "".join(f" {order}" for order in some))


if __name__ == "__main__":
    Orders().main()
