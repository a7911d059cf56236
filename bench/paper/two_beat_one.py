#!/usr/bin/env python3
"""Do two trained agents beat one at equal tokens, where a theorem says they can, and not where it says they cannot?

The task is orders.py in English, for a pretrained model with LoRA adapters. With the clock, one agent can earn 0.625 of
1 and two 0.875, whatever they learn; without it both can earn 1, and a second agent is worth nothing: the placebo.

Criterion, written before the first run. Return is the mean over three seeds, 200 test tasks each, greedy:
  1. with the clock, two agents with AT-GRPO and an adapter each earn more than 0.625, the BOUND of one agent;
  2. without the clock, they earn within 0.02 of one agent with GRPO.
"""

import statistics
import sys

import magrpo
import tables
from command import main
from lab import WORLDS, Cell, Plan
from main_table import evaluate_warm_ups

BOUND, MARGIN = 0.625, 0.02
ONE = dict(agents=("worker",), workflow="one")
TWO = dict(agents=("first", "second"), workflow="two")
METHODS = [
    ("one-grpo", "one agent, GRPO", "--agents 1", ONE),
    ("two-at-grpo", "two agents, AT-GRPO, an adapter each", "", dict(TWO, per_role=True)),
    ("two-at-grpo-shared", "two agents, AT-GRPO, one adapter", "", TWO),
    ("two-magrpo", "two agents, MAGRPO, an adapter each", "", dict(TWO, per_role=True, method="magrpo")),
]


def cells(clock, title):
    """The methods with this clock; those who act alike begin with the same weights."""
    name = "clock" if clock else "no-clock"
    return [Cell(f"{name}-{method}", f"{words}{title}", place="orders-prose", adapters=True,
                 options=f"--clock {clock} {agents}".strip(), **{**rest, "workflow": f"{name}-{rest['workflow']}"})
            for method, words, agents, rest in METHODS]


TIMED, PLACEBO = cells(0.25, ""), cells(0, ", no clock")
CELLS = TIMED + PLACEBO


def returns(lab, cell, seeds):
    """The mean return of each finished seed."""
    files = [magrpo.last(magrpo.trained(lab, cell)(seed)) for seed in seeds]
    return [tables.answers(file).reward for file in files if file]


def verdict(lab, seeds):
    """Each criterion with its numbers, once all seeds are there."""
    found = {cell.name: returns(lab, cell, seeds) for cell in CELLS}
    for words, needed, holds in [
        (f"two agents exceed {BOUND} with the clock", ["clock-two-at-grpo"], lambda two: two > BOUND),
        (f"two agents are within {MARGIN} of one without it", ["no-clock-two-at-grpo", "no-clock-one-grpo"],
         lambda two, one: abs(two - one) <= MARGIN),
    ]:
        means = [statistics.mean(found[name]) for name in needed if len(found[name]) == len(seeds)]
        state = "not run" if len(means) < len(needed) else "met" if holds(*means) else "NOT met"
        yield f"- {words}: {state} ({', '.join(f'{mean:.3f}' for mean in means)})"


def sections(lab, seeds):
    world = WORLDS["orders-prose"]
    rows = [(f"{cell.title}, untrained".replace(", GRPO", "").replace(", AT-GRPO, an adapter each", ""), lambda seed, cell=cell: lab.base(cell, seed), "eval", True)
            for cell in CELLS if cell.per_role and not cell.method or len(cell.agents) == 1]
    rows += [(cell.title, magrpo.trained(lab, cell), "eval", True) for cell in CELLS]
    yield f"### {world.title}: return, of 1, and the tokens of an answer", magrpo.rewards(lab, rows, seeds, ".3f")
    yield "All four orders filled, %", tables.table(
        [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in CELLS], seeds)
    yield "### Criterion", "\n".join(verdict(lab, seeds))


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan(CELLS, lambda lab, seed: evaluate_warm_ups(lab, seed, CELLS)), sections))
