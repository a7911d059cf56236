"""`pipeline.sh --config` and `--resume`: every flag of a run is a line of one TOML file, which the run writes."""
import json

import pytest
from conftest import ROOT, contents, differences, must, pipeline, refused, run, trained

# A run of two steps, with every kind of value.
SMALL = r"""
# A run of two steps.
steps = 2
"tasks" = 6
branches = 4
warmup = 1_2
lr = 2e-3
betas = [0.9,
  0.99, # and the other
]
eval-every = 2
eval_tasks = 20
policies = "per-role"
train = ["tool"]
keep-best = true
flags = { update = '--epochs 1' }

[stage]
advantage = "jq -c 'if .type==\"sample\" then .advantage = .reward - 1 else . end'"
"""
# The file's settings as a command line.
FLAGS = ("--steps 2 --tasks 6 --branches 4 --warmup 12 --lr 2e-3 --betas 0.9,0.99 --eval-every 2 --eval-tasks=20 --policies per-role "
         "--train tool --keep-best --flags 'update=--epochs 1' "
         "--stage \"advantage=jq -c 'if .type==\\\"sample\\\" then .advantage = .reward - 1 else . end'\"")


def test_file_of_lines_is_the_command_line(tmp_path):
    by_flags, by_file, again, file = (tmp_path / name for name in ("flags", "file", "again", "run.toml"))
    file.write_text(SMALL)
    trained(by_flags, FLAGS)
    trained(by_file, f"--config {file}")
    assert differences(by_flags, by_file) == []
    # All of it is written down, and makes the run again.
    written = by_file / "config.toml"
    text = written.read_text()
    for line in ("lr = 0.002\n", "seed = 1\n", "keep = 2\n", "clip = 0.2\n", 'optimizer = "adamw"\n', "[stage]\n"):
        assert line in text, line
    trained(again, f"--config {written}")
    assert differences(by_file, again) == [] and (again / "config.toml").read_text() == text
    # The command line overrides the file.
    assert "step 3: success in training" in trained(by_file, f"--config {file} --steps 3")
    # It is TOML for others, too.
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    values = tomllib.loads(text)
    assert (values["lr"], values["betas"], values["train"]) == (0.002, [0.9, 0.99], ["tool"])


