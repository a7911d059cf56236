"""Small runs of the whole loop, read afterwards as a user would: files, `end` lines, accounts, README's commands; runs that end early or badly;
terminals, locks and signals."""
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BIN, ROOT, contents, differences, lines, must, pipeline, refused, run, trained, wait_until, without_timing

SMALL = "--warmup 30 --steps 2 --tasks 6 --branches 4 --eval-every 2"


def read(path, kind=None):
    return lines(path.read_text(), kind)


def blocks(path):
    return [block.split("```")[0] for block in (ROOT / path).read_text().split("```sh\n")[1:]]


def groups_are_groups(stream, tasks, branches):
    """Every group has exactly K members with one prompt, and the expected groups were all seen or dropped: one group for each of the two agents of
    Plan-Path's team at each turn begun, since only the planner's action can end an episode."""
    end, *others = [line for line in stream if line["type"] == "end"]
    episodes, groups = [line for line in stream if line["type"] == "episode"], {}
    assert (others, end["ok"], end["stage"], len(episodes)) == ([], True, "advantage", tasks)
    for sample in (line for line in stream if line["type"] == "sample"):
        groups.setdefault(sample["group"], []).append(sample)
    for name, members in groups.items():
        assert len(members) == branches and all(member["prompt_ids"] == members[0]["prompt_ids"] for member in members), name
        assert sum(member["selected"] for member in members) == 1 and abs(sum(member["advantage"] for member in members)) < 1e-6, name
    turns, group = sum(episode["turns"] for episode in episodes), end["after"][0]
    rollout = group["after"][0]
    assert groups and end["counts"]["groups"] == len(groups) and (group["stage"], rollout["stage"]) == ("group", "rollout")
    dropped = sum(sum(stage["counts"]["dropped_groups"].values()) for stage in (end, group, rollout))
    assert rollout["counts"]["groups_expected"] == group["counts"]["groups_expected"] == 2 * turns == len(groups) + dropped


def test_small_run_leaves_everything_readable_and_accounted_for(tmp_path):
    at = tmp_path / "plan-path"
    printed = trained(at, SMALL)
    for part in ("step 0: success on 300 test tasks", "step 2: success on 300 test tasks", ", 95 % interval 0."):
        assert part in printed
    assert '"group_totals":{"expected":' in (at / "report.html").read_text() and (at / "defaults.json").is_file()
    steps = [at / f"steps/00000{step}" for step in (1, 2)]
    for step in steps:
        groups_are_groups(read(step / "samples.jsonl"), 6, 4)
    # Every step draws new tasks.
    first, second = ({task["task"] for task in read(step / "tasks.jsonl", "task")} for step in steps)
    assert len(first) == len(second) == 6 and not first & second
    metrics, = read(steps[1] / "metrics.jsonl", "metrics")
    assert metrics["sampling/logp_difference_max"] == 0, "sampler and trainer differ"
    assert json.loads((steps[1] / "done").read_text())["policies"]["shared"] == metrics["policy_version"]
    # Other values are refused by name; more steps go on.
    refused(pipeline(at, "--seed 9"), 2, "was started with")
    trained(at, f"{SMALL} --steps 3")
    assert (at / "steps/000003/done").exists()
    # The `jq` lines of README, in a finished run.
    command = next(block for block in blocks("README.md") if block.startswith("cd runs/plan-path"))
    shown = must(command.replace("cd runs/plan-path", ""), at).splitlines()
    assert len(shown) == 4 + 1 + 3 and all(line.endswith("\t4\t1") for line in shown[-3:]), shown


def test_step_by_hand_is_a_step_of_the_run(tmp_path):
    """README's step by hand, with the run's number of tasks."""
    trained(tmp_path / "runs/plan-path", "--steps 1 --tasks 6 --warmup 30 --eval-every 0")
    step = next(block for block in blocks("README.md") if "policy init run/shared" in block)
    must(step[step.index("policy init run/shared"):].replace("--count 48", "--count 6"), tmp_path)
    version, done = (json.loads((tmp_path / name).read_text()) for name in ("run/shared/current/version.json", "runs/plan-path/steps/000001/done"))
    assert done["policies"]["shared"] == version["version"]


