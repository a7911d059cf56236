#!/usr/bin/env python3
"""AT-GRPO on GSM8K, with the control that the paper lacks: one agent that writes the program alone.

The claim (Stronger-MAS, arXiv 2510.11062): a tool user who writes Python and a reasoner beat one agent. Who gains, the second agent or
Python? 500 problems of the training split, 150 of the test split, equal generated tokens, adapters of rank 16. The team acts once:
it has an answer where both agree, and none otherwise.

Criterion, written before the first run. Success on the test problems, greedy, mean over seeds:
  1. the team with AT-GRPO solves more than the single reasoner with GRPO at equal tokens of training;
  2. and more than one agent that writes the program alone, with GRPO;
  3. and more than the majority of sampled answers of the trained reasoner, whose number the team's test tokens pay for.
Each difference counts if its interval, paired over problems, leaves out 0.

    envs fetch gsm8k > gsm8k.jsonl
    python3 bench/paper/gsm8k.py run --data gsm8k.jsonl
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import public
from public import Bench, Cell, Experiment

TEAM = ("tool", "reasoner")
CELLS = (
    Cell("single", "one reasoner, untrained", "single", ("reasoner",)),
    Cell("tool", "one agent that writes Python, untrained", "tool", ("tool",)),
    Cell("team", "team of both, untrained", "team", TEAM),
    Cell("single-grpo", "one reasoner, GRPO", "single", ("reasoner",), "at-grpo"),
    Cell("tool-grpo", "one agent that writes Python, GRPO", "tool", ("tool",), "at-grpo"),
    Cell("team-at-grpo", "team of both, AT-GRPO", "team", TEAM, "at-grpo"),
    # Not trained itself: answers of `single-grpo`.
    Cell("majority", "majority of the trained reasoner's answers", "single", ("reasoner",), "at-grpo"),
)
TRAIN, TEST = 500, 150


def tasks(arguments):
    """The first problems of each split, in a file."""
    file = Path(arguments.root).resolve() / "gsm8k.tasks.jsonl"
    if arguments.data and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        left, kept = {"train": TRAIN, "test": TEST}, []
        with open(arguments.data, encoding="utf-8") as lines:
            for line in lines:
                split = json.loads(line).get("split")
                if left.get(split):
                    left[split] -= 1
                    kept.append(line)
        file.write_text("".join(kept), encoding="utf-8")
    return file


def build(arguments):
    return Experiment(
        "gsm8k", "math", (f"data={tasks(arguments)}", "turns=1"), max_tokens=400, test_tasks=TEST, budget=72_000,
        train=("--tasks", 6, "--branches", 4, "--dtype", "bfloat16", "--lr-warmup", 2), counted=("format", "runs", "parsable", "correct"),
        cells=CELLS)


class GsmBench(Bench):
    def cell(self, cell, seed):
        if cell.name == "majority":
            self.vote(cell, seed)
        else:
            super().cell(cell, seed)

    def vote(self, cell, seed):
        """The majority of sampled answers of the trained reasoner, whose number the team's test tokens pay for; of equals the first."""
        single, team = (self.results.find(self.experiment, found, seed) for found in CELLS if found.name in ("single-grpo", "team-at-grpo"))
        if not (single and team):
            raise RuntimeError("single-grpo and team-at-grpo come first")
        count = max(2, round(float(team["answer_tokens"]) / float(single["answer_tokens"])))
        directory = self.directory(next(found for found in CELLS if found.name == "single-grpo"), seed)
        file = self.directory(cell, seed).with_suffix(".test.jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.play(cell, seed, [("--policy", f"reasoner={directory}/policies/reasoner")], file, count)
        names, answers, spent, cut = {}, {}, 0, 0
        with open(file, encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if line["type"] == "episode":
                    names[line["episode"]] = line["task"]
                if line["type"] == "answer":
                    answers.setdefault(line["episode"], []).append((final(line["completion"]), line["components"].get("correct", 0.0)))
                    spent, cut = spent + line["tokens"], cut + line["cut"]
        returns = {}
        for episode, given in answers.items():
            votes = Counter(answer for answer, _ in given if answer is not None)
            chosen = max(votes, key=votes.get, default=None)
            returns[names[episode]] = next((correct for answer, correct in given if answer == chosen and chosen is not None), 0.0)
        samples = sum(map(len, answers.values()))
        self.results.add(dict(
            experiment=self.experiment.name, cell=cell.name, seed=seed, tokens=single["tokens"], steps=single["steps"],
            cpu_seconds=single["cpu_seconds"], tasks=len(returns), solved=round(sum(returns.values())), components="{}",
            answer_tokens=f"{spent / len(returns):.1f}", in_sequence=f"{spent / samples:.1f}", cut=f"{cut / samples:.4f}",
            returns=json.dumps(returns), **{"return": f"{sum(returns.values()) / len(returns):.4f}"}))


def final(text):
    """The last boxed answer without blanks and separators of thousands, or None."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return re.sub(r"[\s,$]|\.0*$", "", found[-1]) if found else None


def verdict(experiment, results, seeds):
    by_name = {cell.name: [row for seed in seeds if (row := results.find(experiment, cell, seed))] for cell in experiment.cells}
    for words, other in (("the single reasoner", "single-grpo"), ("one agent that writes the program alone", "tool-grpo"),
                         ("the majority of the reasoner's answers", "majority")):
        team, less = by_name["team-at-grpo"], by_name[other]
        if min(len(team), len(less)) < len(seeds):
            yield f"- the team solves more than {words}: not run"
            continue
        mean, half = public.paired(team, less)
        yield f"- the team solves more than {words}: {'met' if mean > half else 'NOT met'} ({100 * mean:+.1f} ± {100 * half:.1f} points)"


if __name__ == "__main__":
    sys.exit(public.main(__doc__, build, verdict, GsmBench))
