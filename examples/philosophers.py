#!/usr/bin/env python3
"""Dining philosophers: agents at once around a table, a fork between neighbors, and a meal for whoever holds both of its own.

A step: hungry philosophers put forks down, then free forks are grabbed, the lower number first. Whoever holds both of its forks eats,
and gives both back at the end of the next step. All hungry with one fork each is a deadlock. The mechanics follow DPBench (arXiv
2602.13255), except that an eater's words are ignored: there its release frees forks before others grab, and takes them away again, so
a neighbor can eat with a fork that is free, too. A success is an episode of 12 steps without deadlock in which each has two meals.

    at 2 3 moves 5 ok 1 L 0 R 2 goal   philosopher 2 of 3 in step 5, who has had 1 meal; its left fork is free (1: taken), and it holds
                                       the right one (2). L and R grab, D puts down, none waits

    --philosophers N[,M...]   how many sit at the table, 2 to 15; one of several numbers for each task [3]
    --reward meals|four       meals: the meals of a step, divided by the most that an episode can have. four: at the end a quarter each for
                              no deadlock, fairness, the share of actions that did something, and meals. Waiting earns 0.75 of it,
                              the fault of such a reward (arXiv 2606.07845) [meals]
    --own                     an agent's own meals are its local reward, too
    --no-index                no agent is told its number
    --prose                   sentences in place of words

    env='python3 examples/philosophers.py'
    ($env tasks --count 50; $env tasks --split test --count 50) | envs check --env-command "$env"
"""

import argparse
import random

from troupe_rl import Environment, Probe, Start, Step, is_test

ACTIONS = {"L": "GRAB_LEFT", "R": "GRAB_RIGHT", "D": "RELEASE", "none": "WAIT"}
TURNS, ENOUGH = 12, 2
# Meals at most in 12 steps at tables of 2 to 15: a search over all states up to 6 (the tests), schedules around the table beyond.
OPTIMUM = dict(zip(range(2, 16), (4, 6, 8, 11, 13, 15, 18, 19, 22, 24, 27, 29, 31, 33)))


def sizes(text):
    found = [int(part) for part in text.split(",")]
    if not all(count in OPTIMUM for count in found):
        raise argparse.ArgumentTypeError("a number from 2 to 15, or several with commas between them")
    return found


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--philosophers", type=sizes, default=[3])
parser.add_argument("--reward", choices=["meals", "four"], default="meals")
parser.add_argument("--own", action="store_true")
parser.add_argument("--no-index", action="store_true")
parser.add_argument("--prose", action="store_true")


def sides(forks, seat):
    """A philosopher's left and right fork. `forks`: who holds each; fork i is left of philosopher i, and right of the one before."""
    return seat, (seat + 1) % len(forks)


def eats(forks, seat):
    return all(forks[fork] == seat for fork in sides(forks, seat))


def is_deadlock(forks):
    return None not in forks and len(set(forks)) == len(forks)


def move(forks, actions):
    """The forks after a step, and by philosopher whether it begins to eat, and whether it ate or changed something. An action of None
    does nothing."""
    forks, seats = list(forks), range(len(forks))
    eating = [eats(forks, seat) for seat in seats]
    did = list(eating)
    for seat in seats:
        for fork in sides(forks, seat):
            if actions[seat] == "D" and not eating[seat] and forks[fork] == seat:
                forks[fork], did[seat] = None, True
    for seat in seats:
        fork = sides(forks, seat)[actions[seat] == "R"]
        if actions[seat] in ("L", "R") and not eating[seat] and forks[fork] is None:
            forks[fork], did[seat] = seat, True
    begins = [not eating[seat] and eats(forks, seat) for seat in seats]
    # What an eater gives back can be grabbed in the next step.
    return [None if holder is not None and eating[holder] else holder for holder in forks], begins, did


def fairness(meals):
    """1 less the normalized Gini coefficient: 1 if all ate the same, also if nobody ate."""
    apart = sum(abs(one - other) for one in meals for other in meals)
    return 1 - apart / (2 * sum(meals) * (len(meals) - 1)) if sum(meals) else 1.0


