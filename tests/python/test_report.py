"""`report` on runs made by hand: a page that needs nothing else, a table, events, the terminal, figures, methods compared over seeds; paths that
are no regular files."""
import json
import math
import os
import re
import stat
import subprocess
import time

import pytest
from conftest import interpreter, must, refused, run
from made_runs import data, made_run, put, small_run, small_samples


@pytest.fixture
def here(tmp_path):
    """A folder with the small run."""
    small_run(tmp_path)
    return tmp_path


def page(folder, flags=""):
    must(f"report made-by-hand --quiet {flags}", folder)
    return (folder / "made-by-hand/report.html").read_text()


def test_page_fetches_nothing_and_has_the_same_bytes_each_time(here):
    text = page(here)
    for fetched in ("src=", 'href="h', "@import", "url(", "fetch(", "import(", "https://", "XMLHttp"):
        assert fetched not in text
    assert all(rest.startswith("www.w3.org/2000/svg") for rest in text.split("http://")[1:]), "an address that is no name of SVG"
    # A text of the run ends no script, and reaches the reader as it was.
    assert text.count("</script>") == 3
    shown = data(text)["runs"][0]
    group = shown["episode_sets"][1]["episodes"][0]["groups"][0]
    assert group["members"][0]["text"] == "</script><script>alert(1)</script>" and group["prompt"][0]["content"] == "what now? <b>&amp;"
    # A run that goes on, or was stopped, is shown as far as it is committed.
    assert (shown["steps"], shown["begun"]) == (2, 3)
    must("report made-by-hand --html again.html --quiet", here)
    assert (here / "again.html").read_text() == text


def test_report_reads_only_new_streams(here):
    """A step that was read once is not read again: one more step of a long run costs one more stream."""
    first, stream = page(here), here / "made-by-hand/steps/000001/samples.jsonl"
    text, written = stream.read_text(), stream.stat().st_mtime_ns

    def change(text, later=0):
        stream.write_text(text)
        os.utime(stream, ns=(written, written + later))

    # Nobody looks into it: the same size and time, and nothing that could be read.
    change("x" * len(text))
    assert page(here) == first
    change(text.replace('"reward":0.25', '"reward":0.75'), 10**9)
    assert page(here) != first, "a stream that changed"
    change(text)
    # What is kept may be lost, or broken.
    cache = here / "made-by-hand/report.cache"
    (cache / "step-000001.json").write_text("{")
    assert page(here) == first
    must(f"rm -r {cache}; echo in the way > {cache}")
    assert page(here) == first


def test_page_lists_every_episode_and_shows_any(here):
    one = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in small_samples(1))
    put(here / "made-by-hand", "steps/000001/samples.jsonl", "".join(one.replace('"1.0', f'"1.{number}') for number in range(12)))

    def named(text):
        return [tree["episode"] for tree in next(found for found in data(text)["runs"][0]["episode_sets"] if found["step"] == 1)["episodes"]]

    plain = page(here)
    assert named(plain) == ["1.0", "1.1"] and named(page(here, "--show 1.11")) == ["1.0", "1.1", "1.11"]
    streams = data(plain, "index")[0]
    assert [stream["step"] for stream in streams] == [0, 1, 2]
    # Two groups of an episode, of which the planner's is flat.
    assert [streams[1][key] for key in ("verdicts", "groups", "flat", "names")] == ["0" * 12, "2" * 12, "1" * 12, []] and streams[1]["rewards"][11] == 1.5
    said = refused(run("report made-by-hand --show 1.12", here), 2)
    assert said.startswith("report: --show 1.12: made-by-hand has no such episode\nhint: ")


def test_stream_without_a_run_has_a_page(tmp_path):
    put(tmp_path, "samples.jsonl", small_samples(4))
    must("report samples.jsonl --quiet", tmp_path)
    shown = data((tmp_path / "samples.html").read_text())["runs"][0]
    assert (shown["steps"], shown["last"]) == (1, 4) and shown["episode_sets"][0]["episodes"][0]["groups"][0]["agent"] == "tool"


