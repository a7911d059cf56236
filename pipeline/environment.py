"""Asks an environment of --env-command for its name and its agents: prints them in one line.

Its first task names it, and the answer to that task names who acts. Anything else ends with a line that says so.
"""

import json, re, signal, subprocess, sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the wait, without a traceback

command, workflow = sys.argv[1:]


def ask(arguments, said=""):
    try:
        done = subprocess.run(["sh", "-c", command + arguments], input=said, stdout=subprocess.PIPE, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        fail(f"{arguments}` was silent for 60 s")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines or fail(f"{arguments}` printed nothing and ended with exit code {done.returncode}")


def fail(cause):
    sys.exit(f"pipeline.sh: --env-command: `{command}{cause}\nhint: RECORD.md shows the lines, examples/ has whole programs")


try:
    asked = " tasks --split train --count 1 --seed 1"
    task = [line for line in ask(asked) if line.get("type") == "task"][0]
    asked = ""
    request = {"request": 1, "task": task, **({"workflow": workflow} if workflow else {})}
    answer = ask(asked, json.dumps(request) + "\n")[0]
    names = [task["env"], *answer["agents"]]
except (ValueError, LookupError, TypeError, AttributeError) as error:
    fail(f"{asked}` did not answer as expected: {type(error).__name__}: {error}")
strange = [name for name in names if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name)]
if strange:
    fail(f"` has the name {strange[0]!r}, and no folder can have it")
print(*names)
