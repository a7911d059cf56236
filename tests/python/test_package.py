"""The wheel of scripts/package: programs and the loop, on a machine that has neither Rust nor this checkout."""
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from conftest import BIN, ROOT, interpreter

PROGRAMS = ("envs", "policy", "rollout", "group", "advantage", "update", "report")
LIBRARY = os.environ["ORT_DYLIB_PATH"]
VERSION = LIBRARY.rpartition(".so.")[2]
SMALL = "--warmup 2 --steps 1 --tasks 2"


class Home:
    """A folder with the wheel in `venv`, where a command sees the system's programs alone."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, command):
        """Exit code, and stdout and stderr in one."""
        environment = {"PATH": f"{self.folder}/venv/bin:/usr/bin:/bin", "HOME": str(self.folder)}
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def must(self, command):
        code, printed = self.run(command)
        assert code == 0, f"{command}\n{printed}"
        return printed


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    home = Home(folder)
    # A concurrent build replaces programs, so both packages are made of one copy.
    (folder / "built").mkdir()
    for program in (*PROGRAMS, "troupe-pipeline"):
        shutil.copy(f"{BIN}/{program}", folder / "built")
    for out in ("dist", "again"):
        subprocess.run([sys.executable, ROOT / "scripts/package/package.py", "--programs", folder / "built", "--out", folder / out], check=True)
    home.must("diff -r dist again")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    # Its dependency is here already; of that package pip makes a folder with this file.
    home.must("pip install --quiet --disable-pip-version-check --no-index --no-deps dist/*.whl")
    assert home.must("python -c \"from importlib.metadata import requires; print(*requires('troupe-rl'))\"").strip() == f"onnxruntime=={VERSION}"
    assert "\nONNX Runtime " not in home.must("rollout --version"), "it finds one that it should not know"
    # The commands it prints exist.
    told = home.must("policy init p --preset tiny 2>&1 && ! (envs tasks plan-path --count 1 | rollout --policy p) 2>&1 >/dev/null && "
                     "! troupe pipeline --steppes 3 2>&1 && troupe pipeline --help")
    for hint in ("hint: troupe pipeline setup fetches it once", "hint: did you mean --steps? see troupe pipeline --help"):
        assert hint in told, told
    assert "./pipeline.sh" not in told
    home.must("mkdir -p $(echo venv/lib/python3*/site-packages)/onnxruntime/capi; "
              f"ln -s {LIBRARY} venv/lib/python3*/site-packages/onnxruntime/capi")
    return home


def test_wheel_trains_without_this_checkout(home):
    assert f"\nONNX Runtime {VERSION}" in home.must("rollout --version")
    first, second = home.must("troupe --version").splitlines()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert first == f"troupe {version}" and second.startswith(f"ONNX Runtime {VERSION} (") and second.endswith(f".so.{VERSION})")
    listed, share = home.must("troupe"), home.folder / "venv/share"
    for program in PROGRAMS:
        assert f"\n  {program} " in listed
        page = (share / f"man/man1/{program}.1").read_text()
        assert ".SH SYNOPSIS" in page and ".SH EXAMPLES\n.nf\n" in page
        for completions in (f"bash-completion/completions/{program}.bash", f"fish/vendor_completions.d/{program}.fish", f"zsh/site-functions/_{program}"):
            assert (share / completions).is_file(), completions
        home.must(f"{program} --version && troupe {program} --help")
    home.must(f"! command -v cargo && troupe pipeline {SMALL} --eval-every 0 2>&1")
    assert (home.folder / "runs/plan-path/steps/000001/done").exists()
    home.must("mkdir unpacked && tar xzf dist/*.tar.gz -C unpacked && unpacked/*/bin/troupe envs list | grep -q plan-path")


@pytest.mark.parametrize("words, offered", [
    ("update --lr-o", "--lr-other"), ("troupe pipeline --lr-w", "--lr-warmup"), ("troupe pipeline --env sud", "sudoku"),
    ("troupe envs tasks plan", "plan-path"), ("envs list sok", "sokoban"), ("troupe adv", "advantage"),
])
def test_wheel_completes(home, words, offered):
    program, last = words.split()[0], words.count(" ")
    assert home.must(f"source venv/share/bash-completion/completions/{program}.bash; COMP_WORDS=({words}); COMP_CWORD={last}; "
                     f'_{program} {program} "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"; echo ${{COMPREPLY[@]}}').strip() == offered


def test_pages_of_a_wheel_name_files_that_exist(home):
    pages = home.must("ls venv/share/man/man1")
    assert "help" not in pages and "envs-tasks.1\n" in pages and "troupe-pipeline.1\n" in pages
    share = "venv/share/troupe"
    home.must(f"! grep -rn '[^/a-z][.]/pipeline[.]sh' {share}/README.md {share}/docs {share}/examples")
    home.must("mkdir -p typed && cd typed && troupe examples")
    code, said = home.run("cd typed && troupe examples")
    assert code == 2 and "hint: " in said
    code, said = home.run("troupe pipline")
    assert code == 2 and "hint: did you mean troupe pipeline? " in said, said
    named = home.must(f"grep -oh 'examples/[a-z_]*[.]py' -r {share}/README.md {share}/docs | sort -u").split()
    assert len(named) > 4 and all((home.folder / "typed" / name).is_file() for name in named)
    home.must(f"cd typed && troupe pipeline --env-command 'python3 examples/guess_number.py' {SMALL} --eval-every 0 2>&1 && "
              "troupe envs new my-game && grep -q 'troupe pipeline' my_game.py && ! grep -q '[.]/pipeline[.]sh' my_game.py")


def test_game_runs_by_the_python_of_its_caller(home):
    """The wheel is in one environment, and the packages of a game in another: `python3` of the game is the caller's."""
    theirs = home.folder / "theirs"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", theirs], check=True)
    packages = next(theirs.glob("lib/python3*/site-packages"))
    shutil.copy(ROOT / "examples/guess_number.py", packages / "only_theirs.py")
    shutil.copytree(ROOT / "examples/troupe_rl", packages / "troupe_rl")
    (home.folder / "game.py").write_text("import only_theirs, runpy, sys\nassert '/theirs/' in sys.prefix + '/', sys.prefix\n"
                                         "runpy.run_module('only_theirs', run_name='__main__')\n")
    train = f"pipeline --env-command 'python3 game.py' {SMALL} --eval-every 2 --eval-tasks 2"
    for name, command in (("called", f"PATH=$PWD/theirs/bin:/usr/bin:/bin venv/bin/troupe {train}"),
                          ("behind", f"PATH=$PWD/theirs/bin:$PATH troupe {train}"),
                          ("resident", f"PATH=$PWD/theirs/bin:$PATH troupe {train} --resident")):
        home.must(f"{command} --run runs/theirs-{name} 2>&1")
        assert (home.folder / f"runs/theirs-{name}/steps/000001/done").exists(), name
    home.must("export PATH=$PWD/theirs/bin:/usr/bin:/bin; python3 game.py tasks --split train --count 2 --seed 1 >tasks; "
              "python3 game.py tasks --split test --count 2 --seed 1 >>tasks; "
              "venv/bin/envs check --env-command 'python3 game.py' --episodes 2 --tasks 1 <tasks")
    # If the wheel's Python comes first on PATH, the caller gets it too, and it lacks the game.
    assert "No module named 'only_theirs'" in home.run(f"troupe {train} --run runs/theirs-not")[1]


