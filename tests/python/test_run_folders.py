"""Folders that are no runs keep every file, and a copied run goes on with the same bytes."""
import json
import os
import pathlib
import random
import shutil
import stat

import pytest
from conftest import ROOT, contents, must, refused, run

SMALL = "--tasks 2 --warmup 0 --eval-every 0 --branches 2 --steps"


def call(folder, flags, **variables):
    return run(f"timeout 300 {ROOT}/pipeline.sh {flags}", folder, **variables)


def everything(folder):
    """Every file below a folder with its bytes, and every link with its target; the lock, `failed` and named pipes are left out."""
    found = {}
    for at, folders, files in os.walk(folder):
        for path in (pathlib.Path(at, name) for name in folders + files):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[path] = os.readlink(path)
            elif stat.S_ISREG(mode) and path.name not in ("lock", "failed"):
                found[path] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Somebody's project, with names that a run has, too; a run; and documents."""
    folder = tmp_path_factory.mktemp("here")
    for name in ("stages/a.py", "policies/notes.txt", "policies/mine/c", "warmup/d", "reference/e", "steps/f", "eval/g", "config.toml", "run.json"):
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "project" / name).write_text("mine")
    must("policy init project/policies/best --preset tiny --seed 9 --quiet; mkdir -p documents/thesis; echo precious > documents/thesis/a.tex; "
         f"{ROOT}/pipeline.sh --run run {SMALL} 2", folder)
    return folder


@pytest.mark.parametrize(("flags", "moved", "instead", "told"), [
    ("--run project", None, "", "project is not empty, and not a run"),
    ("--run project --policies tool=project/policies/best --policies planner=project/policies/best", None, "", "is not empty"),
    ("--run run --model run/policies/shared", None, "", "--model=run/policies/shared: a run cannot begin from its own folder"),
    ("--resume run", "stages", "ln -s ../documents", "run/stages: a link"),
    ("--resume run", "report.html", "ln -s ../documents/thesis/a.tex", "report.html: a link"),
    ("--resume run --steps 3", "steps/000002/samples.jsonl", "ln -s /dev/../etc/hostname", "samples.jsonl: a link"),
    ("--run run --steps 3 --seed 9 --tasks 2", "run.json", "true", "has steps up to 2 and no run.json of a run"),
    ("--resume run", "config.toml", "mkfifo", "config.toml: a device or a named pipe"),
    ("--resume run", "lock", "mkfifo", "lock: a device or a named pipe"),
])
def test_folder_that_is_no_run_keeps_every_file(here, flags, moved, instead, told):
    files = everything(here)
    if moved:
        must(f"mv run/{moved} aside; {instead} run/{moved}", here)
    before = everything(here)
    said = refused(call(here, flags), 2, told)
    assert len(said.splitlines()) == 2 and everything(here) == before
    assert run(f"timeout 60 {ROOT}/pipeline.sh list .", here)[0] != 124
    if moved:
        must(f"rm -f run/{moved}; mv aside run/{moved}", here)
    assert everything(here) == files


COPIES = {
    "cp -r": "cp -r {0} {1}",
    "scp -r": "cp -rL {0} {1}",
    "tar": "mkdir {1} && tar -C {0} -cf - . | tar -C {1} -xf -",
    # No empty folders, links as text.
    "an object store": 'mkdir {1}; cd {0} && find . -type f -exec cp --parents -t {1} {{}} + && '
                       'find . -type l | while read -r link; do readlink "$link" > {1}/"$link"; done',
}


def results(at):
    """The streams and the published weights of a run, without its links and what a copy makes of them."""
    return {name: value for name, value in contents(at).items() if name.startswith(("steps/", "eval/", "policies/"))
            and not {"current", "base", "best"} & set(name.split("/")[1:])}


def begin(folder):
    """A run of adapters of another run, with a file of problems and a workflow; its arguments."""
    problems = [json.dumps({"question": f"What is {number} plus 3?", "answer": str(number + 3)}) for number in range(1, 41)]
    (folder / "raw").write_text("\n".join(problems) + "\n")
    (folder / "w.toml").write_text('order = ["solver", "critic"]\nlast = "critic"\n[role.solver]\n[role.critic]\nsees = ["solver"]\n')
    must("envs import raw --test-share 0.3 > tasks.jsonl; mkdir first; policy init first/base --preset tiny --seed 3 --quiet; "
         "for name in solver critic; do policy init first/$name --from first/base --adapter rank=4,alpha=8 --quiet; done", folder)
    # Random weights earn nothing, so that nothing would be learned.
    return ("--env math --set data=tasks.jsonl --set encoding=full --workflow w.toml --max-tokens 6 --tasks 2 --branches 2 --eval-every 1 "
            "--eval-tasks 2 --keep-best --policies solver=first/solver --policies critic=first/critic --lr 0.01 "
            "--stage \"reward=jq -c 'if .type == \\\"sample\\\" then .reward = .completion_ids[0] % 7 else . end'\"")


