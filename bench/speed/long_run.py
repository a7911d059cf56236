#!/usr/bin/env python3
"""Makes a long run out of a short one, to measure `report` and its page on many steps.

    bench/speed/long_run.py runs/plan-path /tmp/long --steps 1000 --episodes 300
    time report /tmp/long; rm /tmp/long/steps/001000/done; report /tmp/long; touch /tmp/long/steps/001000/done; time report /tmp/long
    bench/speed/page.sh /tmp/long/report.html

Step i repeats step (i - 1) mod n + 1 of the short run. Episodes are repeated under new names as often as needed, with two
candidates of each group. Only the sizes are meaningful, not the figures.
"""
import argparse
import json
import pathlib
import re
import shutil

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("short", type=pathlib.Path)
parser.add_argument("long", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--episodes", type=int, default=300)
arguments = parser.parse_args()

STEP = "\0"


def template(folder: pathlib.Path, number: int) -> tuple[str, str]:
    """The streams of a step, with a placeholder for its number."""
    kept, rest = [], []
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        branch = re.search(r'"branch":(\d+),', line)
        if not branch:
            rest.append(line) if '"type":"end"' in line else kept.append(line)
        elif int(branch[1]) < 2:
            kept.append(re.sub(r'"branches":\d+', '"branches":2', line))
    names = {json.loads(line)["episode"] for line in kept if line.startswith('{"type":"episode"')}
    text, lines = "\n".join(kept), []
    for first in range(0, arguments.episodes, len(names)):
        move = lambda found: f'"{STEP}.{int(found[1]) + first}'
        moved = re.sub(rf'"{number}\.(\d+)', move, text)
        lines += [line for line in moved.splitlines()
                  if int(re.search(rf'"episode":"{STEP}\.(\d+)"', line)[1]) < arguments.episodes]
    samples = "\n".join(lines + rest) + "\n"
    metrics = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return tuple(text.replace(f'"step":{number},', f'"step":{STEP},') for text in (samples, metrics))


steps = sorted(path.parent for path in (arguments.short / "steps").glob("*/done") if path.parent.name != "000000")
(arguments.long / "steps/000000").mkdir(parents=True)
(arguments.long / "steps/000000/done").touch()
shutil.copy(arguments.short / "run.json", arguments.long)
shutil.copytree(arguments.short / "eval", arguments.long / "eval")
for place, folder in enumerate(steps):
    made = template(folder, int(folder.name))
    for step in range(place + 1, arguments.steps + 1, len(steps)):
        target = arguments.long / f"steps/{step:06}"
        target.mkdir()
        for name, text in zip(("samples", "metrics"), made):
            (target / f"{name}.jsonl").write_text(text.replace(STEP, str(step)), encoding="utf-8")
        (target / "done").touch()
