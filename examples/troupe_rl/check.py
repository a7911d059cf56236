"""The contract of an environment, tested by `envs check` in one command, with the tracebacks of faults.

    python3 my_env.py check --tasks 20
    python3 -m troupe_rl.check --tasks 20 my_env.py [its options]

    from troupe_rl.check import check_env      # in a test: raises AssertionError with the rules that were broken
    def test_my_env():
        check_env("my_env.py", "--its", "options")
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import List, Sequence

DRAWN = 300
"""Tasks of each split that are drawn: the number of an evaluation."""
SOME = 16
"""Tasks of a seed that are compared with another seed's."""


class Failed(Exception):
    """A program that a check needs failed, and said why; its exit code is the argument."""


def draw(program: Sequence[str], split: str, count: int, seed: int, timeout: int) -> List[str]:
    """Task lines that a program prints."""
    command = ["envs", "tasks", "--quiet", "--env-command", shlex.join(program), "--split", split, "--count", str(count),
               "--seed", str(seed), "--timeout", str(timeout)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8")
    if printed.returncode:
        raise Failed(printed.returncode)
    return [line for line in printed.stdout.splitlines() if json.loads(line)["type"] == "task"]


def check(program: Sequence[str], tasks: int = 8, seed: int = 0, timeout: int = 60) -> "subprocess.CompletedProcess[str]":
    """The table of rules that `program`, a command, keeps or breaks, in `stdout`; `returncode` is 1 if one is broken."""
    if shutil.which("envs") is None:
        sys.stderr.write("troupe_rl.check: there is no program `envs` in PATH\nhint: export PATH=target/release:$PATH, in a checkout\n")
        raise Failed(69)
    train = draw(program, "train", max(tasks, DRAWN), seed, timeout)
    again = [draw(program, "train", SOME, seed + more, timeout) for more in (0, 1, 2)]
    lines = train + draw(program, "test", max(tasks, DRAWN), seed, timeout)
    command = ["envs", "check", "--quiet", "--env-command", shlex.join(program), "--tasks", str(tasks), "--seed", str(seed),
               "--timeout", str(timeout)]
    # A call that lasts as long is shown with its stack, before it is killed.
    environment = {**os.environ, "TROUPE_STACK_AFTER": str(0.8 * timeout)}
    checked = subprocess.run(command, input="\n".join(lines) + "\n", stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    first = train[:SOME]
    if again[0] != first:
        checked.stdout += f"BROKEN the same seed makes the same tasks\n       {again[0][0]} and then {first[0]}\n"
        checked.returncode = checked.returncode or 1
    elif again[1] == again[2] == first and len(set(train)) > SOME:  # a small set may come whole in every step
        checked.stdout += (f"note   another seed makes other tasks\n       the first {SOME} train tasks of seeds {seed}, {seed + 1} and "
                           f"{seed + 2} are the same, so every training step plays the same: draw from random.Random(seed)\n")
    return checked


def report(program: Sequence[str], tasks: int, seed: int, timeout: int) -> int:
    """Prints the table, and returns the exit code."""
    try:
        checked = check(program, tasks, seed, timeout)
    except Failed as failed:
        return int(failed.args[0])
    sys.stdout.write(checked.stdout)
    return checked.returncode


def check_env(program: str, *options: str, tasks: int = 8, seed: int = 0) -> None:
    """Raises AssertionError with the rules that the environment in the file `program` breaks."""
    checked = check([sys.executable, program, *options], tasks, seed)
    assert checked.returncode == 0, checked.stdout


def main() -> None:
    parser = argparse.ArgumentParser("troupe_rl.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="8", help="tasks of each split")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--timeout", default="60", help="seconds for an answer")
    parser.add_argument("program", help="the environment's file")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own options")
    words = parser.parse_args()
    if not os.path.isfile(words.program):
        sys.stderr.write(f"troupe_rl.check: {words.program}: no such file\nhint: python3 -m troupe_rl.check my_env.py\n")
        sys.exit(2)
    limits = ["--tasks", words.tasks, "--seed", words.seed, "--timeout", words.timeout]
    os.execv(sys.executable, [sys.executable, words.program, *words.options, "check", *limits])


if __name__ == "__main__":
    main()
