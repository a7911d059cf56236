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
CPU-seconds, a seed of all of them about an hour and a half.

Each evaluation is appended to --results [ROOT/credit.tsv]; `run` leaves out cells that are there, and `table` needs nothing else. So an
interrupted bench goes on where it was, and run directories can be deleted. --results experiments/credit.tsv goes on with ours. A finished run keeps the samples of three steps.
"""

import csv
import math
import statistics
import sys
import threading
from dataclasses import replace
from pathlib import Path

import tables
from command import main
from lab import WORLDS, Cell, Plan, World, tokens
from main_table import evaluate_warm_ups

PHILOSOPHERS = World("philosophers", "Dining philosophers, three, paid by meals", turns=12, max_tokens=2, warmup=200, budget=240_000, samples=64,
                     test_tasks=200, marks=(1 / 4, 1 / 2, 1), sampled=True)
# Larger tables, to try the policies of three.
LARGER = (5, 10, 15)

WORLDS |= {
    "write-pipeline": replace(WORLDS["write"], title="Write: the second text alone pays", turns=1),
    "write-at-once": replace(WORLDS["write"], title="Write: two at once, one turn", turns=1),
    "check": replace(WORLDS["math-team"], title="Math: a solver, then a checker", turns=1, settings=("reward=success",)),
    "check-final": replace(WORLDS["math-team"], title="Math: a solver, then a checker, who alone is paid", turns=1,
                           settings=("reward=success", "pay=final")),
    "path-success": replace(WORLDS["plan-path"], title="Plan-Path, success alone pays", settings=("reward=success",)),
    "philosophers": PHILOSOPHERS,
    "philosophers-four": replace(PHILOSOPHERS, title="Dining philosophers, three, paid by four terms", settings=("reward=four",)),
}
WORLDS |= {f"philosophers-{count}": replace(PHILOSOPHERS, settings=(f"philosophers={count}",)) for count in LARGER}

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
# Agents one after another have no combinations of candidates beyond those of an aligned tree.
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
# Where success is all or nothing: the team's greatest reward of an episode, in place of success.
GREATEST = {"write-pipeline": 3.0, "write-at-once": 3.0, "philosophers": 1.0, "philosophers-four": 1.0}


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


CELLS = [cell(place, rule) for place, (_, rules) in PLACES.items() for rule in rules]
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


class Results:
    """The file of all evaluations, one a line."""

    COLUMNS = ["place", "rule", "seed", "table", "part", "tokens", "steps", "episodes", "successes", "reward", "cpu_seconds"]

    def __init__(self, file):
        self.file, self.lock, self.rows = Path(file), threading.Lock(), []
        if self.file.exists():
            with open(self.file, encoding="utf-8", newline="") as lines:
                self.rows = list(csv.DictReader(lines, delimiter="\t"))

    def find(self, place, rule, seed, part="1", table=""):
        """The line of an evaluation, or None."""
        wanted = dict(place=place, rule=rule, seed=str(seed), part=part, table=table)
        return next((row for row in self.rows if all(row[key] == value for key, value in wanted.items())), None)

    def known(self, cell, seed):
        return self.find(cell.place, rule_of(cell), seed) is not None

    def add(self, place, rule, seed, part, file, spent=0, steps=0, seconds=0.0, table=""):
        """Counts the episodes of an evaluation's file, and appends them."""
        if self.find(place, rule, seed, part, table):
            return
        successes, episodes = tables.count(file)
        row = dict(place=place, rule=rule, seed=str(seed), table=str(table), part=part, tokens=str(spent), steps=str(steps),
                   episodes=str(episodes), successes=str(successes), reward=f"{tables.answers(file).reward:.5f}", cpu_seconds=f"{seconds:.1f}")
        begins = not self.file.exists()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a", encoding="utf-8", newline="") as lines:
            out = csv.DictWriter(lines, self.COLUMNS, delimiter="\t", lineterminator="\n")
            out.writeheader() if begins else None
            out.writerow(row)
        self.rows.append(row)

    def finished(self, lab, cell, seed):
        """Appends the evaluations of a run and of its warm-up, and those at larger tables; keeps the samples of three steps."""
        with self.lock:
            evaluate_warm_ups(lab, seed, [cell])
            self.add(cell.place, "untrained", seed, "0", lab.base(cell, seed) / "eval" / "step-000000.jsonl")
            directory, spent = lab.directory(cell, seed), tokens(lab.directory(cell, seed))
            if cell.place == "philosophers":
                self.larger(lab, cell, seed, directory, len(spent))
            # The last one says that the run is done. One that ended before because all groups were flat would not have changed.
            found = tables.scores(directory)
            for mark in cell.world.marks:
                score = next((score for score in found if score.tokens >= int(cell.budget * mark)), found[-1])
                file = directory / "eval" / f"step-{score.steps:06}.jsonl"
                self.add(cell.place, rule_of(cell), seed, f"{mark:g}", file, score.tokens, score.steps, score.cpu_seconds)
            for step in range(1, len(spent) + 1):
                if step not in (1, (len(spent) + 1) // 2, len(spent)):
                    (directory / "steps" / f"{step:06}" / "samples.jsonl").unlink(missing_ok=True)

    def larger(self, lab, cell, seed, directory, step):
        """Plays a finished run's policy at larger tables."""
        for count in LARGER:
            other = replace(cell, place=f"philosophers-{count}", agents=SEATS(count))
            lab.evaluate(other, directory, directory / "policies", step, name=f"eval-{count}")
            self.add(cell.place, rule_of(cell), seed, "1", directory / f"eval-{count}" / f"step-{step:06}.jsonl", steps=step, table=str(count))


def rule_of(cell):
    return cell.name.removeprefix("credit-")


def points(row):
    """The number to compare, of a line: per cent of success, or of the greatest reward."""
    if row["place"] in GREATEST:
        return 100 * float(row["reward"]) / GREATEST[row["place"]]
    return 100 * int(row["successes"]) / int(row["episodes"])


def difference(ones, others):
    """Mean of differences paired by seed, with half of its 95 % interval; None for fewer than two pairs."""
    values = [points(one) - points(other) for one, other in zip(ones, others) if one and other]
    if len(values) < 2:
        return None
    half = STUDENT.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), half


