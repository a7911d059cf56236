"""Environment steps per CPU-second: Troupe's Plan-Path, and the same game for Gymnasium and PettingZoo.

    PYTHON=/path/to/venv/bin/python bench/speed/environments.py [--rounds N] [--seconds S]

The interpreter needs `pip install gymnasium pettingzoo`. First every engine plays the same 2,000 episodes; observations,
rewards and ends must agree to the last bit. Then the engines take turns on one processor. The table has medians over rounds,
and medians of the ratios within a round. If TROUPE_BIN is target/debug, ours is a debug build, which only shows that
everything runs.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def built():
    """Builds the benchmark program and returns its path."""
    profile = "dev" if os.environ.get("TROUPE_BIN", "").endswith("/debug") else "bench"
    command = ["cargo", "bench", "--workspace", "--profile", profile, "--bench", "episodes", "--no-run", "--message-format=json", "--quiet"]
    output = subprocess.run(command, cwd=HERE.parent.parent, check=True, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in output.splitlines() if '"executable":"' in line]
    return next(line["executable"] for line in found if line["target"]["name"] == "episodes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU-seconds of each measurement")
    arguments = parser.parse_args()
    python = os.environ.get("PYTHON", "python3")
    ours, peers = built(), [python, str(HERE / "environment_peers.py")]
    processor = max(os.sched_getaffinity(0))

    def run(*command):
        pin = lambda: os.sched_setaffinity(0, {processor})
        return subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pin).stdout

    with tempfile.TemporaryDirectory() as folder:
        games = {"single": "Gymnasium", "team": "PettingZoo (AEC)"}
        for workflow in games:
            file = f"{folder}/{workflow}.jsonl"
            pathlib.Path(file).write_text(run(ours, "write", workflow, "2000"))
            print(f"{workflow}: {run(*peers, 'check', file).strip()}")
        seconds = str(arguments.seconds)
        rounds = []
        for number in range(arguments.rounds):
            measured = {}
            for workflow in games:
                file = f"{folder}/{workflow}.jsonl"
                engines = [("ours", [ours]), ("peer", peers)]
                for name, command in engines[:: 1 if number % 2 == 0 else -1]:
                    measured[workflow, name] = json.loads(run(*command, "time", file, seconds))
            rounds.append(measured)

    versions = "import gymnasium, pettingzoo, sys; print(f'Python {sys.version.split()[0]}, Gymnasium {gymnasium.__version__}, PettingZoo {pettingzoo.__version__}')"
    print(f"{datetime.date.today()}, {run(python, '-c', versions).strip()}; {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print("| game | what | ours, median (range) | peer, median (range) | ours / peer, median (range) |")
    print("|---|---|---|---|---|")
    for workflow, peer in games.items():
        for theirs, mine, what in [
            ("steps", "steps", "steps in place, bare"),
            ("made", "steps", "steps in place, in the library's usual wrappers"),
            ("whole", "whole", "in place, bare, with a new board each episode"),
            ("copy", "tree", "each step on a copy of the state, the peer's written by hand"),
            ("deepcopy", "tree", "each step on a copy of the state, the peer's by `copy.deepcopy`"),
        ]:
            pairs = [(m[workflow, "ours"][mine], m[workflow, "peer"][theirs]) for m in rounds]
            spread = lambda values, form: f"{statistics.median(values):{form}} ({min(values):{form}} – {max(values):{form}})"
            cells = [spread([a for a, _ in pairs], ",.0f"), spread([b for _, b in pairs], ",.0f")]
            ratio = spread([a / b for a, b in pairs], ".1f")
            print(f"| {workflow}, {peer} | {what} | {cells[0]} | {cells[1]} | **{ratio.split(' ')[0]}** {ratio.split(' ', 1)[1]} |")


if __name__ == "__main__":
    main()
