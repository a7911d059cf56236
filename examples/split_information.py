"""Two agents who each see half of what decides: what is a team good for?

A teller sees a number, a chooser another one, both from 0 to N-1 (`--numbers N`, 8). The team earns 1 if the chooser says their sum
modulo N. Either number alone says nothing about the sum, so somebody has to talk. The three ways to play it, and the most that any
strategy earns, exactly:

    python3 examples/split_information.py                 one word of K (`--words K`, N by default) from teller to chooser: K/N
    python3 examples/split_information.py --words 1       the teller is asked, and its word says nothing: 1/N
    python3 examples/split_information.py --alone         one agent sees both numbers: 1

Why K/N: a word tells the chooser in which of K classes the teller's number is; within a class only one of the numbers can be answered.
`python3 examples/split_information.py optimum` prints it, found by trying every strategy where there are few.

The teller earns nothing for itself and its word ends nothing, so its reward is what comes after: `rollout --sampling parallel` and
`advantage --credit episode`. A text that is no word is the first word; a text that is no number is wrong. Every pair of numbers is
a task, and its digest decides the split. `demo` gives a fixed code half of the time.
"""

import argparse
import itertools
import random
import sys
from fractions import Fraction

from troupe_rl import Environment, Probe, Start, Step, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--numbers", type=int, default=8, help="N, 2 to 26")
parser.add_argument("--words", type=int, help="K, 1 to N (default: N)")
parser.add_argument("--alone", action="store_true", help="one agent, who sees both numbers")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words():
    return LETTERS[: options.words or options.numbers]


def optimum(numbers, words):
    """The greatest probability of success of any teller and chooser: by trying all tellers; the best chooser for each is known."""
    best = Fraction(0)
    for teller in itertools.product(range(words), repeat=numbers):
        right = 0
        for word, own in itertools.product(range(words), range(numbers)):
            # The chooser's answer is right for one of the numbers that are told by this word, whichever it is.
            sums = [(told + own) % numbers for told in range(numbers) if teller[told] == word]
            right += max((sums.count(answer) for answer in range(numbers)), default=0)
        best = max(best, Fraction(right, numbers * numbers))
    return best


def agents():
    return ["chooser"] if options.alone else ["teller", "chooser"]


def see(state):
    told = f"{state['told']}" if options.alone else "nothing" if state["word"] is None else state["word"]
    seen = {"chooser": f"told {told} see {state['own']} say the sum"}
    if not options.alone:
        seen["teller"] = f"see {state['told']} say one of {' '.join(words())}"
    return state, seen


def answer(state):
    return (state["told"] + state["own"]) % options.numbers


def code(number):
    """The teller's word in demonstrations."""
    return words()[number % len(words())]


class SplitInformation(Environment):
    name, parser = "split-information", parser

    def setup(self):
        global options
        options = self.options
        if not 2 <= options.numbers <= 26 or not 1 <= len(words()) <= options.numbers:
            parser.error("--numbers, --words: N is 2 to 26 and K 1 to N")

    def tasks(self, split, seed):
        pairs = list(itertools.product(range(options.numbers), repeat=2))
        wanted = [pair for pair in pairs if is_test(f"{pair[0]}-{pair[1]}") == (split == "test")]
        draws = random.Random(seed if split == "train" else 0)
        while True:
            for first, second in draws.sample(wanted, len(wanted)):
                yield f"{first}-{second}", {"told": first, "own": second}

    def reset(self, spec):
        return Start(*see({"told": spec["told"], "own": spec["own"], "word": None, "over": None}), agents(), turns=1)

    def step(self, state, agent, text):
        if state["over"] is not None or agent not in agents():
            raise ValueError("the episode is over, or there is no such agent")
        text = text.strip()
        if agent == "teller":
            known = text in words() and len(text) == 1
            after = dict(state, word=text if known else words()[0])
            return Step(*see(after), components={"format": float(known)})
        right = text == str(answer(state))
        parts = {"format": float(text.isascii() and text.isdigit())}
        return Step(*see(dict(state, over=right)), team=float(right), components=parts, terminated=True, success=right)

    def probe(self, state, agent):
        if state["over"] is not None:
            return Probe([], solved=state["over"])
        if agent == "teller":
            return Probe([*words()[:4], "no word"])
        return Probe([str(answer(state)), str(answer(state) + 1), "no number"])

    def demonstrate(self, state, agent):
        """What `demo` draws from: the code and what it means, or anything."""
        if agent == "teller":
            return Probe(words(), code(state["told"]))
        # The chooser knows the word, and not whether the teller kept to the code.
        heard = state["told"] if options.alone else words().index(state["word"])
        return Probe([str(number) for number in range(options.numbers)], str((heard + state["own"]) % options.numbers))


if __name__ == "__main__":
    if sys.argv[-1] == "optimum":
        options = parser.parse_args(sys.argv[1:-1])
        numbers, most = options.numbers, 1 if options.alone else len(words())
        print(Fraction(1) if options.alone else optimum(numbers, most) if most**numbers <= 100_000 else Fraction(most, numbers))
        sys.exit()
    SplitInformation().main()
