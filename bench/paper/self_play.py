#!/usr/bin/env python3
"""Self-play in Kuhn poker: against the newest version alone, against a pool of versions, and with a baseline for each role.

    latest      both players are the newest version, and both learn
    pool        one player learns, the other is drawn from the last twenty versions; with twice the games, for the same number of samples
    rae         as latest, with a moving average for each role in place of the group's mean (arXiv 2506.24119)

    python3 bench/paper/self_play.py run --jobs 2      trains missing runs, then prints the table
    python3 bench/paper/self_play.py table

Exploitability is half the chips a game that best responses gain against the two players: 0 at an equilibrium. It is exact for the
probabilities of the samples of a step; the table has the mean of five steps. `together` is the average play of the last third. The
last version's Elo, with the first at 0, comes from games of three versions that play each other both ways.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "examples"))
import kuhn_poker  # noqa: E402

BIN = Path(os.environ.get("TROUPE_BIN", REPOSITORY / "target/release"))
ELO = REPOSITORY / "examples/elo.py"
KUHN = f"python3 {REPOSITORY / 'examples/kuhn_poker.py'} --chips"
# Half the usual learning rate and a bonus for entropy: without them every arm overshoots, and ends farther from the equilibrium.
CALM = ["--lr", "5e-4", "--flags", "update=--entropy 0.05"]
OWN = ["--flags", "rollout=--sampling parallel", "--flags", "group=--by agent", "--flags", "advantage=--credit episode-own"]
ARMS = {
    "latest": ["--tasks", 24, *OWN],
    "pool": ["--tasks", 48, "--opponents", "past:20", *OWN],
    "rae": ["--tasks", 24, "--method", "rae"],
}


def train(directory, arm, seed, steps):
    """One run; finished steps are not repeated."""
    # Nothing else measures what a greedy player of a game with mixed strategies is worth, so there is no evaluation.
    fixed = ["--eval-every", 0, "--warmup", 400, "--branches", 8, "--keep", 1000, "--seed", seed, "--steps", steps, *CALM]
    words = [REPOSITORY / "pipeline.sh", "--run", directory, "--env-command", KUHN, *fixed, *ARMS[arm]]
    words += ["--stage", f"reward=python3 {REPOSITORY / 'examples/kuhn_poker.py'} measure"]
    log = directory.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as output:
        subprocess.run(list(map(str, words)), cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, check=True)


def exploitability(directory, step):
    """The mean of five steps up to this one, or from the first on."""
    values = []
    for number in range(max(1, step - 4), max(5, step) + 1):
        with open(directory / f"steps/{number:06}/samples.jsonl") as lines:
            values += [json.loads(line)["exploitability"] for line in lines if line.startswith('{"type": "measure"')]
    return statistics.mean(values)


def together(directory, steps):
    """Exploitability of the average play of the versions of the last third of the steps."""
    samples = []
    for number in range(steps - steps // 3 + 1, steps + 1):
        with open(directory / f"steps/{number:06}/samples.jsonl") as lines:
            samples += [json.loads(line) for line in lines if line.startswith('{"type":"sample"')]
    return float(kuhn_poker.exploitability(kuhn_poker.strategy_of(samples)))


def elo(directory, steps, games):
    """Rating and standard error of the last version, against the first and one between them."""
    version = lambda step: directory / f"policies/shared/step-{step:06}"
    files = []
    for one, other in itertools.permutations((0, steps // 2, steps), 2):
        files.append(directory / f"games-{one}-{other}.jsonl")
        if not files[-1].exists():
            play = [BIN / "rollout", "--env-command", KUHN, "--branches", 1, "--max-tokens", 8, "--quiet", "--policy", f"first={version(one)}",
                    "--policy", f"second={version(other)}"]
            command = f"{KUHN} tasks --split test --count {games} | {shlex.join(map(str, play))} > {shlex.quote(str(files[-1]))}.tmp"
            subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
            os.rename(f"{files[-1]}.tmp", files[-1])
    printed = subprocess.run([sys.executable, ELO, "--json", *files], check=True, capture_output=True, text=True).stdout
    last = json.loads(printed.splitlines()[-1])
    return last["elo"], last["error"]


def table(root, seeds, steps, games):
    marks = [1, steps // 4, steps // 2, steps]
    print("| | seed | " + " | ".join(f"step {mark}" for mark in marks) + f" | together | Elo at step {steps} |")
    print("|---|---|" + "---|" * (len(marks) + 2))
    for arm, seed in itertools.product(ARMS, seeds):
        directory = root / arm / f"seed-{seed}"
        if not (directory / f"steps/{steps:06}/done").exists():
            print(f"| {arm} | {seed} | missing |")
            continue
        values = " | ".join(f"{exploitability(directory, mark):.3f}" for mark in marks)
        rating, error = elo(directory, steps, games)
        print(f"| {arm} | {seed} | {values} | {together(directory, steps):.3f} | {rating:.0f} ± {error:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--root", type=Path, default=Path("runs/experiments/self-play"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--games", type=int, default=300, help="of each pair of versions, each way")
    options = parser.parse_args()
    root, seeds = options.root.resolve(), [int(seed) for seed in options.seeds.split(",")]
    if options.what == "run":
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(train, root / arm / f"seed-{seed}", arm, seed, options.steps) for seed, arm in itertools.product(seeds, ARMS)]
            [run.result() for run in runs]
    table(root, seeds, options.steps, options.games)


if __name__ == "__main__":
    main()
