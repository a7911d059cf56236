"""A family of reasoning-gym's procedural tasks: a question, an answer, and the family's score.

    python3 examples/from_reasoning_gym.py chain_sum tasks --count 8
    python3 examples/from_reasoning_gym.py countdown --config '{"min_numbers": 3, "max_numbers": 3}' --agents 2 tasks --count 8
    ./pipeline.sh --env-command 'python3 examples/from_reasoning_gym.py spell_backward' --model smollm2 --run runs/spell

Needs `pip install reasoning-gym==0.1.25`. A task is a seed and an index of the family's dataset. The digest of its question names
it and decides its split, so a family with few questions has fewer tasks than seeds. With `--agents 2` a checker sees the solver's
answer and has the last word. An answer is the whole text, or the content of its last <answer>…</answer>.

The score (0 to 1) is both the team's and the agent's reward; 1 is a success. A state is the task and the texts so far, so copying it
costs nothing, and a step scores one text (0.1 ms in most families). Some families pay for form: an empty answer earns 0.01 or 0.05.
`demo` prints the family's answers and wrong ones; families that state no answer (boxnet, graph_color, propositional_logic,
rubiks_cube, rush_hour) have no `demo`.
"""

import argparse
import functools
import json
import random
import re

import adapter
from troupe_rl import Environment, Probe, Start, Step, clamp, digest, is_test

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("family", help="a dataset of reasoning-gym, for example chain_sum")
parser.add_argument("--config", type=json.loads, default={}, help="settings of the family, as JSON")
parser.add_argument("--agents", type=int, choices=[1, 2], default=1, help="2: a checker has the last word")
parser.add_argument("--tell", default="Say the answer alone.", help="what stands below a question; empty: nothing")
CHUNK = 500  # questions of one dataset: some families make all of them at once


@functools.lru_cache(maxsize=8)
def dataset(seed):
    with adapter.quiet():
        return reasoning_gym.create_dataset(options.family, seed=seed, size=CHUNK, **options.config)


@functools.lru_cache(maxsize=256)
def entry(seed, index):
    with adapter.quiet():
        return dataset(seed)[index]


@adapter.limited
def scored(seed, index, answer):
    # Families read an answer as code or as numbers, and raise what they like where it is neither.
    try:
        return clamp(dataset(seed).score_answer(answer, entry(seed, index)))
    except adapter.TooLong:
        return 0.0
    except Exception:
        return 0.0


def score(spec, text):
    marked = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return scored(spec["seed"], spec["index"], (marked[-1] if marked else text).strip())


def agents():
    return ["solver", "checker"][: options.agents]


def see(state):
    question = entry(state["seed"], state["index"])["question"].rstrip()
    question += f"\n{options.tell}" if options.tell else ""
    seen = {"solver": question}
    if options.agents == 2:
        said = "nothing yet" if state["said"] is None else state["said"].strip()[:2000]
        seen["checker"] = f"{question}\n\nA partner answered: {said}\nSay the right answer, the same one or a better one."
    return state, seen


class Family(Environment):
    parser = parser

    def setup(self):
        global options, reasoning_gym
        options, self.name = self.options, f"reasoning-gym-{self.options.family}"
        reasoning_gym = adapter.package("reasoning_gym", "reasoning-gym==0.1.25")
        try:
            dataset(0)
        except Exception as error:
            names = ", ".join(sorted(reasoning_gym.factory.DATASETS))
            adapter.fail(f"{options.family}: {type(error).__name__}: {error}", f"a family and settings of its own; there are {names}")

    def tasks(self, split, seed):
        draws = random.Random(seed if split == "train" else 0)
        while True:
            chunk = draws.randrange(1 << 31)
            for index in range(CHUNK):
                question = entry(chunk, index)["question"]
                if is_test(question) == (split == "test"):
                    yield digest(question)[:16], {"seed": chunk, "index": index}

    def reset(self, spec):
        return Start(*see({"seed": spec["seed"], "index": spec["index"], "said": None, "over": None}), agents(), turns=1)

    def step(self, state, agent, text):
        if state["over"] is not None or agent not in agents():
            raise ValueError("the episode is over, or there is no such agent")
        earned = score(state, text)
        last = agent == agents()[-1]
        after = dict(state, said=text, over=earned >= 1.0) if last else dict(state, said=text)
        return Step(*see(after), earned, earned, {"score": earned}, last, last and earned >= 1.0)

    def probe(self, state, agent):
        if state["over"] is not None:
            return Probe([], solved=state["over"])
        answer = entry(state["seed"], state["index"])["answer"]
        known = isinstance(answer, str) and score(state, answer) >= 1.0
        wrong = ["0", "1", "no", "I do not know."]
        return Probe([answer, f"<answer>{answer}</answer>", *wrong], answer) if known else Probe(wrong)


if __name__ == "__main__":
    adapter.fix_hashes()
    Family().main()
