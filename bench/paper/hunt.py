#!/usr/bin/env python3
"""A hunt worth winning: do two agents beat one at equal tokens and equal representation, and does MAGRPO's joint reward matter there?

The task is orders.py: four orders that lose worth by the turn. One agent sees, says and spends the same as two, but one after the
other. The other cells: AT-GRPO (each candidate scored with the other's choice), MAGRPO and its cross form, AT-GRPO
with every agent paid as if it were alone, and three controls that take the cause away: one agent without the limit of a
word a turn, and one and two agents without the clock.
"""

import sys

import magrpo
import tables
from command import main
from lab import WORLDS, Cell, Plan

# One warm-up for all cells, because they see and say the same.
ONE = dict(place="orders", agents=("worker",))
TWO = dict(place="orders", agents=("first", "second"))
PAID_ALONE = ("""jq -c 'if .type == "sample" then .reward = .reward_components.alone else . end'"""
              " | advantage --quiet")

CELLS = [
    Cell("single-grpo", "one agent, GRPO", options="--agents 1", **ONE),
    Cell("team-at-grpo", "two agents, AT-GRPO, a policy each", per_role=True, **TWO),
    Cell("team-magrpo", "two agents, MAGRPO, a policy each", per_role=True, method="magrpo", **TWO),
    Cell("team-magrpo-cross", "two agents, MAGRPO, cross, a policy each", per_role=True, method="magrpo-cross", **TWO),
    Cell("team-at-grpo-shared", "two agents, AT-GRPO, one policy", **TWO),
    Cell("team-alone", "two agents, AT-GRPO, each paid as if alone", per_role=True, advantage=PAID_ALONE, **TWO),
    Cell("single-wide", "control: one agent, two words a turn, GRPO", options="--agents 1 --limit 2", max_tokens=3,
         workflow="wide", **ONE),
    Cell("single-no-clock", "control: one agent, no clock, GRPO", options="--agents 1 --clock 0", **ONE),
    Cell("team-no-clock", "control: two agents, no clock, AT-GRPO", options="--clock 0", per_role=True, **TWO),
]

BASES = [("one", CELLS[0]), ("two", CELLS[1])]


def after(lab, seed):
    """The warm-up, played by one and by two."""
    for name, cell in BASES:
        base = lab.base(cell, seed)
        lab.evaluate(cell, base, None, 0, {agent: base / "policies" / "shared" for agent in cell.agents}, name)


def untrained(lab, name, cell, seeds):
    found = [tables.scores(lab.base(cell, seed), name) for seed in seeds]
    return [scores[0] if scores else None for scores in found]


def sections(lab, seeds):
    titles = {"one": "one agent, untrained", "two": "two agents, untrained"}
    yield f"### {WORLDS['orders'].title}: all four filled, %", tables.table(
        [(titles[name], untrained(lab, name, cell, seeds)) for name, cell in BASES]
        + [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in CELLS], seeds)
    rows = [(titles[name], lambda seed, cell=cell: lab.base(cell, seed), name, True) for name, cell in BASES]
    rows += [(cell.title, magrpo.trained(lab, cell), "eval", True) for cell in CELLS]
    yield "What was filled, by what it was worth then, of 1; and the tokens of an answer", magrpo.rewards(lab, rows, seeds, ".3f")


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan(CELLS, after), sections))