def test_failed_page_leaves_no_file(here):
    put(here / "made-by-hand", "taken/by", "a folder that is not empty")
    assert refused(run("report made-by-hand --html made-by-hand/taken --quiet", here), 74).startswith("report: made-by-hand/taken: ")
    assert not (here / "made-by-hand/taken.tmp").exists()


def test_csv_accounts_for_every_group(here):
    table = must("report made-by-hand --csv -", here)
    assert not (here / "made-by-hand/report.html").exists(), "only what was asked for"
    rows = table.splitlines()
    for row in """0,test,e,,,success,1,0.20654931437723745,1
        1,train,e,,,success,0,0,0.7934506856227626
        1,train,,,,groups_expected,2,,
        2,train,,,,groups_expected,3,,
        2,train,,,,groups,2,,
        2,train,,,,groups_flat,1,,
        2,train,,,,groups_dropped,1,,
        2,train,,,,groups_dropped/rollout: env,1,,
        2,train,e,,,solved_at_turn/0,1,,
        2,train,,,tool,reward,0.625,,
        2,train,,,tool,component/oracle,0.625,,
        2,train,,,planner,groups_flat,1,,
        2,train,,,tool,advantage_mass,1,,
        2,train,,,planner,advantage_mass,0,,
        2,train,,,tool,variance_within_state,1,,
        2,train,,,tool,flat,0,,
        2,train,,,planner,flat,1,,
        2,train,,,tool,advantage_mean,0.125,,
        2,train,,,tool,advantage_largest,0.5,,
        2,train,,,tool,entropy,1.5,,
        2,train,,,tool,clip_ratio,0.25,,
        2,train,,,planner,grad_norm,0,,
        2,train,,shared,,grad_norm,1,,
        2,train,,,planner,prompt_tokens,2,,
        2,train,,,planner,completion_tokens,4,,
        2,train,,shared,,sampling/logp_difference_max,0.00001,,
        2,timing,,,,rollout/seconds,1.5,,
        2,timing,,,,update/seconds,0.5,,
        2,timing,,shared,,update/training_seconds,0.25,,""".split("\n"):
        assert f"made-by-hand,{row.strip()}" in rows, row  # by hand: advantages of -0.25 and 0.5, and of 0 and 0
    assert ",kl," not in table, "what was not measured is no figure"


@pytest.mark.parametrize(("edit", "uneven", "mixed"), [
    (lambda line: [line], "0", "0"), (lambda line: [line | {"prompt_ids": [1, 3]}], "0", "1"), (lambda line: [], "1", "0")])
def test_csv_counts_uneven_groups_and_mixed_prompts(here, edit, uneven, mixed):
    """Candidates of different states compared as if they were of one, and a member that is missing."""
    first, *rest = small_samples(2)
    put(here / "made-by-hand", "steps/000002/samples.jsonl", edit(first) + rest)
    table = must("report made-by-hand --csv -", here)
    assert re.findall(r"made-by-hand,2,train,,,,groups_(?:mixed_prompts|uneven),(\d)", table) in ([uneven, mixed], [mixed, uneven])
    assert f"made-by-hand,2,train,,,,groups_uneven,{uneven},," in table


def test_runs_share_a_page_unless_one_is_named_twice(here):
    small_run(here / "other")
    must("report made-by-hand other/made-by-hand --quiet", here)
    names = [shown["name"] for shown in data((here / "report.html").read_text())["runs"]]
    assert len(names) == 2 and names[1] == "other/made-by-hand"
    assert refused(run("report made-by-hand ./made-by-hand", here), 2) == "report: ./made-by-hand: this run is there twice\n"


def test_broken_stream_is_named(here):
    put(here / "made-by-hand", "steps/000002/samples.jsonl", [line | ({"branches": 0} if line["type"] == "sample" else {}) for line in small_samples(2)])
    said = refused(run("report made-by-hand", here), 65)
    assert said.startswith("report: steps/000002/samples.jsonl:1: 2.0/0/tool/0: branches is 0")


