#!/usr/bin/env python3
"""Which credit rule, and when: every rule that fits an environment, at equal generated tokens.

Small games show what each rule can see (docs/credit.md); here it learns. Expected beforehand:

    write-pipeline     only the second agent's text pays: trees and returns learn more, own-turn credit leaves the first agent's groups flat
    path-success       success alone, four turns: returns and trees over own-turn credit
    philosophers       a fork is grabbed a turn before the meal pays: returns over own-turn credit
    philosophers-four  doing nothing earns 0.75: returns learn to wait, and the meals do not rise
    coop-*, orders     at once; coop is a stag hunt in words: the mean alone over division by the deviation
    plan-path          every turn pays: own-turn credit first; watch the turns of an episode under returns
    code-team          a coder and a tester: does the second role matter?
    write-at-once      components of different spread: GDPO lifts the rare ones; both texts pay both: little else differs
    check              proposals are paid as if adopted: own-turn credit first; check-final pays the last word alone: as write-pipeline

Compared by success, or by the team's reward in points of the greatest where success is all or nothing (write, philosophers).
A difference counts if the interval of its mean over seeds, paired with AT-GRPO's, leaves out 0 and it is 3 points or more. Tokens of
groups that taught nothing are counted. Learning rates are pipeline.sh's for all, unless --rate says by what to multiply them:
choose one for each rule on a seed that is not compared. 5 seeds (--seeds 1,2,3,4,5), 3 to screen. A run of a tiny policy takes 10 to 70
CPU-seconds, a seed of all of them about half an hour.

Each evaluation is appended to --results [ROOT/credit.tsv]; `run` leaves out cells that are there, and `table` needs nothing else. So an
interrupted bench goes on where it was, and run directories can be deleted. --results bench/paper/credit.tsv goes on with ours. A finished run keeps the samples of three steps.
"""

import sys
from dataclasses import replace
from pathlib import Path

from command import main
from lab import WORLDS, Cell, Plan, World
from results import Results, sections, taken

DINNER = "python3 examples/philosophers.py"
PHILOSOPHERS = World("philosophers", "Dining philosophers, three, paid by meals", turns=12, max_tokens=2, warmup=200, budget=240_000, samples=64,
                     test_tasks=200, marks=(1 / 4, 1 / 2, 1), sampled=True, command=DINNER)
# Tables, to try the policies of another.
SEATED = {3: "philosophers", 5: "philosophers-5", 10: "philosophers-10", 15: "philosophers-15"}

WORLDS |= {
    "write-pipeline": replace(WORLDS["write"], title="Write: the second text alone pays", turns=1),
    "write-at-once": replace(WORLDS["write"], title="Write: two at once, one turn", turns=1),
    "check": replace(WORLDS["math-team"], title="Math: a solver, then a checker", turns=1, settings=("reward=success",)),
    "check-final": replace(WORLDS["math-team"], title="Math: a solver, then a checker, who alone is paid", turns=1,
                           settings=("reward=success", "pay=final")),
    "path-success": replace(WORLDS["plan-path"], title="Plan-Path, success alone pays", settings=("reward=success",)),
    "philosophers": PHILOSOPHERS,
    "philosophers-four": replace(PHILOSOPHERS, title="Dining philosophers, three, paid by four terms", command=f"{DINNER} --reward four"),
}
WORLDS |= {place: replace(PHILOSOPHERS, title=f"Dining philosophers, {count}", command=f"{DINNER} --philosophers {count}")
           for count, place in SEATED.items() if count != 3}

