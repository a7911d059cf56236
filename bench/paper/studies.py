#!/usr/bin/env python3
"""The smaller studies of the papers, and the gain of refill.

Claims put to the test:

    sparse      paid for success alone AT-GRPO loses 0 to 4 points (Stronger-MAS, arXiv 2510.11062)
    ensembles   with 3, 5 and 7 who propose, AT-GRPO's lead over trajectory GRPO grows (the same)
    turns       a single agent that is trained over several turns does worse than over one (the same)
    tables      at a table of five the rules differ as at one of three, and policies of one table serve at others (arXiv 2606.07845)
    strbuild    MAGRPO and AT-GRPO build words of blocks (arXiv 2601.21972). Its texts are prose: SmolLM2, and hours on a CPU;
                `walls` is the same in small
    refill      playing on until enough tasks teach (`rollout --fill`) is worth its tokens, where most groups are flat
    ends        C3 over four turns, where a whole tree is too large: a play to the end from each candidate (`rollout --expand ends=1`)
    check       a solver and a checker who have learned to calculate: in credit.py's `check` they have not, and no rule teaches it
    sums        the same by SmolLM2 with an adapter for each role: expected within 3 points of each other, and C3 behind, whose steps have
                fewer tasks

A difference counts as in credit.py. Each evaluation is appended to --results [ROOT/studies.tsv], and `table` needs nothing else;
bench/paper/studies.tsv has ours.
"""

import sys
from dataclasses import replace
from pathlib import Path

from command import main
from credit import SEATS, TABLE, at_tables
from lab import REAL, WORLDS, Cell, Plan, World
from main_table import SINGLE
from results import Results, sections, taken

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
    "check-able": replace(WORLDS["check"], title="Math: a solver, then a checker, after four times the warm-up", warmup=2400),
    "check-able-final": replace(WORLDS["check-final"], title="Math: the same, and the checker alone is paid", warmup=2400),
    "walls": World("walls", "Walls: StrBuild in small", turns=1, max_tokens=14, warmup=400, budget=120_000, samples=192, test_tasks=500,
                   command="python3 bench/paper/walls.py"),
    "strbuild": World("strbuild", "StrBuild: two builders of one letter, SmolLM2-135M-Instruct", turns=1, max_tokens=160, warmup=0,
                      budget=80_000, command="python3 examples/strbuild.py --turns 1 --letters 1 --commands 24", **dict(REAL, samples=64, test_tasks=26)),
}


def ensemble(count):
    """The agents of an ensemble."""
    reasoners, tools = PROPOSERS[count]
    names = [f"reasoner-{n + 1}" for n in range(reasoners)] + [f"tool-{n + 1}" for n in range(tools)] + ["judge"]
    return dict(place=f"ensemble-{count}", workflow="ensemble", agents=tuple(names))


CHECK = dict(workflow="check", agents=("solver", "checker"), per_role=True)
BUILDERS = dict(place="strbuild", agents=("builder-1", "builder-2"), per_role=True, adapters=True)
FIVE = dict(TABLE, place="philosophers-5", agents=SEATS(5))
# Up to 96 tasks, in waves of 12, until 24 teach; the others are left out, and their tokens are counted.
FILL = ("--tasks", 96, "--flags", "rollout=--fill 24,wave=12", "--flags", "advantage=--drop-flat")
# 116 samples a task in four turns of two agents: fewer tasks for an equal number of samples per step.
ENDS = dict(rollout="--joint aligned --expand ends=1", more=("--tasks", 26, "--flags", "advantage=--credit tree --estimator rloo"))
METHODS = {"at-grpo": "AT-GRPO", "trajectory": "trajectory GRPO", "magrpo": "MAGRPO", "drmas": "Dr. MAS"}

CELLS = [
    *(Cell(f"table-{method}", title, method=method, **FIVE) for method, title in METHODS.items()),
    *(Cell(name, title, more=more, **played) for played in (dict(CHECK, place="check"), dict(per_role=True, place="path-success"))
      for name, title, more in (("no-fill", "AT-GRPO", ()), ("fill", "AT-GRPO, refill", FILL))),
    Cell("ends-c3", "C3, a play to the end of each", per_role=True, branches=4, place="path-success", **ENDS),
    *(Cell(f"able-{method}", METHODS[method], method=method, place=place, **CHECK)
      for place in ("check-able", "check-able-final") for method in ("at-grpo", "trajectory", "magrpo")),
    *(Cell(f"real-{method}", title, method=method, place="sums", adapters=True, **dict(CHECK, **more)) for method, title, more in (
        ("at-grpo", "AT-GRPO", {}), ("magrpo", "MAGRPO", {}), ("drmas", "Dr. MAS", {}),
        # Four candidates with four below each: fewer tasks for an equal number of samples per step.
        ("c3", "C3", dict(branches=4, more=("--tasks", WORLDS["sums"].samples // 10))))),
    Cell("turns-once", "single agent, GRPO", place="code-once", workflow="single", agents=("coder",)),
    Cell("turns-two", "single agent, GRPO, two turns", place="code-team", workflow="single", agents=("coder",)),
    *(Cell("sparse-at-grpo", "AT-GRPO", place=place) for grid in GRIDS for place in (f"{grid}-success", grid)),
    *(Cell("sparse-single", "single agent, GRPO", place=f"{grid}-success", **SINGLE) for grid in GRIDS),
    *(Cell(f"ensemble-{method or 'at-grpo'}", title, method=method, **ensemble(count))
      for count in PROPOSERS for method, title in (("", "AT-GRPO"), ("trajectory", "trajectory GRPO"))),
    *(Cell(f"walls-{method}", METHODS[method], method=method, place="walls", agents=("left", "right"), per_role=True)
      for method in ("at-grpo", "trajectory", "magrpo")),
    Cell("walls-single", "single agent, GRPO", place="walls", workflow="single", agents=("builder",), options="--agents 1", max_tokens=26),
    Cell("strbuild-magrpo", "MAGRPO", method="magrpo", **BUILDERS),
    Cell("strbuild-at-grpo", "AT-GRPO", **BUILDERS),
]

if __name__ == "__main__":
    ROOT = sys.argv[sys.argv.index("--root") + 1] if "--root" in sys.argv else "runs/experiments"
    RESULTS = Results(taken(sys.argv, "--results", Path(ROOT) / "studies.tsv"), at_tables)
    plan = Plan(CELLS, finished=RESULTS.finished, known=RESULTS.known)
    sys.exit(main(__doc__, plan, lambda lab, seeds: list(sections(RESULTS, seeds, plan.cells))[1:]))
