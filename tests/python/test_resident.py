"""Stages that stay (`--resident`): one part of a stream after another gives the bytes of a process a part. Shards: those that fail are repeated,
and no others."""
import json
import os
import subprocess
import time

import pytest
from conftest import BIN, contents, differences, lines, must, pipeline, refused, trained


def saved(run, step):
    """True if the training state of a version is on the disk."""
    state, moments = ((run / f"policies/shared/step-{step:06}" / name).exists() for name in ("trainer_state.json", "optimizer.safetensors"))
    assert state == moments, step
    return state


def test_optimizers_state_is_saved_every_few_steps(tmp_path):
    """Every third step and at the end, whatever ends the run; a step counts once its state, or a later one, is saved."""
    at, whole = tmp_path / "run", tmp_path / "whole"
    # The tasks of step 6 fail until they may go: 4 and 5 are saved as the stages end.
    small = ("--warmup 30 --tasks 6 --branches 4 --eval-every 0 --keep 9 --steps 8 "
             "--stage 'tasks=[ $STEP != 6 ] || [ -e $RUN.go ] || exit 3; envs tasks plan-path --count 6 --seed 100000$STEP'")
    (tmp_path / "whole.go").write_text("")
    trained(whole, small)
    seldom = f"{small} --resident --save-every 3"
    refused(pipeline(at, seldom), 3)
    assert [saved(at, step) for step in range(6)] == [False, False, False, True, False, True] and (at / "steps/000005/done").exists()
    (tmp_path / "run.go").write_text("")
    trained(at, seldom)
    assert [saved(at, step) for step in (6, 7, 8)] == [True, False, True]
    assert [name for name in differences(whole, at) if not name.endswith(("/trainer_state.json", "/optimizer.safetensors"))] == []
    newest = [(folder / "policies/shared/current/optimizer.safetensors").read_bytes() for folder in (whole, at)]
    assert newest[0] == newest[1]
    refused(pipeline(at, f"{small} --save-every 2 --resident=no"), 2, "--save-every has no effect without --resident")


def resident(folder, flags):
    return subprocess.Popen(["update", "--quiet", "--resident", *flags.split()], cwd=folder, text=True, bufsize=1, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)


