#!/usr/bin/env python3
"""Tic-tac-toe: x and o take turns on one board. Also exploitability: what a perfect opponent wins from a policy, a game.

    env='python3 examples/tic_tac_toe.py'
    ($env tasks --count 50; $env tasks --split test --count 50) | envs check --env-command "$env"
    $env positions |
      rollout --env-command "$env" --policy x=runs/game/policies/shared/current --policy o=runs/game/policies/shared/current \
        --turns 1 --branches 64 |
      $env exploitability

An agent sees the cells in reading order, 1 for its own marks and 2 for its opponent's: `at 1 0 0 0 2 0 0 0 0 moves`. ` b0` marks
column b of row 0.

    --reward shaped   a move earns its agent .1 format + .1 legal + .8 value: its result under perfect play, 1 for a win, 1/2 for a draw.
                      After an illegal move the other agent moves. A game in which no move gave value away is a success and earns the
                      team 1 [default]
    --reward win      the agents are opponents: at the end 1 to the winner and -1 to the loser, 0 to both for a draw, and nothing to
                      the team. An illegal move loses. The component `perfect` is 1 for a move that gives no value away

`positions` prints a task for each of the 4,520 positions that are not over. Whoever is to move plays `x` there and sees its own marks
as 1, so both roles are asked as `x`. For policies of each role, ask twice: `positions x` with --policy x=DIR_OF_X, `positions o` with
--policy x=DIR_OF_O, and give both streams to `exploitability`.

`exploitability` prints a JSON line. `as_x` and `as_o` are what the best response wins against the policy in that seat: 1 for a win, 0
for a draw, -1 for a loss, and `exploitability` is their mean: 0 for perfect play, 1 for a policy that always loses. An illegal
answer loses, as with `reward=win`. The probability of an answer follows from its log-probabilities, so sample at temperature 1.
Moves that no sample made count as never played; `unseen` is the mean over positions of the probability that no sample covers.
"""

import argparse
import json
import math
import random
import signal
import sys
from functools import cache

from troupe_rl import Environment, Probe, Start, Step, is_test

CELLS = ("a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SWAPPED = str.maketrans("xo", "ox")
# Rotations and mirror images: the cell that each cell shows.
IMAGES = "012345678 630741852 876543210 258147036 210543876 852741630 678345012 036147258".split()

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--reward", choices=["shaped", "win"], default="shaped")


def winner(board):
    """x, o, or None."""
    return next((board[a] for a, b, c in LINES if board[a] == board[b] == board[c] != "."), None)


def mover(board):
    return "x" if board.count("x") == board.count("o") else "o"


def moves(board, mark=None):
    """The board after each legal move of `mark`, by cell; empty after the end of the game."""
    if winner(board):
        return {}
    return {cell: board[:cell] + (mark or mover(board)) + board[cell + 1:] for cell in range(9) if board[cell] == "."}


@cache
def value(board, mark):
    """What `mark`, who moves next, gets under perfect play: 1 for a win, 0 for a draw, -1 for a loss."""
    if winner(board):  # the opponent's, who moved last
        return -1
    return max((worth(after, mark) for after in moves(board, mark).values()), default=0)


def worth(after, mark):
    """The value to `mark` of having moved to the board `after`."""
    return -value(after, mark.translate(SWAPPED))


def best(board, mark):
    """The cells of perfect moves; one that ends the game comes first."""
    after = moves(board, mark)
    perfect = [cell for cell in after if worth(after[cell], mark) == value(board, mark)]
    return sorted(perfect, key=lambda cell: bool(moves(after[cell])))


class TicTacToe(Environment):
    name, parser, share = "tic-tac-toe", parser, 0.3

    def tasks(self, split, seed):
        """Boards with up to four random marks, on which x moves; a board and its images are in one split."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            board = "." * 9
            for _ in range(2 * draws.randrange(3)):
                board = draws.choice(list(moves(board).values()))
            if is_test(min("".join(board[int(cell)] for cell in image) for image in IMAGES)) == (split == "test"):
                yield board, {"board": board}

    def reset(self, spec):
        board = spec["board"]
        if len(board) != 9 or set(board) - set("xo.") or not moves(board):
            raise ValueError("board: not nine of x, o and ., or already over")
        turns = (board.count(".") + 1) // 2
        return Start({"board": board, "flawless": True, "lost": False}, self.see(board), ["x", "o"], turns=turns,
                     reward_range=(-1.0, 1.0) if self.options.reward == "win" else (0.0, 1.0))

    def see(self, board):
        return {agent: f"at {' '.join('0' if mark == '.' else '12'[mark != agent] for mark in board)} moves" for agent in "xo"}

    def is_over(self, state):
        return state["lost"] or not moves(state["board"])

    def step(self, state, agent, text):
        board, wins = state["board"], self.options.reward == "win"
        if self.is_over(state) or agent not in ("x", "o"):
            raise ValueError(f"the episode is over, or {agent} is not x or o")
        cell = CELLS.index(text.strip()) if text.strip() in CELLS else None
        after = moves(board, agent).get(cell)
        got = None if after is None else worth(after, agent)
        perfect = got == value(board, agent)
        state = {"board": after or board, "flawless": state["flawless"] and perfect, "lost": wins and after is None}
        over = self.is_over(state)
        solved = over and state["flawless"]
        parts = {"format": float(cell is not None), "legal": float(after is not None), "value": 0.0 if got is None else (got + 1) / 2}
        if wins:
            won = -1 if state["lost"] else int(winner(state["board"]) is not None)
            team, local = 0.0, {agent: won, agent.translate(SWAPPED): -won} if over else 0.0
            parts["perfect"] = float(perfect)
        else:
            team, local = float(solved), 0.1 * parts["format"] + 0.1 * parts["legal"] + 0.8 * parts["value"]
        return Step(state, self.see(state["board"]), team, local, parts, over, solved)

    def probe(self, state, agent):
        if self.is_over(state):
            return Probe([], solved=state["flawless"])
        return Probe([f" {cell}" for cell in CELLS] + [" d0", " a3", "x"], f" {CELLS[best(state['board'], agent)[0]]}")

    def demonstrate(self, state, agent):
        """Legal moves, and any of the perfect ones."""
        if self.is_over(state):
            return Probe([])
        board = state["board"]
        perfect = random.Random(f"{agent} {board}").choice(best(board, agent))
        return Probe([f" {CELLS[cell]}" for cell in moves(board, agent)], f" {CELLS[perfect]}")


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
    else:
        TicTacToe().main(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    main(sys.argv[1:])