# Components of write's reward.
WRITTEN = "connectives,length,overlap,structure,vocabulary"
# The rules by name: flags of pipeline.sh.
RULES = {
    "at-grpo": ("AT-GRPO", dict()),
    "at-grpo-mean": ("AT-GRPO, mean alone", dict(more=("--flags", "advantage=--std none"))),
    "trajectory": ("trajectory GRPO", dict(method="trajectory")),
    "magrpo": ("MAGRPO", dict(method="magrpo")),
    "c3": ("C3", dict(method="c3")),
    "drmas": ("Dr. MAS", dict(method="drmas")),
    "gigpo": ("GiGPO", dict(method="gigpo")),
    "rae": ("RAE", dict(method="rae")),
    "cross": ("MAGRPO, cross", dict(method="magrpo-cross")),
    "gdpo": ("GDPO", dict(method="gdpo", more=("--flags", f"advantage=--components {WRITTEN}"))),
}
# GDPO needs a reward of several components.
AT_ONCE = tuple(rule for rule in RULES if rule != "gdpo")
# Agents one after another have no combinations of candidates beyond an aligned tree.
IN_TURN = tuple(rule for rule in AT_ONCE if rule != "cross")
# A tree of four turns has too many nodes: its rules are left out.
LONG = tuple(rule for rule in AT_ONCE if rule != "c3")
LONG_IN_TURN = tuple(rule for rule in LONG if rule != "cross")

SEATS = lambda count: tuple(f"philosopher-{i + 1}" for i in range(count))
# One policy for all seats, which are told their number, so that it can be asked to sit at larger tables.
TABLE = dict(agents=SEATS(3), per_role=False)

# The most telling first.
PLACES = {
    "write-pipeline": (dict(workflow="pipeline", agents=("writer-1", "writer-2")), IN_TURN),
    "philosophers": (TABLE, LONG_IN_TURN),
    "coop-small": (dict(agents=("aux", "main")), AT_ONCE),
    "path-success": (dict(), LONG_IN_TURN),
    "check-final": (dict(workflow="check", agents=("solver", "checker")), IN_TURN),
    "philosophers-four": (TABLE, LONG_IN_TURN),
    "plan-path": (dict(), LONG_IN_TURN),
    "code-team": (dict(agents=("coder", "tester")), LONG),
    "check": (dict(workflow="check", agents=("solver", "checker")), IN_TURN),
    "orders": (dict(agents=("first", "second")), LONG),
    "coop-shared": (dict(agents=("aux", "main")), AT_ONCE),
    "write-at-once": (dict(agents=("writer-1", "writer-2")), (*AT_ONCE, "gdpo")),
}


def cell(place, rule):
    """A run of a rule: one policy for each agent, so that no rule shares what another learns apart."""
    title, flags = RULES[rule]
    own, _ = PLACES[place]
    own = dict(per_role=True) | own
    if rule == "c3":
        flags = dict(flags, branches=4)
        # Four candidates with four below each make 20 samples per task, so fewer tasks give an equal number per step.
        flags |= dict(more=("--tasks", WORLDS[place].samples // 10)) if own.get("workflow") else {}
    return Cell(f"credit-{rule}", title, place=place, **own, **flags)


def at_tables(cell):
    """Where else the policies of a table are tried."""
    if cell.place not in SEATED.values():
        return []
    return [(str(count), replace(cell, place=place, agents=SEATS(count))) for count, place in SEATED.items() if place != cell.place]


CELLS = [cell(place, rule) for place, (_, rules) in PLACES.items() for rule in rules]


def rated(rate):
    """The cells with their learning rates multiplied; other runs by their names."""
    if rate == 1:
        return CELLS
    learning = ("--lr", f"{rate * 1e-3:g}")
    return [replace(cell, name=f"{cell.name}-x{rate:g}", title=f"{cell.title}, learning rate × {rate:g}", more=cell.more + learning) for cell in CELLS]


if __name__ == "__main__":
    ROOT = sys.argv[sys.argv.index("--root") + 1] if "--root" in sys.argv else "runs/experiments"
    RESULTS = Results(taken(sys.argv, "--results", Path(ROOT) / "credit.tsv"), at_tables)
    plan = Plan(rated(float(taken(sys.argv, "--rate", "1"))), finished=RESULTS.finished, known=RESULTS.known)
    sys.exit(main(__doc__, plan, lambda lab, seeds: sections(RESULTS, seeds, plan.cells)))
