"""A judge between `rollout` and `group`: a program of yours has a say in the reward.

    ./pipeline.sh --stage reward='python3 examples/judge.py'

Reads the record and writes it. A judged sample's `reward` is the environment's plus WEIGHT x the judge's score, and both parts are
in `reward_components`. Every other line passes byte for byte. With JUDGE_URL an OpenAI-compatible server is the judge, here
in few words and one call a sample; without it brevity is. A candidate that the judge does not rate gets null, which is not 0; see
`group --unscored`. A judge that cannot be asked ends the step. Left out: several calls at once, and retries.
"""

import json
import os
import re
import signal
import sys
import urllib.request

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback


def fail(code, cause, hint):  # without an `end` line the next stage refuses what was written
    print(f"judge.py: {cause}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


try:
    WEIGHT = float(os.environ.get("JUDGE_WEIGHT", "0.1"))
except ValueError as error:
    fail(2, f"JUDGE_WEIGHT: {error}", "it is a number, such as 0.1")
URL = os.environ.get("JUDGE_URL")  # such as http://localhost:8000/v1
QUESTION = "Rate the answer from 0 (useless) to 10 (perfect). Say the number only.\n\nThe task:\n{task}\n\nThe answer:\n{answer}"


def brevity(sample):
    """1 for one token, 0 from the hundred-and-first on."""
    return 1.0 - min(len(sample["completion_ids"]) - 1, 100) / 100


def ask(sample):
    """A served model's rating, from 0 to 1; None where it gave none."""
    question = QUESTION.format(task=sample["prompt"][-1]["content"], answer=sample["completion"])
    body = {"model": os.environ.get("JUDGE_MODEL", "default"), "temperature": 0, "max_tokens": 8,
            "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none")}
    request = urllib.request.Request(URL.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            rating = re.search(r"\d+(\.\d+)?", json.load(reply)["choices"][0]["message"]["content"] or "")
    except (OSError, ValueError, LookupError, TypeError) as error:  # of no connection, of a status, of an answer that is none
        fail(69, f"{URL}: {type(error).__name__}: {error}", "JUDGE_URL ends where /chat/completions follows; JUDGE_MODEL names the model")
    return min(float(rating[0]), 10.0) / 10 if rating else None


for stream in (sys.stdin, sys.stdout):
    stream.reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale
for number, line in enumerate(sys.stdin, 1):
    try:
        sample = json.loads(line)
    except ValueError as error:
        fail(65, f"stdin:{number}: {error}", "it reads the lines of `rollout`: docs/stream-format.md")
    if sample["type"] == "sample" and sample["reward"] is not None:
        score = ask(sample) if URL else brevity(sample)
        sample.setdefault("reward_components", {})["judge"] = score if score is not None else 0.0
        sample["reward"] = None if score is None else sample["reward"] + WEIGHT * score
        line = json.dumps(sample, separators=(",", ":"), ensure_ascii=False) + "\n"
    try:
        print(line, end="", flush=True)
    except BrokenPipeError:  # the reader went away, and says why
        os._exit(0)
