"""Refusals of `pipeline.sh` before training, and its requirements on the machine."""
import json
import os
import shutil
import subprocess

import pytest
from conftest import BIN, ROOT, must, pipeline, refused, run, trained

SMALL = "--warmup 0 --steps 1 --tasks 2 --branches 2 --eval-every 0"


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(("flags", "code", "cause"), [
    ("--optimizer adam", 2, "invalid value 'adam' for '--optimizer"),
    ("--clip 5", 2, "--clip must be"),
    ("--betas 2,3", 2, "--betas must be"),
    ("--betas 0.9", 2, "--betas must be two numbers"),
    ("--parts 3", 2, "--parts must be"),
    ("--kl -1", 2, "invalid value '-1' for '--kl <X>': not a number from 0"),
    ("--lr -1", 2, "-1"),
    ("--temperature 0", 2, "--branches 2 has no effect at temperature 0"),
    ("--temperature planner=0", 2, "--branches planner=2 has no effect at temperature 0"),
    ("--temperature judge=1", 2, "--temperature judge=…: plan-path/team has no agent judge"),
    ("--max-tokens planner=0", 2, "--max-tokens planner=0: not N or AGENT=N"),
    ("--top-p 2", 2, "--top-p 2: must be above 0 and at most 1"),
    ("--min-p tool=3", 2, "--min-p 3: must be from 0 to 1"),
    ("--stop a=b", 2, "--stop a=…: plan-path/team has no agent a"),
    ("--flags rollout=--nope", 2, "--nope"),
    ("--flags tasks=--nope", 2, "--nope"),
    ("--flags 'group=--by nobody'", 2, "nobody"),
    ("--flags 'advantage=--estimator gpro'", 2, "gpro"),
    ("--flags 'update=--epochs 0'", 2, "--epochs"),
    ("--warmup 5 --flags 'warm-up=--lr -1'", 2, "invalid value '-1' for '--lr"),
    ("--warmup 5 --flags demo=--nope", 2, "--nope"),
    ("--policies adapter-per-role --adapter r=8", 2, "r=8"),
    ("--device cuda:99", 69, ""),
    ("--device cuda:0-99", 69, ""),
    ("--device sim:3-1", 2, "--device sim:3-1: the range runs backwards"),
    ("--device sim:0-1 --flags 'rollout=--threads 1'", 2, "a policy has 2 devices"),
])
def test_mistake_in_a_flag_of_any_stage_is_found_before_anything_is_made(tmp_path, flags, code, cause):
    for more in ("", "--resident"):
        said = refused(pipeline(tmp_path / "run", f"{SMALL} {flags} {more}"), code, cause, "hint: ")
        assert "tee" not in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flags", "cause"), [
    ("--stpes 3", "unexpected argument '--stpes' found"),
    ("--steps many", "--steps many: not a whole number"),
    ("--steps", "a value is required for '--steps <N>'"),
    ("--branches 0", "--branches must be from 1"),
    ("--device gpu", "--device gpu: not a device"),
    ("--dtype float16", "--dtype float16: --device cpu computes in float32 or bfloat16"),
    ("--seed 9007199254740991", "--seed must be from 0 to 999999999999"),
    ("--stage rolout=x", "no such stage"),
    ("--adapter rank=2,alpha=2", "--adapter needs --policies adapter-per-role"),
    ("--env chess", "there is no environment 'chess'"),
    ("--policies critic=x", "plan-path/team has no agent critic"),
    ("--workflow critic", "hint: workflows of plan-path: team "),
    ("--temperature planner:0.5", "write planner=0.5"),
    ("--max-tokens planner:5", "write planner=5"),
    ("--credit return", "hint: it is a flag of advantage: --flags advantage='--credit …'"),
    ("--stage 'advantage=python3 nofile.py'", "--stage advantage: there is no file nofile.py"),
    ("--stage 'reward=no-such-judge 3'", "--stage reward: there is no program no-such-judge"),
    ("--stage \"group=jq 'if\"", "--stage group: bash cannot read its command: line 1: unexpected EOF"),
    ("--policies planer=x", "has no agent planer\nhint: did you mean planner? agents: tool planner"),
    ("--env-command x --env math", "--env-command takes the place of --env and --set"),
    ("--env-command false", "seed 1` printed nothing and ended with exit code 1"),
    ("--env-command 'echo 1;'", "`echo 1; tasks --split train --count 1 --seed 1` did not answer as expected"),
    # An environment that never ends is ended.
    ("--env-command 'yes;:'", "printed more than 16 MiB"),
    ("--env-command 'true;:'", "printed nothing and ended with exit code 0"),
    ("--env-command 'echo x;:'", "did not answer as expected: not JSON"),
    ("--env-command \"echo '{}';:\"", "no line is a task"),
    ("--env-command 'echo '\"'\"'{\"type\":\"task\",\"env\":\"../x\",\"agents\":[]}'\"'\"';:'", "no folder can have it"),
])
def test_arguments_are_checked(tmp_path, flags, cause):
    said = refused(pipeline(tmp_path / "run", flags), 2, cause)
    own = [line for line in said.splitlines() if not line.startswith("sh: ")]  # what the command says itself
    assert len(own) == 2 and not (tmp_path / "run").exists(), said


