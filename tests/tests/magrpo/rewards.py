"""Prints rewards of the paper's environments through `envs step`, and compares them with the published rules."""

import json
import os
import subprocess


def earned(environment, spec, **actions):
    """The team's reward of one joint action, or None without a sandbox to run it in."""
    program = subprocess.Popen(["envs", "step", environment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(**request):
        program.stdin.write(json.dumps(dict(request=1, **request)) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline() or "{}")

    spec = {**spec, "gates": "published"}
    task = {"type": "task", "v": 1, "env": environment, "task": f"{environment}/1", "split": "train", "spec": spec}
    state = ask(task=task, workflow="team")["state"]
    answer = ask(state=state, actions={name.replace("_", "-"): text for name, text in actions.items()})
    program.stdin.close()
    program.wait()
    return answer["rewards"]["team"] if "rewards" in answer else None


def code(count):
    """The sum of squares, with the first `count` of five assertions; the last two of the five are wrong."""
    asserted = ["([1, 2]) == 5", "([]) == 0", "([3]) == 9", "([1]) == 2", "([2]) == 5"][:count]
    lines = "".join(f"    assert candidate{line}\n" for line in asserted)
    return {"problem": "def squares(x):\n    \"\"\"The sum of squares.\"\"\"\n", "entry_point": "squares", "test": f"def check(candidate):\n{lines}",
            "turns": 1}


def words(kind, count):
    """Distinct words of five letters, none of them a connective."""
    return [f"{kind}zz{number:02}" for number in range(count)]


def text(*parts, letters):
    """Joins words, and lengthens the last so that all have `letters` letters in total."""
    row = " ".join(word for part in parts for word in part)
    return row + "z" * (letters - len(row))


HELPER = "def aux(n):\n    return n * n"
MAIN = "def squares(x):\n    total = 0\n    for n in x:\n        total += aux(n)\n    return total"
ALONE = "def squares(x):\n    return sum(n * n for n in x)"
STOP = "me my we us he by to of in".split()
SHORT = [f"{'kx'[number // 61]}{number % 61:02}" for number in range(122)]
FIRST = text(STOP[:5], words("s", 3), words("q", 72), letters=480)
SECOND = text(STOP[5:], words("s", 3), ["moreover", "namely", "unless"], SHORT, letters=648)
POST = {"problem": "TITLE: Chimes\n\nPOST: They ring at night."}


CASES = [
    # Length ratio 1.35, vocabulary ratio 1.65, three kinds of connectives, Jaccard 0.015;
    # seven words are too few.
    (1.75, "tldr", POST, dict(writer_1=FIRST, writer_2=SECOND)),
    (0.0, "tldr", POST, dict(writer_1=text(words("q", 7), letters=480), writer_2=SECOND)),
    (3.6, "coop-code", code(5), dict(aux=HELPER, main=MAIN)),
    (2.6, "coop-code", code(5), dict(aux="def aux(x):\n    return sum(n * n for n in x)", main="def squares(x):\n    return aux(x)")),
    (2.1, "coop-code", code(3), dict(aux="", main=ALONE)),
    (0.4, "coop-code", code(5), dict(aux=HELPER, main="I would sum them up.")),
]

for wanted, environment, spec, actions in CASES:
    found = earned(environment, spec, **actions)
    if found is None and os.environ.get("TROUPE_SANDBOX") != "required":
        print("NOT RUN: no sandbox", environment)
        continue
    assert found is not None and abs(found - wanted) < 1e-6, (environment, wanted, found)
    print(environment, round(found, 6))
