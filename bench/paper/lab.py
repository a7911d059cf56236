"""What the tables of this folder share: cells, warm-ups, token budgets, evaluation.

A *cell* is one training run: a world (an environment and a warm-up), a workflow, a method and a seed. It is a run directory
of pipeline.sh, runs/experiments/WORLD/NAME/seed-S, trained until its policies have generated a budget of tokens, the same for
all cells of a table. All cells of one world, workflow and seed start from one warm-up. Finished work is not repeated,
so any script can be interrupted and run again.

Left out: printing (tables.py), and which cells there are (one script per table). Uses only Python's standard library;
everything that trains or plays is called through pipeline.sh, which knows how a stage is called.
"""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SEEDS = (1, 2, 3)
# A run is evaluated after these parts of its budget, each time on TEST_TASKS tasks.
MARKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
TEST_TASKS = 1000
# Argument of `policy init --adapter`.
ADAPTER = "rank=16,alpha=32"
# The token budget ends a run, not its number of steps.
MOST_STEPS = 100_000
# The parts of an evaluation's stream that are kept.
SHORT = ('if .type == "sample" then {type: "answer", v: 1, episode, turn, agent, tokens: (.completion_ids | length), team: .rewards.team}'
         ' else . end')
# Samples of each agent per turn, for any number of branches: a step costs the same and has equally many
# optimizer steps.
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
    # `--model` of pipeline.sh; empty for the tiny preset.
    model: str = ""
    # Further flags of pipeline.sh.
    more: tuple = ()
    samples: int = SAMPLES_A_TURN
    test_tasks: int = TEST_TASKS
    marks: tuple = MARKS
    # A program in place of the environment: `--env-command` of pipeline.sh.
    command: str = ""
    # Evaluated by sampling and not greedily: where all tasks are alike, greedy play is one episode.
    sampled: bool = False

    @property
    def set_flags(self):
        """The environment's settings as a command line has them."""
        return [word for setting in self.settings for word in ("--set", setting)]


# A pretrained model: a step of 16 tasks, and an evaluation at the half and at the end, because its tokens cost a thousand times more.
REAL = dict(model="smollm2", samples=128, test_tasks=300, marks=(1 / 2, 1))

# Problems of coop-code: coop_problems.py prints them, magrpo.py keeps them here.
PROBLEMS = "runs/coop-problems.jsonl"

WORLDS = {
    "plan-path": World("plan-path", "Plan-Path, a third of the usual warm-up (1,200 steps)", turns=4, max_tokens=8, warmup=1200, budget=240_000),
    "plan-path-long": World("plan-path", "Plan-Path, the usual warm-up (3,600 steps)", turns=4, max_tokens=8, warmup=3600, budget=240_000),
    "plan-path-moves": World("plan-path", "Plan-Path, the tool proposes moves", turns=4, max_tokens=8, warmup=1200, budget=240_000,
                             settings=("proposal=moves",)),
    "sudoku": World("sudoku", "Sudoku 4x4", turns=4, max_tokens=8, warmup=1200, budget=240_000),
    "sums": World("math", "sums in words, SmolLM2-135M-Instruct", turns=1, max_tokens=12, warmup=0, budget=60_000,
                  settings=("encoding=full", "level=1"), **REAL),
    "stories": World("math", "word problems of one step, SmolLM2-135M-Instruct", turns=1, max_tokens=24, warmup=0, budget=80_000,
                     settings=("encoding=full", "level=2"), **REAL),
    "functions": World("code", "functions of a number, SmolLM2-135M-Instruct", turns=2, max_tokens=48, warmup=20, budget=80_000,
                       settings=("encoding=full", "level=1"), **REAL),
    "write": World("write", "Write: two writers of one text", turns=2, max_tokens=24, warmup=400, budget=120_000),
    "math-team": World("math", "Math: a tool that calculates beside a reasoner", turns=2, max_tokens=24, warmup=600, budget=120_000),
    "code-team": World("code", "Code: a coder beside a tester", turns=2, max_tokens=24, warmup=200, budget=60_000,
                       settings=("turns=2",), samples=192, marks=(1 / 2, 1), test_tasks=500),
    "coop-code": World("coop-code", "a helper beside a main function, SmolLM2-135M-Instruct", turns=1, max_tokens=64, warmup=0,
                       budget=40_000, settings=("turns=1", "gates=published", f"data={PROBLEMS}"), **dict(REAL, samples=64, test_tasks=22)),
    "coop-small": World("coop-small", "a helper beside a main function, in one line each", turns=1, max_tokens=16, warmup=400,
                        budget=48_000, samples=192, marks=(1 / 2, 1), test_tasks=500, command="python3 bench/paper/coop_small.py"),
    "coop-shared": World("coop-small", "the same, and nobody is shown going it alone", turns=1, max_tokens=16, warmup=400,
                         budget=48_000, samples=192, marks=(1 / 2, 1), test_tasks=500, command="python3 bench/paper/coop_small.py --alone 0"),
    "orders": World("orders", "Orders: four orders against a clock", turns=4, max_tokens=2, warmup=400, budget=24_000,
                    samples=192, marks=(1,), test_tasks=500, command="python3 bench/paper/orders.py"),
    "orders-prose": World("orders", "Orders in English, SmolLM2-135M-Instruct", turns=4, max_tokens=4, warmup=0, budget=10_000,
                          command="python3 bench/paper/orders.py --prose", **dict(REAL, test_tasks=200, marks=(1,))),
    "sokoban": World("sokoban", "Sokoban 6x6, one box", turns=4, max_tokens=8, warmup=1200, budget=240_000),
}