TAGS = ("test/success/e", "train/reward/tool", "train/loss/shared", "timing/rollout/seconds", "train/loss", "train/rewards/tool/mean")
EVENTS = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
print([[(event.step, event.wall_time, event.value) for event in events.Scalars(tag)] for tag in sys.argv[2:]])
"""


def test_tensorboard_reads_the_events(here):
    for place, name in enumerate(("eval/step-000000.jsonl", *(f"steps/00000{step}/{name}.jsonl" for step in (1, 2) for name in ("samples", "metrics")))):
        os.utime(here / "made-by-hand" / name, (1_700_000_000 + place,) * 2)
    must("report made-by-hand --tensorboard events --quiet", here)
    assert (here / "events/made-by-hand/events.out.tfevents.0.troupe").exists()
    python = interpreter("tensorboard")
    (here / "read.py").write_text(EVENTS)
    found = eval(must(f"{python} read.py events/made-by-hand {' '.join(TAGS)}", here))  # noqa: S307, our own program's text

    def both(value):
        return [(1, 1_700_000_002.0, value), (2, 1_700_000_004.0, value)]

    assert found == [[(0, 1_700_000_000.0, 1.0)], both(0.625), both(0.5), both(1.5), both(0.5), both(0.625)]


def test_watch_shows_a_run(here):
    put(here / "made-by-hand", "steps/000003/tasks.jsonl", '{"type":"task"}\n{"type":"task"}\n')
    put(here / "made-by-hand", "steps/000003/samples.jsonl", '{"type":"episode"}\n{"type":"sample","v":1,"st')
    view = must("report made-by-hand --watch", here)
    for line in (
        "made-by-hand  e · team · shared",
        "step 2 committed; step 3: 1 of 2 episodes",
        "success, held out: 1.000 at step 0, 1.000 at step 0",
        "success in training: 0.000 at step 1, 1.000 at step 2",
        "groups     2 seen, 1 flat (50 %), 1 dropped",
        "reward     tool           0.625 ± 0.530  ▁▁ 2.0 tokens, 0 % cut\n",
        "role       tool         flat 0 %, share 100 %, entropy 1.50, gradient 0.75, clipped 25 %\n",
        "role       planner      flat 100 %, share 0 %, gradient 0.00, clipped 0 %\n",
        "agreement  1.0e-5 nats between sampler and trainer at most",
        "speed      8 tokens, 5 tokens/s, rollout 1.50 s, update 0.50 s",
        "episode    2.0 solved, 1 turns, reward 1.500, t",
        "turn 1 planner    0.500 +0.00  </script><script>alert(1)</script>",
    ):
        assert line in view, line
    assert refused(run("report made-by-hand made-by-hand --watch", here), 2) == "report: --watch shows one run\n"


def test_patterns_may_name_reports_of_runs(here):
    small_run(here, "one")
    put(here, "report.html", "<!doctype html>")
    must("report made-by-hand one report.html --html all.html --quiet; report compare made-by-hand one report.html", here)
    refused(run("report .", here), 65, "hint: its runs are ./made-by-hand ./one")
    refused(run("report evaluate one", here), 2, "one: a run, and not a stream", "one/eval/step-000000.jsonl")


def test_chart_of_a_shared_policy_has_its_agents(here):
    """A policy of two agents is drawn at each step, and its agents where `update` measured them."""
    run("report made-by-hand --figure gradient-norm.svg --quiet", here)  # the data is written without matplotlib, too
    assert (here / "gradient-norm.csv").read_text().splitlines() == [
        "series,step,value,low,high", "planner,1,0,,", "planner,2,0,,", "tool,1,0.75,,", "tool,2,0.75,,", "shared,1,1,,", "shared,2,1,,"]


# Answers that the token limit cut: where a reader hears of them.
def test_advice_names_cut_answers_first(tmp_path):
    for name, more in (("stuck", {"learns": False, "cut": 1.0}), ("half", {"learns": False, "cut": 0.5}), ("short", {"learns": False, "cut": 0.1}),
                       ("fine", {})):
        made_run(tmp_path, name, **more)
    views = {name: must(f"report {name} --watch", tmp_path) for name in ("stuck", "half", "short", "fine")}
    assert "cut        100 % of the answers ended at the token limit" in views["stuck"]
    assert "advice     All answers were cut at the limit of 8 tokens: no answer ends by itself, as with a base" in views["stuck"]
    assert "advice     Raise --max-tokens first: 50 % of the answers were cut at the limit of 8 tokens" in views["half"]
    assert "\ncut " not in views["short"] and "advice     All groups of the last step are flat" in views["short"]
    assert "\ncut " not in views["fine"] and "advice " not in views["fine"]
    assert "success, held out: 0.250 at step 0, 0.850 at step 12, best 0.850 at step 12" in views["fine"]
    for name, advice in (("stuck", 2), ("short", 1), ("fine", 0)):
        must(f"report {name} --quiet", tmp_path)
        shown = data((tmp_path / name / "report.html").read_text())
        assert len(shown["runs"][0]["summary"]["advice"]) == advice, name
        series = next(chart for chart in shown["measured"] if chart["name"] == "cut-answers")["series"]
        assert [one["name"] for one in series] == ["planner", "tool"] and series[0]["y"][0] == (1 if name == "stuck" else 0), name
    assert "stuck,4,test,plan,,tool,completions_cut,1,," in must("report stuck --csv -", tmp_path), "an evaluation counts them, too"


def test_returns_tell_where_no_task_is_solved(tmp_path):
    """Of equal success the highest return is the best, and a team that earns more than at first is not told that it solves nothing."""
    views = {}
    for name, earned in (("grows", {4: 2.0, 8: 1.5}), ("rests", {})):
        made = made_run(tmp_path, name, steps=8)
        for file in [*made.glob("eval/*.jsonl"), *made.glob("steps/*/samples.jsonl")]:
            read = [json.loads(line) for line in file.read_text().splitlines()]
            put(made, str(file.relative_to(made)), [
                line | {"success": False, "stop": "turns", "reward": earned.get(line["step"], 1.0)} if line["type"] == "episode" else line for line in read])
        views[name] = must(f"report {name} --watch", tmp_path)
    assert "success, held out: 0.000 at step 0, 0.000 at step 8, best 0.000 at step 4" in views["grows"], views["grows"]
    assert "advice " not in views["grows"] and "advice     No task is solved." in views["rests"]
    assert "best 0.000 at step 0" in views["rests"]
    against = "report evaluate --quiet grows/eval/step-000008.jsonl --against grows/eval/step-000000.jsonl"
    assert "plan: +0.0 points (95 % interval +0.0 to +0.0), return +0.50 (+0.50 to +0.50) against" in must(against, tmp_path)
    assert json.loads(must(f"{against} --format json", tmp_path))["against"]["reward"] == {"value": 0.5, "interval": [0.5, 0.5]}


NAMES = "monday tuesday seed-9 other another"


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of one method, and two of another."""
    for place, name in enumerate(NAMES.split()):
        made_run(tmp_path, name, settings={"seed": str(place % 3 + 1), "lr": "1e-3" if place < 3 else "1e-4"}, learns=place < 3)
    return tmp_path


