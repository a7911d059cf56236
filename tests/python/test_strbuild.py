"""StrBuild: walls worked out by hand from the published rules, commands, and the best texts."""

import unittest

import strbuild
from strbuild import PALETTES, StrBuild, best, build, cells, score, width


def builders(*words):
    made = StrBuild()
    made.options = strbuild.parser.parse_args(words)
    return made


def built(texts, most=99, word="I"):
    blocks = {}
    for text, palette in zip(texts, PALETTES):
        build(blocks, text, palette, most, word)
    return blocks


class Walls(unittest.TestCase):
    def test_scores_by_hand(self):
        """The letter I has three cells in the top and bottom row and one in the three between: 9 of 25."""
        self.assertEqual((len(cells("I")), width("I"), width("AB")), (9, 5, 12))
        self.assertEqual(score("I", {}, 2)[0], -0.5)
        # Two neighbors that look alike, one block next to the letter, one palette complete.
        total, parts = score("I", built(["/setblock 2 1 0 stone\n/setblock 2 2 0 stone\nsetblock 0 2 0 oak_planks", "no"]), 2)
        self.assertAlmostEqual(total, 4 / 9 - 1.5 / 16 - 1 - 0.25)
        self.assertEqual(parts, {"coverage": 2 / 9, "extra": 1 / 16, "adjacent": 1, "palettes": 0.5, "iou": 0.2})

    def test_commands(self):
        for text, count in (
            ("1. no\n- /setblock 0 0 0 minecraft:stone\n2) /setblock 1 0 0 stone", 2),
            ("```\n/SETBLOCK 0 0 0 stone more\n```", 1),
            ("/setblock 0 0 0 obsidian\n/setblock ~ 0 0 stone\n/setblock 5 0 0 stone\n/setblock 0 0 1 stone", 0),
            ("/setblock 0 -1 0 stone\n/fill 0 0 0 stone\n/setblock 0 0 stone\n/setblock 99999999999999999999 0 0 stone", 0),
            ("/setblock 0 0 0 stone\n/setblock 0 0 0 air", 0),
        ):
            self.assertEqual(len(built([text])), count, text)
        self.assertEqual(len(built(["/setblock 0 0 0 stone\n/setblock 1 0 0 stone"], most=1)), 1)
        # The second builder overwrites the first.
        self.assertEqual(built(["/setblock 0 0 0 stone", "/setblock 0 0 0 obsidian"])[0, 0], "obsidian")

    def test_the_best_texts_score_2(self):
        for word in ("X", "I", "L", "YES", "TRAVELER"):
            for count in (1, 2):
                self.assertEqual(score(word, built(best(word, count), 300, word), count)[0], 2, word)

    def test_a_turn_by_hand(self):
        env = builders("--turns", "2", "--commands", "5")
        start = env.reset({"word": "I"})
        self.assertEqual((start.turns, start.reward_range), (2, (-3, 2)))
        one, two = start.observations["builder-1"], start.observations["builder-2"]
        self.assertTrue("at most 3 lines" in one and ".###.\n..#.." in two and "obsidian" in two and "at most 2 lines" in two)
        # Three of four commands count for the first builder; the second overwrites one of them and builds next to the letter.
        step = env.joint(start.state, {
            "builder-2": "```\n/setblock 2 1 0 obsidian\n/setblock 0 0 0 obsidian\n```",
            "builder-1": "/setblock 1 0 0 stone\n/setblock 2 0 0 stone\n/setblock 2 1 0 oak_planks\n/setblock 3 0 0 stone"})
        # Covered 3 of 9, extra 1 of 16; (1,0)-(2,0) alike, (2,0)-(2,1) and (0,0)-(1,0) not; both palettes incomplete.
        self.assertAlmostEqual(step.team, 2 / 3 - 1.5 / 16 - 1 / 3 - 0.5)
        self.assertEqual((step.components["iou"], step.terminated), (0.3, False))
        told = step.observations["builder-1"]
        self.assertTrue("(1, 4, 0) (2, 4, 0)" in told and "You wrote" in told and "Your partner wrote" not in told)

    def test_feedback_discussion_and_one_builder(self):
        for feedback, has in (("plain", "not the last turn"), ("score", "Score -0.50 of 2."), ("position", "(1, 4, 0)")):
            env = builders("--feedback", feedback, "--discussion")
            told = env.joint(env.reset({"word": "I"}).state, {"builder-1": "no", "builder-2": "neither"}).observations["builder-1"]
            self.assertTrue(has in told and "Your partner wrote:\n\nneither" in told, told)
        self.assertIn("at most 5 lines", builders("--agents", "1", "--commands", "5").reset({"word": "I"}).observations["builder"])