def test_run_goes_on_with_what_it_wrote_down(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = "--warmup 30 --tasks 6 --branches 4 --eval-every 0 --seed 3 --keep 3 --clip 0.3,0.4 --kl 0.01 --policies adapter-per-role"
    trained(whole, f"{flags} --steps 3")
    trained(stopped, f"{flags} --steps 1")

    def resume(more):
        return run(f"./pipeline.sh --resume {stopped} {more}")

    assert resume("--steps 3")[0] == 0
    # The adapter's configuration names the place of its base.
    assert [name for name in differences(whole, stopped) if not name.endswith("/adapter_config.json")] == []
    settings = json.loads((whole / "policies/tool/current/trainer_state.json").read_text())["settings"]
    assert (settings["clip"], settings["clip_high"], settings["kl"], len(settings["reference"]) > 0) == (0.3, 0.4, 0.01, True)
    assert len(list((whole / "policies/tool").glob("step-*"))) == 3
    # All that differs is said at once, as flags.
    said = refused(resume("--seed 4 --branches 3 --lr 0.001 --flags 'update=--epochs 2'"), 2)
    assert said.startswith(
        f"pipeline.sh: {stopped} was started with --seed 3 --branches 4 no --flags, not with --seed 4 --branches 3 --flags 'update=--epochs 2'\n"
        f"hint: --seed cannot change in a run: ./pipeline.sh --resume {stopped} goes on as it was started"), said
    refused(resume("--run elsewhere"), 2, "--resume names the run")
    refused(pipeline(whole, "--config nowhere.toml"), 2, "--config nowhere.toml: no such file")


@pytest.mark.parametrize(("text", "cause", "hint"), [
    ("lr = 1e-3\nstpes = 3", "run.toml:2: unexpected argument '--stpes'", "did you mean --steps?"),
    ("learning_rate = 1e-3", "run.toml:1: unexpected argument '--learning-rate'", "did you mean --lr?"),
    ("[sets]\nlevel = 1", "run.toml:1: unexpected argument '--sets'", "did you mean --set?"),
    ('# how many\nsteps = "three"', "run.toml:2: --steps three: not a whole number", "--help"),
    ("steps = 3.0", "run.toml:1: --steps 3.0: not a whole number", "--help"),
    ("steps = 1979-05-27", "run.toml:1: steps: not a value of --steps", "--help"),
    ("lr = true", "run.toml:1: invalid value 'true' for '--lr <[AGENT=]X>': not a number", "--help"),
    ("resident = 3", "run.toml:1: invalid value '3' for '--resident", "--help"),
    ("optimizer = adamw", "run.toml:1: string values must be quoted", "strings are quoted"),
    ("stage = 3", "run.toml:1: invalid value '3' for '--stage <NAME=COMMAND>'", "--help"),
    ("lr = 1\n\nlr = 2", "run.toml:3: duplicate key", "leave one of them out"),
    ('run = "x"', "run.toml:1: run has no place in a file", "--run"),
    ('env = "math', "run.toml:1: invalid basic string, expected `\"`", "hint: "),
    ("steps = 3 lr = 4", "run.toml:1: unexpected key or value", "hint: "),
    ("branches = 0", "run.toml:1: --branches must be from 1", ""),
    ('policies = "perrole"', "invalid value 'perrole' for '--policies <WHICH>': not shared", ""),
])
def test_line_that_is_no_flag_is_refused_where_it_stands(tmp_path, text, cause, hint):
    (tmp_path / "run.toml").write_text(text)
    said = refused(pipeline(tmp_path / "run", f"--config {tmp_path}/run.toml"), 2, cause, hint)
    assert said.count("\nhint: ") == len(said.splitlines()) - 1 and not (tmp_path / "run").exists()


STUDY = "steps = 2\ntasks = 3\nbranches = 3\nwarmup = 6\neval-every = 2\neval-tasks = 6\nseed = [1, 2]\n[sweep]\nlr = [1e-3, 2e-3]\n"


def call(folder, flags):
    return run(f"{ROOT}/pipeline.sh {flags}", folder)


def test_runs_of_a_sweep_are_made_skipped_resumed_and_named_where_they_fail(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    code, printed, said = call(tmp_path, "--config study.toml")
    assert code == 0, said
    names = ["lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=2e-3,seed=1", "lr=2e-3,seed=2"]
    first, second, third, fourth = runs = [tmp_path / "runs/study" / name for name in names]
    for place, at in enumerate(runs, 1):
        config = (at / "config.toml").read_text()
        assert f"run {place} of 4: " in printed and f"lr = 0.00{(place + 1) // 2}\n" in config and f"seed = {2 - place % 2}" in config
        assert "sweep" not in config and "seed = [" not in config
    assert (tmp_path / "runs/study/report.html").is_file()
    # One run by itself is the same.
    must(f"{ROOT}/pipeline.sh --config study.toml --lr 2e-3 --seed 2 --run alone", tmp_path)
    assert differences(tmp_path / "alone", fourth) == []
    # Finished runs are skipped, unfinished ones resume, failed ones are named, and later ones are trained.
    whole = contents(second)
    for at in (second, third):
        (at / "eval/step-000002.jsonl").unlink()
    (second / "steps/000002/done").unlink()
    (third / "steps/000002/done").write_text("damaged")
    must(f"rm -r {fourth}")
    code, printed, said = call(tmp_path, "--config study.toml")
    assert code == 65 and "1 of 4 runs failed: lr=2e-3,seed=1 (exit code 65)\nhint: " in said, said
    assert f"{names[0]} is done\n" in printed and "seed=2 is done" not in printed and "continues after step 1\n" in printed
    assert contents(second) == whole and differences(tmp_path / "alone", fourth) == []
    rows = [line.split() for line in must(f"{ROOT}/pipeline.sh list", tmp_path).splitlines()]
    assert rows[0] == ["run", "state", "steps", "best", "size"] and len(rows) == 5
    assert rows[1][:3] == [f"study/{names[0]}", "done", "2/2"] and rows[1][4] == "at" and rows[1][-1] == "MB"
    assert rows[3][:3] == [f"study/{names[2]}", "failed", "2/2"]


@pytest.mark.parametrize(("text", "cause"), [
    ("[sweep]\nlr = [1e-3, -1]", "invalid value '-1' for '--lr <[AGENT=]X>'"),
    ('[sweep]\nenv = ["plan-path", "plan-paht"]', "plan-paht"),
    ('[sweep.flags]\nadvantage = ["", "--estimator gpro"]', "gpro"),
    ("[sweep]\nbranches = [4, 0]", "study.toml:2: --branches must be from 1"),
    ("[sweep]\nlearning_rate = [1]", "study.toml:2: unexpected argument '--learning-rate' found"),
    ("seed = [1, 1]", "two runs of the sweep are called seed=1"),
    ("seed = 1\n[sweep]\nseed = [1, 2]", "seed has one value and several"),
])
def test_mistake_in_any_run_of_a_sweep_is_found_before_the_first_begins(tmp_path, text, cause):
    (tmp_path / "study.toml").write_text(text)
    refused(call(tmp_path, "--config study.toml"), 2, cause)
    assert not (tmp_path / "runs").exists()


def test_sweep_has_a_folder_for_itself(tmp_path):
    refused(call(tmp_path, "evaluate --seed 1,2"), 2, "evaluate and explain are of one run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    refused(call(tmp_path, "--seed 1,2 --run run"), 2, "is a run, and not a folder for several")


def test_resumed_run_takes_other_values_from_the_next_step_on(tmp_path):
    at = tmp_path / "run"
    trained(at, "--warmup 30 --tasks 4 --branches 4 --eval-every 0 --keep 9 --steps 1")
    said = refused(call(tmp_path, "--resume run --steps 2 --lr 5e-4 --env math"), 2, " cannot change")
    assert "--env cannot" in said or "--env --workflow cannot" in said
    told = "from step 2 on --tasks 3 --lr 5e-4 --kl 0.01 instead of --tasks 4 --lr 1e-3 --kl 0"
    refused(call(tmp_path, "--resume run --steps 2 --lr 5e-4 --kl 0.01 --tasks 3"), 0, told)
    # It goes on with them, and the step is one with these values.
    assert call(tmp_path, "--resume run --steps 3")[0] == 0
    # A finished run is not cut.
    config = (at / "config.toml").read_text()
    for fewer in (0, 2):
        refused(call(tmp_path, f"--resume run --steps {fewer}"), 2, "has 3 steps already\nhint: --steps can only grow: --steps 4")
        assert (at / "config.toml").read_text() == config
    values = json.loads((at / "run.json").read_text())
    assert (values["history"], values["lr"]) == ([told], "5e-4")
    for step, tasks in ((1, 4), (2, 3), (3, 3)):
        assert json.loads((at / f"steps/{step:06}/tasks.jsonl").read_text().splitlines()[-1])["counts"]["tasks"] == tasks
    settings = json.loads((at / "policies/shared/current/trainer_state.json").read_text())["settings"]
    assert (settings["lr"], settings["kl"]) == (5e-4, 0.01)
