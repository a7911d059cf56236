#!/usr/bin/env python3
"""Checks of this folder: figures by hand, and a table of very small cells that is run, repeated and read back."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import command
import human_eval
import lab
import magrpo
import real_model
import tables
import two_beat_one
from main_table import METHODS, evaluate_warm_ups


def check_figures():
    """Wilson's interval against published values, and rows with runs that are missing."""
    low, high = tables.wilson(95, 100)
    assert abs(low - 0.8882) < 1e-4 and abs(high - 0.9785) < 1e-4, (low, high)
    low, high = tables.wilson(0, 10)
    assert abs(low) < 1e-12 and abs(high - 0.2775) < 1e-4, (low, high)
    row = tables.row("x", [tables.Score(1, 4, 3000, 2.0, 5), None, tables.Score(3, 4, 5000, 4.0, 7)])
    assert "not run" in row and "| **50.0** | 35.4 | 4 | 3 | 6 |" in row, row
    assert "| – | – | – | – | – |" in tables.row("x", [None, None])


def check_answers():
    """An answer's reward counts once a turn, its tokens for all agents and one after another."""
    lines = [dict(type="answer", episode=episode, turn=turn, agent=agent, team=team, tokens=tokens)
             for episode, turn, agent, team, tokens in [("0", 0, "a", 1.0, 3), ("0", 0, "b", 1.0, 5), ("0", 1, "a", 0.5, 2),
                                                        ("1", 0, "a", 0.0, 4), ("1", 0, "b", 0.0, 2)]]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + '{"type":"end"}\n')
        file.flush()
        found = tables.answers(file.name)
    assert (found.reward, found.tokens, found.in_sequence) == (0.75, 8, 5.5), found
    assert abs(found.half - 1.959964 * 0.75) < 1e-6, found


def check_cells():
    """Every method of the main table: trained to its budget, not a step more, and not again."""
    lab.WORLDS["plan-path"] = replace(lab.WORLDS["plan-path"], turns=2, warmup=30, budget=600, samples=24, test_tasks=4)
    cells = [lab.Cell(**dict(method, branches=4)) for method in METHODS]
    cells.append(lab.Cell("tool-alone", "only the tool is trained", per_role=True, branches=4, train=("tool",)))
    cells.append(lab.Cell("team-magrpo", "MAGRPO", per_role=True, branches=4, method="magrpo"))
    with tempfile.TemporaryDirectory() as folder:
        there, place = Path(folder), lab.Lab(folder)
        assert tables.final(place, cells[0], 1) is None
        assert lab.Plan(cells).work(folder, 2, [1]) == []
        weights = {}
        for cell in cells:
            directory = place.directory(cell, 1)
            spent, result = lab.tokens(directory), tables.final(place, cell, 1)
            assert sum(spent[:-1]) < 600 <= sum(spent) == result.tokens, (cell.name, spent)
            assert (result.trials, result.steps) == (4, len(spent)) and result.cpu_seconds > 0, result
            for policy in set(cell.policies().values()):
                weights[cell.name, policy] = (directory / "policies" / policy / "current" / "model.safetensors").read_bytes()
        untrained = (place.base(cells[0], 1) / "policies" / "shared" / "current" / "model.safetensors").read_bytes()
        assert weights["tool-alone", "planner"] == untrained != weights["tool-alone", "tool"]
        assert weights["team-at-grpo-per-role", "planner"] != weights["team-at-grpo-per-role", "tool"]
        assert weights["team-trajectory", "tool"] != weights["team-at-grpo", "tool"]
        run = json.loads((place.directory(cells[-1], 1) / "run.json").read_text(encoding="utf-8"))
        assert (run["method"], run["minibatches"]) == ("magrpo", "1") and tables.answers(magrpo.last(place.directory(cells[-1], 1))).tokens > 0
        before = {path: path.read_bytes() for path in there.rglob("*.jsonl")}
        assert lab.Plan(cells).work(folder, 1, [1]) == []
        assert before == {path: path.read_bytes() for path in there.rglob("*.jsonl")}, "something was done again"
        runs = [place.directory(cell, 1) for cell in cells]
        assert command.page(place, []) == 1 and command.page(place, runs) == 0
        assert all(f"{cell.name}/seed-1" in (there / "check.html").read_text(encoding="utf-8") for cell in cells)
        cost = place.directory(cells[0], 1) / "steps" / "000001" / "done"
        cost.unlink()
        assert tables.final(place, cells[0], 1) is None, "a run without all its steps is no result"


