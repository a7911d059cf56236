"""Function calling: an agent that computes with tools, as chat models are asked to.

The question is a product or sum of numbers too long for the head. The agent calls `add`, `subtract` or `multiply`, which the chat template
describes to it as its model was trained to read them (Hermes and Qwen: <tool_call>{"name": "multiply", "arguments": {"a": 3402, "b": 817}}</tool_call>);
`rollout` reads the call. The agent reads the result as a message of the role `tool`, calls again, and at last says the number alone. Calls and
results stay in the conversation, whose tokens stay what the agent said. A turn is a call or an answer; a call is paid when it is the one
that brings the solution closer, and the answer when the tools have computed it: a guess is no success.

    python3 examples/tool_loop.py tasks --count 32 --seed 7 |
      rollout --env-command 'python3 examples/tool_loop.py' --policy run/policy --max-tokens 64 --branches 8 | group | advantage | …

With --as-user the system's message describes the tools, and results come as <tool_response> from the user, for chat templates that know no tools
(such as `policy init --preset tiny`). --small is for tiny policies: the same with numbers up to five and without the message of
the system. docs/your-environment.md says how well one learns it.
"""

import argparse
import json
import random
import re

from troupe_rl import Environment, Probe, Start, Step, digest, tool_calls

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
SYSTEM = "Compute with the tools. Say the final number alone."
SPELLED_OUT = (
    "Compute with functions, one operation at a time; never compute yourself. To call a function, say nothing but\n"
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 12, "b": 34}}\n</tool_call>\n'
    "There are add, subtract and multiply, of two integers a and b. Once functions have computed the result, say that number alone."
)
CALL = re.compile(r"\s*<tool_call>.*</tool_call>\s*", re.DOTALL)
OPERANDS = {"type": "object", "properties": {key: {"type": "integer"} for key in "ab"}, "required": ["a", "b"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"a {sign} b", "parameters": OPERANDS}} for name, sign in SIGNS.items()
]
LONGEST = 400  # characters of a message that are kept
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--as-user", action="store_true", help="results are messages of the user")
parser.add_argument("--small", action="store_true", help="for tiny policies")


def apply(name, a, b):
    return a + b if name == "add" else a - b if name == "subtract" else a * b


def read(text, calls):
    """What a text calls, as name, a, b; else the number that it says; else None."""
    if calls:
        name, operands = calls[0]["name"], calls[0]["arguments"]
        whole = sorted(operands) == ["a", "b"] and all(type(number) is int and abs(number) < 10**15 for number in operands.values())
        return (name, operands["a"], operands["b"]) if len(calls) == 1 and name in SIGNS and whole else None
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,15}\s*", text, re.ASCII) else None


def wanted(state):
    """The call that comes next; None where only the answer is missing."""
    done = state["done"]
    return None if done == 2 else (state["names"][done], state["value"], state["numbers"][done + 1])


def call(name, a, b):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'a': a, 'b': b}})}</tool_call>"


class ToolLoop(Environment):
    name, parser = "tool-loop", parser

    def setup(self):
        self.share = 0.8 if self.options.small else 0.5

    def see(self, state):
        if self.options.small:
            return state, {"solver": state["said"]}
        head = SPELLED_OUT if self.options.as_user else SYSTEM
        messages = [{"role": "system", "content": head}, *state["said"]]
        return state, {"solver": messages if self.options.as_user else {"messages": messages, "tools": TOOLS}}

    def shown(self, result):
        if self.options.small or self.options.as_user:
            return {"role": "user", "content": f"<tool_response>{result}</tool_response>"}
        return {"role": "tool", "content": result}

    def tasks(self, split, seed):
        """Two operations one after the other. Every eighth instance, by its digest, is a test task, so that no seed mixes the splits."""
        draws = random.Random(seed if split == "train" else 0)
        while True:
            names = [draws.choice(list(SIGNS)) for _ in range(2)]
            numbers = [draws.choice(range(1, 6) if self.options.small else range(100, 10000)) for _ in range(3)]
            instance = f"{numbers[0]}-{names[0]}-{numbers[1]}-{names[1]}-{numbers[2]}"
            if (int(digest(instance)[:2], 16) % 8 == 0) == (split == "test"):
                yield instance, {"numbers": numbers, "names": names}

    def reset(self, spec):
        (a, b, c), (first, second) = spec["numbers"], spec["names"]
        question = f"({a} {SIGNS[first]} {b}) {SIGNS[second]} {c}"
        said = [{"role": "user", "content": question}]
        state = {"numbers": [a, b, c], "names": [first, second], "done": 0, "value": a, "over": False, "said": said}
        return Start(*self.see(state), ["solver"], turns=5)

    def step(self, state, agent, text, calls=None):
        if agent != "solver" or state["over"]:
            raise ValueError(f"nothing is asked of {agent}")
        if calls is None:  # of a template that knows no tools a call is the whole text
            calls = tool_calls(text) if CALL.fullmatch(text) else []
        meant, expected = read(text, calls), wanted(state)
        said = [*state["said"], {"role": "assistant", "content": text.strip()[:LONGEST]}]
        useful = solved = False
        if isinstance(meant, tuple):
            result = {"result": apply(*meant)}
            useful = meant == expected
            if useful:
                state = dict(state, done=state["done"] + 1, value=result["result"])
        elif meant is None:
            result = {"error": "neither a call nor a number"}
        elif expected is not None:
            result = {"error": "not computed yet"}
        else:
            useful = solved = meant == state["value"]
            result = {"error": "that is not the result"}
        said.append(self.shown(json.dumps(result)))
        state = dict(state, said=said, over=solved)
        parts = {"format": float(meant is not None), "useful": float(useful)}
        # Tenths are summed as whole numbers, because .1 + .9 need not be 1 in binary.
        local = (parts["format"] + 9 * parts["useful"]) / 10
        return Step(*self.see(state), float(solved), local, parts, solved, solved)

    def probe(self, state, agent):
        if state["over"]:
            return Probe([], solved=True)
        expected = wanted(state)
        best = str(state["value"]) if expected is None else call(*expected)
        others = ["", "a number", "17", f" {state['value']}\n", call("add", 1, 2), call("divide", 1, 2), call("add", 1, "2")]
        return Probe([best, *others, "<tool_call>{}</tool_call>", "<tool_call>[</tool_call>"], best)


if __name__ == "__main__":
    ToolLoop().main()
