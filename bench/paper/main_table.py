#!/usr/bin/env python3
"""The main table: one agent against a team, untrained against trained, trajectory-level GRPO against AT-GRPO.

Claims put to the test (Stronger-MAS, arXiv 2510.11062, tables 1 and 2): a team trained with AT-GRPO beats a single agent
trained with GRPO, the untrained team, and the team trained with trajectory-level GRPO; one policy a role is a little
better than one for all. Every trained row has generated the same number of tokens.
"""

import sys

import tables
from command import main
from lab import SINGLE, WORLDS, Cell, Plan

TRAJECTORY = dict(rollout="--sampling parallel", group="--by episode")

METHODS = [
    dict(name="team-at-grpo", title="team, AT-GRPO, one policy"),
    dict(name="single-grpo", title="single agent, GRPO", **SINGLE),
    dict(name="team-trajectory", title="team, trajectory GRPO, all rewards", advantage="advantage --credit episode --quiet", **TRAJECTORY),
    dict(name="team-at-grpo-per-role", title="team, AT-GRPO, one policy a role", per_role=True),
    dict(name="team-trajectory-outcome", title="team, trajectory GRPO, success only", **TRAJECTORY,
         advantage="jq -c 'if .type == \"sample\" then .reward = (if .agent == \"planner\" and .rewards.team == 1 then 1 else 0 end)"
                   " else . end'"
                   " | advantage --credit episode --quiet"),
]

PLACES = ["plan-path", "plan-path-long", "sudoku", "sokoban"]
CELLS = [Cell(place=place, **method) for place in PLACES for method in METHODS]


def untrained(lab, cell, seeds):
    """What the warm-up of a cell scores."""
    found = [tables.scores(lab.base(cell, seed)) for seed in seeds]
    return [scores[0] if scores else None for scores in found]


def evaluate_warm_ups(lab, seed, cells):
    """Evaluates the warm-ups that cells begin with."""
    for cell in cells:
        base = lab.base(cell, seed)
        if (base / "policies" / "done").exists():
            players = {agent: base / "policies" / "shared" for agent in cell.agents}
            lab.evaluate(cell, base, base / "policies", 0, players)


def sections(lab, seeds):
    for place in PLACES:
        cells = {cell.name: cell for cell in CELLS if cell.place == place}
        order = ["single-grpo", "team-trajectory", "team-trajectory-outcome", "team-at-grpo", "team-at-grpo-per-role"]
        rows = [("single agent, untrained", untrained(lab, cells["single-grpo"], seeds)),
                ("team, untrained", untrained(lab, cells["team-at-grpo"], seeds))]
        rows += [(cells[name].title, [tables.final(lab, cells[name], seed) for seed in seeds]) for name in order]
        yield f"### {WORLDS[place].title}", tables.table(rows, seeds)
        yield f"{WORLDS[place].title}, on the way (means over seeds)", tables.curve(lab, [cells[name] for name in order], seeds)


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan(CELLS, lambda lab, seed: evaluate_warm_ups(lab, seed, CELLS)), sections))