def shrink():
    """Makes every world so small that its cells take seconds: one step, of a few samples."""
    for name, world in WORLDS.items():
        WORLDS[name] = replace(world, warmup=min(world.warmup, 5), budget=1, samples=16, test_tasks=2, marks=(1,))


def replace_model(model):
    """Takes another pretrained model, in bfloat16, in the worlds that have one."""
    for name, world in WORLDS.items():
        if world.model:
            WORLDS[name] = replace(world, model=model, more=("--dtype", "bfloat16"))


@dataclass(frozen=True)
class Cell:
    """One method on one environment; with a seed it is a run. `method` is pipeline.sh's, `rollout` and `group` are flags of these
    stages, `advantage` is a command in place of the stage, `train` names the agents whose policies are trained (all, if none), `options`
    go to the world's command, `more` are further flags of pipeline.sh."""

    name: str
    title: str
    workflow: str = "team"
    agents: tuple = ("tool", "planner")
    per_role: bool = False
    # Adapters over one frozen base instead of all weights.
    adapters: bool = False
    branches: int = 8
    method: str = ""
    rollout: str = ""
    group: str = ""
    advantage: str = ""
    train: tuple = ()
    options: str = ""
    more: tuple = ()
    max_tokens: int = 0
    budget_share: float = 1.0
    place: str = "plan-path"

    @property
    def world(self):
        """The entry of WORLDS that `place` names."""
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
    """Where the runs are, how far they are trained and compared (a part of the budget), and how a program is run there."""

    def __init__(self, root, cpu=None, part=1):
        self.root = Path(root).resolve()
        self.cpu = cpu
        self.part = part
        programs = os.environ.get("TROUPE_BIN") or REPOSITORY / "target" / "release"
        self.environment = dict(os.environ, LC_ALL="C", ORT_DISABLE_TELEMETRY="1")
        self.environment["PATH"] = f"{programs}:{os.environ['PATH']}"

    def run(self, command, output=None):
        """Runs a command; returns the CPU-seconds of it and its children. Raises if it fails."""
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

    def pipeline(self, cell, *more, action=(), workflow=None):
        """pipeline.sh in the cell's world, as a command line."""
        world = cell.world
        played = ["--env", world.environment, *world.set_flags, "--workflow", workflow or cell.workflow]
        if world.command:
            played = ["--env-command", f"{world.command} {cell.options}".strip()]
        return ["./pipeline.sh", *action, *played, "--turns", world.turns, "--max-tokens", cell.max_tokens or world.max_tokens,
                *world.more, *more]

    def steps(self, cell, seed, directory, steps, *more):
        """Trains up to a number of steps in all, without pipeline.sh's evaluations."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        model = ["--model", cell.world.model] if cell.world.model and not more else []
        # Processes that stay: a step of a tiny policy costs less than starting its stages. The bytes are the same.
        stay = ["--resident"] if steps and not cell.advantage else []
        command = self.pipeline(cell, "--run", directory, "--seed", seed, "--steps", steps, "--warmup", cell.world.warmup,
                                "--eval-every", 0, *stay, *model, *more)
        # Beside the run: pipeline.sh begins in no folder that holds something else.
        return self.run(command, directory.with_suffix(".log"))

    def warm_up(self, cell, seed):
        """Makes the warm-up unless it is there."""
        base = self.base(cell, seed)
        if not (base / "policies" / "done").exists():
            note(base, "step", 0, cpu_seconds=self.steps(cell, seed, base, 0))
        begin = "adapter" if cell.adapters else "shared"
        if cell.adapters and not (base / "policies" / begin / "current").exists():
            shutil.rmtree(base / "policies" / begin, ignore_errors=True)
            self.run(["policy", "init", base / "policies" / begin, "--from", base / "policies" / "shared", "--adapter", ADAPTER,
                      "--seed", seed])
        # One policy under a name for each agent: roles that will differ start from the same weights.
        for agent in cell.agents:
            name = base / "policies" / f"{begin}-as-{agent}"
            if not name.is_symlink():
                name.symlink_to(begin)
        return base

    def train(self, cell, seed):
        """Trains a cell to this lab's part of its budget, with evaluations at the MARKS."""
        base, directory = self.warm_up(cell, seed), self.directory(cell, seed)
        flags = self.flags(cell, base)
        for goal in (int(cell.budget * mark) for mark in cell.world.marks if mark <= self.part):
            if sum(tokens(directory)) < goal:
                try:
                    seconds = self.steps(cell, seed, directory, MOST_STEPS, "--token-budget", goal, *flags)
                except RuntimeError:
                    if not is_stuck(directory):
                        raise
                    # pipeline.sh stops here: the rest of the budget would change nothing.
                    self.evaluate(cell, directory, directory / "policies", len(tokens(directory)))
                    return
                note(directory, "step", len(tokens(directory)), cpu_seconds=seconds)
            spent = tokens(directory)
            self.evaluate(cell, directory, directory / "policies", len(spent))

    def flags(self, cell, base):
        """What makes pipeline.sh this cell's method."""
        flags = ["--tasks", cell.world.samples // cell.branches, "--branches", cell.branches]
        for agent, policy in cell.policies().items():
            flags += ["--policies", f"{agent}={base}/policies/{'adapter' if cell.adapters else 'shared'}-as-{policy}"]
        flags += ["--method", cell.method] if cell.method else []
        flags += ["--flags", f"rollout={cell.rollout}"] if cell.rollout else []
        flags += ["--flags", f"group={cell.group}"] if cell.group else []
        flags += ["--stage", f"advantage={cell.advantage}"] if cell.advantage else []
        for agent in cell.train:
            flags += ["--train", agent]
        return flags + list(cell.more)

    def evaluate(self, cell, directory, policies, step, players=None, name="eval", workflow=None):
        """Greedy play on the test split, into NAME/step-NNNNNN.jsonl; of a sample only how many tokens it has and what the team
        earned."""
        file = directory / name / f"step-{step:06}.jsonl"
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".tmp")
        part.unlink(missing_ok=True)
        players = players or {agent: policies / policy for agent, policy in cell.policies().items()}
        play = [word for agent, folder in players.items() for word in ("--policies", f"{agent}={folder}")]
        command = self.pipeline(cell, "--eval-tasks", cell.world.test_tasks, *play, action=("evaluate", step), workflow=workflow)
        pipe = self.sampled(cell, players) if cell.world.sampled else shlex.join(map(str, command))
        pipe += " | jq -c " + shlex.quote(SHORT)
        note(directory, name, step, cpu_seconds=self.run(["bash", "-o", "pipefail", "-c", pipe], part))
        part.rename(file)

    def sampled(self, cell, players):
        """A pipe that plays the test tasks with sampled actions, as in training."""
        world, play = cell.world, ["rollout", "--branches", 1, "--turns", cell.world.turns, "--max-tokens", cell.max_tokens or cell.world.max_tokens]
        for agent, folder in players.items():
            play += ["--policy", f"{agent}={folder}"]
        tasks = ["envs", "tasks", world.environment, *world.set_flags]
        if world.command:
            tasks, play = shlex.split(world.command) + ["tasks"], [*play, "--env-command", world.command]
        tasks += ["--split", "test", "--count", world.test_tasks]
        return " | ".join(shlex.join(map(str, command)) for command in (tasks, [*play, "--quiet"]))


