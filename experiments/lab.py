"""What the tables of this folder share: cells, warm-ups, token budgets, evaluation.

A *cell* is one training run: a world (an environment and a warm-up), a workflow, a method and a seed. It is a run directory of pipeline.sh under
runs/experiments/WORLD/NAME/seed-S, and it is trained until the tokens that its policies generated reach a budget, the same for
all cells of a table. All cells of one world, workflow and seed start from one warm-up. What is there is not done
again, so any script may be interrupted and repeated.

Left out: the tables themselves (tables.py prints them), and every idea about which cells there are (one script a table).
Only Python's standard library is used; everything that trains or plays is pipeline.sh and the programs that it runs.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SEEDS = (1, 2, 3)
# The parts of the budget after which a run is evaluated, and how many test tasks each evaluation plays.
MARKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
TEST_TASKS = 1000
# So many samples of each agent a turn, whatever the branches: a step costs the same and is as many optimizer steps.
SAMPLES_A_TURN = 384


@dataclass(frozen=True)
class World:
    """An environment, how far its policies are warmed up, and how many tokens training may generate."""

    environment: str
    title: str
    turns: int
    max_tokens: int
    warmup: int
    budget: int
    settings: tuple = ()

    @property
    def set_flags(self):
        """The environment's settings as a command line has them."""
        return [word for setting in self.settings for word in ("--set", setting)]


WORLDS = {
    "plan-path": World("plan-path", "Plan-Path, a third of the usual warm-up (1,200 steps)", turns=4, max_tokens=8, warmup=1200, budget=240_000),
    "plan-path-long": World("plan-path", "Plan-Path, the usual warm-up (3,600 steps)", turns=4, max_tokens=8, warmup=3600, budget=240_000),
    "plan-path-moves": World("plan-path", "Plan-Path, the tool proposes moves", turns=4, max_tokens=8, warmup=1200, budget=240_000,
                             settings=("proposal=moves",)),
    "sudoku": World("sudoku", "Sudoku 4x4", turns=4, max_tokens=8, warmup=1200, budget=240_000),
    "sokoban": World("sokoban", "Sokoban 6x6, one box", turns=4, max_tokens=8, warmup=1200, budget=240_000),
}


@dataclass(frozen=True)
class Cell:
    """One method on one environment; with a seed it is a run."""

    name: str
    title: str
    workflow: str = "team"
    agents: tuple = ("tool", "planner")
    per_role: bool = False
    branches: int = 8
    sampling: str = "tree"
    group: str = ""
    advantage: str = ""
    train: tuple = ()
    budget_share: float = 1.0
    place: str = "plan-path"

    @property
    def world(self):
        """Where it is played: the entry of WORLDS that `place` names."""
        return WORLDS[self.place]

    @property
    def budget(self):
        """Tokens that the policies may generate in training."""
        return round(self.world.budget * self.budget_share)

    def policies(self):
        """For each agent the name of the policy that plays it."""
        return {agent: agent if self.per_role else self.agents[0] for agent in self.agents}


SINGLE = dict(workflow="single", agents=("planner",))


