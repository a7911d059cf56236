#!/usr/bin/env python3
"""Exploitability in tic-tac-toe: what a perfect opponent wins from a policy, a game.

    python3 examples/tic_tac_toe.py positions |
      rollout --policy x=runs/game/policies/shared/current --policy o=runs/game/policies/shared/current --turns 1 --branches 64 |
      python3 examples/tic_tac_toe.py exploitability

`positions` prints a task for each of the 4,520 positions that are not over. Whoever is to move plays `x` there and sees its own marks
as 1, so both roles are asked as `x`. For policies of each role, ask twice: `positions x` with --policy x=DIR_OF_X, `positions o` with
--policy x=DIR_OF_O, and give both streams to `exploitability`.

`exploitability` prints a JSON line. `as_x` and `as_o` are what the best response wins against the policy in that seat: 1 for a win, 0
for a draw, -1 for a loss, and `exploitability` is their mean: 0 for perfect play, 1 for a policy that always loses. An illegal
answer loses, as with `reward=win`. The probability of an answer follows from its log-probabilities, so sample at temperature 1.
Moves that no sample made count as never played; `unseen` is the mean over positions of the probability that no sample covers.
"""

import json
import math
import signal
import sys
from functools import cache

CELLS = ("a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SWAPPED = str.maketrans("xo", "ox")


def winner(board):
    """x, o, or None."""
    return next((board[a] for a, b, c in LINES if board[a] == board[b] == board[c] != "."), None)


def mover(board):
    return "x" if board.count("x") == board.count("o") else "o"


def moves(board):
    """The board after each legal move, by cell; none if the game is over."""
    if winner(board):
        return {}
    return {cell: board[:cell] + mover(board) + board[cell + 1:] for cell in range(9) if board[cell] == "."}


def positions():
    """All boards that play from the empty one can reach and that are not over."""
    found, waiting = {}, ["." * 9]
    while waiting:
        board = waiting.pop()
        if board not in found and moves(board):
            found[board] = None
            waiting.extend(moves(board).values())
    return found


def best_response(strategy, seat):
    """What the best response in `seat` wins a game. `strategy`: for each board the probability of each answer, a cell or None if illegal."""
    @cache
    def value(board):
        after = moves(board)
        if not after:
            return {None: 0, seat: 1}.get(winner(board), -1)
        if mover(board) == seat:
            return max(value(board) for board in after.values())
        return sum(chance * (value(after[cell]) if cell in after else 1) for cell, chance in strategy[board].items())
    return value("." * 9)


def strategy_of(samples):
    """The strategy by the sample lines of a rollout, and the mean over positions of the probability that no sample covers."""
    answers = {}
    for sample in samples:
        if sample.get("type") == "sample" and sample["agent"] == "x" and sample["turn"] == 0:
            text = sample["completion"].strip()
            chance = math.exp(sum(sample["completion_logprobs"]))
            cell = CELLS.index(text) if text in CELLS else None
            answers.setdefault(sample["task"], {})[tuple(sample["completion_ids"])] = (cell, chance)
    strategy, unseen = {}, 0.0
    for board, seen in answers.items():
        total = sum(chance for _, chance in seen.values())
        unseen += max(0.0, 1 - total) / len(answers)
        shares = strategy[board] = {}
        for cell, chance in seen.values():
            shares[cell] = shares.get(cell, 0.0) + chance / total
    return strategy, unseen


def measure(lines):
    strategy, unseen = strategy_of(map(json.loads, lines))
    missing = [board for board in positions() if board not in strategy]
    if missing:
        sys.exit(f"tic_tac_toe.py: no sample of {len(missing)} of 4520 positions, as of {missing[0]}\n"
                 "hint: play all tasks of `positions`, of both roles")
    as_x, as_o = best_response(strategy, "x"), best_response(strategy, "o")
    print(json.dumps({"exploitability": (as_x + as_o) / 2, "as_x": as_x, "as_o": as_o, "unseen": unseen}))


def print_positions(role):
    """Tasks of the positions in which `role` is to move, or of all."""
    tasks = [board for board in positions() if not role or mover(board) == role]
    for board in tasks:
        shown = board if mover(board) == "x" else board.translate(SWAPPED)
        print(json.dumps({"type": "task", "v": 1, "env": "tic-tac-toe", "task": board, "split": "test", "spec": {"board": shown}}))
    print(json.dumps({"type": "end", "v": 1, "stage": "tasks", "ok": True, "counts": {"tasks": len(tasks)}}))


def main(arguments):
    command, role = (arguments + ["", ""])[:2]
    if command == "positions" and len(arguments) < 3 and role in ("", "x", "o"):
        print_positions(role)
    elif arguments == ["exploitability"]:
        measure(sys.stdin)
    elif command in ("-h", "--help"):
        print(__doc__.strip())
    else:
        sys.exit("tic_tac_toe.py: positions [x|o], or exploitability\nhint: --help shows the pipe")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    main(sys.argv[1:])