def test_run_copied_by_any_tool_goes_on_with_the_same_bytes(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir(), elsewhere.mkdir()
    assert call(here, f"--run run --steps 2 {begin(here)}")[0] == 0
    for number, command in enumerate(COPIES.values()):
        must(command.format(here / "run", elsewhere / f"copy{number}"))
    assert call(here, "--resume run --steps 4")[0] == 0
    expected = results(here / "run")
    versions = [json.loads(expected[f"policies/solver/step-00000{step}/version.json"])["version"].split(":")[1] for step in (3, 4)]
    assert versions[0] != versions[1], "it has learned nothing"
    shutil.rmtree(here)
    for number, tool in enumerate(COPIES):
        code, _, said = call(elsewhere, f"--resume copy{number} --steps 4", HOME=str(elsewhere))
        assert code == 0, f"{tool}: {said}"
        found = results(elsewhere / f"copy{number}")
        assert [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)] == [], tool
        # The best is there, and can be given away.
        must(f"policy check copy{number}/best/solver; policy export copy{number}/best/solver out{number} --merge", elsewhere)


def test_other_data_under_the_same_name_is_refused_with_both_digests(tmp_path):
    assert call(tmp_path, f"--run run --steps 1 {begin(tmp_path)}")[0] == 0
    for file, flag in (("tasks.jsonl", "data"), ("w.toml", "workflow")):
        kept = (tmp_path / file).read_text()
        (tmp_path / file).write_text(f"{kept}\n")
        said = refused(call(tmp_path, "--resume run --steps 2"), 2, "the run has a copy of what it was started with")
        assert said.count(f" of {flag}") == 2, said
        (tmp_path / file).write_text(kept)
    # The policies that it began with are its own: the first run may go on, or go.
    shutil.rmtree(tmp_path / "first")
    assert call(tmp_path, "--resume run --steps 2")[0] == 0


def test_flat_run_ends_where_it_would_have_ended(tmp_path):
    """Stopped after any step, the run ends after the same step, with the same exit code."""
    def ends(flags, name, steps, *causes):
        refused(call(tmp_path, flags), 1, *causes)
        assert len(os.listdir(tmp_path / name / "steps")) == steps

    ends(f"--run whole {SMALL} 9", "whole", 4)
    for stopped in (1, 2, 3):
        call(tmp_path, f"--run stopped{stopped} {SMALL} {stopped}")
        for _ in range(2):
            ends(f"--run stopped{stopped} {SMALL} 9", f"stopped{stopped}", 4, "steps 1 to 3: all groups are flat")
    # A changed value is another beginning.
    ends("--resume stopped3 --temperature 2", "stopped3", 7)


def test_values_are_checked_before_there_is_a_run(tmp_path):
    """Mistakes that would show only after a part of the run is made."""
    (tmp_path / "mine.jsonl").write_text('{"question":"What is 2 plus 3?","answer":"5"}\n')
    must("policy init p --preset tiny --quiet; envs import mine.jsonl --split train > t.jsonl; cp -r p/step-000000 plain", tmp_path)
    tokenizer = tmp_path / "plain/tokenizer_config.json"
    config = json.loads(tokenizer.read_text())
    del config["chat_template"]
    tokenizer.unlink()
    tokenizer.write_text(json.dumps(config))
    for flags, code, told in (
        ("--policies planner=p --policies tool=nothere", 2, "nothere: no such directory"),
        ("--env math --set data=t.jsonl", 2, "a file of problems has no demonstrations"),
        ("--policies planner=p --policies tool=plain", 65, "chat template"),
        ("--env math --model plain --set data=mine.jsonl", 65, "envs import mine.jsonl > tasks.jsonl"),
        ("--policies planner=p --policies tool=HTTP://me:S3CRET@h/v1", 2, "a name or a key in it"),
        ("--policies planner=p --policies 'tool=http://h/v1?api_key=S3CRET'", 2, 'no setting "api_key"'),
        ("--model https:me:S3CRET@h/v1", 2, "a name or a key in it"),
    ):
        said = refused(call(tmp_path, f"--run run --steps 1 {flags}"), code, told)
        assert len(said.splitlines()) == 2 and "S3CRET" not in said and not (tmp_path / "run").exists(), said


NAMES = ("stages", "steps", "policies", "warmup", "eval", "reference", "baselines", "data", "report.cache", "best-000004", "run.json", "config.toml",
         "report.html", "tool")


@pytest.mark.parametrize("seed", range(200 if os.environ.get("TROUPE_STORMS") == "whole" else 12))
def test_file_of_a_folder_that_is_no_run_is_not_touched(tmp_path, seed):
    """Random folders that are no runs, with names that a run has."""
    draw = random.Random(f"{os.environ.get('TROUPE_SEED', 0)} {seed}")
    project = tmp_path / "project"
    project.mkdir()
    for _ in range(draw.randint(1, 6)):
        path = project.joinpath(*(draw.choice(NAMES) for _ in range(draw.randint(1, 3))))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            continue
        # Never through a link that an earlier round of this loop has made.
        if path.parent.resolve().is_relative_to(tmp_path) and not os.path.lexists(path):
            draw.choice((lambda: path.symlink_to("/etc"), path.mkdir, lambda: path.write_text("{}"), lambda: path.write_text("mine")))()
    before = everything(project)
    flags = draw.choice(("--resume project", "--run project --seed 1,2 --steps 0 --warmup 0 --eval-every 0",
                         "--run project --steps 0 --warmup 0 --eval-every 0"))
    code, _, said = call(tmp_path, flags)
    after = everything(project)
    assert {name: value for name, value in before.items() if after.get(name) != value} == {}, said
    assert "--seed" in flags or code != 0 or not before, before
