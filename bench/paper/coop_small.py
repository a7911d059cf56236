"""`coop-code` in small, for tiny policies: a helper and a main function in a language of one line. For `rollout --env-command`.

A task is a chain of three operations on x, done one after the other. The helper's author writes the function `tool` of x, the
main function's author an expression that may use `tool`; neither sees the other's. The levels and points follow
coop-code: functions 0.4 + 0.6, syntax 0.5, share of the tests 1, and if any test holds 0.5 for using the helper and 1 for adding
to it. A success passes all tests and has 0.9 of the 4 points.

    coder x + 3 * 2 - 1 goal 1   =>  x + 3                      the helper
    coder x + 3 * 2 - 1 goal 2   =>  tool * 2 - 1               the main function
    coder x + 3 * 2 - 1 goal 0   =>  x + 3 : tool * 2 - 1       one agent writes both

`tool * 2 - 1` is `( tool * 2 ) - 1`: operations are done from left to right, brackets first. Expressions are evaluated here and not
in a sandbox: they have signs, digits and two names. The demonstrated helper stops after one operation or after two, and the
main function, which cannot know, goes on from either or does without: each half may be right and the whole wrong.

    --agents 1|2   who writes [2]
    --alone N      weight of demonstrated main functions that go it alone; the others have 7 together [3]
"""

import functools
import random

from pair import Pair, Probe, Step, options

parser = options(__doc__)
parser.add_argument("--alone", type=int, default=3)
INPUTS = [0, 1, 2, 5, 9]
LONGEST = 24


@functools.lru_cache(maxsize=1 << 16)
def value(words, x, tool):
    """What an expression is at x; None where it is no expression, or uses a tool that is not there."""
    at = 0

    def operand():
        nonlocal at
        word = words[at] if at < len(words) else ""
        at += 1
        if word == "(":
            inner = chain()
            if inner is None or at >= len(words) or words[at] != ")":
                return None
            at += 1
            return inner
        return x if word == "x" else tool if word == "tool" else int(word) if word.isascii() and word.isdigit() and len(word) == 1 else None

    def chain():
        nonlocal at
        left = operand()
        while left is not None and at < len(words) and words[at] in ("+", "-", "*"):
            sign = words[at]
            at += 1
            right = operand()
            if right is None:
                return None
            left = left + right if sign == "+" else left - right if sign == "-" else left * right
        return left

    found = chain() if len(words) <= LONGEST else None
    return found if at == len(words) else None


def levels(state, aux, main):
    """Points of each level, as coop-code counts them."""
    aux, main = tuple(aux.split()), tuple(main.split())
    wanted = tuple(["x", *" ".join(state["chain"]).split()])
    tools = [value(aux, x, None) for x in INPUTS]
    helper = tools[0] is not None
    there = bool(main)
    found = [value(main, x, tool) for x, tool in zip(INPUTS, tools)] if there else []
    # A helper that is no expression is not part of the program; one that is missing where it is used is no program.
    runs = there and found[0] is not None
    share = sum(got == value(wanted, x, None) for x, got in zip(INPUTS, found)) / len(INPUTS) if runs else 0.0
    uses = share > 0 and helper and "tool" in main
    flags = dict(helper=helper, main=there, syntax=runs, tests=share, calls=uses, adds=uses and len(set(main) - {"(", ")"}) > 1)
    return {name: float(flag) for name, flag in flags.items()}


POINTS = dict(helper=0.4, main=0.6, syntax=0.5, tests=1.0, calls=0.5, adds=1.0)


def written(agent, aux, main):
    return f" {aux} : {main}" if agent == "coder" else f" {aux if agent == 'aux' else main}"


class CoopSmall(Pair):
    name, parser = "coop-small", parser
    pair, single = ["aux", "main"], "coder"

    def draw(self, draws):
        """Three operations with a digit from 2 to 9 each."""
        chain = [f"{draws.choice('+-*')} {draws.randrange(2, 10)}" for _ in range(3)]
        return "".join(chain).replace(" ", ""), {"chain": chain}

    def begin(self, spec):
        return dict(spec, done=False, solved=False)

    def see(self, state):
        text = f"coder x {' '.join(state['chain'])} goal"
        return state, ({"aux": f"{text} 1", "main": f"{text} 2"} if self.both else {"coder": f"{text} 0"})

    def play(self, state, texts):
        if state["done"]:
            raise ValueError("the episode is over")
        parts = levels(state, *texts)
        total = sum(POINTS[name] * part for name, part in parts.items())
        solved = parts["tests"] == 1 and total >= 3.6
        # In [0, 1], the default range of rewards.
        after = self.see(dict(state, done=True, solved=solved))
        return Step(*after, team=total / 4, components=parts, terminated=True, success=solved)

    def beside(self, state, agent, text, others):
        if not self.both:
            before, _, after = text.partition(":")
            return self.play(state, [before, after])
        if agent not in self.pair:
            raise ValueError(f"there is no agent {agent}")
        if others is None:  # what one of two wrote alone is no program yet
            return Step(*self.see(state))
        return self.play(state, [{**others, agent: text}.get(name, "") for name in self.pair])

    def joint(self, state, actions):
        return self.play(state, [actions.get(name, "") for name in self.pair])

    def probe(self, state, agent):
        if state["done"]:
            return Probe([], solved=state["solved"])
        first, second, third = state["chain"]
        texts = [written(agent, f"x {first} {second}", f"tool {third}"), written(agent, "x", "tool"), written(agent, "x", f"x {first}"), " x )", ""]
        return Probe(texts, written(agent, f"x {first}", f"tool {second} {third}"))

    def demonstrate(self, state, agent):
        """Demonstrations: the two ways to share the chain out, going it alone, and halves that do not fit."""
        draws = random.Random(f"{agent} {' '.join(state['chain'])}")
        first, second, third = state["chain"]
        auxes = [f"x {first}", f"x {first} {second}", "x", f"x {third}"]
        mains = [f"tool {second} {third}", f"tool {third}", f"x {first} {second} {third}", "tool", f"tool {second}"]
        text = written(agent, draws.choices(auxes, [3, 3, 2, 1])[0], draws.choices(mains, [2, 2, self.options.alone, 2, 1])[0])
        return Probe([text], text)


if __name__ == "__main__":
    CoopSmall().main()
