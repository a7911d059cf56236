"""Dining philosophers: the table's rules, the optimum by search, and where waiting pays."""

import itertools
import unittest

import philosophers
from philosophers import OPTIMUM, Philosophers, fairness, is_deadlock, move


def table(*words):
    made = Philosophers()
    made.options = philosophers.parser.parse_args(words)
    return made


def most_meals(count, turns):
    """The most meals in `turns` steps, by a search over all states."""
    meals = {(None,) * count: 0}
    for _ in range(turns):
        after = {}
        for forks, had in meals.items():
            for actions in itertools.product("LRD", repeat=count):
                left, begins, _ = move(forks, actions)
                if not is_deadlock(left):
                    after[tuple(left)] = max(after.get(tuple(left), 0), had + sum(begins))
        meals = after
    return max(meals.values())


def grab(first, sees):
    """The other fork where it holds one, and else this one first."""
    return (" R" if first == " L" else " L") if "L 2" in sees or "R 2" in sees else first


class Dinner(unittest.TestCase):
    def play(self, words, says):
        """The team's reward of an episode, whether it was a success, and the last components."""
        env, team = table(*words), 0
        start = env.reset({"philosophers": env.options.philosophers[0], "table": 0})
        state, seen = start.state, start.observations
        while True:
            step = env.joint(state, {agent: says(seat, sight) for seat, (agent, sight) in enumerate(seen.items())})
            state, seen, team = step.state, step.observations, team + step.team
            if step.terminated:
                return round(team, 3), step.success, step.components

    def test_waiting_earns_three_quarters_of_the_four_term_reward(self):
        four = ["--philosophers", "5", "--reward", "four"]
        self.assertEqual(self.play(four, lambda seat, sees: " none")[0], 0.75)
        self.assertEqual(self.play(four, lambda seat, sees: grab(" L", sees))[0], 0.5)
        # Ten meals of eleven, and less than by waiting: the meals are not fair, and grabs that fail do nothing.
        team, success, parts = self.play(four, lambda seat, sees: grab(" R" if seat % 2 else " L", sees))
        self.assertEqual((team, success, parts["alive"], round(parts["throughput"], 4)), (0.715, False, 1, 0.9091))
        self.assertEqual(self.play(four[:2], lambda seat, sees: grab(" R" if seat % 2 else " L", sees))[0], 0.909)
        self.assertEqual(self.play(four[:2], lambda seat, sees: " none")[0], 0)

    def test_turns_by_a_clock_reach_the_optimum_at_a_table_of_four(self):
        def clocked(seat, sees):
            step = int("".join(sees.partition(" moves ")[2].partition(" ok ")[0].split()))
            return grab(" L", sees) if (step - 1) // 3 % 2 == seat % 2 else " none"
        self.assertEqual(self.play(["--philosophers", "4"], clocked)[:2], (1, True))

    def test_each_sees_itself_and_its_two_forks(self):
        env = table()
        start = env.reset({"philosophers": 3, "table": 0})
        self.assertEqual(start.observations["philosopher-2"], "at 2 3 moves 1 ok 0 L 0 R 0 goal")
        step = env.joint(start.state, {"philosopher-3": " L", "philosopher-2": " R", "philosopher-1": "?"})
        # Both wanted fork 3: the lower number has it.
        self.assertEqual(step.observations["philosopher-2"], "at 2 3 moves 2 ok 0 L 0 R 2 goal")
        self.assertEqual(step.observations["philosopher-3"], "at 3 3 moves 2 ok 0 L 1 R 0 goal")
        prose = table("--prose", "--no-index").reset({"philosophers": 5, "table": 0}).observations["philosopher-5"]
        self.assertEqual(prose, "You are hungry. Step 1 of 12. Meals 0. Left fork free, right fork free. Say GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT.")
        self.assertEqual([table("--prose").read(text) for text in ("grab left.", "WAIT", "L")], ["L", "none", None])
        self.assertEqual([table().read(text) for text in (" L", "GRAB_LEFT", "L R")], ["L", None, None])

    def test_an_agent_earns_beside_others_what_all_earn_together(self):
        env = table("--own", "--philosophers", "2")
        state = env.joint(env.reset({"philosophers": 2, "table": 0}).state, {"philosopher-1": " L"}).state
        step = env.beside(state, "philosopher-1", " R", {"philosopher-2": " none"})
        self.assertEqual((step.team, step.local, step.components), (0.25, 1, {"ate": 1, "did": 1}))
        # Fork 1 is taken.
        step = env.beside(state, "philosopher-2", " R", None)
        self.assertEqual((step.team, step.local, step.components["did"]), (0, 0, 0))

    def test_rules_of_the_table(self):
        self.assertEqual(move([0, 0, None], "RLD"), ([None, None, None], [False] * 3, [True, False, False]))  # an eater gives back
        self.assertEqual(move([None, None, None], "LLR")[0], [0, 1, None])
        self.assertEqual(move([0, 1, None], ["D", "R", None])[0], [None, 1, 1])
        self.assertEqual([is_deadlock(forks) for forks in ([0, 1, 2], [2, 0, 1], [0, 1, None], [0, 0, 1])], [True, True, False, False])
        self.assertEqual([fairness(meals) for meals in ([0, 0], [2, 2, 2], [3, 0])], [1, 1, 0])

    def test_the_optimum_is_the_most_by_a_search(self):
        for count in (2, 3, 4):
            self.assertEqual(most_meals(count, philosophers.TURNS), OPTIMUM[count], count)

    def test_demonstrations_are_whole_dinners(self):
        lines = list(table().demonstrations(10, 1, 0.5))
        self.assertTrue(all({line["agent"] for line in lines if line["turn"] == turn} == {f"philosopher-{seat}" for seat in (1, 2, 3)} for turn in range(12)))
        self.assertTrue(any("ok 1" in line["prompt"][0]["content"] for line in lines))