def tiny_model(place, folder):
    """A policy of random weights with enough tokens to be pretrained for pipeline.sh."""
    place.run(["policy", "init", f"{folder}/tiny", "--preset", "tiny"])
    config = json.loads(Path(folder, "tiny/current/config.json").read_text(encoding="utf-8"))
    Path(folder, "config.json").write_text(json.dumps(dict(config, vocab_size=1024)), encoding="utf-8")
    place.run(["policy", "init", f"{folder}/model", "--config", f"{folder}/config.json"])
    return f"{folder}/model"


def check_real_models():
    """Every cell of tables of a pretrained model, with a tiny model of random weights in its place."""
    with tempfile.TemporaryDirectory() as folder:
        there, place = Path(folder) / "runs", lab.Lab(Path(folder) / "runs")
        model = tiny_model(place, folder)
        for script, world, rows in [(real_model, "sums", 7), (two_beat_one, "orders-prose", 12)]:
            lab.WORLDS[world] = replace(lab.WORLDS[world], model=model, max_tokens=4, budget=100, samples=16, test_tasks=4)
            cells = [cell for cell in script.CELLS if cell.place == world]
            assert lab.Plan(cells, lambda lab, seed: evaluate_warm_ups(lab, seed, cells)).work(there, 2, [1]) == []
            for cell in cells:
                assert tables.final(place, cell, 1).trials == 4, cell.name
                for policy in set(cell.policies().values()):
                    adapter = place.directory(cell, 1) / "policies" / policy / "current" / "adapter_config.json"
                    assert adapter.exists() == cell.adapters, adapter
            heading, table = next(script.sections(place, [1]))
            assert heading.startswith(f"### {lab.WORLDS[world].title}"), heading
            assert "not run" not in table and len(table.splitlines()) == 2 + rows, table


def check_split():
    """A coder's answer as the answers of two, with the imports that each needs; not if the two take different parameters."""
    text = "```python\nfrom math import sqrt\n\ndef aux(n):\n    # root\n    return sqrt(n)\n\ndef twice(n):\n    return 2 * aux(n)\n```"
    helper = "```python\nfrom math import sqrt\ndef aux(n):\n    return sqrt(n)\n```"
    assert human_eval.split(text) == {"aux": helper, "main": "```python\ndef twice(n):\n    return 2 * aux(n)\n```"}
    assert human_eval.split(text.replace("twice(n)", "twice(n, m)")) is None and human_eval.split("no code") is None


def check_public():
    """Both experiments on public data sets, with records of their layouts and a tiny model, and what they print."""
    code = [dict(task_id=f"T/{n}", prompt=f'def add_{n}(x):\n    """Adds {n} to x."""\n', entry_point=f"add_{n}",
                 test=f"def check(candidate):\n    assert candidate(1) == {n + 1}\n") for n in range(12)]
    stories = [dict(question=f"Ann has {n} apples and buys {n + 1}. How many has she?", answer=f"{n}+{n + 1}={2 * n + 1}\n#### {2 * n + 1}")
               for n in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        model = tiny_model(lab.Lab(folder), there)
        for name, records, flags in [("code", code, ["--test-share", "0.5"]), ("train", stories[:2], ["--split", "train"]),
                                     ("test", stories[2:], ["--split", "test"])]:
            (there / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
            lab.Lab(folder).run(["envs", "import", there / name, *flags], there / f"{name}.jsonl")
        both = [(there / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:2] for name in ("train", "test")]
        (there / "stories.jsonl").write_text("".join(both[0] + both[1]), encoding="utf-8")
        for script, data in [("human_eval", there / "code.jsonl"), ("gsm8k", there / "stories.jsonl")]:
            command = [sys.executable, f"bench/paper/{script}.py", "run", "--data", data, "--model", model, "--root", there / "runs", "--results",
                       there / "public.tsv", "--seeds", 1, "--budget", 20, "--tasks", 1, "--threads", 1, "--max-tokens", 6]
            lab.Lab(folder).run(command, there / "table.md")
            table = (there / "table.md").read_text(encoding="utf-8")
            assert "not run" not in table and table.count("met (") >= 3, table
            lines = (there / "public.tsv").read_bytes()
            lab.Lab(folder).run(command)
            assert lines == (there / "public.tsv").read_bytes(), "a finished cell was run again"


if __name__ == "__main__":
    check_figures()
    check_answers()
    check_cells()
    check_real_models()
    check_split()
    check_public()
    print("all well", file=sys.stderr)
