#!/usr/bin/env python3
"""The smaller studies of the papers, and the gain of refill.

Claims put to the test:

    sparse      paid for success alone AT-GRPO loses 0 to 4 points (Stronger-MAS, arXiv 2510.11062)
    ensembles   with 3, 5 and 7 who propose, AT-GRPO's lead over trajectory GRPO grows (the same)
    turns       a single agent that is trained over several turns does worse than over one (the same)
    strbuild    MAGRPO and AT-GRPO build words of blocks (arXiv 2601.21972). Its texts are prose: SmolLM2, and hours on a CPU
    refill      playing on until enough tasks teach (`rollout --fill`) is worth its tokens, where most groups are flat

A difference counts as in credit.py; with two seeds, from 3 points on.
"""

import sys
from dataclasses import replace

import tables
from command import main
from lab import REAL, WORLDS, Cell, Plan, World
from main_table import SINGLE, evaluate_warm_ups, untrained

GRIDS = ("plan-path", "sudoku", "sokoban")
# By the number of those who propose: one more reasoner than tools.
PROPOSERS = {3: (2, 1), 5: (3, 2), 7: (4, 3)}

WORLDS |= {f"{grid}-success": replace(WORLDS[grid], title=f"{WORLDS[grid].title}, paid for success alone", settings=("reward=success",))
           for grid in GRIDS}
WORLDS |= {f"ensemble-{count}": replace(WORLDS["math-team"], title=f"Math: {count} propose, one judges", turns=1, samples=192,
                                        settings=(f"reasoners={reasoners}", f"tools={tools}"))
           for count, (reasoners, tools) in PROPOSERS.items()}
WORLDS |= {
    "code-once": replace(WORLDS["code-team"], title="Code: a single agent, one turn", turns=1, settings=("turns=1",)),
    "check": replace(WORLDS["math-team"], title="Math: a solver, then a checker", turns=1, settings=("reward=success",)),
    "strbuild": World("strbuild", "StrBuild: two builders of one letter, SmolLM2-135M-Instruct", turns=1, max_tokens=160, warmup=0,
                      budget=80_000, settings=("turns=1", "letters=1", "commands=24"), **dict(REAL, samples=64, test_tasks=26)),
}


def ensemble(count):
    """The agents of an ensemble."""
    reasoners, tools = PROPOSERS[count]
    names = [f"reasoner-{n + 1}" for n in range(reasoners)] + [f"tool-{n + 1}" for n in range(tools)] + ["judge"]
    return dict(place=f"ensemble-{count}", workflow="ensemble", agents=tuple(names))


CHECK = dict(place="check", workflow="check", agents=("solver", "checker"), per_role=True)
BUILDERS = dict(place="strbuild", agents=("builder-1", "builder-2"), per_role=True, adapters=True)
# Up to 96 tasks, in waves of 12, until 24 teach; the others are left out, and their tokens are counted.
FILL = ("--tasks", 96, "--flags", "rollout=--fill 24 --fill-wave 12", "--flags", "advantage=--drop-flat")

CELLS = [
    Cell("no-fill", "AT-GRPO", **CHECK),
    Cell("fill", "AT-GRPO, refill", more=FILL, **CHECK),
    Cell("turns-once", "single agent, GRPO", place="code-once", workflow="single", agents=("coder",)),
    Cell("turns-two", "single agent, GRPO, two turns", place="code-team", workflow="single", agents=("coder",)),
    *(Cell("sparse-at-grpo", "AT-GRPO", place=place) for grid in GRIDS for place in (f"{grid}-success", grid)),
    *(Cell("sparse-single", "single agent, GRPO", place=f"{grid}-success", **SINGLE) for grid in GRIDS),
    *(Cell(f"ensemble-{method or 'at-grpo'}", title, method=method, **ensemble(count))
      for count in PROPOSERS for method, title in (("", "AT-GRPO"), ("trajectory", "trajectory GRPO"))),
    Cell("strbuild-magrpo", "MAGRPO", method="magrpo", **BUILDERS),
    Cell("strbuild-at-grpo", "AT-GRPO", **BUILDERS),
]


def sections(lab, seeds, all_cells):
    for place in dict.fromkeys(cell.place for cell in all_cells):
        there = [cell for cell in all_cells if cell.place == place]
        rows = [(f"{cell.workflow}, untrained", untrained(lab, cell, seeds)) for cell in {cell.workflow: cell for cell in there}.values()]
        rows += [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in there]
        yield f"### {WORLDS[place].title}", tables.table(rows, seeds)
        yield f"{WORLDS[place].title}, on the way (means over seeds)", tables.curve(lab, there, seeds)


if __name__ == "__main__":
    plan = Plan(CELLS)
    plan.after = lambda lab, seed: evaluate_warm_ups(lab, seed, plan.cells)
    sys.exit(main(__doc__, plan, lambda lab, seeds: sections(lab, seeds, plan.cells)))