def test_misspelt_environment_is_answered_with_the_nearest(tmp_path):
    assert pipeline(tmp_path / "run", "--env sudko")[::2] == (2, "envs: there is no environment 'sudko'\nhint: did you mean 'sudoku'?\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("typed", "cause", "hint"), [
    ("--model gpt2", "--model gpt2: there is no such preset", "hf:ORG/NAME"),
    ("--model smolm2", "there is no such preset", "did you mean smollm2?"),
    ("--model openai-community/gpt2", "there is no such preset", "hf:openai-community/gpt2"),
    ("--model ./nowhere", "there is no such preset", "named by its path"),
    ("evaluate", "evaluate needs --model NAME, or --policies AGENT=DIR", "played as it is by all agents"),
    ("--lr 10", "--lr 10: a step of adamw moves each weight by about as much", "default for these policies is 1e-3"),
    ("--warmup-lr 3", "unexpected argument '--warmup-lr'", "did you mean --flags warm-up='--lr X'?"),
    ("--method GRPO", "invalid value 'GRPO'", "--method trajectory"),
    ("--seeds 1,2", "unexpected argument '--seeds'", "did you mean --seed 1,2,3?"),
    ("--evaluate 0", "unexpected argument '--evaluate'", "did you mean pipeline.sh evaluate?"),
    ("--branches 1", "a group of one candidate is flat", "--branches 2 or more"),
    ("study.toml", "'study.toml'", "did you mean --config study.toml?"),
    ("game.py", "'game.py'", "did you mean --env-command 'python3 game.py'?"),
    ("old", "'old'", "did you mean --resume old?"),
    ("--steps 3 --learning-rate 1", "unexpected argument '--learning-rate'", "did you mean --lr?"),
])
def test_slip_of_the_command_line_is_told_what_was_meant(tmp_path, typed, cause, hint):
    (tmp_path / "study.toml").write_text("steps = 1\n")
    (tmp_path / "game.py").write_text("")
    (tmp_path / "old/policies/tool/current").mkdir(parents=True)
    (tmp_path / "old/run.json").write_text("{}")
    said = refused(run(f"{ROOT}/pipeline.sh {typed}", tmp_path), 2, cause, hint)
    assert len(said.splitlines()) == 2 and not (tmp_path / "runs").exists(), said
    refused(run(f"policy check {tmp_path}/old"), 65, "a run, and not a policy directory", f"its policies are {tmp_path}/old/policies/tool")


def test_rates_and_branches_that_have_an_effect_are_taken(tmp_path):
    """A larger rate is SGD's to have, and one candidate is enough where it is not compared with its siblings."""
    trained(tmp_path / "a", f"{SMALL} --steps 0 --optimizer sgd --lr 2")
    trained(tmp_path / "b", f"{SMALL} --steps 0 --branches 1 --flags 'group=--by task' --flags 'advantage=--estimator raw'")
    refused(run("envs check --env-command 'python3 x.py'"), 65, "there is no task on stdin", "my_env.py tasks --split test --count 20")


KNOWS = """import json, sys
if 'tasks' in sys.argv:
    print('{"type":"task","v":1,"env":"e","task":"e/train/1","split":"train","spec":{}}')
    sys.exit()
for line in sys.stdin:
    r = json.loads(line)
    w = r.get('workflow')
    seen = {'observations': {'a': [{'role': 'user', 'content': 'x'}]}, 'agents': ['a'], 'order': 'sequential', 'state': 0}
    print(json.dumps({'request': r['request']} | (seen if w in (None, 'solo') else {'error': 'no ' + w})), flush=True)
"""


def test_workflow_that_a_program_does_not_know_is_refused(tmp_path):
    game = tmp_path / "game.py"
    shutil.copytree(ROOT / "examples/troupe_rl", tmp_path / "troupe_rl", ignore=lambda _, names: set(names) - {"__init__.py"})
    shutil.copy(ROOT / "examples/guess_number.py", game)
    flags = f"{SMALL} --steps 0 --env-command 'python3 {game}' --workflow solo"
    refused(pipeline(tmp_path / "run", flags), 2, "--workflow solo: `python3", "answers alike")
    game.write_text(KNOWS)
    trained(tmp_path / "run", flags)


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:9/v1?api_key=sk-SECRET-4711", "http://127.0.0.1:9/v1?model=m&key=sk-SECRET-4711",
    "http://sk-SECRET-4711@127.0.0.1:9/v1?model=m", "http://user:sk-SECRET-4711@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?sk-SECRET-4711"])
