"""What the experiments on public data sets share: cells of one pretrained model, and a file of finished ones.

A cell is a way to play, untrained or trained by one method and seed with adapters over one frozen model. `run` trains what
the file lacks, plays the test tasks greedily, and appends a line at once: the counts of the answers, and the return of every task, so
that tables and paired intervals need no run directory. An interrupted script goes on where it was. Training ends with the
step in which the policies have generated the budget of tokens; evaluations do not count.
"""

import argparse
import csv
import json
import math
import os
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import tables
from lab import REPOSITORY, Lab, say, tokens

MODEL = "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
RESULTS = Path(__file__).with_name("public.tsv")


@dataclass(frozen=True)
class Cell:
    """One way to play; without `method` it is not trained."""

    name: str
    title: str
    workflow: str
    agents: tuple
    method: str = ""
    # The agent that half of the budget trains alone, before all are trained.
    first: str = ""
    # The workflow whose sampled answers, half of the budget, are demonstrations for the warm-up.
    shown: str = ""

    @property
    def in_sequence(self):
        """True if one agent waits for another."""
        return self.workflow in ("pipeline", "check")


@dataclass(frozen=True)
class Experiment:
    """A data set, how it is played, and the cells. `settings` are of the environment, `train` flags of pipeline.sh, `counted` the
    components of the reward that are kept, as means over the answers that have them."""

    name: str
    environment: str
    settings: tuple
    max_tokens: int
    test_tasks: int
    budget: int
    train: tuple
    counted: tuple
    cells: tuple
    seeds: tuple = (1, 2)


class Results:
    """The file of finished cells."""

    COLUMNS = ["experiment", "cell", "seed", "tokens", "steps", "cpu_seconds", "tasks", "solved", "return", "components", "answer_tokens",
               "in_sequence", "cut", "returns"]

    def __init__(self, file):
        self.file = Path(file)

    def rows(self):
        if not self.file.exists():
            return []
        with open(self.file, encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines, delimiter="\t"))

    def find(self, experiment, cell, seed):
        """The line of a cell, or None; an untrained one has the seed 0."""
        wanted = (experiment.name, cell.name, str(seed if cell.method else 0))
        return next((row for row in self.rows() if (row["experiment"], row["cell"], row["seed"]) == wanted), None)

    def add(self, row):
        begins = not self.file.exists()
        with open(self.file, "a", encoding="utf-8", newline="") as lines:
            out = csv.DictWriter(lines, self.COLUMNS, delimiter="\t", lineterminator="\n")
            out.writeheader() if begins else None
            out.writerow(row)