def compared(results, place, rule, first, seeds):
    """A rule's mean at a place, bold where it counts as different from the first rule's there."""
    rows = [results.find(place, rule, seed, "0" if rule == "untrained" else "1") for seed in seeds]
    done = [row for row in rows if row]
    if not done:
        return ""
    text = f"{statistics.mean(map(points, done)):.1f}"
    less = difference(rows, [results.find(place, first, seed) for seed in seeds]) if rule not in (first, "untrained") else None
    return f"**{text}**" if less and abs(less[0]) >= 3 and abs(less[0]) > less[1] else text


def summary(results, seeds, all_cells):
    """All places side by side: means over the seeds that are there."""
    by_place = {place: [cell for cell in all_cells if cell.place == place] for place in PLACES}
    there = [place for place, cells in by_place.items() if any(results.known(cell, seed) for cell in cells for seed in seeds)]
    lines = ["| rule | " + " | ".join(there) + " |", "|" + "---|" * (len(there) + 1)]
    titles = {"untrained": "untrained"} | {rule_of(cell): cell.title for cell in all_cells}
    for rule, title in titles.items():
        lines.append(f"| {title} | " + " | ".join(compared(results, place, rule, rule_of(by_place[place][0]), seeds) for place in there) + " |")
    counts = [str(max(sum(results.known(cell, seed) for seed in seeds) for cell in by_place[place])) for place in there]
    return "\n".join([*lines, "| seeds | " + " | ".join(counts) + " |"])


def sections(results, seeds, all_cells):
    """All places side by side; then one table a place: each seed, the mean, the paired difference to AT-GRPO, tokens, CPU-seconds, and the way there."""
    yield "### All places", summary(results, seeds, all_cells)
    for place in PLACES:
        there = [cell for cell in all_cells if cell.place == place]
        if not any(results.known(cell, seed) for cell in there for seed in seeds):
            continue
        marks = [f"{mark:g}" for mark in there[0].world.marks[:-1]]
        head = ["rule", *(f"seed {seed}" for seed in seeds), "mean", "less AT-GRPO", "k tokens", "CPU-s", *(f"at {float(mark):.0%}" for mark in marks)]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        first = [results.find(place, rule_of(there[0]), seed) for seed in seeds]
        for title, rule in [("untrained", "untrained")] + [(cell.title, rule_of(cell)) for cell in there]:
            rows = [results.find(place, rule, seed, "0" if rule == "untrained" else "1") for seed in seeds]
            done = [row for row in rows if row]
            if not done:
                continue
            mean = lambda column, scale=1: f"{statistics.mean(float(row[column]) for row in done) / scale:.0f}"
            less = difference(rows, first) if rows != first and rule != "untrained" else None
            counts = less and abs(less[0]) >= 3 and abs(less[0]) > less[1]
            text = f"{less[0]:+.1f} ± {less[1]:.1f}" if less else ""
            way = [[results.find(place, rule, seed, mark) for seed in seeds] for mark in marks]
            cells = [*(f"{points(row):.1f}" if row else "not run" for row in rows), f"**{statistics.mean(map(points, done)):.1f}**",
                     f"**{text}**" if counts else text, mean("tokens", 1000), mean("cpu_seconds"),
                     *(f"{statistics.mean(points(row) for row in at if row):.1f}" if any(at) else "" for at in way)]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
        what = f"reward, % of {GREATEST[place]:g}" if place in GREATEST else "success, %"
        yield f"### {WORLDS[place].title} ({what})", "\n".join(lines)


def taken(words, name, default):
    """The value after `name`, which is taken out of `words` with it."""
    if name not in words:
        return default
    place = words.index(name)
    value = words[place + 1]
    del words[place:place + 2]
    return value


def rated(rate):
    """The cells with their learning rates multiplied; other runs by their names."""
    if rate == 1:
        return CELLS
    learning = ("--lr", f"{rate * 1e-3:g}")
    return [replace(cell, name=f"{cell.name}-x{rate:g}", title=f"{cell.title}, learning rate × {rate:g}", more=cell.more + learning) for cell in CELLS]


if __name__ == "__main__":
    ROOT = sys.argv[sys.argv.index("--root") + 1] if "--root" in sys.argv else "runs/experiments"
    RESULTS = Results(taken(sys.argv, "--results", Path(ROOT) / "credit.tsv"))
    plan = Plan(rated(float(taken(sys.argv, "--rate", "1"))), finished=RESULTS.finished, known=RESULTS.known)
    sys.exit(main(__doc__, plan, lambda lab, seeds: sections(RESULTS, seeds, plan.cells)))
