"""An environment of PettingZoo: tic-tac-toe, each of its two agents played by a policy.

Needs `pip install pettingzoo pygame` (its classic games import pygame; nothing is drawn).

PettingZoo's environments change in place and cannot be copied, and `rollout` wants a step to be a function of the state it is
sent. So the state is the list of moves, and a step resets PettingZoo's environment and plays them again: cheap for a board
game, and the way to wrap any environment that is deterministic once it is seeded.

A task is an opening from which player_1, who is to move, can force a win. The team is rewarded when it wins; player_2
is its opponent, paid for its game alone. An illegal move forfeits the game, as in PettingZoo's wrapper.

    python3 examples/pettingzoo_tictactoe.py tasks --count 8 |
      rollout --env-command 'python3 examples/pettingzoo_tictactoe.py' --policy run/policy --branches 4 | group | advantage | …
"""

import functools
import itertools
import random
import re

from pettingzoo.classic import tictactoe_v3

from troupe_rl import Environment, Probe, Start, Step, digest

AGENTS = ["player_1", "player_2"]
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


# ---- the game by its own rules: openings and the oracle ---------------------------------------------------------


def won(cells):
    return any(cells.issuperset(line) for line in LINES)


@functools.lru_cache(maxsize=None)
def value(own, other):
    """The value of the game to the player to move; own and other are frozensets of cells; a sooner win is worth more."""
    if won(other):
        return -10 + len(own) + len(other)
    free = set(range(9)) - own - other
    return max((-value(other, own | {cell}) for cell in free), default=0)


def marks(moves):
    return frozenset(moves[0::2]), frozenset(moves[1::2])


def best(moves):
    """The best move of the player to move, the lowest cell of equal ones."""
    own, other = marks(moves)[:: 1 if len(moves) % 2 == 0 else -1]
    return max(sorted(set(range(9)) - own - other), key=lambda cell: -value(other, own | {cell}))


SYMMETRIES = []
for turned, mirrored in itertools.product(range(4), (False, True)):
    places = [(column, row) for column in range(3) for row in range(3)]
    if mirrored:
        places = [(2 - column, row) for column, row in places]
    for _ in range(turned):
        places = [(row, 2 - column) for column, row in places]
    SYMMETRIES.append([3 * column + row for column, row in places])


def canonical(moves):
    """The name of an opening, the same for what turning, mirroring or another order of the moves makes of it."""
    boards = []
    for symmetry in SYMMETRIES:
        board = ["."] * 9
        for number, move in enumerate(moves):
            board[symmetry[move]] = "XO"[number % 2]
        boards.append("".join(board))
    return min(boards)


@functools.lru_cache(maxsize=None)
def openings():
    """Openings of two and four moves, not over, from which player_1 wins by force, by canonical name."""
    found = {}
    for length in (2, 4):
        for moves in itertools.permutations(range(9), length):
            first, second = marks(moves)
            if not won(first) and not won(second) and value(first, second) > 0:
                found.setdefault(canonical(moves), []).append(list(moves))
    return found


# ---- PettingZoo ------------------------------------------------------------------------------------------------


GAME = tictactoe_v3.env()  # made once: that is slow, and `reset` forgets what was played


def play(moves):
    """PettingZoo's environment after these moves."""
    GAME.reset(seed=0)
    for move in moves:
        GAME.step(move)
    return GAME


def see(moves, game):
    """The state, and the board as PettingZoo's observation has it, in words."""
    seen = {}
    for number, agent in enumerate(AGENTS):
        planes = game.observe(agent)["observation"]  # [column, row, (own marks, the other's)]
        own, other = ("X", "O") if number == 0 else ("O", "X")
        cell = lambda column, row: own if planes[column][row][0] else other if planes[column][row][1] else str(3 * column + row)
        board = "\n".join(" ".join(cell(column, row) for column in range(3)) for row in range(3))
        seen[agent] = f"{board}\nYou are {own}. Say the number of a free cell."
    return {"moves": moves, "over": False}, seen


class TicTacToe(Environment):
    name = "tictactoe"

    def tasks(self, split, seed):
        """Every fourth canonical opening, by its digest, is a test task; the order depends on the seed."""
        held_out = lambda name: int(digest(name)[:2], 16) % 4 == 0
        names = sorted(name for name in openings() if held_out(name) == (split == "test"))
        draws = random.Random(seed if split == "train" else 0)
        while True:
            for name in draws.sample(names, len(names)):
                # An opening may be reached in several orders and lie in several ways; its first form stands for
                # it.
                yield name, {"moves": openings()[name][0]}

    def reset(self, spec):
        moves = list(spec["moves"])
        return Start(*see(moves, play(moves)), AGENTS, turns=4)

    def step(self, state, agent, text):
        if state["over"]:
            raise ValueError("the episode is over")
        game = play(state["moves"])
        if agent != game.agent_selection:
            raise ValueError(f"it is the turn of {game.agent_selection}, not of {agent}")
        said = re.fullmatch(r"\s*([0-8])\s*", text, re.ASCII)
        free = game.observe(agent)["action_mask"]
        if said is None or not free[int(said[1])]:
            parts = {"format": float(said is not None), "game": 0.0}
            return Step({"moves": state["moves"], "over": True}, {}, components=parts, terminated=True)
        move = int(said[1])
        game.step(move)
        moves = state["moves"] + [move]
        over = any(game.terminations.values())
        # PettingZoo pays 1, 0 or -1 at the end; a game that goes on is worth as much as a draw.
        parts = {"format": 1.0, "game": (game.rewards[agent] + 1) / 2}
        success = over and game.rewards["player_1"] == 1
        after, seen = see(moves, game)
        return Step(dict(after, over=over), seen, float(success), (1 + 9 * parts["game"]) / 10, parts, over, success)

    def probe(self, state, agent):
        moves = state["moves"]
        if state["over"]:
            return Probe([], solved=won(marks(moves)[0]))
        return Probe([str(cell) for cell in range(10)], str(best(moves)))


if __name__ == "__main__":
    TicTacToe().main()