def test_stage_can_be_swapped_and_a_failing_one_is_named(tmp_path):
    small = f"{SMALL} --steps 1 --warmup 5 --stage"
    trained(tmp_path / "swapped", f"""{small} 'advantage=jq -c "if .type==\\"sample\\" then .advantage=(.reward-1) else . end"'""")
    sample = read(tmp_path / "swapped/steps/000001/samples.jsonl", "sample")[0]
    assert sample["advantage"] == sample["reward"] - 1
    at = tmp_path / "failing"
    refused(pipeline(at, f"{small} group=false"), 1, "step 1: group failed with exit code 1")
    assert not (at / "steps/000001/done").exists() and os.readlink(at / "policies/shared/current") == "step-000000"


def test_warm_up_takes_other_demonstrations(tmp_path):
    """A file of demonstrations in place of the environment's; without a warm-up they are refused."""
    must(f"envs demo plan-path --count 20 --seed 9 > {tmp_path}/shown.jsonl", tmp_path)
    stage = f"--steps 1 --tasks 2 --branches 2 --eval-every 0 --stage 'demo=cat {tmp_path}/shown.jsonl'"
    trained(tmp_path / "run", f"--warmup 5 {stage}")
    trained(tmp_path / "own", "--warmup 5 --steps 1 --tasks 2 --branches 2 --eval-every 0")
    counts = [read(tmp_path / run / "warmup/metrics.jsonl", "end")[0]["counts"]["samples"] for run in ("run", "own")]
    assert counts == [len(read(tmp_path / "shown.jsonl", "sample")), counts[1]] and counts[0] != counts[1], counts
    refused(pipeline(tmp_path / "none", f"--warmup 0 {stage}"), 2, "--stage demo=...: there is no warm-up")
    refused(pipeline(tmp_path / "named", f"--policies tool={tmp_path}/run/policies/shared {stage}"), 2, "there is no warm-up")


def test_two_environments_train_in_one_run(tmp_path):
    block = next(block for block in blocks("docs/configuration.md") if "sokoban --count" in block)
    stage = block[block.index("--stage"):].strip().replace("--count 32", "--count 3").replace("--count 16", "--count 2")
    code, printed, said = pipeline(tmp_path / "run", f"--warmup 5 --steps 1 --eval-every 0 --branches 4 {stage}")
    assert code == 0, said
    assert re.search(r"step 1: success in training plan-path [01]\.\d{3} \([0-3]/3\)(, return \S+)?, sokoban [01]\.\d{3} \([0-2]/2\)", printed + said), printed + said
    environments = [sample["env"] for sample in read(tmp_path / "run/steps/000001/samples.jsonl", "sample")]
    assert set(environments) == {"plan-path", "sokoban"}


