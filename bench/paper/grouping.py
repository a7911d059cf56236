#!/usr/bin/env python3
"""Ablations of AT-GRPO on the team with one policy: grouping, tree or parallel, number of candidates, team or local reward.

Claims put to the test (Stronger-MAS, arXiv 2510.11062): comparing candidates for one action in one state beats comparing
anything else; branching at every turn beats whole episodes side by side; more candidates are better; team and local
reward are both needed (the paper sets their ratio to 1 without tuning it). A step has the same number of samples
for any K, so all cells take about equally many optimizer steps.
"""

import sys

import tables
from command import main
from lab import Cell, Plan
from main_table import CELLS as MAIN

ALPHA = "advantage --team-weight {} --quiet"
OURS = next(cell for cell in MAIN if cell.name == "team-at-grpo")
TRAJECTORY = next(cell for cell in MAIN if cell.name == "team-trajectory")

GROUPING = [
    Cell("team-by-task", "tree, all samples of a task", group="--by task"),
    Cell("team-by-agent", "tree, by agent", group="--by agent"),
    Cell("team-by-turn", "tree, by turn", group="--by turn"),
    Cell("team-parallel", "parallel, by agent and turn", rollout="--sampling parallel"),
    Cell("team-parallel-return", "parallel, by agent and turn, return", rollout="--sampling parallel",
         advantage="advantage --credit return --quiet"),
]
BRANCHES = [Cell(f"team-k{k}", f"K = {k}, {384 // k} tasks a step", branches=k) for k in (2, 4, 16)]
ALPHAS = [Cell("team-alpha-0", "alpha = 0: the agent's own reward only", advantage=ALPHA.format(0)),
          Cell("team-alpha-half", "alpha = 0.5", advantage=ALPHA.format(0.5)),
          Cell("team-alpha-only", "team reward only (alpha without end)",
               advantage="jq -c 'if .type == \"sample\" then .reward = .rewards.team else . end' | advantage --quiet")]


def sections(lab, seeds):
    def rows(cells):
        return tables.table([(title, [tables.final(lab, cell, seed) for seed in seeds]) for title, cell in cells], seeds)

    yield "### What is compared with what (K = 8, alpha = 1)", rows(
        [("tree, by agent and turn (AT-GRPO)", OURS), *((cell.title, cell) for cell in GROUPING),
         ("parallel, whole episodes (trajectory GRPO)", TRAJECTORY)])
    two, four, sixteen = BRANCHES
    yield "### How many candidates (tree, by agent and turn)", rows(
        [(two.title, two), (four.title, four), ("K = 8, 48 tasks a step", OURS), (sixteen.title, sixteen)])
    none, half, only = ALPHAS
    yield "### The weight of the team's reward", rows(
        [(none.title, none), (half.title, half), ("alpha = 1", OURS), (only.title, only)])


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan([OURS, TRAJECTORY, *GROUPING, *BRANCHES, *ALPHAS]), sections))
