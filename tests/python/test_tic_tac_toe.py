"""Tic-tac-toe: rewards by hand, the values of known positions, whole demonstrations, and exact exploitability."""

import unittest
from fractions import Fraction

import tic_tac_toe
from tic_tac_toe import CELLS, TicTacToe, best, best_response, moves, positions, value


def game(*words):
    made = TicTacToe()
    made.options = tic_tac_toe.parser.parse_args(words)
    return made


def start(board):
    return {"board": board, "flawless": True, "lost": False}


class Shaped(unittest.TestCase):
    def play(self, board, *texts):
        """For each text, by x and o in turn: the rewards of the team and the agent, and whether it ends the game."""
        state, earned = start(board), []
        for place, text in enumerate(texts):
            step = game().step(state, "xo"[place % 2], text)
            state = step.state
            earned.append((step.team, round(step.local, 9), step.terminated))
            self.assertEqual(step.success, step.terminated and step.team == 1)
        return earned

    def test_a_game_without_a_fault_pays_the_team(self):
        self.assertEqual(self.play("xx.oo....", " c0"), [(1, 1, True)])
        # To block is a draw where a win was there: a fault, and nobody is paid as a team any more.
        self.assertEqual(self.play("xx.oo....", " c1", " a2", " c0"), [(0, 0.6, False), (0, 0.2, False), (0, 1, True)])

    def test_an_illegal_move_places_nothing_and_the_other_agent_moves(self):
        for text, local in ((" a0", 0.1), (" d0", 0), (" a3", 0), ("", 0)):
            self.assertEqual(self.play("xx.oo....", text, " c1"), [(0, local, False), (0, 1, True)], text)

    def test_each_agent_sees_its_own_marks_as_1(self):
        seen = game().reset({"board": "xx.oo...."})
        self.assertEqual(seen.turns, 3)
        self.assertEqual(seen.observations, {"x": "at 1 1 0 2 2 0 0 0 0 moves", "o": "at 2 2 0 1 1 0 0 0 0 moves"})

    def test_boards_that_are_none_and_games_that_are_over_are_refused(self):
        for board in ("xx.oo...", "xx.oo...z", "xxxoo....", "xoxxoxoxo"):
            self.assertRaises(ValueError, game().reset, {"board": board})
        self.assertRaises(ValueError, game().step, start("xxxoo...."), "o", " c1")
        self.assertRaises(ValueError, game().step, start("xx.oo...."), "y", " c0")


class Win(unittest.TestCase):
    def play(self, board, *texts):
        state = start(board)
        for place, text in enumerate(texts):
            step = game("--reward", "win").step(state, "xo"[place % 2], text)
            state = step.state
            self.assertEqual((step.team, step.terminated), (0, place + 1 == len(texts)))
            self.assertTrue(step.terminated or step.local == 0)
        return [step.local[agent] for agent in "xo"], step.components["perfect"]

    def test_opponents_are_paid_for_the_result(self):
        self.assertEqual(self.play("xx.oo....", " c0"), ([1, -1], 1))
        self.assertEqual(self.play("xx.oo....", " a2", " c1"), ([-1, 1], 1))
        self.assertEqual(self.play("xoxxoo.x.", " c2", " a2")[0], [0, 0])
        # An illegal move loses, also from a won position.
        self.assertEqual(self.play("xx.oo....", " a0"), ([-1, 1], 0))
        self.assertEqual(self.play("xx.oo....", " c1", "pass"), ([1, -1], 0))


class Perfect(unittest.TestCase):
    def test_values_of_the_known_game(self):
        self.assertEqual((value("." * 9, "x"), len(best("." * 9, "x"))), (0, 9))
        self.assertEqual((value("xx.oo....", "x"), best("xx.oo....", "x")), (1, [2]))
        self.assertEqual((value("xx.oo....", "o"), best("xx.oo....", "o")[0]), (1, 5))
        for board, won in ((".........", 0), ("x...o....", 0), ("xx.oo....", 1), ("oo.o.xx.x", 1)):
            mark = "x"
            while moves(board, mark):
                board, mark = moves(board, mark)[best(board, mark)[0]], "o" if mark == "x" else "x"
            self.assertEqual(tic_tac_toe.winner(board), "x" if won else None)

    def test_the_best_response_is_exact(self):
        """Against every legal move alike, by exact fractions: 191/192 a game from the first as x, and 874/945 as o."""
        strategy = {board: {cell: Fraction(1, len(moves(board))) for cell in moves(board)} for board in positions()}
        self.assertEqual(len(strategy), 4520)
        self.assertEqual([best_response(strategy, seat) for seat in "xo"], [Fraction(191, 192), Fraction(874, 945)])

    def test_demonstrations_are_whole_games_and_the_best_ones_give_nothing_away(self):
        for share, spoils in ((1, False), (0, True)):
            teams, ends = set(), 0
            for line in game().demonstrations(40, 3, share):
                cells = line["prompt"][0]["content"].split()[1:10]
                board = "".join({"0": ".", "1": line["agent"], "2": "o" if line["agent"] == "x" else "x"}[cell] for cell in cells)
                step = game().step(start(board), line["agent"], line["completion"])
                self.assertEqual(step.components["legal"], 1)
                ends += step.terminated
                teams.add(step.state["flawless"])
            self.assertEqual((False in teams, ends), (spoils, 40))

    def test_splits_hold_images_together(self):
        found = {split: [spec["board"] for (_, spec), _ in zip(game().tasks(split, 5), range(500))] for split in ("train", "test")}
        turned = {"".join(board[int(cell)] for cell in image) for board in found["train"] for image in tic_tac_toe.IMAGES}
        self.assertFalse(turned & set(found["test"]))
        self.assertGreater(len(set(found["test"])), 60)
