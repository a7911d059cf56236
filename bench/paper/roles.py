#!/usr/bin/env python3
"""Roles: policies exchanged after training, roles trained alone and then put together.

Claims put to the test (Stronger-MAS, arXiv 2510.11062, table 4, Plan-Path): policies trained together for their roles
are worth nothing in each other's role (96 falls to 6), and roles that were trained alone are worth little when put
together (16). The paper trains each role as a single agent; here the team stays whole, the other role is played by the
untrained policy and is not trained. Two roles trained alone have generated twice the tokens of the pair trained together.
"""

import sys

import tables
from command import main
from lab import Cell, Plan
from main_table import CELLS as MAIN, untrained

TOGETHER = next(cell for cell in MAIN if cell.name == "team-at-grpo-per-role")
TOOL = Cell("team-tool-alone", "only the tool is trained", per_role=True, train=("tool",))
PLANNER = Cell("team-planner-alone", "only the planner is trained", per_role=True, train=("planner",))


def evaluate(lab, seed):
    """The pairs that nobody trained as such."""
    policies = {cell.name: lab.directory(cell, seed) / "policies" for cell in (TOGETHER, TOOL, PLANNER)}
    pairs = {"swapped": (TOGETHER, {"tool": policies[TOGETHER.name] / "planner", "planner": policies[TOGETHER.name] / "tool"}),
             "put-together": (TOOL, {"tool": policies[TOOL.name] / "tool", "planner": policies[PLANNER.name] / "planner"})}
    for name, (cell, players) in pairs.items():
        whole = [other for other in (TOGETHER, TOOL, PLANNER) if any(policies[other.name] in folder.parents for folder in players.values())]
        found = [tables.final(lab, other, seed) for other in whole]
        if all(found):
            lab.evaluate(cell, lab.directory(cell, seed), None, found[0].steps, players, name)


def pair(lab, cell, seed, name):
    """The evaluation called `name`, if its pair was there when it was made."""
    scores = tables.scores(lab.directory(cell, seed), name)
    return scores[-1] if scores else None


def sections(lab, seeds):
    def trained(cell):
        return [tables.final(lab, cell, seed) for seed in seeds]

    yield "### Roles on Plan-Path", tables.table([
        ("untrained", untrained(lab, TOGETHER, seeds)),
        (TOOL.title, trained(TOOL)),
        (PLANNER.title, trained(PLANNER)),
        ("those two, put together", [pair(lab, TOOL, seed, "put-together") for seed in seeds]),
        ("both trained together", trained(TOGETHER)),
        ("the same, roles swapped", [pair(lab, TOGETHER, seed, "swapped") for seed in seeds]),
    ], seeds)


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan([TOGETHER, TOOL, PLANNER], evaluate), sections))
