#!/usr/bin/env python3
"""Which credit rule, and when: every rule that fits an environment, at equal generated tokens.

What each rule can see follows from small games (docs/credit.md); here is what it is worth when it learns. Expected beforehand:

    write       only the second agent's text pays: trees and returns learn, own-turn credit leaves the first agent's groups flat
    check       proposals are paid as if adopted: own-turn credit first; check-final pays the last word alone: as write
    path        success alone, four turns: returns and trees over own-turn credit
    shaped      every turn pays: own-turn credit first; watch the turns of an episode under returns
    orders      at once and against a clock, coop-*: a stag hunt in words: the mean alone against division by the deviation
    code        a coder and a tester: does the second role matter

A difference counts if the interval of its mean over seeds, paired with at-grpo's, leaves out 0 and it is 3 points or more. Tokens of
groups that taught nothing are counted. Learning rates are pipeline.sh's for all, unless --rate says by what to multiply them:
choose one for each rule on a seed that is not compared. 5 seeds (--seeds 1,2,3,4,5), 3 to screen. A run of a tiny policy takes 20 to 70
CPU-seconds, all of it about four CPU-hours; interrupted, it goes on where it was.
"""

import math
import statistics
import sys
from dataclasses import replace

import tables
from command import main
from lab import WORLDS, Cell, Plan
from main_table import evaluate_warm_ups, untrained

WORLDS |= {
    "write-pipeline": replace(WORLDS["write"], title="Write: the second text alone pays", turns=1),
    "check": replace(WORLDS["math-team"], title="Math: a solver, then a checker", turns=1, settings=("reward=success",)),
    "check-final": replace(WORLDS["math-team"], title="Math: a solver, then a checker, who alone is paid", turns=1,
                           settings=("reward=success", "pay=final")),
    "path-success": replace(WORLDS["plan-path"], title="Plan-Path, success alone pays", settings=("reward=success",)),
}

# The rules by name: flags of pipeline.sh.
RULES = {
    "at-grpo": ("AT-GRPO", dict()),
    "at-grpo-mean": ("AT-GRPO, mean alone", dict(more=("--flags", "advantage=--std none"))),
    "trajectory": ("trajectory GRPO", dict(method="trajectory")),
    "drmas": ("Dr. MAS", dict(method="drmas")),
    "magrpo": ("MAGRPO", dict(method="magrpo")),
    "cross": ("MAGRPO, cross", dict(method="magrpo-cross")),
    "c3": ("C3", dict(method="c3")),
    "gigpo": ("GiGPO", dict(method="gigpo")),
    "rae": ("RAE", dict(method="rae")),
}
AT_ONCE = tuple(RULES)
# Agents one after another have no combinations of candidates beyond those of an aligned tree.
IN_TURN = tuple(rule for rule in RULES if rule != "cross")
# A tree of four turns has too many nodes: its rules are left out.
LONG = tuple(rule for rule in AT_ONCE if rule != "c3")

PLACES = {
    "write-pipeline": (dict(workflow="pipeline", agents=("writer-1", "writer-2")), IN_TURN),
    "check": (dict(workflow="check", agents=("solver", "checker")), IN_TURN),
    "check-final": (dict(workflow="check", agents=("solver", "checker")), IN_TURN),
    "path-success": (dict(), tuple(rule for rule in LONG if rule != "cross")),
    "plan-path": (dict(), tuple(rule for rule in LONG if rule != "cross")),
    "orders": (dict(agents=("first", "second")), LONG),
    "coop-small": (dict(agents=("aux", "main")), AT_ONCE),
    "coop-shared": (dict(agents=("aux", "main")), AT_ONCE),
    "code-team": (dict(agents=("coder", "tester")), LONG),
}


def cell(place, rule):
    """A run of a rule: one policy for each agent, so that no rule shares what another learns apart."""
    title, flags = RULES[rule]
    own, _ = PLACES[place]
    if rule == "c3":
        flags = dict(flags, branches=4)
        # Four candidates and four below each are 20 samples a task: as many a step as the others have.
        flags |= dict(more=("--tasks", WORLDS[place].samples // 10)) if own.get("workflow") else {}
    return Cell(f"credit-{rule}", title, place=place, per_role=True, **own, **flags)


CELLS = [cell(place, rule) for place, (_, rules) in PLACES.items() for rule in rules]
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def difference(lab, one, other, seeds):
    """Mean of one cell's success less another's, in points, paired by seed, with half of its 95 % interval."""
    pairs = [(tables.final(lab, one, seed), tables.final(lab, other, seed)) for seed in seeds]
    values = [a.rate - b.rate for a, b in pairs if a and b]
    if len(values) < 2:
        return None
    half = STUDENT.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), half


def sections(lab, seeds, all_cells):
    for place in PLACES:
        there = [cell for cell in all_cells if cell.place == place]
        if not there:
            continue
        rows = [("untrained", untrained(lab, there[0], seeds))]
        rows += [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in there]
        yield f"### {WORLDS[place].title}", tables.table(rows, seeds)
        lines = ["| rule | less AT-GRPO, points |", "|---|---|"]
        for one in there[1:]:
            found = difference(lab, one, there[0], seeds)
            counts = found and abs(found[0]) >= 3 and abs(found[0]) > found[1]
            text = f"{found[0]:+.1f} ± {found[1]:.1f}" if found else "not run"
            lines.append(f"| {one.title} | {f'**{text}**' if counts else text} |")
        yield f"{WORLDS[place].title}: paired differences", "\n".join(lines)
        yield f"{WORLDS[place].title}, on the way (means over seeds)", tables.curve(lab, there, seeds)


def rated(words):
    """The cells with their learning rates multiplied by --rate X, which is taken out of `words`; other runs by their names."""
    if "--rate" not in words:
        return CELLS
    place = words.index("--rate")
    rate = float(words[place + 1])
    del words[place:place + 2]
    learning = ("--lr", f"{rate * 1e-3:g}")
    return [replace(cell, name=f"{cell.name}-x{rate:g}", title=f"{cell.title}, learning rate × {rate:g}", more=cell.more + learning) for cell in CELLS]


if __name__ == "__main__":
    plan = Plan(rated(sys.argv))
    plan.after = lambda lab, seed: evaluate_warm_ups(lab, seed, plan.cells)
    sys.exit(main(__doc__, plan, lambda lab, seeds: sections(lab, seeds, plan.cells)))
