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
    --prose        ask in English, for a pretrained model

    (python3 bench/paper/orders.py tasks --count 50; python3 bench/paper/orders.py tasks --split test --count 50) |
      envs check --env-command 'python3 bench/paper/orders.py'
"""

import random

from pair import Pair, Probe, Step, options

parser = options(__doc__)
parser.add_argument("--clock", type=float, default=0.25)
parser.add_argument("--limit", type=int, default=1)
parser.add_argument("--prose", action="store_true")
ORDERS = 4


class Orders(Pair):
    name, parser = "orders", parser
    pair, single, turns = ["first", "second"], "worker", 4

    def draw(self, draws):
        """Four of a hundred words."""
        orders = [f"{'abcdefghij'[word // 10]}{word % 10}" for word in draws.sample(range(100), ORDERS)]
        return "".join(orders), {"orders": orders}

    def begin(self, spec):
        return {"open": spec["orders"], "time": 0}

    def see(self, state):
        """The open orders, and which of two the agent is."""
        text = "at {} goal {}"
        if self.options.prose:
            text = "Open orders: {}. You are worker {} of 2. Name the one order that you fill now."
        orders = (", " if self.options.prose else " ").join(state["open"])
        if not self.both:
            return state, {self.single: text.format(orders, 1 + state["time"] % 2)}
        return state, {agent: text.format(orders, 1 + role) for role, agent in enumerate(self.pair)}

    def taken(self, state, text):
        """The open orders among the first words of a text; in prose, a word may end in a period or a comma."""
        words = [word.strip(".,") if self.options.prose else word for word in text.split()]
        return {word for word in words[: self.options.limit] if word in state["open"]}

    def turn(self, state, texts):
        """What the texts of a turn earn together: their share of all orders, by what an order is worth by now."""
        if not state["open"]:
            raise ValueError("the episode is over: no order is open")
        done = set().union(*(self.taken(state, text) for text in texts))
        left = [order for order in state["open"] if order not in done]
        after = self.see({"open": left, "time": state["time"] + 1})
        return Step(*after, self.worth(state, done), terminated=not left, success=not left)

    def worth(self, state, done):
        return max(0.0, 1 - self.options.clock * state["time"]) * len(done) / ORDERS

    def beside(self, state, agent, text, others):
        """One agent's action, given the other's choice if both act at once. `alone` is its reward without the other agent."""
        if agent not in self.see(state)[1]:
            raise ValueError(f"there is no agent {agent}")
        both = self.turn(state, [text, *(others or {}).values()])
        return both._replace(components={"alone": self.worth(state, self.taken(state, text))})

    def joint(self, state, actions):
        return self.turn(state, list(actions.values()))

    def probe(self, state, agent):
        """Two share out the work if the first takes it from the front and the second from the back."""
        some = state["open"]
        if not some:
            return Probe([], solved=True)
        draws = random.Random(f"{' '.join(some)} {agent}")
        texts = [f" {draws.choice(some)}", f" {some[0]} {some[0]}", " a0", f" {draws.choice(some)} {draws.choice(some)}"]
        best = some[: self.options.limit] if agent != "second" else some[::-1][: self.options.limit]
        return Probe(texts, "".join(f" {order}" for order in best))

    def demonstrate(self, state, agent):
        """Who is demonstrated takes any open orders: how to name them is shown, and not how to share them out."""
        if not state["open"]:
            return Probe([], solved=True)
        some = random.Random(f"{agent} {' '.join(state['open'])}").sample(state["open"], min(self.options.limit, len(state["open"])))
        return Probe(self.probe(state, agent).actions, "".join(f" {order}" for order in some))


if __name__ == "__main__":
    Orders().main()
