"""A file of evaluations, one a line, and its tables: how runs of many rules are compared over seeds.

A line is the evaluation of a rule at a place by a seed, after a part of the budget. `run` leaves out runs that are there, and tables need
nothing else: an interrupted bench goes on where it was, and run directories can be deleted. Success is compared, or the team's
reward in points of the greatest where success is all or nothing (GREATEST). A difference to the first rule of a place counts if the
interval of its mean, paired over seeds, leaves out 0 and it is 3 points or more.
"""

import csv
import math
import statistics
import threading
from pathlib import Path

import tables
from lab import WORLDS, tokens
from main_table import evaluate_warm_ups

# Where success is all or nothing: the team's greatest reward of an episode, in place of success.
GREATEST = {"write-pipeline": 3.0, "write-at-once": 3.0, "philosophers": 1.0, "philosophers-four": 1.0, "philosophers-5": 1.0, "walls": 1.0}
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


class Results:
    """The file of all evaluations, one a line. `elsewhere` says of a cell where else its policies are tried: (table, cell) pairs."""

    COLUMNS = ["place", "rule", "seed", "table", "part", "tokens", "steps", "episodes", "successes", "reward", "cpu_seconds"]

    def __init__(self, file, elsewhere=lambda cell: []):
        self.file, self.elsewhere, self.lock, self.rows = Path(file), elsewhere, threading.Lock(), []
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
        """Appends the evaluations of a run, of its warm-up and elsewhere; keeps the samples of three steps."""
        with self.lock:
            evaluate_warm_ups(lab, seed, [cell])
            self.add(cell.place, untrained_of(cell), seed, "0", lab.base(cell, seed) / "eval" / "step-000000.jsonl")
            directory, spent = lab.directory(cell, seed), tokens(lab.directory(cell, seed))
            for table, other in self.elsewhere(cell):
                step, name = len(spent), f"eval-{table}"
                lab.evaluate(other, directory, directory / "policies", step, name=name)
                self.add(cell.place, rule_of(cell), seed, "1", directory / name / f"step-{step:06}.jsonl", steps=step, table=table)
            # The last one says that the run is done. One that ended before because all groups were flat would not have changed.
            found = tables.scores(directory)
            for mark in cell.world.marks:
                score = next((score for score in found if score.tokens >= int(cell.budget * mark)), found[-1])
                file = directory / "eval" / f"step-{score.steps:06}.jsonl"
                self.add(cell.place, rule_of(cell), seed, f"{mark:g}", file, score.tokens, score.steps, score.cpu_seconds)
            for step in range(1, len(spent) + 1):
                if step not in (1, (len(spent) + 1) // 2, len(spent)):
                    (directory / "steps" / f"{step:06}" / "samples.jsonl").unlink(missing_ok=True)


def rule_of(cell):
    return cell.name.removeprefix("credit-")


def untrained_of(cell):
    """The name of the warm-up that a cell begins with."""
    return "untrained-single" if cell.workflow == "single" else "untrained"


def titles(cells):
    """Titles by rule, warm-ups first."""
    warm = {untrained_of(cell): f"{'single, ' if cell.workflow == 'single' else ''}untrained" for cell in cells}
    return warm | {rule_of(cell): cell.title for cell in cells}


def rows_of(results, place, rule, seeds):
    """The last line of a rule for each seed, or None."""
    return [results.find(place, rule, seed, "0" if rule.startswith("untrained") else "1") for seed in seeds]


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
    rows = rows_of(results, place, rule, seeds)
    done = [row for row in rows if row]
    if not done:
        return ""
    text = f"{statistics.mean(map(points, done)):.1f}"
    others = rows_of(results, place, first, seeds)
    less = difference(rows, others) if rule != first and not rule.startswith("untrained") else None
    return f"**{text}**" if less and abs(less[0]) >= 3 and abs(less[0]) > less[1] else text


def summary(results, seeds, all_cells):
    """All places side by side: means over the seeds that are there."""
    by_place = {cell.place: [other for other in all_cells if other.place == cell.place] for cell in all_cells}
    there = [place for place, cells in by_place.items() if any(results.known(cell, seed) for cell in cells for seed in seeds)]
    lines = ["| rule | " + " | ".join(there) + " |", "|" + "---|" * (len(there) + 1)]
    for rule, title in titles(all_cells).items():
        lines.append(f"| {title} | " + " | ".join(compared(results, place, rule, rule_of(by_place[place][0]), seeds) for place in there) + " |")
    counts = [str(max(sum(results.known(cell, seed) for seed in seeds) for cell in by_place[place])) for place in there]
    return "\n".join([*lines, "| seeds | " + " | ".join(counts) + " |"])


def sections(results, seeds, all_cells):
    """All places side by side; then one table a place: each seed, the mean, the paired difference to the first rule, tokens, CPU-seconds, and
    the way there."""
    yield "### All places", summary(results, seeds, all_cells)
    for place in dict.fromkeys(cell.place for cell in all_cells):
        there = [cell for cell in all_cells if cell.place == place]
        if not any(results.known(cell, seed) for cell in there for seed in seeds):
            continue
        marks = [f"{mark:g}" for mark in there[0].world.marks[:-1]]
        head = ["rule", *(f"seed {seed}" for seed in seeds), "mean", f"less {there[0].title}", "k tokens", "CPU-s", *(f"at {float(mark):.0%}" for mark in marks)]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        first = rows_of(results, place, rule_of(there[0]), seeds)
        for rule, title in titles(there).items():
            rows = rows_of(results, place, rule, seeds)
            done = [row for row in rows if row]
            if not done:
                continue
            mean = lambda column, scale=1: f"{statistics.mean(float(row[column]) for row in done) / scale:.0f}"
            less = difference(rows, first) if rows != first and not rule.startswith("untrained") else None
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
