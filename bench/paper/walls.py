"""Walls: StrBuild (arXiv 2601.21972) in small, for tiny policies. For `rollout --env-command`; studies.py trains on it.

Two builders fill the cells of a plan, without a word to each other. Each has two kinds of blocks and half of the commands, and
blocks side by side should differ, so that a good wall needs both. The score is as in examples/strbuild.py: 2 coverage - 1.5 extra -
adjacent - 0.25 for each builder that leaves out a kind. A plan is 6 connected cells of a square of 4 by 4, three of each color of a
chessboard.

    at a1 a2 b2 b3 c2 c3 goal 1   =>  a1 0 b2 1 c3 0        the first builder's kinds are 0 and 1
    at a1 a2 b2 b3 c2 c3 goal 2   =>  a2 2 b3 3 c2 2        the second's are 2 and 3
    at a1 a2 b2 b3 c2 c3 goal 0   =>  a1 0 a2 1 b2 2 …      one builder alone has all four kinds, and all commands

    --agents 1|2   who builds [2]
"""

import random

from pair import Pair, Probe, Step, options

parser = options(__doc__)
CELLS = [f"{column}{row}" for column in "abcd" for row in "1234"]
# Cells of a plan, and commands of each of two builders.
SIZE, COMMANDS = 6, 3
KINDS = {"left": "01", "right": "23", "builder": "0123"}


def near(cell):
    """The cells above, below, left and right of one."""
    return [other for other in CELLS if abs(ord(cell[0]) - ord(other[0])) + abs(int(cell[1]) - int(other[1])) == 1]


def color(cell):
    """0 or 1, as on a chessboard."""
    return (ord(cell[0]) + int(cell[1])) % 2


def build(agent, text, most):
    """The blocks of a text, by cell: its first pairs of a cell and a kind of the agent's."""
    words, blocks = text.split(), {}
    for cell, kind in zip(words[:2 * most:2], words[1::2]):
        if cell in CELLS and kind in KINDS[agent]:
            blocks[cell] = kind
    return blocks


def score(plan, walls):
    """The sum, and its parts. A cell has the block of the builder who comes last."""
    blocks = {cell: kind for wall in walls.values() for cell, kind in wall.items()}
    covered = sum(cell in blocks for cell in plan)
    pairs = [blocks[cell] == blocks[other] for cell in blocks for other in near(cell) if other in blocks and cell < other]
    parts = dict(coverage=covered / SIZE, extra=(len(blocks) - covered) / (len(CELLS) - SIZE),
                 adjacent=sum(pairs) / len(pairs) if pairs else 0.0,
                 lazy=sum(not set(KINDS[agent]) <= set(blocks.values()) for agent in walls) / 2)
    return 2 * parts["coverage"] - 1.5 * parts["extra"] - parts["adjacent"] - 0.5 * parts["lazy"], parts


class Walls(Pair):
    name, parser = "walls", parser
    pair, single = ["left", "right"], "builder"

    def draw(self, draws):
        """Connected cells, half of them of each color."""
        plan = set()
        while sum(map(color, plan)) != SIZE // 2:
            plan = {draws.choice(CELLS)}
            while len(plan) < SIZE:
                plan.add(draws.choice(sorted({other for cell in plan for other in near(cell)} - plan)))
        return "".join(sorted(plan)), {"plan": sorted(plan)}

    def begin(self, spec):
        return dict(spec, done=False, solved=False)

    def see(self, state):
        text = f"at {' '.join(state['plan'])} goal"
        return state, ({"left": f"{text} 1", "right": f"{text} 2"} if self.both else {"builder": f"{text} 0"})

    def play(self, state, texts):
        if state["done"]:
            raise ValueError("the episode is over")
        most = COMMANDS if self.both else SIZE
        total, parts = score(state["plan"], {agent: build(agent, text, most) for agent, text in texts.items()})
        solved = total >= 1.8
        # From -3 to 2, as a share of it.
        after = self.see(dict(state, done=True, solved=solved))
        return Step(*after, team=(total + 3) / 5, components=parts, terminated=True, success=solved)

    def beside(self, state, agent, text, others):
        if agent not in self.see(state)[1]:
            raise ValueError(f"there is no agent {agent}")
        if self.both and others is None:  # half a wall is no wall yet
            return Step(*self.see(state))
        said = {**(others or {}), agent: text}
        return self.play(state, {name: said.get(name, "") for name in self.see(state)[1]})

    def joint(self, state, actions):
        return self.play(state, {name: actions.get(name, "") for name in self.pair})

    def wall(self, agent, plan, draws=None):
        """A text that builds cells of a plan: the agent's color of a chessboard, or what `draws` draws."""
        if draws:
            cells = draws.sample(plan, COMMANDS if self.both else SIZE)
            return "".join(f" {cell} {draws.choice(KINDS[agent])}" for cell in cells)
        if agent == self.single:
            return self.wall("left", plan) + self.wall("right", plan)
        own = [cell for cell in plan if color(cell) == self.pair.index(agent)]
        return "".join(f" {cell} {KINDS[agent][index % 2]}" for index, cell in enumerate(own))

    def probe(self, state, agent):
        if state["done"]:
            return Probe([], solved=state["solved"])
        draws = random.Random(f"{agent} {' '.join(state['plan'])}")
        return Probe([self.wall(agent, state["plan"], draws), " a1 9", " z", ""], self.wall(agent, state["plan"]))

    def demonstrate(self, state, agent):
        """Who is demonstrated builds any cells of the plan, of any kind: how to build is shown, and not how to share it out."""
        draws = random.Random(f"{agent} {' '.join(state['plan'])}")
        text = self.wall(agent, state["plan"], draws)
        return Probe([text], text)


if __name__ == "__main__":
    Walls().main()
