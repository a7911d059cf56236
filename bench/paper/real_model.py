#!/usr/bin/env python3
"""The main comparison with a real language model, SmolLM2-135M-Instruct: roles with an adapter each, one adapter for both
roles, all weights, and a single agent.

Claims put to the test (Stronger-MAS, arXiv 2510.11062, tables 1 and 2) with a policy that was not trained from nothing: a team
trained with AT-GRPO beats a single agent trained with GRPO at equal tokens, and one policy a role is a little better than
one for all. Three seeds take a night on two cores; `--only sums` is the shortest part.
"""

import sys

import tables
from command import main
from lab import WORLDS, Cell, Plan
from main_table import evaluate_warm_ups, untrained

# The roles of each environment: of the team, and of the agent that is alone.
MATH = (dict(workflow="check", agents=("solver", "checker")), dict(workflow="single", agents=("reasoner",)))
CODE = (dict(workflow="team", agents=("coder", "tester")), dict(workflow="single", agents=("coder",)))
PLACES = {"sums": MATH, "stories": MATH, "functions": CODE}


def cells(place):
    """The methods in an environment."""
    team, alone = PLACES[place]
    return [
        Cell("team-adapters", "team, AT-GRPO, one adapter a role", place=place, per_role=True, adapters=True, **team),
        Cell("single-adapter", "single agent, GRPO, an adapter", place=place, adapters=True, **alone),
        Cell("team-adapter", "team, AT-GRPO, one adapter for both roles", place=place, adapters=True, **team),
        Cell("team-weights", "team, AT-GRPO, all weights, one policy for both", place=place, **team),
        Cell("single-weights", "single agent, GRPO, all weights", place=place, **alone),
    ]


CELLS = [cell for place in PLACES for cell in cells(place)]


def sections(lab, seeds):
    for place in PLACES:
        there = [cell for cell in CELLS if cell.place == place]
        by_name = {cell.name: cell for cell in there}
        before = "after the warm-up" if WORLDS[place].warmup else "untrained"
        rows = [(f"single agent, {before}", untrained(lab, by_name["single-weights"], seeds)),
                (f"team, {before}", untrained(lab, by_name["team-weights"], seeds))]
        rows += [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in there]
        yield f"### {WORLDS[place].title}", tables.table(rows, seeds)
        yield f"{WORLDS[place].title}, on the way (means over seeds)", tables.curve(lab, there, seeds)


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan(CELLS, lambda lab, seed: evaluate_warm_ups(lab, seed, CELLS)), sections))