def test_wheel_has_the_module_for_environments(home):
    """`from troupe_rl import Environment` needs no file in the folder, and has types."""
    (home.folder / "own").mkdir()
    (home.folder / "own/game.py").write_text('''import troupe_rl
class Game(troupe_rl.Environment):
    def tasks(self, split, seed):
        number = split == 'test'
        while True:
            number += 2
            yield str(number), number
    def reset(self, spec):
        return troupe_rl.Start(spec, {'player': f'say {spec}'}, ['player'], turns=1)
    def step(self, state, agent, text):
        won = text == str(state)
        return troupe_rl.Step(state, {}, team=float(won), terminated=True, success=won)
if __name__ == '__main__': Game().main()
''')
    said = home.must("python -m troupe_rl.check --tasks 2 own/game.py")
    assert "ok     every text has an outcome" in said and "BROKEN" not in said
    said = home.must("python -c 'import pathlib, troupe_rl; print(pathlib.Path(troupe_rl.__file__).with_name(\"py.typed\").is_file(), troupe_rl.__file__)'")
    assert said.startswith("True ") and "/venv/lib/" in said
    home.must("(python own/game.py tasks; python own/game.py tasks --split test) | envs check --quiet --env-command 'python own/game.py'")


def test_wheel_lives_beside_the_other_package_of_that_name(home):
    """`troupe` on PyPI is somebody else's: its module and its command may be there, too."""
    theirs = pathlib.Path(interpreter("troupe")).parent.parent
    ours = home.folder / "beside"
    subprocess.run([sys.executable, "-m", "venv", ours], check=True)
    home.must("beside/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps dist/*.whl")
    packages = next(ours.glob("lib/python3*/site-packages"))
    for found in theirs.glob("lib/python3*/site-packages/troupe*"):
        shutil.copytree(found, packages / found.name)
    shutil.copy(theirs / "bin/troupe", ours / "bin/troupe")
    said = home.must("beside/bin/python -c 'import troupe, troupe_rl; print(hasattr(troupe, \"Environment\"), troupe_rl.Environment.__name__)'; "
                     "beside/bin/pip list --disable-pip-version-check; beside/bin/troupe-rl envs list plan-path")
    assert said.startswith("False Environment\n") and "\ntroupe-rl " in said and re.search("^troupe +[0-9]", said, re.MULTILINE), said
    assert "\nplan-path: " in said, said


def test_metadata_of_the_wheel_are_valid(home):
    """An index reads them: a name, a license with its files, an author, classifiers."""
    program = """import importlib.metadata, pathlib, sys
from packaging.metadata import Metadata
distribution = importlib.metadata.distribution("troupe-rl")
metadata = Metadata.from_email(distribution.read_text("METADATA"))
assert str(metadata.license_expression) == "MIT OR Apache-2.0" and metadata.author and len(metadata.classifiers) > 5
folder = pathlib.Path(distribution.locate_file(f"troupe_rl-{metadata.version}.dist-info/licenses"))
assert sorted(metadata.license_files) == sorted(file.name for file in folder.iterdir())
assert "pip install" in metadata.description
"""
    python = next((home.folder / "venv").glob("lib/python3*/site-packages"))
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(python)}, check=True)


def test_image_is_made_with_the_rust_of_the_workspace():
    image = (ROOT / "scripts/package/Dockerfile").read_text()
    rust = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert f"FROM rust:{rust}-" in image
    feature = re.search("--features rollout/([^ ]+)", image)[1]
    assert feature in tomllib.loads((ROOT / "rollout/Cargo.toml").read_text())["features"]


def test_shipped_python_is_read_by_version_3_9():
    """README promises Python 3.9. The wheel requires the Python of its ONNX Runtime."""
    files = [path for folder in ("examples", "examples/troupe_rl", "crates/sandbox/src", "scripts/package") for path in (ROOT / folder).glob("*.py")]
    assert len(files) > 12
    for path in files:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))