def test_key_of_a_server_is_not_written_down(tmp_path, url):
    must(f"policy init {tmp_path}/policy --preset tiny")
    said = refused(pipeline(tmp_path / "run", f"{SMALL} --policies tool={tmp_path}/policy --policies 'planner={url}'"), 2, "api_key_var=N")
    assert "SECRET" not in said and not (tmp_path / "run").exists()


def test_environment_runs_by_the_callers_python(tmp_path):
    """`COMMAND` finds the caller's programs before those next to this project's."""
    must(f"mkdir bin; ln -s {BIN}/* bin; rm -f bin/python3", tmp_path)
    executable(tmp_path / "bin/python3", "#!/bin/sh\necho 'a Python without the packages' >&2; exit 9\n")
    path = os.environ["PATH"].replace(f"{BIN}:", "")
    trained(tmp_path / "run", f"{SMALL} --env-command 'python3 {ROOT}/examples/guess_number.py'", TROUPE_BIN=f"{tmp_path}/bin", PATH=path)


@pytest.mark.parametrize("tasks", ["true", "envs tasks plan-path | grep -v end", "envs tasks plan-path; envs tasks plan-path"])
def test_resident_stages_do_not_wait_for_tasks_that_never_come(tmp_path, tasks):
    refused(pipeline(tmp_path / "run", f"{SMALL} --resident --stage 'tasks={tasks}'"), 65,
            "step 1: the stream of tasks does not end with its only `end` line")


@pytest.mark.parametrize(("file", "more"), [("samples.jsonl", ""), ("samples.jsonl", "--resident"), ("tasks.jsonl", ""),
                                            ("metrics.jsonl", "--resident"), ("metrics.jsonl", "")])
def test_full_disk_is_74_whatever_writes_the_stream(tmp_path, file, more):
    """Whoever writes the streams of a step names the file."""
    step = tmp_path / "run/steps/000001"
    trained(tmp_path / "run", f"{SMALL} --steps 0")
    step.mkdir(parents=True)
    (step / file).symlink_to("/dev/full")
    said = refused(pipeline(tmp_path / "run", f"{SMALL} {more}"), 74, "hint: ", "" if file == "metrics.jsonl" else file)
    assert "panicked" not in said and not (step / "done").exists()


def test_names_in_a_run_directory_are_data(tmp_path):
    """A copy of a step, a folder with code for a name, and a `done` that leads out of the run."""
    at, owned, victim = tmp_path / "run", tmp_path / "owned", tmp_path / "victim"
    steps = at / "steps"
    trained(at, SMALL)
    for name in ("000001 copy", "000002.bak", "000001~", f"0+BASH_VERSINFO[$(touch {str(owned).replace('/', '${HOME:0:1}')})]"):
        (steps / name).mkdir()
        shutil.copy(steps / "000001/done", steps / name)
    trained(at, f"{SMALL} --steps 2")
    assert (steps / "000002/done").is_file() and not owned.exists()
    for name in ("step-000009", "step-000001"):
        (victim / name).mkdir(parents=True)
    (steps / "000002/done").write_text('{"step":2,"policies":{"../../victim":"1:abc"}}')
    refused(pipeline(at, f"{SMALL} --steps 3"), 65, "steps/000002/done: it names ../../victim, which is no policy of this run")
    assert (victim / "step-000009").is_dir()
    for damaged in ("", '{"a":', "[1,2]"):
        (at / "run.json").write_text(damaged)
        said = refused(pipeline(at, f"{SMALL} --steps 3"), 65, "run.json: not the values of a run")
        assert len(said.splitlines()) == 2


@pytest.mark.parametrize("more", ["", "--resident --keep-best --compress"])
def test_run_needs_no_python(tmp_path, more):
    (tmp_path / "bin").mkdir()
    for program in ("bash", "sh", "tee", "dirname", "env"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program))
    must(f"env -i PATH={tmp_path}/bin TROUPE_BIN={BIN} ORT_DYLIB_PATH=$ORT_DYLIB_PATH ./pipeline.sh --run {tmp_path}/run --warmup 2 --steps 2 "
         f"--tasks 2 --branches 2 --eval-every 1 --eval-tasks 2 {more}")
    assert (tmp_path / "run/report.html").is_file() and (tmp_path / "run/steps/000002/done").is_file()


