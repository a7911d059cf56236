#!/usr/bin/env python3
"""An analytic model of the time of an `update` step on several GPUs; prints the table of docs/cluster.md.

    python3 bench/speed/cluster_model.py
    python3 bench/speed/cluster_model.py --measure POLICY SAMPLES    # compared with 1, 2 and 4 processes of this machine

The model has three terms, and every assumption is a constant below. Compute is 6 operations per weight and token, divided
evenly. With one part per rank, each rank sends its gradient in slices and receives its share of the others'
(`ranks::PartSum`), then receives the weights that other ranks stepped (`ranks::exchange`), in bf16: 6 bytes per weight, minus the
share that a rank keeps. Equally many bytes pass between GPU and host. The network carries what leaves a node.

With --measure, one process gives this machine's compute speed, and an in-memory copy its exchange speed. The model then
predicts two and four processes with one thread each; if there are fewer cores, they take turns. Left out: uneven trees,
`rollout`, reading and publishing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

CARD = 0.55 * 790e12  # operations per second
STAGING = 50e9  # bytes per second between GPU and host
TOKENS = 1600  # computed per sample
SAMPLES = 4 * 2 * 4  # per episode: turns, agents, candidates
NODE = 8  # GPUs
EXCHANGED = 6  # bytes per weight: an f32 gradient, then the stepped weight in bf16
PARTS = 4  # of --measure, on CPUs, which exchange f32 weights
WIRES = {"8 × 400": NODE * 50e9, "1 × 200": 25e9}  # bytes per second out of a node
MODELS = {"1.7B": (1.72e9, 32), "8B": (8.19e9, 256)}  # weights, episodes per step


def compute(weights, tokens, ranks, rate):
    """Seconds of the passes at the given operations per second and rank."""
    return 6 * weights * tokens / ranks / rate


def exchange(weights, ranks, speed, near=1, exchanged=EXCHANGED):
    """Seconds of a rank's exchange with all ranks except the `near` ones that do not use this link."""
    return exchanged * weights * max(0, ranks - near) / ranks / speed


def table():
    wires = " | ".join(f"wire, {name}" for name in WIRES)
    print(f"| model, episodes per step | GPUs | compute | GPU to host and back | {wires} |")
    print("|---|---|---|---|" + "---|" * len(WIRES))
    for name, (weights, episodes) in MODELS.items():
        for cards in (1, 8, 16, 64) if name == "1.7B" else (8, 16, 64):
            tokens = episodes * SAMPLES * TOKENS
            seconds = [compute(weights, tokens, cards, CARD), exchange(weights, cards, STAGING)]
            # A node's GPUs share its links.
            seconds += [exchange(weights, cards, speed / NODE, NODE) for speed in WIRES.values()]
            print(f"| {name}, {episodes} | {cards} | " + " | ".join(f"{s:.2g}" if s < 10 else f"{s:.0f}" for s in seconds) + " |")


def copy_speed(size=64 << 20):
    """Bytes per second of the fastest of five in-memory copies."""
    source, best = bytes(size), 0.0
    for _ in range(5):
        begun = time.perf_counter()
        bytearray(source)
        best = max(best, size / (time.perf_counter() - begun))
    return best


def measured(policy, samples, ranks):
    """Seconds of training with the given number of processes, and the number of weights."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "policy")
        shutil.copytree(policy, copy, symlinks=True)
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--quiet", "-n", str(ranks), "update-mpi"]
        command += ["--policy", copy, "--parts", str(PARTS), "--threads", "1", "--lr", "1e-4", "--minibatches", "1", "--quiet"]
        with open(samples) as stream:
            lines = subprocess.run(command, stdin=stream, stdout=subprocess.PIPE, check=True, text=True).stdout
        plan = ["update", "--policy", copy, "--dry-run", "--quiet"]
        planned = json.loads(subprocess.run(plan, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0])
    metrics = next(line for line in map(json.loads, lines.splitlines()) if line["type"] == "metrics")
    timing = metrics["timing"]
    return sum(timing[f"{phase}_seconds"] for phase in ("forward", "backward")), timing["training_seconds"], planned["trainable_parameters"]


def compare(policy, samples):
    passes, alone, weights = measured(policy, samples, 1)
    speed, cores = copy_speed(), len(os.sched_getaffinity(0))
    print(f"{weights:,} weights, {cores} cores, copies at {speed / 1e9:.1f} GB/s\n")
    print("| processes | predicted, s | measured, s | measured / predicted |\n|---|---|---|---|")
    for ranks in (1, 2, 4):
        turns = max(1, ranks / cores)
        predicted = alone - passes + passes / ranks * turns
        # One process writes each value and another reads it.
        predicted += 2 * turns * exchange(weights, ranks, speed, exchanged=4 * PARTS / ranks + 4)
        found = alone if ranks == 1 else measured(policy, samples, ranks)[1]
        print(f"| {ranks} | {predicted:.3f} | {found:.3f} | {found / predicted:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"] and len(sys.argv) == 4:
        compare(*sys.argv[2:])
    elif len(sys.argv) == 1:
        table()
    else:
        sys.exit(__doc__)
