"""examples/track.py: every step of a run reaches a tracker once, while it trains and after it was stopped."""
import json
import os
import shlex
import subprocess

import pytest
from conftest import ROOT, interpreter, must, run

EXAMPLES = ROOT / "examples"
SMALL = "--warmup 20 --tasks 2 --eval-every 2 --eval-tasks 4"
ASK = {
    "trackio": """import trackio
runs = [(run.name, trackio.SQLiteStorage.get_logs("troupe", run.name), run.config["_Group"]) for run in trackio.Api().runs("troupe")]
found = [(name, [(row["step"], metric) for row in rows for metric in row if "/" in metric], group) for name, rows, group in runs]""",
    "mlflow": """from mlflow import MlflowClient
client = MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("troupe").experiment_id])
found = [(run.info.run_name, [(point.step, metric) for metric in run.data.metrics for point in client.get_metric_history(run.info.run_id, metric)],
          run.data.tags["group"]) for run in runs if run.info.status == "FINISHED"]""",
}


def logged(python, tracker, folder):
    """(name, (step, metric) pairs, group) of each run that the tracker has."""
    code = f"{ASK[tracker]}\nimport json; print('FOUND' + json.dumps(found))"
    text = must(f"{shlex.quote(python)} -c {shlex.quote(code)}", folder, **variables(folder))
    return sorted(json.loads(text.partition("FOUND")[2]))


def variables(folder):
    return {"TRACKIO_DIR": f"{folder}/trackio", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}


@pytest.mark.parametrize("tracker", list(ASK))
def test_every_step_of_several_seeds_is_logged_once(tracker, tmp_path):
    python = interpreter(tracker)
    train = f"{ROOT}/pipeline.sh {SMALL} --seed 1,2 --run {tmp_path}/runs --steps"
    with open(tmp_path / "said", "w+", encoding="utf-8") as said:
        # It waits for the run, follows it, and ends with it.
        command = [python, f"{EXAMPLES}/track.py", tracker, str(tmp_path / "runs")]
        following = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **variables(tmp_path)}, stdout=said, stderr=said)
        must(f"{train} 2")
        assert following.wait(600) == 0, said.seek(0) or said.read()
    must(f"{train} 3; {python} {EXAMPLES}/track.py {tracker} {tmp_path}/runs; {python} {EXAMPLES}/track.py {tracker} {tmp_path}/runs",
         tmp_path, **variables(tmp_path))
    first, second = logged(python, tracker, tmp_path)
    assert (first[0], second[0]) == ("runs/seed=1", "runs/seed=2") and first[2] == second[2], (first, second)
    for _, points, _ in (first, second):
        assert len(points) == len({tuple(point) for point in points})
        for metric, steps in (("train/loss/shared", {1, 2, 3}), ("test/success/plan-path", {0, 2, 3})):
            assert {step for step, name in points if name.startswith(metric.rpartition("/")[0])} == steps, (metric, points)


def test_a_run_that_trains_is_followed_step_by_step(tmp_path):
    """A module of six lines stands in for W&B; it has the first step while the run is still in progress."""
    (tmp_path / "wandb.py").write_text('''
class Run:
    def define_metric(self, *_, **__): pass
    def log(self, values): print(values["step"], len(values), flush=True)
    def finish(self, exit_code): print("end", exit_code, flush=True)
def init(**settings): return print(settings["name"], settings["resume"], flush=True) or Run()
''')
    training = subprocess.Popen([f"{ROOT}/pipeline.sh", *SMALL.split(), "--steps", "400", "--run", f"{tmp_path}/run"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    following = subprocess.Popen(["python3", f"{EXAMPLES}/track.py", "wandb", f"{tmp_path}/run"], text=True,
                                 env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE)
    assert following.stdout.readline() == "run allow\n" and following.stdout.readline().startswith("0 ")
    assert following.stdout.readline().startswith("1 ") and training.poll() is None
    training.terminate()
    training.wait()
    steps = [1] + [int(line.split()[0]) for line in following.stdout if not line.startswith("end")]
    assert following.wait() == 0
    last = max(int(path.parent.name) for path in tmp_path.glob("run/steps/*/done"))
    assert sorted(set(steps)) == list(range(1, last + 1)) and steps[-1] == last


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "wandb.py").write_text("raise ImportError('not here')")
    code, _, said = run(f"python3 {EXAMPLES}/track.py wandb {tmp_path}", PYTHONPATH=str(tmp_path))
    assert code == 69 and said == "track.py: wandb cannot be imported: not here\nhint: pip install wandb\n"