def test_seeds_are_one_curve_and_one_row(seeds):
    must(f"report {NAMES} --quiet", seeds)
    shown = data((seeds / "report.html").read_text())
    assert [(method["name"], method["runs"], method["seeds"]) for method in shown["methods"]] == [
        ("lr 1e-3", [0, 1, 2], ["1", "2", "3"]), ("lr 1e-4", [3, 4], ["1", "2"])]
    # 17, 18 and 19 of 20 after step 12: mean and sample deviation by hand.
    now = shown["methods"][0]["now"]
    assert math.isclose(now["mean"], 0.9, abs_tol=1e-9) and math.isclose(now["deviation"], 0.05, abs_tol=1e-9)
    assert math.isclose(now["interval"][0], 0.9 - 4.302_653 * 0.05 / 3**0.5, abs_tol=1e-6) and now["interval"][1] == 1
    success = shown["success"][0]["series"]
    assert len(success) == 2 and [success[0][key][-1] for key in ("low", "y", "high")] == [0.85, 0.9, 0.95]


def compared(folder, flags):
    return [json.loads(line) for line in must(f"report compare --quiet --format json {flags}", folder).splitlines()]


def test_methods_are_compared_seed_by_seed(seeds):
    table = must(f"report compare {NAMES}", seeds).splitlines()
    assert table[0].startswith("method") and "at step 12" in table[0]
    assert table[1].startswith("lr 1e-3") and "  90.0 %  5.0  77.6 to 100.0 %" in table[1]
    # Over seeds 1 and 2: 0 - 0.85 and 0 - 0.9.
    assert table[3] == "lr 1e-4 against lr 1e-3: -87.5 points, SD 3.5, 95 % interval -100.0 to -55.7, return +0.00 (+0.00 to +0.00), paired over seeds 1, 2"
    second = compared(seeds, NAMES)[1]
    assert (second["method"], second["step"], second["against"]["seeds"]) == ("lr 1e-4", 12, ["1", "2"])
    assert second["runs"][1] == {"seed": "2", "run": "another", "step": 12, "tokens": 576.0, "success": 0.0, "return": 1.0}
    made_run(seeds, "begun", steps=0)
    assert refused(run("report compare monday begun", seeds), 65).startswith("report: begun: the run has no evaluation\nhint: ")
    made_run(seeds, "shorter", steps=8, settings={"seed": "7"})
    refused(run("report compare monday shorter", seeds), 0, "some runs go on after step 8")


