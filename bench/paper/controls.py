#!/usr/bin/env python3
"""Controls: is it the second agent that helps, or the language in which it speaks?

On Plan-Path the tool proposes a route of cells and the planner answers with moves. If the team's gain comes from two agents, it must survive a proposal in the planner's language, the planner must add something to a mechanical translation of the
route, and a single agent that writes a route and then its moves in one answer must stay behind.
"""

import sys

import tables
from command import main
from lab import SINGLE, Cell, Plan
from main_table import CELLS as MAIN, evaluate_warm_ups, untrained

TEAM, SINGLE_AGENT, PER_ROLE = (next(cell for cell in MAIN if cell.place == "plan-path" and cell.name == name)
                                for name in ("team-at-grpo", "single-grpo", "team-at-grpo-per-role"))
ROUTE = Cell("route-moves-grpo", "single agent that writes route and moves, GRPO", **dict(SINGLE, workflow="route-moves"))
MOVES = Cell("team-at-grpo", "team, the tool proposes moves, AT-GRPO", place="plan-path-moves")
CELLS = [ROUTE, MOVES, TEAM, SINGLE_AGENT, PER_ROLE]


def evaluate(lab, seed):
    """The untrained policies, and tools whose routes are carried out without a planner."""
    evaluate_warm_ups(lab, seed, CELLS)
    for cell in (TEAM, PER_ROLE):
        done = tables.final(lab, cell, seed)
        if done:
            tool = lab.directory(cell, seed) / "policies" / cell.policies()["tool"]
            lab.evaluate(cell, lab.directory(cell, seed), None, done.steps, {"tool": tool}, "mechanical", "mechanical")


def sections(lab, seeds):
    def trained(cell):
        return [tables.final(lab, cell, seed) for seed in seeds]

    def mechanical(cell):
        found = [tables.scores(lab.directory(cell, seed), "mechanical") for seed in seeds]
        return [scores[-1] if scores else None for scores in found]

    yield "### Controls on Plan-Path, a third of the usual warm-up", tables.table([
        ("single agent, untrained", untrained(lab, SINGLE_AGENT, seeds)),
        ("single agent that writes route and moves, untrained", untrained(lab, ROUTE, seeds)),
        ("team whose tool proposes moves, untrained", untrained(lab, MOVES, seeds)),
        ("team, untrained", untrained(lab, TEAM, seeds)),
        (SINGLE_AGENT.title, trained(SINGLE_AGENT)),
        (ROUTE.title, trained(ROUTE)),
        (MOVES.title, trained(MOVES)),
        (TEAM.title, trained(TEAM)),
        ("its tool alone, route translated mechanically", mechanical(TEAM)),
        (PER_ROLE.title, trained(PER_ROLE)),
        ("its tool alone, route translated mechanically", mechanical(PER_ROLE)),
    ], seeds)
    yield "On the way (means over seeds)", tables.curve(lab, [SINGLE_AGENT, ROUTE, MOVES, TEAM], seeds)


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan(CELLS, evaluate), sections))
