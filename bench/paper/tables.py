"""From run directories to Markdown: success with its Wilson interval, mean and spread over seeds, tokens, CPU-seconds.

Everything is counted from JSON Lines that the runs left: `episode` lines of evaluations, `end` lines of steps, and what
each command cost. A cell or seed that is not there, or not trained to its budget, is shown as missing and never as a number.
"""

import json
import math
import re
import statistics
from dataclasses import dataclass

from lab import tokens

# Two-sided 95 %.
QUANTILE = 1.959964


def wilson(successes, trials):
    """The 95 % interval of a rate. Wilson, J. Am. Stat. Assoc. 22 (1927)."""
    rate, square = successes / trials, QUANTILE * QUANTILE
    middle = (rate + square / (2 * trials)) / (1 + square / trials)
    half = QUANTILE / (1 + square / trials) * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials))
    return middle - half, middle + half


@dataclass(frozen=True)
class Score:
    """An evaluation of one run: successes of trials, and what the training before it took."""

    successes: int
    trials: int
    tokens: int = 0
    cpu_seconds: float = 0.0
    steps: int = 0

    @property
    def rate(self):
        """Success in per cent."""
        return 100 * self.successes / self.trials


def count(file):
    """Successes and episodes of an evaluation."""
    with open(file, encoding="utf-8") as lines:
        episodes = [line["success"] for line in map(json.loads, lines) if line["type"] == "episode"]
    return sum(episodes), len(episodes)


@dataclass(frozen=True)
class Answers:
    """The episodes of an evaluation: mean team reward with half of its 95 % interval over tasks, tokens of all agents, and tokens
    one after another, where agents act at once: the longest agent's."""

    reward: float
    half: float
    tokens: float
    in_sequence: float


def answers(file):
    """What an evaluation answered. The team's reward is in the samples of all who earned it; it counts once a turn."""
    episodes = {}
    with open(file, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["type"] == "answer":
                episodes.setdefault(line["episode"], {}).setdefault(line["turn"], []).append((line["team"], line["tokens"]))
    turns = [list(turns.values()) for turns in episodes.values()]
    rewards = [sum(max(team for team, _ in turn) for turn in episode) for episode in turns]
    half = QUANTILE * statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    sums = [statistics.mean(sum(reduce(tokens for _, tokens in turn) for turn in episode) for episode in turns) for reduce in (sum, max)]
    return Answers(statistics.mean(rewards), half, *sums)


def cost(directory, step):
    """CPU-seconds of training up to a step, warm-up and evaluations left out."""
    file = directory / "cost.jsonl"
    if not file.exists():
        return 0.0
    with open(file, encoding="utf-8") as lines:
        return sum(line["cpu_seconds"] for line in map(json.loads, lines) if line["what"] == "step" and 0 < line["step"] <= step)


def scores(directory, name="eval"):
    """All evaluations of a run in the order of their steps."""
    spent, found = tokens(directory), []
    for file in sorted((directory / name).glob("step-*.jsonl")):
        step = int(re.sub(r"\D", "", file.stem))
        found.append(Score(*count(file), sum(spent[:step]), cost(directory, step), step))
    return found


def final(lab, cell, seed):
    """The first evaluation of a run that has spent the lab's part of its budget, or None."""
    found = scores(lab.directory(cell, seed))
    return next((score for score in found if score.tokens >= int(cell.budget * lab.part)), None)


def row(title, results):
    """One row: a column a seed, mean, standard deviation over seeds, tokens, CPU-seconds, steps."""
    there = [result for result in results if result is not None]
    cells = []
    for result in results:
        if result is None:
            cells.append("not run")
            continue
        low, high = wilson(result.successes, result.trials)
        cells.append(f"{result.rate:.1f} ({100 * low:.1f} – {100 * high:.1f})")
    rates = [result.rate for result in there]
    mean = f"**{statistics.mean(rates):.1f}**" if rates else "–"
    spread = f"{statistics.stdev(rates):.1f}" if len(rates) > 1 else "–"
    average = lambda values, pattern: pattern.format(statistics.mean(values)) if there else "–"
    tail = [average([result.tokens / 1000 for result in there], "{:.0f}"),
            average([result.cpu_seconds for result in there], "{:.0f}"), average([result.steps for result in there], "{:.0f}")]
    return f"| {title} | " + " | ".join([*cells, mean, spread, *tail]) + " |"


def table(rows, seeds):
    """The table of (title, one result a seed)."""
    head = ["method", *(f"seed {seed}" for seed in seeds), "mean", "s.d.", "k tokens", "CPU-s", "steps"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + [row(title, results) for title, results in rows])


def curve(lab, cells, seeds):
    """Mean success at each part of the budget: one row a cell."""
    lines = []
    parts = [mark for mark in cells[0].world.marks if mark <= lab.part]
    for cell in cells:
        runs = [[score for score in scores(lab.directory(cell, seed)) if score.steps][:len(parts)] for seed in seeds]
        runs = [run for run in runs if len(run) == len(parts)]
        if runs:
            marks = [f"{statistics.mean(score.rate for score in marks):.1f}" for marks in zip(*runs)]
            lines.append(f"| {cell.title} | {len(runs)} | " + " | ".join(marks) + " |")
    head = ["method", "seeds", *(f"{mark * cells[0].budget / 1000:.0f} k tokens" for mark in parts)]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])