def test_compare_counts_tokens_up_to_the_compared_evaluation(tmp_path):
    """A step of a made run generates 48 tokens, and every fourth one is evaluated: 192 tokens apart. The wide run generates 96 a step."""
    for name, steps, wide, budget in (("narrow", 12, False, {}), ("wide", 8, True, {}), ("narrow-budget", 8, False, {"token_budget": "350"}),
                                      ("wide-budget", 4, True, {"token_budget": "350"})):
        made_run(tmp_path, name, steps=steps, wide=wide, settings={"branches": "4" if wide else "2"} | budget)

    def at(flags):
        return [(line["runs"][0]["step"], line["tokens"]) for line in compared(tmp_path, flags)]

    # The narrow run generated 576 tokens in all, and 384 up to the last common step.
    assert at("narrow wide") == [(8, 384), (8, 768)]
    # The first evaluation after that many tokens.
    for tokens, narrow, wide in ((1, (4, 192), (4, 384)), (192, (4, 192), (4, 384)), (193, (8, 384), (4, 384)), (385, (12, 576), (8, 768))):
        assert at(f"narrow wide --at-tokens {tokens}") == [narrow, wide], tokens
    assert refused(run("report compare narrow wide --at-tokens 577", tmp_path), 2) == (
        "report: --at-tokens 577: narrow generated 576 tokens up to its last evaluation\nhint: the most that all runs have is --at-tokens 576\n")
    # Runs with a budget are compared at it, wherever they ended.
    assert "  at 350 tokens  " in must("report compare narrow-budget wide-budget", tmp_path)
    assert at("narrow-budget wide-budget") == [(8, 384), (4, 384)]


