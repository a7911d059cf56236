#!/usr/bin/env python3
"""Does MAGRPO train two coders on HumanEval, and against one? The paper's own benchmark (arXiv 2508.04652), with a model of 0.5 billion.

One agent writes a helper `aux`, the other the main function; half of the problems is held out. All trained cells generate
equally many tokens. A reward of 4: functions 1, syntax 0.5, tests 1, cooperation 1.5, earned by trial (`gates=earned`).

Criterion, written before the first run. Return is the mean over seeds and held-out problems, greedy:
  1. the team with MAGRPO earns more than the untrained team: the interval paired over problems leaves out 0;
  2. it earns at least as much as the single coder with GRPO, less 0.1;
  3. it needs fewer tokens in sequence than that coder;
  4. it cooperates: `calls` is above 10 %.
An untrained main calls a helper that does not exist yet, and unlearns the call. A later cell, helper-first, spends half of the
budget on the helper alone; criterion 4 applies to it.

    envs fetch human-eval --test-share 0.5 > human-eval.jsonl
    python3 bench/paper/human_eval.py run --data human-eval.jsonl
"""

import json
import statistics
import sys
from pathlib import Path

import public
from public import Cell, Experiment

TEAM = ("aux", "main")
CELLS = (
    Cell("single", "one coder, untrained", "single", ("coder",)),
    Cell("team", "team, untrained", "team", TEAM),
    Cell("pipeline", "pipeline, untrained", "pipeline", TEAM),
    Cell("discussion", "discussion, untrained", "discussion", TEAM),
    Cell("single-grpo", "one coder, GRPO", "single", ("coder",), "at-grpo"),
    Cell("team-at-grpo", "team, AT-GRPO", "team", TEAM, "at-grpo"),
    Cell("team-magrpo", "team, MAGRPO", "team", TEAM, "magrpo"),
    Cell("helper-first", "team, MAGRPO, the helper first", "team", TEAM, "magrpo", first="aux"),
    Cell("pipeline-magrpo", "pipeline, MAGRPO", "pipeline", TEAM, "magrpo"),
)


def build(arguments):
    return Experiment(
        "human-eval", "coop-code", (f"data={Path(arguments.data or '').resolve()}", "turns=1"), max_tokens=192, test_tasks=82, budget=24_000,
        train=("--tasks", 8, "--branches", 4, "--dtype", "bfloat16", "--lr-warmup", 2),
        counted=("tests", "helper", "main", "syntax", "calls", "adds"), cells=CELLS)


def verdict(experiment, results, seeds):
    by_name = {cell.name: cell for cell in experiment.cells}
    rows = {name: [row for seed in (seeds if cell.method else (0,)) if (row := results.find(experiment, cell, seed))] for name, cell in by_name.items()}

    def line(words, needed, holds):
        missing = [name for name in needed if len(rows[name]) < (len(seeds) if by_name[name].method else 1)]
        if missing:
            return f"- {words}: not run ({', '.join(missing)})"
        met, figures = holds(*(rows[name] for name in needed))
        return f"- {words}: {'met' if met else 'NOT met'} ({figures})"

    def gains(team, before):
        mean, half = public.paired(team, before)
        return mean > half, f"{mean:+.2f} ± {half:.2f} of 4"

    def keeps_up(team, one):
        mean, half = public.paired(team, one)
        return mean >= -0.1, f"{mean:+.2f} ± {half:.2f} of 4"

    def is_short(team, one):
        found = [statistics.mean(float(row["in_sequence"]) for row in rows) for rows in (team, one)]
        return found[0] < found[1], "{:.0f} against {:.0f} tokens".format(*found)

    def calls(team):
        share = statistics.mean(json.loads(row["components"])["calls"] for row in team)
        return share > 0.1, f"{share:.0%}"

    yield line("the team with MAGRPO earns more than untrained", ["team-magrpo", "team"], gains)
    yield line("it earns at least as much as the single coder with GRPO, less 0.1", ["team-magrpo", "single-grpo"], keeps_up)
    yield line("it needs fewer tokens in sequence", ["team-magrpo", "single-grpo"], is_short)
    yield line("it cooperates: main needs its helper in more than 10 %", ["team-magrpo"], calls)


if __name__ == "__main__":
    sys.exit(public.main(__doc__, build, verdict))
