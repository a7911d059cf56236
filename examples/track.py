"""Live metrics for W&B, trackio or MLflow: follows a run while it trains.

    ./pipeline.sh --run runs/mine --seed 1,2,3 &
    python3 examples/track.py wandb runs/mine        # or trackio, or mlflow; --project NAME

RUN is a run, or a folder of several, which are followed in turn. Each is a run of the tracker; seeds of one method share a group (in
MLflow the tag `group`). Metrics have the names of TensorBoard's events, split/metric/environment/policy/agent, and `run.json` is the
configuration. RUN/tracked.json notes what was logged, so nothing is logged twice when the run or this program is stopped and goes on.
It reads what `report RUN --csv -` prints and changes nothing in a run; it ends when no run is in progress. Offline:

    WANDB_MODE=offline          MLFLOW_TRACKING_URI=sqlite:///mlflow.db          (trackio is local)

Left out: two runs that train at the same time; start one track.py for each.
"""
import argparse
import csv
import fcntl
import hashlib
import importlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import time
import uuid

EVERY = 3.0
"""Seconds between two looks at a run."""


def fail(code, cause, hint):
    print(f"track.py: {cause}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


def with_wandb(wandb, run, key):
    """Starts or resumes a run: its key, `log(step, values)`, `finish(failed)`."""
    key = key or uuid.uuid4().hex[:12]
    open_run = wandb.init(project=run.project, name=run.name, group=run.group, id=key, resume="allow", config=run.settings)
    open_run.define_metric("*", step_metric="step")  # W&B's own step only counts calls, and an evaluation has its training step's number
    return key, lambda step, values: open_run.log({"step": step, **values}), lambda failed: open_run.finish(exit_code=int(failed))


def with_trackio(trackio, run, key):
    name = key or run.name
    open_run = trackio.init(project=run.project, name=name, group=run.group, config=run.settings, resume="allow" if key else "never")
    return open_run.name, lambda step, values: open_run.log(values, step=step), lambda failed: open_run.finish()


def with_mlflow(mlflow, run, key):
    client = mlflow.MlflowClient()
    if key is None:
        experiment = client.get_experiment_by_name(run.project)
        experiment = experiment.experiment_id if experiment else client.create_experiment(run.project)
        key = client.create_run(experiment, run_name=run.name, tags={"group": run.group}).info.run_id
        client.log_batch(key, params=[mlflow.entities.Param(name, str(value)[:500]) for name, value in run.settings.items()])

    def log(step, values):
        now = int(1000 * time.time())
        client.log_batch(key, [mlflow.entities.Metric(name, value, now, step) for name, value in values.items()])

    return key, log, lambda failed: client.set_terminated(key, "FAILED" if failed else "FINISHED")


TRACKERS = {"wandb": with_wandb, "trackio": with_trackio, "mlflow": with_mlflow}


class Run:
    """A run directory, and the tracker's run for it."""

    def __init__(self, folder, name, project, tracker):
        self.folder, self.name, self.project, self.tracker = folder, name, project, tracker
        self.settings = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        seed = self.settings.get("seed")
        method = json.dumps({**self.settings, "seed": None, "history": None}, sort_keys=True).replace(f"seed-{seed}", "seed-N")
        self.group = f"{self.settings.get('env', 'runs')}-{hashlib.sha256(method.encode()).hexdigest()[:6]}"
        self.notes, self.read = folder / "tracked.json", None
        self.tracked = json.loads(self.notes.read_text(encoding="utf-8")) if self.notes.exists() else {}
        self.logged = self.tracked.setdefault(tracker, {"key": None, "steps": {}})

    def is_running(self):
        """True while a process holds the run's lock."""
        try:
            with open(self.folder / "lock", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def new(self):
        """(step, "train" or "test", {name: value}) of each step and evaluation that is not logged yet, in order."""
        there = [sum(1 for _ in self.folder.glob(pattern)) for pattern in ("steps/*/done", "eval/step-*.jsonl")]
        if there == self.read:
            return []
        printed = subprocess.run(["report", self.folder, "--csv", "-", "--quiet"], stdout=subprocess.PIPE, encoding="utf-8")
        if printed.returncode:
            sys.exit(printed.returncode)  # it said why
        self.read, found = there, {}
        for row in csv.DictReader(io.StringIO(printed.stdout)):
            step, of = int(row["step"]), "test" if row["split"] == "test" or row["metric"] == "evaluation_seconds" else "train"
            if step > self.logged["steps"].get(of, -1):
                name = "/".join(filter(None, [row["split"], row["metric"], row["environment"], row["policy"], row["agent"]]))
                found.setdefault((step, of), {})[name] = float(row["value"])
        order = sorted(found, key=lambda key: (key[0], key[1] == "test"))  # an evaluation comes after the step of its number
        return [(step, of, found[step, of]) for step, of in order]

    def follow(self, module):
        """Logs each step once it is committed, until the run ends; True if it was in progress."""
        log, was_running = None, False
        while True:
            running = self.is_running()  # asked before the last look, which then sees all
            for step, of, values in self.new():
                if log is None:
                    self.logged["key"], log, finish = TRACKERS[self.tracker](module, self, self.logged["key"])
                log(step, values)
                self.logged["steps"][of] = step
                written = self.notes.with_suffix(".tmp")
                written.write_text(json.dumps(self.tracked), encoding="utf-8")
                written.replace(self.notes)
            if not running:
                break
            was_running = True
            time.sleep(EVERY)
        if log is not None:
            finish((self.folder / "failed").exists())
        return was_running


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", default="troupe", metavar="NAME", help="the tracker's project or experiment [default: troupe]")
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("run", type=pathlib.Path, help="a run, or a folder of runs")
    words = parser.parse_args()
    if shutil.which("report") is None:
        fail(69, "there is no program `report` in PATH", "export PATH=target/release:$PATH, in a checkout")
    try:
        module = importlib.import_module(words.tracker)
    except ImportError as error:
        fail(69, f"{words.tracker} cannot be imported: {error}", f"pip install {words.tracker}")
    folder, looks = words.run.resolve(), 0
    if not folder.exists():
        print(f"track.py: waiting for {words.run}", file=sys.stderr)
    while looks < 2:  # of several runs one may have ended, and the next not begun
        found = [folder] if (folder / "run.json").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
        names = [path.name if path == folder else f"{folder.name}/{path.name}" for path in found]
        ran = [Run(path, name, words.project, words.tracker).follow(module) for path, name in zip(found, names)]
        looks = 0 if any(ran) or not found else looks + 1
        time.sleep(EVERY)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