def test_lock_that_cannot_be_taken_says_why(tmp_path):
    """Only a lock that somebody holds is in use."""
    with open(tmp_path / "lock", "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(pipeline(tmp_path, SMALL), 1, "is in use by another run")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    refused(pipeline(tmp_path, SMALL), 74, "cannot write")


@pytest.mark.parametrize("stages", [
    """--stage 'advantage=jq -c "if .type==\\"sample\\" then .advantage=0 else . end"'""",
    """--flags advantage=--drop-flat --stage 'reward=jq -c "if .type==\\"sample\\" then .reward=0 else . end"'""",
    # So cold that the candidates of a group are the same.
    "--flags advantage=--drop-flat --temperature 1e-6 --resident"])
def test_run_without_anything_to_learn_stops_with_advice(tmp_path, stages):
    code, printed, said = pipeline(tmp_path / "run", f"--warmup 5 --steps 5 --tasks 4 --eval-every 5 --eval-tasks 4 {stages}")
    assert code == 1 and "steps 1 to 3: all groups are flat" in said, said
    # An untrained policy goes on until it is cut, so that the limit is the first advice.
    assert "answers were cut at 8 tokens: raise --max-tokens first; an easier task" in said
    assert "% of answers cut at 8 tokens: raise --max-tokens first" in printed
    # What it came to is known.
    assert sorted(os.listdir(tmp_path / "run/steps"))[-1] == "000003" and (tmp_path / "run/eval/step-000003.jsonl").exists()


# Whatever its agent says solves a task.
EASY = r"""
import json, sys
said = lambda value: print(json.dumps(value), flush=True)
if sys.argv[1:]:
    given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    count, split, seed = int(given["--count"]), given["--split"], int(given["--seed"])
    for number in range(count):
        said({"type": "task", "v": 1, "env": "easy", "task": f"easy/{split}/{seed}-{number}", "spec": {}})
    said({"type": "end", "v": 1, "stage": "tasks", "ok": True, "counts": {"tasks": count}})
else:
    for request in map(json.loads, sys.stdin):
        answer = {"request": request.get("request"), "state": 0}
        if "task" in request:
            agents = ["a"]
            answer |= {"observations": {"a": [{"role": "user", "content": "say"}]}, "agents": agents, "order": "sequential", "turns": 1}
        else:
            answer |= {"rewards": {"team": 1, "local": 0}, "terminated": True, "success": True, "observations": {}}
        said(answer)
"""


@pytest.mark.parametrize("more", ["", "--resident"])
def test_run_that_solves_its_tasks_ends_well(tmp_path, more):
    """A run has learned its tasks where all candidates succeed, and is done."""
    (tmp_path / "easy.py").write_text(EASY)
    command = f"python3 {tmp_path}/easy.py"
    code, printed, said = pipeline(tmp_path / "run", f"--env-command '{command}' --steps 9 --tasks 2 --branches 2 --eval-tasks 2 {more}")
    # This program answers `demo` with tasks.
    assert code == 0 and "pipeline.sh: random weights and no warm-up: " in said and f"have `{command} demo` print demonstrations" in said, said
    assert "steps 1 to 3: all groups are flat, and 100 % of episodes succeed" in printed
    assert (tmp_path / "run/eval/step-000003.jsonl").exists() and not (tmp_path / "run/steps/000004").exists()


def test_silent_environment_is_told_once_and_within_its_limit(tmp_path):
    """A program that answers no action: its time limit holds in evaluations, too, and a restart is told once."""
    (tmp_path / "silent.py").write_text(EASY.replace("        else:\n", "        else:\n            sys.stdin.read()\n"))
    command = f"python3 {tmp_path}/silent.py"
    code, _, said = pipeline(tmp_path / "run", f"--env-command '{command}' --steps 1 --tasks 1 --eval-tasks 1 --flags 'rollout=--timeout 0.2'")
    assert code and said.count(f"rollout: {command}: no line within 0.2 s; restarted, and asked once more\n") == 1, said
    assert "evaluation after step 0: rollout failed" in said


def test_step_without_a_difference_is_skipped(tmp_path):
    """A step whose groups are all left out keeps the versions and counts, and the next one learns."""
    judge = 'reward=jq -c "if .type==\\"sample\\" then .reward=(if .step==2 then 0 else .branch end) else . end"'
    trained(tmp_path / "run", f"--warmup 5 --steps 3 --tasks 4 --eval-every 0 --flags advantage=--drop-flat --stage '{judge}'")
    versions = [json.loads((tmp_path / f"run/steps/00000{step}/done").read_text())["policies"] for step in range(4)]
    assert versions[0] != versions[1] == versions[2] != versions[3]


def test_run_ends_with_the_step_that_makes_its_tokens(tmp_path):
    """Runs of equal cost: the step that makes the tokens is the last, and has its evaluation."""
    flags = "--warmup 30 --steps 4 --tasks 4 --branches 4 --eval-every 4 --eval-tasks 2"
    trained(tmp_path / "whole", flags)

    def generated(step):
        end = read(tmp_path / f"whole/steps/00000{step}/metrics.jsonl", "end")[-1]
        return end["after"][0]["after"][0]["after"][0]["counts"]["completion_tokens"]

    two = generated(1) + generated(2)
    limited, resident = tmp_path / "limited", tmp_path / "resident"
    trained(limited, f"{flags} --token-budget {two}")
    trained(resident, f"{flags} --token-budget {two} --resident")
    assert differences(limited, resident) == [] and (limited / "steps/000002/done").exists() and (limited / "eval/step-000002.jsonl").exists()
    # Exactly that many, resuming from the last step.
    trained(limited, f"{flags} --token-budget {two}")
    assert not (limited / "steps/000003").exists()
    trained(limited, f"{flags} --token-budget {two + 1}")
    assert (limited / "steps/000003/done").exists() and not (limited / "steps/000004").exists()


def test_page_may_take_longer_than_the_next_step(tmp_path):
    """With `--resident` the next step goes on while the page is drawn, and may be done first."""
    must(f"mkdir bin; ln -s {BIN}/* bin; rm bin/report", tmp_path)
    (tmp_path / "bin/report").write_text(f"#!/bin/sh\ncase \"$*\" in *--html*) sleep 3 ;; esac\nexec '{BIN}/report' \"$@\"\n")
    (tmp_path / "bin/report").chmod(0o755)
    trained(tmp_path / "run", f"--warmup 20 --steps 3 --tasks 4 --eval-every 0 --resident --tensorboard {tmp_path}/logs", TROUPE_BIN=f"{tmp_path}/bin")


def finished(folder):
    """A run of two steps, to be damaged, and its flags."""
    flags = "--warmup 5 --tasks 4 --branches 4 --eval-every 2 --steps 2"
    trained(folder / "run", flags)
    return folder / "run", flags


def test_update_that_publishes_nothing_stops_the_run(tmp_path):
    idle = """'update=cat >/dev/null; echo "{\\"type\\":\\"end\\",\\"v\\":1,\\"stage\\":\\"update\\",\\"ok\\":true}"'"""
    refused(pipeline(tmp_path / "run", f"--warmup 5 --tasks 4 --steps 1 --eval-every 0 --stage {idle}"), 1, "step 1: no policy has a new version")
    assert not (tmp_path / "run/steps/000001/done").exists()


def test_cut_evaluation_and_a_missing_commit_are_errors(tmp_path):
    at, flags = finished(tmp_path)
    file, current = at / "eval/step-000002.jsonl", at / "policies/shared/current"
    whole, newest = file.read_bytes(), os.readlink(current)
    for cut in (b"", whole[:len(whole) // 2]):
        file.write_bytes(cut)
        refused(pipeline(at, flags), 65, "step-000002.jsonl is no whole evaluation")
    file.unlink()
    trained(at, flags)
    assert without_timing(file.read_text()) == without_timing(whole.decode())
    (at / "steps/000001/done").unlink()
    refused(pipeline(at, flags), 65, "000001/done is missing, but step 2 is committed")
    # A policy with committed steps is never made anew because a file next to it is missing or unreadable.
    (at / "policies/done").unlink()
    refused(pipeline(at, flags), 74, "policies/done cannot be read")
    assert os.readlink(current) == newest


def start(at, flags, **more):
    """`pipeline.sh` in a process group of its own, which heeds SIGINT even where this test is a shell's background job."""
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.Popen(["python3", "-c", heed, f"{ROOT}/pipeline.sh", "--run", str(at), *shlex.split(flags)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, **more)


@pytest.mark.parametrize(("begun", "flags"), [
    ("warmup/metrics.jsonl", "--warmup 200000"), ("eval/step-000000.jsonl.tmp", "--warmup 0 --eval-tasks 100000"),
    ("steps/000001/metrics.jsonl", "--warmup 0 --eval-every 0 --tasks 100000"),
    ("steps/000001/metrics.jsonl", "--warmup 0 --eval-every 0 --stage \"tasks=trap '' TERM; sleep 60; :\""),
    # Warmed up so far that not all groups are flat: after three such steps a run ends by itself.
    ("steps/000002/done", "--warmup 20 --tasks 4 --branches 4 --eval-every 0 --resident")])
def test_signal_to_the_script_ends_its_stages(tmp_path, begun, flags):
    """SIGTERM to pipeline.sh alone: its stages end, too, and the lock is free, wherever it is."""
    at = tmp_path / "run"
    with start(at, flags) as running:
        wait_until((at / begun).exists, running)
        time.sleep(0.5)
        running.terminate()
        asked = time.monotonic()
        _, said = running.communicate()
    # Less than a second on an idle machine; the rest is for a loaded one.
    assert running.returncode == 143 and time.monotonic() - asked < 15
    assert "pipeline.sh: stopped" in said and "hint: the same command goes on from there, and so does ./pipeline.sh --resume " in said
    with open(at / "lock", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert run(f"ps -eo args= | grep -F '{at}' | grep -v -e grep -e pytest")[1] == "", "still there"


@pytest.mark.parametrize("more", ["", "--resident"])
def test_interrupt_says_how_to_go_on(tmp_path, more):
    """Ctrl-C reaches every process of the terminal."""
    at = tmp_path / "run"
    with start(at, f"--warmup 30 --tasks 6 --branches 4 --eval-every 0 --steps 10000 {more}") as running:
        wait_until((at / "steps/000002/done").exists, running)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate()
    how = f"./pipeline.sh --resume {at}"
    assert running.returncode == 130 and "Traceback" not in said and said.endswith(f"hint: the same command goes on from there, and so does {how}\n")
    steps = len(os.listdir(at / "steps"))
    assert f"step {steps}: success in training" in must(f"{how} --steps {steps}")


def test_best_policies_are_kept(tmp_path):
    """The best evaluation's policies outlive later versions, and are policies like any other."""
    at = tmp_path / "run"

    def kept_after(steps):
        printed = trained(at, f"{SMALL} --steps {steps} --eval-tasks 20 --keep-best")
        assert len(list(at.glob("best-*"))) == 1, "the others are gone"
        return os.readlink(at / "best"), [line for line in printed.splitlines() if "test tasks" in line][-1]

    def rate(step):
        found = json.loads(must(f"report evaluate --format json --quiet {at}/eval/step-{step:06}.jsonl"))
        return found["success"], found["reward"]

    def better(one, other):
        return f"best-{other if rate(other) > rate(one) else one:06}"

    kept, last = kept_after(2)
    assert kept == better(0, 2)
    # The terminal and the model card say which was best.
    assert last.endswith("; the best so far") if rate(2) > rate(0) else re.search(rf"; best so far {rate(0)[0]:.3f}\b.* at step 0$", last), last
    must(f"policy export {at}/best/shared {at}/exported --quiet")
    card, best = (at / "exported/README.md").read_text(), int(kept.removeprefix("best-"))
    assert f"The best is {rate(best)[0]:.3f}, after update {best}: these weights.\n" in card and f"after {best} updates" in card
    played = must(f"envs tasks plan-path --split test --count 20 | rollout --policy {at}/best/shared --max-tokens 8 --temperature 0 --quiet | "
                  "report evaluate --format json --quiet")
    assert json.loads(played)["success"] == max(rate(0), rate(2))[0]
    # A value below any policy's, as earlier builds wrote it: the next evaluations are of the steps 2, where the run goes on, and 4.
    (at / "best/success").write_text("-1\n")
    assert kept_after(4)[0] == (kept := better(2, 4))
    # And as if it had been better.
    (at / "best/success").write_text("2\n")
    assert kept_after(6)[0] == kept


def test_evaluation_of_a_lost_step_is_played_again(tmp_path):
    """A run that was killed goes back to the last committed step. What came after it belongs to versions that are gone."""
    at, flags = tmp_path / "run", f"{SMALL} --steps 2 --eval-every 1 --eval-tasks 4 --keep-best"
    trained(at, flags)
    file = at / "eval/step-000002.jsonl"
    played = lines(file.read_text(), "sample")
    (at / "steps/000002/done").unlink()
    file.write_text("of another version\n")
    trained(at, flags)
    assert lines(file.read_text(), "sample") == played


# Runs a stage as at a terminal, where its input is ended at once (Ctrl-D), and prints all that the terminal shows.
TERMINAL = """
import fcntl, os, pty, struct, subprocess, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
stage = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=slave, stderr=slave)
os.close(slave)
os.write(master, bytes([4]))
shown = b""
try:
    while part := os.read(master, 65536):
        shown += part
except OSError:
    pass
sys.stdout.write(shown.decode().replace(chr(13), str()))
sys.exit(stage.wait())
"""


def at_terminal(command):
    code, shown, _ = run(f"python3 -c '{TERMINAL}' {command}")
    return code, shown


@pytest.mark.parametrize("stage", ["group", "advantage", "report evaluate"])
def test_stage_at_a_terminal_says_what_it_waits_for(stage):
    """And prints no end when it fails."""
    code, shown = at_terminal(stage)
    assert code == 65 and ": waiting for JSON lines from this terminal: " in shown and "stdin ended without an `end` line\nhint: " in shown, shown
    assert '{"type":"end"' not in shown


def test_long_stages_of_a_run_show_their_progress_on_a_terminal_only(tmp_path):
    """Evaluation, sampling and training: whoever watches sees how far each of them is; a log does not fill with it."""
    small = "--warmup 20 --tasks 6 --steps 2 --eval-tasks 10 --eval-every 2"
    for name, more, played in (("plain", "", "/6"), ("resident", "--resident", "/6"), ("shards", "--shards 2", "/3")):
        code, shown = at_terminal(f"{ROOT}/pipeline.sh --run {tmp_path}/{name} {small} {more}")
        assert code == 0, shown
        for program, total in (("update [", "/20 "), ("evaluating [", "/10 "), ("rollout [", played), ("update [", "/2 ")):
            assert any(total in bar.split("\n")[0] for bar in shown.split(program)[1:]), f"{name}: no {program} of {total} in\n{shown}"
        # Messages start on a new line.
        for line in ("step 0: success on 10 test tasks ", "step 1: success in training ", "step 2: success in training "):
            assert shown[shown.index(line) - 1] in "\nK", f"{name}: {line}"
    code, printed, said = pipeline(tmp_path / "logged", small)
    assert code == 0 and "rollout " not in printed + said and "\x1b" not in printed + said
    assert differences(tmp_path / "plain", tmp_path / "logged") == []


def test_run_that_collapses_says_so(tmp_path):
    """From a policy that plays well, with a learning rate that destroys it and with one that does not."""
    must("policy init policy --preset tiny --seed 3 --quiet; envs demo plan-path --count 720 --seed 3 | policy encode --policy policy --quiet | "
         "update --policy policy --objective nll --optimizer muon --lr 0.03 --lr-other 4e-3 --minibatches 120 --quiet", tmp_path)

    def call(name, lr, how, steps="--steps 3"):
        return pipeline(tmp_path / name, f"--policies tool={tmp_path}/policy --policies planner={tmp_path}/policy --lr {lr} --on-collapse {how} "
                        f"{steps} --tasks 12 --branches 6 --eval-every 0")

    said = refused(call("warned", 0.3, "warn"), 0, "\nhint: begin again in another --run with a smaller --lr than 0.3")
    assert len(re.findall(r"^pipeline.sh: step .*the run may be collapsing: ", said, re.M)) == said.count("may be collapsing") == 1, said
    assert "collapsing" not in call("sound", "1e-3", "stop")[2]
    step = int(re.search(r"pipeline.sh: step (\d+):", refused(call("stopped", 0.3, "stop"), 1))[1])
    done = [(tmp_path / f"stopped/steps/{number:06}/done").exists() for number in (step, step + 1)]
    assert step < 3 and done == [True, False]
    # With half the rate from the next step on, whoever keeps count: a run that goes on, or one that was killed.
    halve = lambda name, steps: refused(call(name, 0.03, "halve --lr-warmup 0", steps), 0, " on --lr 0.015\n")
    halve("calm", "--steps 5")
    halve("killed", "--steps 4 --resident")
    (tmp_path / "killed/steps/000004/done").unlink()
    halve("killed", "--steps 5")
    assert differences(tmp_path / "calm", tmp_path / "killed") == []
    metrics = [(tmp_path / f"calm/steps/{step:06}/metrics.jsonl").read_text() for step in (1, 2, 3)]
    assert all(f'"lr":{lr},' in own for lr, own in zip(("0.03", "0.03", "0.015"), metrics)), metrics


def test_judge_stands_between_rollout_and_group(tmp_path):
    """The example stage of `record`, between the stages that it was written for."""
    must(f"cargo build --workspace --example judge --locked --quiet {'--release' if BIN.endswith('release') else ''}")
    # The judge's score is the completion's first token.
    judged = lines(must(
        "policy init p --preset tiny --seed 3 > /dev/null; envs tasks plan-path --count 3 --seed 7 | rollout --quiet --policy p --branches 3 --turns 2 "
        f"--max-tokens 8 | {BIN}/examples/judge --quiet 'jq --unbuffered .completion_ids[0]' | "
        "jq -c 'if .type == \"sample\" then .reward += .judge else . end' | group --quiet | advantage --quiet", tmp_path))
    samples = [line for line in judged if line["type"] == "sample"]
    assert len(samples) >= 18
    for sample in samples:
        assert sample["judge"] == sample["completion_ids"][0] and isinstance(sample["advantage"], float) and sample["group"]
        assert abs(sample["reward"] - sample["judge"] - sum(sample["rewards"].values())) < 1e-9
    end, stages = judged[-1], []
    assert end["ok"] is True
    while end:
        stages.append(end["stage"])
        end = (end.get("after") or [None])[0]
    assert stages[:4] == ["advantage", "group", "judge", "rollout"]


def play(at, more):
    trained(at, f"--tasks 8 --branches 4 --warmup 100 --eval-tasks 10 --eval-every 2 {more}")


def test_run_with_compressed_steps_is_the_same_run(tmp_path):
    """Every program reads streams compressed with zstd."""
    if not shutil.which("zstd"):
        pytest.skip("there is no zstd to unpack a stream with")
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    play(plain, "--steps 3")
    play(packed, "--steps 2 --compress")
    # Killed between the commit of a step and its compression.
    must("zstd -dq --rm samples.jsonl.zst", packed / "steps/000002")
    play(packed, "--steps 3 --compress --resident")
    for file in [f"steps/00000{step}/{name}.jsonl" for step in (1, 2, 3) for name in ("samples", "tasks")]:
        assert not (packed / file).exists()
        assert without_timing(must(f"zstd -dcq {packed}/{file}.zst")) == without_timing((plain / file).read_text()), file
    assert contents(plain / "policies") == contents(packed / "policies")

    def curves(at):
        """The same curves but for times: the report has read them."""
        return [row.split(",", 1)[1] for row in must(f"report {at} --csv - --quiet").splitlines() if not re.search("timing|seconds|/s", row)]

    assert curves(plain) == curves(packed) and len(curves(plain)) > 50
    # Its page has boards, drawn from the tasks, and the parts of texts, by the tokenizers of the policies.
    page = (packed / "report.html").read_text()
    assert '"board":"    a b c d e\\n  0 ' in page and '"pieces":[[' in page
    # A file compressed later is still the same file.
    assert run(f"report compress {plain}")[2].startswith("report: 6 files, ")
    assert (plain / "steps/000001/samples.jsonl.zst").exists() and not (plain / "steps/000001/samples.jsonl").exists()
    assert run(f"report compress {plain}")[2] == "report: 0 files, 0.00 MB compressed to 0.00 MB\n"