def test_step_before_an_answer_can_be_gone_on_from(tmp_path):
    """The state of a step is saved after the answer: until the next answer a run goes on from the step before."""
    must("policy init policy --preset tiny --seed 7", tmp_path)

    def version(step):
        return tmp_path / f"policy/step-{step:06}"

    with resident(tmp_path, "--keep 1 --policy policy") as update:
        for step in (1, 2, 3):
            update.stdin.write(must(f"envs tasks plan-path --count 3 --seed {step} | rollout --quiet --policy policy --turns 2 --max-tokens 6 "
                                    f"--step {step} | group --quiet | advantage --quiet", tmp_path))
            while not update.stdout.readline().startswith('{"type":"end"'):
                pass
            before = version(step - 1) / "trainer_state.json"
            assert step == 1 or before.exists(), step
            for _ in range(1000):  # its work after the answer
                if (version(step) / "trainer_state.json").exists():
                    break
                time.sleep(0.01)
            else:
                pytest.fail(f"the state of step {step} is not saved")
            assert step == 1 or before.exists(), step
        update.stdin.close()
        assert update.wait() == 0
    assert [version(step).exists() for step in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(("flags", "cause"), [
    ("--resident --stage group=cat", "--stage group=... is a process a step"),
    ("--resident --save-every 0", "--save-every must be from 1"),
    ("--resident --device cuda --ranks 2 --parts 2 --save-every 2", "--save-every has no effect with --ranks and --device cuda"),
    ("--shards 2 --resident", "--resident does not start"), ("--shards 2 --device sim", "--shards cannot play with --device sim"),
    ("--shards 2 --stage rollout=cat", "--stage rollout=... is another command")])
def test_flags_without_effect_are_refused(tmp_path, flags, cause):
    refused(pipeline(tmp_path / "run", flags), 2, cause, "hint: ")


@pytest.mark.parametrize(("tasks", "code", "cause"), [
    ("envs tasks plan-path --count 3 --seed $STEP", 0, ""),
    ("envs tasks plan-path --count 3 --seed $STEP | head -n 3", 65, "does not end with its only `end` line"),
    ("exit 3", 3, "step 1: tasks failed with exit code 3")])
def test_tasks_of_ones_own_are_parts(tmp_path, tasks, code, cause):
    """Tasks may come from anything; where they do not end as they must, no stage waits for more."""
    refused(pipeline(tmp_path / "run", f"--warmup 5 --steps 2 --branches 2 --eval-every 0 --resident --stage 'tasks={tasks}'"), code, cause)


def part(text, version, order):
    """The lines of a step's samples by a version, and after a pause the rest. Random weights all earn the same, so every second candidate gets a
    reward. `order` is that of tasks; or scattered: a sample of the first task comes last, after a pause; or of shards: the second comes first."""
    *found, end = lines(text)
    samples = [line for line in found if line["type"] == "sample"]
    for index, sample in enumerate(samples):
        sample.update(advantage=-0.5 if index % 2 else 1.0, policy_version=version)
        if order == "shards":
            sample["shard"] = f"{int(index >= len(samples) // 2)}/2"
    middle = {"tasks": 0, "scattered": 1, "shards": len(samples) // 2}[order]
    samples = samples[middle:] + samples[:middle]
    late = [samples.pop()] if order == "scattered" else []
    return ["".join(json.dumps(line, separators=(",", ":")) + "\n" for line in some) for some in (samples, [*late, end])]


def current(policy):
    return json.loads((policy / "current/version.json").read_text())["version"]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A folder with a policy, and the samples of two steps."""
    folder = tmp_path_factory.mktemp("sampled")
    must("policy init begin --preset tiny --seed 7", folder)
    return folder, [must(f"envs tasks plan-path --count 120 --seed {step} | rollout --quiet --policy begin --branches 2 --turns 1 --max-tokens 4 "
                         f"--step {step} | group --quiet | advantage --quiet", folder) for step in (3, 4)]


@pytest.mark.parametrize(("flags", "order", "begins"), [
    ("--minibatches 1", "tasks", True), ("--minibatches 2 --seed 5 --aggregate sequence", "tasks", True),
    ("--minibatches 2 --seed 5 --epochs 2 --aggregate constant", "tasks", True), ("--minibatches 1", "scattered", False),
    ("--minibatches 1 --allow-incomplete", "shards", False),
    # These need all samples first: log-probabilities before the first step, a reference's, the sizes of parts.
    ("--minibatches 2 --importance 2", "tasks", False), ("--kl 0.1 --reference begin", "tasks", False), ("--parts 2", "tasks", False)])
def test_first_minibatch_begins_before_the_stream_ends(sampled, flags, order, begins):
    folder, texts = sampled
    flags = f"--max-logprob-gap 0 {flags}"  # the second part, too, was sampled from the first version
    must("rm -rf single; cp -a begin single", folder)
    for text in texts:
        (folder / "part").write_text("".join(part(text, current(folder / "single"), order)))
        must(f"update --quiet {flags} --policy single < part", folder)
    for seconds in (1, 5, 20):
        must("rm -rf staying; cp -a begin staying", folder)
        version = current(folder / "staying")
        with resident(folder, f"{flags} --policy staying") as update:
            for text, pause in zip(texts, (0, seconds)):
                samples, rest = part(text, version, order)
                update.stdin.write(samples)
                update.stdin.flush()
                time.sleep(pause)
                update.stdin.write(rest)
                line, _ = json.loads(update.stdout.readline()), update.stdout.readline()
                version, overlap = line["policy_version"], line["timing"]["overlap_seconds"]
            update.stdin.close()
            assert update.wait() == 0
        assert version == current(folder / "single")
        if overlap > 0 or not begins:
            break  # a busy machine may not come to it within a second
    assert (overlap > 0) == begins and differences(folder / "single", folder / "staying") == []


SMALL = "--warmup 12 --steps 2 --tasks 7 --branches 4 --eval-every 0"


@pytest.fixture
def shards(tmp_path):
    """Runs `pipeline.sh` in `shards` with a `rollout` that is a script, which finds the real one as $REAL; the result, and the shards played."""
    must(f"mkdir bin; ln -s {BIN}/* bin; rm bin/rollout", tmp_path)

    def call(script, flags):
        (tmp_path / "bin/rollout").write_text(f"#!/bin/bash\nREAL='{BIN}/rollout' log='{tmp_path}/log'\n{script}\nexec \"$REAL\" \"$@\"\n")
        (tmp_path / "bin/rollout").chmod(0o755)
        (tmp_path / "log").unlink(missing_ok=True)
        result = pipeline(tmp_path / "shards", f"{SMALL} {flags}", TROUPE_BIN=f"{tmp_path}/bin")
        return result, sorted((tmp_path / "log").read_text().splitlines()) if (tmp_path / "log").exists() else []
    return call


def made(at):
    """What training made: all of the policies, and the metrics of each step."""
    files = {name: value for name, value in contents(at).items() if name.startswith("policies") or name.endswith(("/done", "tasks.jsonl"))}
    return files | {name: next(line for line in value.splitlines() if line.startswith('{"type":"metrics"')) for name, value in contents(at).items()
                    if name.startswith("steps") and name.endswith("metrics.jsonl")}


def test_killed_shard_is_played_again_alone(shards, tmp_path):
    """The second of three shards is killed once in each step, in the midst of its output."""
    trained(tmp_path / "whole", SMALL)
    result, played = shards(r"""case "$* " in *'--shard '*)
        printf '%s\n' "$*" | sed -E 's/.*--step ([0-9]+).*--shard ([0-9/]+).*/\1 \2/' >>"$log"
        [[ $* != *'--shard 1/3'* ]] || [ $(($(grep -c ' 1/3$' "$log") % 2)) = 0 ] || { "$REAL" "$@" | head -n 3; kill -9 $$; } ;;
    esac""", "--shards 3")
    refused(result, 0, "step 1: rollout --shard 1/3 failed with exit code 137, and is played again")
    assert played == [f"{step} {shard}/3" for step in (1, 2) for shard in (0, 1, 1, 2)]
    assert made(tmp_path / "whole") == made(tmp_path / "shards") and not any("shard-" in name for name in contents(tmp_path / "shards"))


def test_played_shards_are_kept_and_their_number_may_change(shards, tmp_path):
    trained(tmp_path / "whole", SMALL)
    script = r"""[[ $* != *'--shard '* ]] || printf '%s\n' "$*" | sed -E 's/.*--shard ([0-9/]+).*/\1/' >>"$log"
        [[ $* != *'--shard 0/2'* ]] || [ -e "${log%log}mended" ] || exit 74"""
    result, played = shards(script, "--shards 2 --steps 1")
    refused(result, 74, "step 1: rollout --shard 0/2 failed with exit code 74")
    assert played == ["0/2", "0/2", "0/2", "1/2"]
    (tmp_path / "mended").write_text("")
    result, played = shards(script, "--shards 2 --steps 1")
    assert result[0] == 0 and played == ["0/2"], "the other is whole"
    result, played = shards(script, "")
    assert result[0] == 0 and played == [], "one process"
    assert made(tmp_path / "whole") == made(tmp_path / "shards")
    # Compression happens when the shards are joined.
    result, played = shards(script, "--shards 2 --compress --steps 3")
    assert result[0] == 0 and len(played) == 2
    trained(tmp_path / "whole", f"{SMALL} --steps 3")
    trees = [{name: value for name, value in made(tmp_path / at).items() if not name.endswith("tasks.jsonl")} for at in ("whole", "shards")]
    assert trees[0] == trees[1]
    assert sorted(os.listdir(tmp_path / "shards/steps/000003")) == ["done", "metrics.jsonl", "samples.jsonl.zst", "tasks.jsonl.zst"]