def note(directory, what, step, **costs):
    """Appends the cost of something to the directory's cost.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "cost.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"type": "cost", "what": what, "step": step, **costs}) + "\n")


def generated(line):
    """Tokens that the policies generated, from the `end` line of a stage after rollout."""
    own = line["counts"]["completion_tokens"] if line["stage"] == "rollout" else 0
    return own + sum(generated(before) for before in line.get("after", []))


def tokens(directory):
    """Tokens generated in each committed step of a run, in order."""
    spent = []
    while (step := directory / "steps" / f"{len(spent) + 1:06}" / "done").exists():
        with open(step.parent / "metrics.jsonl", encoding="utf-8") as file:
            spent.append(sum(generated(line) for line in map(json.loads, file) if line["type"] == "end"))
    return spent


def is_stuck(directory):
    """True if the last three steps of a run had flat groups alone."""
    last = sorted((directory / "steps").glob("*/done"))[-3:]
    groups = []
    for done in last:
        with open(done.parent / "metrics.jsonl", encoding="utf-8") as file:
            groups += [line["flat_groups"] == line["groups"] for line in map(json.loads, file) if line["type"] == "metrics"]
    return len(last) == 3 and all(groups)


class Plan:
    """The cells of a table in order of importance, each trained for every seed, and the evaluations after training. `finished` is
    called with each run that is trained; a cell that `known` knows is not trained."""

    def __init__(self, cells, after=lambda lab, seed: None, finished=lambda lab, cell, seed: None, known=lambda cell, seed: False):
        self.cells, self.after, self.finished, self.known = cells, after, finished, known

    def work(self, root, jobs, seeds, part=1):
        """Trains missing runs to a part of their budget, `jobs` at once, each on one processor; returns the failed ones."""
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        waiting = [(cell, seed) for seed in seeds for cell in self.cells if not self.known(cell, seed)]
        warming, failed, change = set(), [], threading.Condition()

        def take():
            """The first cell whose warm-up no other worker is making; None at the end."""
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
                    self.finished(lab, cell, seed)
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