class Lab:
    """Where the runs are, how far they are trained and compared (a part of the budget), and how a program is started there."""

    def __init__(self, root, cpu=None, part=1):
        self.root = Path(root).resolve()
        self.cpu = cpu
        self.part = part
        programs = os.environ.get("TROUPE_BIN") or REPOSITORY / "target" / "release"
        self.environment = dict(os.environ, LC_ALL="C", ORT_DISABLE_TELEMETRY="1")
        self.environment["PATH"] = f"{programs}:{os.environ['PATH']}"

    def run(self, command, output=None):
        """Runs a command; the CPU-seconds of it and of all that it started. Raises if it fails."""
        pin = None if self.cpu is None else lambda: os.sched_setaffinity(0, {self.cpu})
        with open(output or os.devnull, "ab") as out:
            child = subprocess.Popen([str(word) for word in command], cwd=REPOSITORY, env=self.environment,
                                     stdout=out, stderr=sys.stderr, preexec_fn=pin)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"exit code {child.returncode}: {' '.join(map(str, command))}")
        return usage.ru_utime + usage.ru_stime

    def base(self, cell, seed):
        """The warm-up that all cells of this environment, workflow and seed begin with."""
        return self.root / cell.place / f"warm-up-{cell.workflow}" / f"seed-{seed}"

    def directory(self, cell, seed):
        """The run directory of a cell."""
        return self.root / cell.place / cell.name / f"seed-{seed}"

    def pipeline(self, cell, seed, directory, steps, *more):
        """pipeline.sh up to a number of steps in all, without its evaluations."""
        world = cell.world
        directory.mkdir(parents=True, exist_ok=True)
        command = ["./pipeline.sh", "--run", directory, "--env", world.environment, *world.set_flags, "--workflow", cell.workflow, "--turns", world.turns,
                   "--seed", seed, "--steps", steps, "--warmup", world.warmup, "--eval-every", 0, *more]
        return self.run(command, directory / "log.txt")

    def warm_up(self, cell, seed):
        """Makes the warm-up unless it is there."""
        base = self.base(cell, seed)
        if not (base / "policies" / "done").exists():
            note(base, "step", 0, cpu_seconds=self.pipeline(cell, seed, base, 0))
        # One policy under a name for each agent: roles that are to differ start from the same weights.
        for agent in cell.agents:
            name = base / "policies" / f"as-{agent}"
            if not name.is_symlink():
                name.symlink_to("shared")
        return base

    def train(self, cell, seed):
        """Trains a cell to this lab's part of its budget, with evaluations at the MARKS."""
        base, directory = self.warm_up(cell, seed), self.directory(cell, seed)
        flags = self.flags(cell, seed, base)
        for goal in (int(cell.budget * mark) for mark in MARKS if mark <= self.part):
            while True:
                spent = tokens(directory)
                if sum(spent) >= goal:
                    break
                # As many steps as surely fit, by what the last one generated, and at least one. Steps only get cheaper.
                ahead = max(1, min(20, (goal - sum(spent)) // max(spent[-1], 1))) if spent else 1
                note(directory, "step", len(spent) + ahead,
                     cpu_seconds=self.pipeline(cell, seed, directory, len(spent) + ahead, *flags))
            self.evaluate(cell, directory, directory / "policies", len(spent))

    def flags(self, cell, seed, base):
        """What makes pipeline.sh this cell's method."""
        flags = ["--tasks", SAMPLES_A_TURN // cell.branches, "--branches", cell.branches]
        for agent, policy in cell.policies().items():
            flags += ["--policies", f"{agent}={base}/policies/as-{policy}"]
        owners = [f"--policy {agent}=$RUN/policies/{policy}" for agent, policy in cell.policies().items()]
        if cell.sampling != "tree":
            flags += ["--stage", "rollout=rollout " + " ".join(owners) + f" --workflow {cell.workflow} --branches {cell.branches}"
                      f" --turns {cell.world.turns} --sampling {cell.sampling} --max-tokens {cell.world.max_tokens} --seed {seed} --step $STEP --quiet"]
        if cell.group:
            flags += ["--stage", f"group=group {cell.group} --quiet"]
        if cell.advantage:
            flags += ["--stage", f"advantage={cell.advantage}"]
        if cell.train:
            owners = [f"--policy {agent}=$RUN/policies/{cell.policies()[agent]}" for agent in cell.train]
            flags += ["--stage", "update=update " + " ".join(owners) + " --optimizer adamw --lr 1e-3 --warmup 5"
                      f" --betas 0.9,0.95 --weight-decay 0 --minibatches 2 --seed {seed} --quiet"]
        return flags

    def evaluate(self, cell, directory, policies, step, players=None, name="eval", workflow=None):
        """Greedy play on the test split, into NAME/step-NNNNNN.jsonl."""
        file = directory / name / f"step-{step:06}.jsonl"
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".tmp")
        part.unlink(missing_ok=True)
        players = players or {agent: policies / policy for agent, policy in cell.policies().items()}
        play = " ".join(f"--policy {agent}={folder}" for agent, folder in players.items())
        command = (f"set -o pipefail; envs tasks {cell.world.environment} {' '.join(cell.world.set_flags)} --split test --count {TEST_TASKS} | rollout {play}"
                   f" --workflow {workflow or cell.workflow} --turns {cell.world.turns} --max-tokens {cell.world.max_tokens}"
                   f" --greedy --step {step} --quiet | grep -v '^{{\"type\":\"sample\"'")
        note(directory, name, step, cpu_seconds=self.run(["bash", "-c", command], part))
        part.rename(file)


def note(directory, what, step, **figures):
    """Appends what something cost to the directory's cost.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "cost.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"type": "cost", "what": what, "step": step, **figures}) + "\n")


def generated(line):
    """Tokens that the policies generated, by the `end` line of a stage behind rollout."""
    own = line["counts"]["completion_tokens"] if line["stage"] == "rollout" else 0
    return own + sum(generated(before) for before in line.get("after", []))


def tokens(directory):
    """Tokens generated in each committed step of a run, in order."""
    spent = []
    while (step := directory / "steps" / f"{len(spent) + 1:06}" / "done").exists():
        with open(step.parent / "metrics.jsonl", encoding="utf-8") as file:
            spent.append(sum(generated(line) for line in map(json.loads, file) if line["type"] == "end"))
    return spent


class Plan:
    """The cells of a table in the order of their worth, each trained for every seed, and what is evaluated after."""

    def __init__(self, cells, after=lambda lab, seed: None):
        self.cells, self.after = cells, after

    def work(self, root, jobs, seeds, part=1):
        """Trains what is missing to a part of its budget, `jobs` runs at once, each on a processor of its own; the titles of what failed."""
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        waiting = [(cell, seed) for seed in seeds for cell in self.cells]
        warming, failed, change = set(), [], threading.Condition()

        def take():
            """The first cell whose warm-up nobody else is making just now; None at the end."""
            with change:
                while waiting:
                    for index, (cell, seed) in enumerate(waiting):
                        if Lab(root).base(cell, seed) not in warming:
                            warming.add(Lab(root).base(cell, seed))
                            return waiting.pop(index)
                    change.wait()
                return None

        def release(base):
            with change:
                warming.discard(base)
                change.notify_all()

        def worker(cpu):
            lab = Lab(root, cpu, part)
            while (job := take()) is not None:
                cell, seed = job
                title, base = f"{cell.place} {cell.name} seed {seed}", lab.base(cell, seed)
                try:
                    say(f"begins: {title}")
                    lab.warm_up(cell, seed)
                    release(base)
                    lab.train(cell, seed)
                    say(f"done: {title}")
                except (RuntimeError, OSError) as failure:
                    failed.append(title)
                    say(f"failed: {title}: {failure}")
                finally:
                    release(base)

        processors = sorted(os.sched_getaffinity(0))
        pins = [processors[n % len(processors)] if jobs > 1 else None for n in range(jobs)]
        with open(root / "lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            threads = [threading.Thread(target=worker, args=(pin,)) for pin in pins]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for seed in seeds:
                self.after(Lab(root, part=part), seed)
        return failed


def say(text):
    print(text, file=sys.stderr, flush=True)
