"""A judge between `rollout` and `group`: a program of yours has a say in the reward.

    ./pipeline.sh --stage reward='python3 examples/judge.py'
    JUDGE_URL=http://localhost:8000/v1 JUDGE_MODEL=large ./pipeline.sh --stage reward='python3 examples/judge.py'

Reads the record and writes it. A judged sample's `reward` is the environment's plus JUDGE_WEIGHT x the judge's score, and both parts are
in `reward_components`. Every other line passes byte for byte. Without JUDGE_URL brevity is the judge. With it an OpenAI-compatible server
compares siblings, as RULER does: one question shows all answers to a prompt, equal ones once and in random order, and asks for a score of
each. Relative scores are what a group's advantages need, and one call replaces eight. JUDGE_CALLS (8) questions are asked at a time; one
that fails for now (no connection, 429, 5xx, no answer) is asked TRIES times. Candidates without scores get null, which is not 0; see
`group --unscored`. A judge that cannot be asked ends the step.
"""
import concurrent.futures
import json
import os
import random
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback


FAILED = threading.Lock()


def fail(code, cause, hint):  # without an `end` line the next stage refuses what was written
    FAILED.acquire()  # of several calls one says why
    print(f"judge.py: {cause}\nhint: {hint}", file=sys.stderr, flush=True)
    os._exit(code)  # other calls may be under way


try:
    WEIGHT = float(os.environ.get("JUDGE_WEIGHT", "0.1"))
    CALLS = max(1, int(os.environ.get("JUDGE_CALLS", "8")))
except ValueError as error:
    fail(2, f"JUDGE_WEIGHT or JUDGE_CALLS: {error}", "they are numbers, such as 0.1 and 8")
URL = os.environ.get("JUDGE_URL")  # such as http://localhost:8000/v1
TRIES, PAUSE = 4, 0.5  # attempts, and seconds before the second one; each later pause is twice as long
QUESTION = ("Compare these {count} answers to one task. Score each from 0 (useless) to 10 (perfect), relative to the others; equally good "
            "answers get equal scores. The last line of your reply is the {count} scores in order, as a JSON list of numbers.\n\n"
            "The task:\n{task}\n\n{answers}")


def brevity(sample):
    """1 for one token, 0 from the hundred-and-first on."""
    return 1.0 - min(len(sample["completion_ids"]) - 1, 100) / 100


def scores_in(text, count):
    """The scores, 0 to 1, that a reply's last list has; None if it does not have `count`."""
    lists = re.findall(r"\[[\d\s.,]*\]", text)
    numbers = re.findall(r"\d+(?:\.\d+)?", lists[-1]) if lists else []
    return [min(float(number), 10.0) / 10 for number in numbers] if len(numbers) == count else None


def compare(siblings):
    """A served model's score of each distinct answer to one prompt; none where it gave none."""
    texts = sorted({sample["completion"] for sample in siblings})
    if len(texts) == 1:
        return {texts[0]: 0.5}  # nothing to compare
    random.Random(siblings[0]["id"]).shuffle(texts)  # a judge may favor the first
    answers = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))
    question = QUESTION.format(count=len(texts), task=siblings[0]["prompt"][-1]["content"], answers=answers)
    body = {"model": os.environ.get("JUDGE_MODEL", "default"), "max_tokens": 1024, "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none")}
    for attempt in range(TRIES):
        last = attempt + 1 == TRIES
        request = urllib.request.Request(URL.rstrip("/") + "/chat/completions", json.dumps({**body, "temperature": attempt / TRIES}).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                scores = scores_in(json.load(reply)["choices"][0]["message"]["content"] or "", len(texts))
            if scores or last:
                return dict(zip(texts, scores or []))
        except (OSError, ValueError, LookupError, TypeError) as error:  # of no connection, of a status, of an answer that is none
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if refused or last:
                fail(69, f"{URL}: {type(error).__name__}: {error}", "JUDGE_URL ends where /chat/completions follows; JUDGE_MODEL names the model")
        time.sleep(PAUSE * 2**attempt)


def parsed(line, number):
    try:
        return json.loads(line)
    except ValueError as error:
        return fail(65, f"stdin:{number}: {error}", "it reads the lines of `rollout`: docs/stream-format.md")


def judged(lines):
    """The lines, with the score in each sample that has a reward."""
    read, groups = [parsed(line, number) for number, line in enumerate(lines, 1)], {}
    for sample in read:
        if sample["type"] == "sample" and sample["reward"] is not None:
            groups.setdefault((sample["agent"], sample["turn"], json.dumps(sample["prompt"])), []).append(sample)
    with concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
        compared = pool.map(compare, groups.values()) if URL else [None] * len(groups)
        for siblings, scores in zip(groups.values(), compared):
            for sample in siblings:
                score = brevity(sample) if scores is None else scores.get(sample["completion"])
                sample.setdefault("reward_components", {})["judge"] = score if score is not None else 0.0
                sample["reward"] = None if score is None else sample["reward"] + WEIGHT * score
    rewarded = {sample["id"] for siblings in groups.values() for sample in siblings}
    for sample, line in zip(read, lines):
        yield json.dumps(sample, separators=(",", ":"), ensure_ascii=False) + "\n" if sample.get("id") in rewarded else line


def main():
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale
    try:
        sys.stdout.writelines(judged(list(sys.stdin)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, and says why
        os._exit(0)


if __name__ == "__main__":
    main()
