#!/usr/bin/env python3
"""Problems for a helper and a main function that a small model can solve: a number of lists, chosen, changed and summed up.

150 of them, one in six for testing, as task lines for `--set data=FILE` of coop-code. Each has four assertions, and functions that
earn most: the helper chooses and changes, the main function sums up.

    python3 bench/paper/coop_problems.py > problems.jsonl
    envs tasks coop-code --set data=problems.jsonl --count 3
"""

import hashlib
import json

# name -> (words, condition on x)
CHOICES = {
    "": ("the numbers", "True"), "even": ("the even numbers", "x % 2 == 0"), "odd": ("the odd numbers", "x % 2 != 0"),
    "positive": ("the numbers above 0", "x > 0"), "negative": ("the numbers below 0", "x < 0"), "large": ("the numbers above 10", "x > 10"),
}
CHANGES = {
    "": ("", "x"), "doubled": (", each doubled", "2 * x"), "squared": (", each squared", "x * x"), "raised": (", each plus one", "x + 1"),
    "negated": (", each with the other sign", "-x"),
}
# name -> (words, value of values)
SUMS = {
    "sum": ("The sum of", "sum(values)"), "largest": ("The largest of", "max(values, default=0)"),
    "smallest": ("The smallest of", "min(values, default=0)"), "list": ("The list of", "list(values)"),
    "last": ("The last of", "values[-1] if values else 0"),
}
INPUTS = [[3, 8, -2, 15], [], [7, 12, 4], [-5, 20, 1, -6, 11]]


def problem(choice, change, total):
    """The spec of a problem."""
    (chosen, condition), (changed, value), (words, last) = CHOICES[choice], CHANGES[change], SUMS[total]
    entry = "_".join(part for part in (total, choice, change) if part) + ("_of" if not choice and not change else "")
    aux = f"def aux(numbers):\n    return [{value} for x in numbers if {condition}]"
    main = f"def {entry}(numbers):\n    values = aux(numbers)\n    result = {last}\n    return result"
    names = {}
    exec(f"{aux}\n{main}", names)
    asserted = "".join(f"    assert candidate({numbers}) == {names[entry](numbers)!r}\n" for numbers in INPUTS)
    none = " An empty list gives 0." if total in ("largest", "smallest", "last") else ""
    return {"problem": f"def {entry}(numbers):\n    \"\"\"{words} {chosen}{changed}.{none}\"\"\"\n", "entry_point": entry,
            "test": f"def check(candidate):\n{asserted}", "aux": aux, "main": main}


def lines():
    """Every problem as a task line."""
    for choice in CHOICES:
        for change in CHANGES:
            for total in SUMS:
                spec = problem(choice, change, total)
                name = spec["entry_point"]
                split = "test" if hashlib.sha256(name.encode()).digest()[0] % 6 == 0 else "train"
                yield {"type": "task", "v": 1, "env": "coop-code", "task": f"coop-code/{split}/{name}", "split": split, "spec": spec}


if __name__ == "__main__":
    for line in lines():
        print(json.dumps(line))