class Philosophers(Environment):
    name, parser = "philosophers", parser

    def tasks(self, split, seed):
        """Tables of a size are alike; each has a number, which decides its split."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            count, table = draws.choice(self.options.philosophers), draws.randrange(1_000_000)
            if is_test(f"{count}-{table}") == (split == "test"):
                yield f"{count}-{table}", {"philosophers": count, "table": table}

    def reset(self, spec):
        count = spec["philosophers"]
        if count not in OPTIMUM:
            raise ValueError(f"philosophers: {count} is not from 2 to 15")
        state = {"forks": [None] * count, "meals": [0] * count, "step": 0, "did": 0}
        return Start(state, self.see(state), self.agents(state), "parallel", TURNS)

    def agents(self, state):
        return [f"philosopher-{seat + 1}" for seat in range(len(state["forks"]))]

    def see(self, state):
        return {agent: self.sees(state, seat) for seat, agent in enumerate(self.agents(state))}

    def sees(self, state, seat):
        forks, step, meals = state["forks"], state["step"] + 1, state["meals"][seat]
        left, right = (0 if forks[fork] is None else 2 if forks[fork] == seat else 1 for fork in sides(forks, seat))
        if self.options.prose:
            who = "" if self.options.no_index else f"philosopher {seat + 1} of {len(forks)}, "
            mood, names = "eating" if eats(forks, seat) else "hungry", ("free", "taken", "yours")
            return (f"You are {who}{mood}. Step {step} of {TURNS}. Meals {meals}. Left fork {names[left]}, right fork {names[right]}. "
                    "Say GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT.")
        who = "" if self.options.no_index else f"{seat + 1} {len(forks)} "
        return f"at {who}moves {' '.join(str(step))} ok {meals} L {left} R {right} goal"

    def says(self, action):
        return ACTIONS[action] if self.options.prose else f" {action}"

    def read(self, text):
        """The action of a text, or None."""
        said = text.strip().rstrip(".").upper().replace(" ", "_") if self.options.prose else text.strip()
        return next((action for action in ACTIONS if said == self.says(action).strip()), None)

    def is_over(self, state):
        return state["step"] >= TURNS or is_deadlock(state["forks"])

    def is_solved(self, state):
        return state["step"] == TURNS and not is_deadlock(state["forks"]) and min(state["meals"]) >= ENOUGH

    def joint(self, state, actions):
        """A step of all; who is not in `actions` waits."""
        agents = self.agents(state)
        if self.is_over(state) or set(actions) - set(agents):
            raise ValueError(f"the episode is over, or one of {', '.join(actions)} is no agent")
        said = [self.read(actions[agent]) if agent in actions else "none" for agent in agents]
        forks, begins, changed = move(state["forks"], said)
        did = [changed[seat] or action == "none" for seat, action in enumerate(said)]
        meals = [before + begun for before, begun in zip(state["meals"], begins)]
        state = {"forks": forks, "meals": meals, "step": state["step"] + 1, "did": state["did"] + sum(did)}
        best, over, terms = OPTIMUM[len(agents)], self.is_over(state), {}
        if self.options.reward == "four" and over:
            terms = {"alive": float(not is_deadlock(forks)), "fairness": fairness(meals),
                     "effective": state["did"] / (len(agents) * state["step"]), "throughput": sum(meals) / best}
        parts = {f"{agent}.{name}": float(value) for agent, *both in zip(agents, begins, did) for name, value in zip(("ate", "did"), both)}
        team = sum(terms.values()) / 4 if self.options.reward == "four" else sum(begins) / best
        local = {agent: float(self.options.own and begun) for agent, begun in zip(agents, begins)}
        return Step(state, self.see(state), team, local, parts | terms, over, self.is_solved(state))

    def beside(self, state, agent, text, others):
        step = self.joint(state, {**(others or {}), agent: text})
        own = {name.removeprefix(f"{agent}."): value for name, value in step.components.items() if "." not in name or name.startswith(f"{agent}.")}
        return step._replace(local=step.local[agent], components=own)

    def probe(self, state, agent):
        if self.is_over(state):
            return Probe([], solved=self.is_solved(state))
        return Probe([*map(self.says, ACTIONS), " wait\n", "GRAB", " L R"])

    def demonstrate(self, state, agent):
        """Half of what is demonstrated grabs a free fork at its side, and otherwise puts down or waits; the rest is anything."""
        if self.is_over(state):
            return Probe([])
        free = [side for side, fork in zip("LR", sides(state["forks"], self.agents(state).index(agent))) if state["forks"][fork] is None]
        hungry = random.Random(f"{agent} {state}").choice(free or ["D", "none"])
        return Probe([*map(self.says, ACTIONS)], self.says(hungry))


if __name__ == "__main__":
    Philosophers().main()