def measured(file, counted):
    """The figures of an evaluation: by task what the last turn earned the team, tokens of all turns, means over the last answers."""
    episodes, cut = {}, []
    with open(file, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["type"] == "episode":
                episodes.setdefault(line["episode"], {}).update(task=line["task"], success=line["success"])
            if line["type"] == "answer":
                episodes.setdefault(line["episode"], {}).setdefault("turns", {}).setdefault(line["turn"], []).append(line)
                cut.append(line["cut"])
    turns = {episode["task"]: list(episode["turns"].values()) for episode in episodes.values()}
    returns = {task: max(answer["team"] for answer in found[-1]) for task, found in turns.items()}
    last = [answer["components"] for found in turns.values() for answer in found[-1]]
    components = {name: [own[name] for own in last if name in own] for name in counted}
    count = lambda reduce: statistics.mean(sum(reduce(answer["tokens"] for answer in turn) for turn in found) for found in turns.values())
    return {
        "tasks": len(turns), "solved": sum(episode["success"] for episode in episodes.values()),
        "return": f"{statistics.mean(returns.values()):.4f}", "answer_tokens": f"{count(sum):.1f}", "in_sequence": f"{count(max):.1f}",
        "components": json.dumps({name: round(statistics.mean(values), 4) for name, values in components.items() if values}),
        "cut": f"{statistics.mean(cut):.4f}", "returns": json.dumps({task: round(value, 4) for task, value in sorted(returns.items())}),
    }


# The part of an evaluation's stream that is kept. A component counts for the agents that have it.
SHORT = ('if .type == "sample" then {type: "answer", v: 1, episode, turn, agent, tokens: (.completion_ids | length), team: .rewards.team,'
         ' components: (.reward_components // {}), cut: (.finish_reason == "length"), completion} else . end')


class Bench:
    """Trains and plays the cells of an experiment."""

    def __init__(self, experiment, arguments):
        self.experiment, self.model, self.lab = experiment, arguments.model, Lab(arguments.root)
        self.results, self.budget = Results(arguments.results), arguments.budget or experiment.budget
        self.settings = [word for setting in experiment.settings for word in ("--set", setting)]
        self.threads = arguments.threads
        self.test_tasks = arguments.tasks or experiment.test_tasks
        self.max_tokens = arguments.max_tokens or experiment.max_tokens

    def directory(self, cell, seed):
        return self.lab.root / self.experiment.name / cell.name / f"seed-{seed}"

    def work(self, seeds, only):
        """Runs what is missing; returns the failed cells."""
        failed = []
        # Untrained cells first, then all cells by one seed, then by the next.
        for seed in (0, *seeds):
            for cell in self.experiment.cells:
                if bool(cell.method) != bool(seed) or only not in cell.name or self.results.find(self.experiment, cell, seed):
                    continue
                title = f"{self.experiment.name} {cell.name} seed {seed}"
                say(f"begins: {title}")
                try:
                    self.cell(cell, seed)
                    say(f"done: {title}")
                except (RuntimeError, OSError) as failure:
                    failed.append(title)
                    say(f"failed: {title}: {failure}")
        return failed

    def cell(self, cell, seed):
        directory, seconds, spent = self.directory(cell, seed), 0.0, []
        directory.parent.mkdir(parents=True, exist_ok=True)
        if not cell.method:
            players = [("--policy", self.untrained())]
        else:
            seconds, spent = self.train(cell, seed, directory)
            players = [("--policy", f"{agent}={directory}/policies/{agent}") for agent in cell.agents]
        file = directory.with_suffix(".test.jsonl")
        self.play(cell, seed, players, file)
        found = measured(file, self.experiment.counted)
        if cell.in_sequence:
            found["in_sequence"] = found["answer_tokens"]
        self.results.add(dict(experiment=self.experiment.name, cell=cell.name, seed=seed, tokens=sum(spent), steps=len(spent),
                              cpu_seconds=f"{seconds:.0f}", **found))

    def untrained(self):
        """The model as a policy."""
        policy = self.lab.root / "untrained" / Path(self.model).stem
        if not policy.exists():
            self.lab.run(["policy", "init", policy, "--from", self.model])
        return policy

    def train(self, cell, seed, directory):
        """CPU-seconds of training, those of an interrupted call left out, and the tokens of each step."""
        start, budget, seconds, spent = ["--model", self.model, "--policies", "adapter-per-role"], self.budget, 0.0, []
        if cell.first:
            alone = directory.with_name(f"{directory.name}-{cell.first}")
            seconds, spent = self.steps(cell, seed, alone, [*start, "--train", cell.first], budget // 2)
            start = [word for agent in cell.agents for word in ("--policies", f"{agent}={alone}/policies/{agent}")]
            budget = max(1, budget - sum(spent))
        more, then = self.steps(cell, seed, directory, start, budget)
        return seconds + more, spent + then

    def steps(self, cell, seed, directory, start, budget):
        """CPU-seconds of one run, and the tokens of each of its steps."""
        command = ["./pipeline.sh", "--env", self.experiment.environment, *self.settings, "--workflow", cell.workflow, *start,
                   "--method", cell.method, "--max-tokens", self.max_tokens,
                   "--token-budget", budget, "--steps", 1000, "--eval-every", 0, "--seed", seed, *self.experiment.train,
                   "--flags", f"rollout=--threads {self.threads}", "--flags", f"update=--threads {self.threads}", "--run", directory]
        say(shlex.join(map(str, command)))
        return self.lab.run(command, directory.with_suffix(".log")), tokens(directory)

    def play(self, cell, seed, players, file, samples=1):
        """Greedy play of the test tasks, or several sampled answers to each."""
        tasks = ["envs", "tasks", self.experiment.environment, *self.settings, "--split", "test", "--count", self.test_tasks]
        play = ["rollout", "--workflow", cell.workflow, *(word for player in players for word in player), "--max-tokens", self.max_tokens,
                "--dtype", "bfloat16", "--threads", self.threads, "--quiet"]
        play += ["--temperature", 0] if samples == 1 else ["--temperature", 0.7, "--branches", samples, "--seed", seed]
        pipe = " | ".join(shlex.join(map(str, part)) for part in (tasks, play, ["jq", "-c", SHORT]))
        say(pipe)
        part = file.with_suffix(".tmp")
        part.unlink(missing_ok=True)
        self.lab.run(["bash", "-o", "pipefail", "-c", pipe], part)
        part.rename(file)


def interval(values):
    """Mean of numbers, one a task, with half of its 95 % interval."""
    half = tables.QUANTILE * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), half


def paired(rows, others):
    """Mean difference of the returns of two cells, with half of its 95 % interval over tasks: by task the mean over seeds."""
    of = lambda rows: {task: statistics.mean(json.loads(row["returns"])[task] for row in rows) for task in json.loads(rows[0]["returns"])}
    one, other = of(rows), of(others)
    return interval([one[task] - other[task] for task in one.keys() & other.keys()])


def table(experiment, results, seeds, title="return"):
    """Every cell: return of each seed, means over seeds."""
    names = list(experiment.counted)
    head = ["way to play", *(f"seed {seed}" for seed in seeds), f"{title} (95 %)", "solved, %", *(f"{name}, %" for name in names), "tokens",
            "in sequence", "cut, %", "k tokens of training", "CPU-s"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cell in experiment.cells:
        rows = [results.find(experiment, cell, seed) for seed in (seeds if cell.method else (0,))]
        there = [row for row in rows if row]
        if not there:
            lines.append(f"| {cell.title} | not run |" + " |" * (len(head) - 2))
            continue
        mean = lambda of, digits=1: f"{statistics.mean(of(row) for row in there):.{digits}f}"
        components = [[json.loads(row["components"]).get(name) for row in there] for name in names]
        shares = [f"{100 * statistics.mean(values):.0f}" if None not in values else "–" for values in components]
        by_task = [json.loads(row["returns"]) for row in there]
        middle, half = interval([statistics.mean(found[task] for found in by_task) for task in by_task[0]])
        each = [f"{float(row['return']):.2f}" if row else "not run" for row in rows] if cell.method else [""] * len(seeds)
        lines.append("| " + " | ".join([
            cell.title, *each, f"**{middle:.2f}** ({middle - half:.2f} – {middle + half:.2f})",
            mean(lambda row: 100 * int(row["solved"]) / int(row["tasks"])), *shares, mean(lambda row: float(row["answer_tokens"]), 0),
            mean(lambda row: float(row["in_sequence"]), 0), mean(lambda row: 100 * float(row["cut"]), 0),
            mean(lambda row: int(row["tokens"]) / 1000, 0), mean(lambda row: float(row["cpu_seconds"]), 0)]) + " |")
    return "\n".join(lines)


def main(text, build, verdict, bench=Bench):
    """`build(arguments)` makes the experiment, `verdict(experiment, results, seeds)` yields the criterion's lines."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "list"])
    parser.add_argument("--data", help="tasks, as `envs fetch` prints them")
    parser.add_argument("--model", default=MODEL, help="[default: %(default)s]")
    parser.add_argument("--root", default="runs/public", help="where the runs are [default: %(default)s]")
    parser.add_argument("--results", default=RESULTS, help="the file of finished cells [default: %(default)s]")
    parser.add_argument("--seeds", default="", metavar="S,S")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with this in their name")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="[default: all processors]")
    parser.add_argument("--budget", type=int, help="tokens of training; the default is the table's")
    parser.add_argument("--tasks", type=int, help="test tasks; the default is the table's")
    parser.add_argument("--max-tokens", type=int, help="of an answer; the default is the table's")
    arguments = parser.parse_args()
    if arguments.what == "run" and not arguments.data:
        parser.error("run needs --data")
    experiment = build(arguments)
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else list(experiment.seeds)
    results = Results(arguments.results)
    if arguments.what == "list":
        for cell in experiment.cells:
            done = [seed for seed in (seeds if cell.method else (0,)) if results.find(experiment, cell, seed)]
            print(f"{cell.name}: {cell.title}; done: {done or 'none'}")
        return 0
    failed = bench(experiment, arguments).work(seeds, arguments.only) if arguments.what == "run" else []
    print(table(experiment, results, seeds), "", *verdict(experiment, results, seeds), sep="\n")
    return 1 if failed else 0