@pytest.mark.parametrize(("cargo", "code", "told"), [
    ("printf '   Compiling rollout v0.1.0\\n    Finished dev\\n' >&2", 0, "   Compiling rollout v0.1.0\n"),
    ("printf '    Finished dev\\n' >&2", 0, ""),
    ("echo 'error: no' >&2; exit 101", 1, "error: no\npipeline.sh: the build failed\nhint: see the message above\n")])
def test_build_says_what_it_builds(tmp_path, cargo, code, told):
    """A changed checkout is built again with a notice; an unchanged one prints nothing."""
    must(f"mkdir -p bin checkout/target/release; cp {ROOT}/pipeline.sh checkout", tmp_path)
    executable(tmp_path / "checkout/target/release/troupe-pipeline", '#!/bin/sh\necho "it runs $*"\n')
    executable(tmp_path / "bin/cargo", f"#!/bin/sh\n{cargo}\n")
    found = run(f"unset TROUPE_BIN; PATH={tmp_path}/bin:$PATH {tmp_path}/checkout/pipeline.sh --steps 3")
    assert found == (code, "it runs --steps 3\n" if code == 0 else "", told)


def test_run_has_a_printable_name(tmp_path):
    at = tmp_path / "a\nb"
    refused(pipeline(at, SMALL), 2, "has a control character")
    assert not at.exists()


def test_numbers_follow_the_kind_of_policy(tmp_path):
    must(f"policy init {tmp_path}/tiny --preset tiny")
    config = json.loads((tmp_path / "tiny/current/config.json").read_text())
    config["vocab_size"] = 1024  # as large as a pretrained model's
    (tmp_path / "config.json").write_text(json.dumps(config))
    must("policy init model --config config.json", tmp_path)
    model = f"--model {tmp_path}/model"
    rest = "--env math --workflow single --steps 0 --eval-every 0"
    for number, (flags, *expected) in enumerate([
        ("--warmup 0", "1e-3", "1", ""),
        (model, "1e-5", "0.7", "encoding=full"),
        (f"--policies reasoner={tmp_path}/model", "1e-5", "0.7", "encoding=full"),
        (f"{model} --policies adapter-per-role", "5e-4", "0.7", "encoding=full"),
        (f"{model} --lr 2e-5 --set encoding=compact", "2e-5", "0.7", "encoding=compact"),
    ]):
        trained(tmp_path / f"run{number}", f"{flags} {rest}")
        values = json.loads((tmp_path / f"run{number}/run.json").read_text())
        assert [values.get(name, "") for name in ("lr", "temperature", "settings")] == expected, flags
    # The default stays what it was, so leaving the rate out is another rate.
    refused(pipeline(tmp_path / "run4", f"{model} --set encoding=compact {rest}"), 2, "was started with --lr 2e-5, not with --lr 1e-5\nhint: ")


def test_absent_gpu_is_refused_before_its_libraries_are_fetched(tmp_path):
    refused(run(f"unset ORT_DYLIB_PATH; XDG_CACHE_HOME={tmp_path}/cache PIP_NO_INDEX=1 ./pipeline.sh --run {tmp_path}/run --device cuda:99"), 69,
            "--device cuda:99: this machine has ", "hint: rollout --version names the driver and its GPUs")
    assert not (tmp_path / "cache").exists()


def test_first_command_with_a_mistake_does_not_bind_the_second(tmp_path):
    at = tmp_path / "a run"  # with a space in its name
    flags = "--warmup 0 --tasks 6 --branches 4 --eval-every 0 --policies per-role"
    refused(pipeline(at, f"{flags} --steps 08 --workflow taem"), 2)
    trained(at, f"{flags} --steps 1")
    assert (at / "policies/planner/current").exists() and (at / "policies/tool/current").exists()
    # From here on its values bind.
    refused(pipeline(at, f"{flags} --steps 1 --branches 3"), 2, "was started with --branches 4, not with --branches 3\nhint: ")


def test_cut_pipeline_sh_is_an_error(tmp_path):
    """A script that could not be read to its end must not pass for one that has nothing more to do."""
    whole, copy = (ROOT / "pipeline.sh").read_bytes(), tmp_path / "pipeline.sh"
    for cut in range(whole.index(b"\n{ ") + 3, len(whole) - 1, 97):
        copy.write_bytes(whole[:cut])
        code, _, said = run(f"bash {copy} setup")
        assert code != 0 and said, cut
    copy.write_bytes(whole)
    must(f"bash {copy} setup")


@pytest.mark.parametrize("program", ["envs", "policy", "rollout", "group", "advantage", "update", "report"])
def test_programs_take_the_same_short_flags(program):
    assert must(f"{program} --version").startswith(f"{program} ")
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "-q, --quiet" in told and "Examples:" in told