def test_figures_are_drawn_with_their_data_beside_them(tmp_path):
    made_run(tmp_path, "one")
    names = ("success.svg", "success.pdf", "agreement.pdf", "turns-plan.svg", "time.pdf", "success-cost.png")
    code, _, said = run(f"report one --quiet {' '.join(f'--figure {name}' for name in names)}", tmp_path)
    if code == 69:
        pytest.skip(f"no figure was drawn: {said}")
    assert code == 0 and not (tmp_path / "one/report.html").exists(), said
    assert [(tmp_path / name).read_bytes()[1:2] for name in names] == [b"?", b"P", b"P", b"?", b"P", b"P"], "SVG, PDF and PNG"
    assert all(part in (tmp_path / "success.svg").read_text() for part in (">held out<", ">in training<", ">step<", ">success<"))
    assert (tmp_path / "success.csv").read_text().startswith("series,step,value,low,high\nheld out,0,0.25,0.11")
    pdf = (tmp_path / "success.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf, "a TrueType font is in the file, and none that publishers refuse"
    must("report one --figure success.pdf --quiet", tmp_path)
    assert (tmp_path / "success.pdf").read_bytes() == pdf, "the same run, the same bytes"
    # The differences of two methods are their names, and may be long.
    for name, letter in (("two", "a"), ("three", "b")):
        made_run(tmp_path, name, settings={"env_command": " ".join(f"--option-{letter} {number}" for number in range(12))})
    must("report two three --figure success.svg --quiet", tmp_path)
    lines = re.findall(r">([^<]*--option[^<]*)<", (tmp_path / "success.svg").read_text())
    assert len(lines) > 2 and max(map(len, lines)) <= 76, lines


@pytest.mark.parametrize(("figure", "path", "code", "told"), [
    ("succes.pdf", "nothing", 2, "there is no chart called succes\nhint: a figure is called by its chart: success, success-cost, return, "),
    ("success.eps", "nothing", 2, "not .pdf, .svg or .png\nhint: "),
    ("success.pdf", "nothing", 69, "there is no python3\nhint: figures are drawn by matplotlib: pip install matplotlib"),
    ("success.pdf", "bin", 69, "No module named 'matplotlib'\nhint: figures are drawn by matplotlib: pip install matplotlib")])
def test_figure_that_cannot_be_drawn_is_refused(tmp_path, figure, path, code, told):
    made_run(tmp_path, "one")
    put(tmp_path, "bin/python3", "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'matplotlib'\" >&2\nexit 1\n")
    (tmp_path / "bin/python3").chmod(0o755)
    said = refused(run(f"report=$(command -v report); PATH={tmp_path}/{path} $report one --quiet --figure {figure}", tmp_path), code, told)
    assert said.startswith("report: --figure")


def test_outputs_go_through_links_devices_and_fifos(here):
    table = must("report made-by-hand --csv -", here)
    must("echo precious > target; ln -s target link; ln -s /dev/null null; ln -s /proc/self/fd/1 stdout; mkfifo fifo", here)
    for name in ("/dev/stdout", "stdout"):
        assert must(f"report made-by-hand --csv {name} --quiet", here) == table
    must("report made-by-hand --csv link --html null --quiet", here)
    assert all((here / name).is_symlink() for name in ("link", "null", "stdout")) and (here / "target").read_text() == table
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert must("cat fifo & report made-by-hand --csv fifo --quiet; wait", here) == table and (here / "fifo").is_fifo()
    # What a shell redirected is written where it stands, not replaced.
    must("{ echo first; report made-by-hand --csv /dev/stdout --quiet; echo last; } > all", here)
    assert (here / "all").read_text() == f"first\n{table}last\n"


def test_fifo_in_a_run_is_refused_and_a_named_pipe_is_read(here):
    must("mkdir -p events/made-by-hand made-by-hand/report.cache; mkfifo events/made-by-hand/events.out.tfevents.0.troupe pipe", here)
    for flags, code, place in (("made-by-hand --tensorboard events", 74, "events.out.tfevents.0.troupe"), ("compress pipe", 2, "pipe")):
        refused(run(f"timeout 60 report {flags}", here), code, f"{place}: not a")
    # A summary that cannot be read costs time and nothing else.
    for name, code in (("steps/000002/samples.jsonl", 74), ("run.json", None), ("report.cache/step-000002.json", 0)):
        must(f"cd made-by-hand; [ ! -e {name} ] || mv {name} aside; mkfifo {name}", here)
        found, _, said = run("timeout 60 report made-by-hand --quiet", here)
        assert found == code or code is None and found not in (0, 124), said
        assert code != 74 or f"{name}: not a" in said
        must(f"cd made-by-hand; rm {name}; [ ! -e aside ] || mv aside {name}", here)
    assert must("report evaluate <(cat made-by-hand/eval/step-000000.jsonl) --format line", here).startswith("1.000 (1/1)")


@pytest.mark.parametrize("flags", ["evaluate pipe", "made-by-hand --csv pipe"])
def test_signal_ends_a_wait_for_a_fifo(here, flags):
    """Who waits for the other end of a FIFO is ended by the first signal."""
    must("mkfifo pipe", here)
    with subprocess.Popen(["report", *flags.split()], cwd=here, stderr=subprocess.DEVNULL) as waiting:
        time.sleep(0.5)
        assert waiting.poll() is None, "it waits"
        waiting.terminate()
        assert waiting.wait(60) == 143
