#!/usr/bin/env python3
"""MAGRPO against AT-GRPO and one agent, at equal tokens.

Claims put to the test (MAGRPO, arXiv 2508.04652): two agents who are trained with one joint reward beat the same agents untrained
(in parallel, in sequence or in discussion) and reach the level of one trained agent in less time. Also compared: AT-GRPO,
which scores each candidate separately; all combinations of candidates (cross); and, if agents also have local
rewards, one advantage for all (centralized) against one for each (decentralized).
"""

import json
import statistics
import sys

import coop_problems
import tables
from command import main
from lab import PROBLEMS, REPOSITORY, WORLDS, Cell, Plan
from main_table import evaluate_warm_ups, untrained

# Every agent of a joint action gets its mean reward, which is the same for all of them.
SHARED = ("""jq -c -s '(reduce (.[] | select(.type == "joint")) as $j ({}; reduce $j.members[] as $m (.; .[$m] += [$j.reward]))) as $r"""
          """ | .[] | if .type == "sample" then .reward = ($r[.id] | add / length) else . end'"""
          " | advantage --credit return --estimator dr-grpo --quiet")

# The agents of each environment, for the team and for the single agent, and True if agents have local
# rewards.
PLACES = {
    "write": (dict(agents=("writer-1", "writer-2")), dict(agents=("writer",)), False),
    "math-team": (dict(agents=("tool", "reasoner")), dict(agents=("reasoner",)), True),
    "code-team": (dict(agents=("coder", "tester")), dict(agents=("coder",)), True),
    "coop-small": (dict(agents=("aux", "main")), dict(agents=("coder",), options="--agents 1"), False),
    "coop-shared": (dict(agents=("aux", "main")), dict(agents=("coder",), options="--agents 1"), False),
    "coop-code": (dict(agents=("aux", "main")), dict(agents=("coder",)), False),
}


def cells(place):
    """The methods in an environment: a policy for each agent, as in the paper."""
    team, alone, paid = PLACES[place]
    kind = dict(place=place, adapters=bool(WORLDS[place].model))
    team = dict(team, per_role=True, **kind)
    found = [
        Cell("single-grpo", "single agent, GRPO", workflow="single", **alone, **kind),
        Cell("team-at-grpo", "team, AT-GRPO", **team),
        Cell("team-magrpo", "team, MAGRPO" + (", an advantage for each agent" if paid else ""), method="magrpo", **team),
        Cell("team-magrpo-cross", "team, MAGRPO, cross", method="magrpo-cross", **team),
    ]
    if paid:
        found.append(Cell("team-magrpo-shared", "team, MAGRPO, one advantage for all agents", method="magrpo", advantage=SHARED, **team))
    return found


CELLS = [cell for place in PLACES for cell in cells(place)]
# Untrained baselines of the paper, besides `team` (its "parallel") and `single`.
BASELINES = [Cell("untrained", f"{name}, untrained", place="write", workflow=name, **PLACES["write"][0]) for name in ("pipeline", "discussion")]


def place_of(cells, name):
    return [cell for cell in cells if cell.place == name]


def after(lab, seed, cells):
    """The untrained policies; and pairs of writers of whom one is as it was before training."""
    for cell in place_of(BASELINES, "write") if place_of(cells, "write") else []:
        lab.warm_up(cell, seed)
        evaluate_warm_ups(lab, seed, [cell])
    evaluate_warm_ups(lab, seed, cells)
    for cell in place_of(cells, "write"):
        done = tables.final(lab, cell, seed)
        if done and cell.per_role:
            players = {agent: lab.base(cell, seed) / "policies" / "shared" for agent in cell.agents}
            for agent in cell.agents:
                own = {**players, agent: lab.directory(cell, seed) / "policies" / agent}
                lab.evaluate(cell, lab.directory(cell, seed), None, done.steps, own, f"only-{agent}", cell.workflow)


def last(directory, name="eval"):
    """The newest evaluation of a run, or None."""
    return max((directory / name).glob("step-*.jsonl"), default=None) if directory else None


def trained(lab, cell):
    """The directory of a run by its seed, or None if it has not spent its budget."""
    return lambda seed: lab.directory(cell, seed) if tables.final(lab, cell, seed) else None


def rewards(lab, rows, seeds, digits=".2f"):
    """Mean reward of an answer with its interval, and what the answer cost: one row a (title, run directory by seed, evaluation,
    whether the agents of a turn act at once)."""
    head = ["method", *(f"seed {seed}" for seed in seeds), "mean", "s.d.", "tokens of an answer", "one after another"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for title, directory, name, at_once in rows:
        files = [last(directory(seed), name) for seed in seeds]
        found = [file and tables.answers(file) for file in files]
        there = [answer for answer in found if answer]
        cells = [f"{answer.reward:{digits}} ({answer.reward - answer.half:{digits}} – {answer.reward + answer.half:{digits}})" if answer else "not run"
                 for answer in found]
        means = [answer.reward for answer in there]
        mean = f"**{statistics.mean(means):{digits}}**" if means else "–"
        spread = f"{statistics.stdev(means):{digits}}" if len(means) > 1 else "–"
        costs = [f"{statistics.mean(getattr(answer, cost) for answer in there):.1f}" if there else "–" for cost in ("tokens", "in_sequence" if at_once else "tokens")]
        lines.append(f"| {title} | " + " | ".join([*cells, mean, spread, *costs]) + " |")
    return "\n".join(lines)


def sections(lab, seeds, all_cells):
    for place in PLACES:
        there = place_of(all_cells, place)
        if not there:
            continue
        bases = [("single agent, untrained", cell) for cell in there if not cell.per_role]
        bases += [("team, untrained", cell) for cell in there if cell.per_role][:1]
        bases += [(cell.title, cell) for cell in place_of(BASELINES, place)]
        yield f"### {WORLDS[place].title}", tables.table(
            [(title, untrained(lab, cell, seeds)) for title, cell in bases]
            + [(cell.title, [tables.final(lab, cell, seed) for seed in seeds]) for cell in there], seeds)
        rows = [(title, lambda seed, cell=cell: lab.base(cell, seed), "eval", cell.workflow != "pipeline") for title, cell in bases]
        for cell in there:
            directory = trained(lab, cell)
            rows.append((cell.title, directory, "eval", True))
            if place == "write" and cell.per_role:
                rows += [(f"– its {agent} beside an untrained partner", directory, f"only-{agent}", True) for agent in cell.agents]
        yield f"{WORLDS[place].title}: the team's reward of an answer, and its tokens", rewards(lab, rows, seeds)
        yield f"{WORLDS[place].title}, success on the way (means over seeds)", tables.curve(lab, there, seeds)


def write_problems():
    """The problems of coop-code: the shipped ones are few, and too hard for a small model."""
    file = REPOSITORY / PROBLEMS
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in coop_problems.lines()), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        write_problems()
    plan = Plan(CELLS)
    plan.after = lambda lab, seed: after(lab, seed, plan.cells)
    sys.exit(main(__doc__, plan, lambda lab, seeds: sections(lab, seeds, plan.cells)))
