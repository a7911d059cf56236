"""Compares Troupe with PyTorch by hand and TRL in one run: a Markdown table of tokens per CPU-second.

To be fair, all engines have the same weights, the same shape of work, and one thread on the same processor. CPU-seconds are
counted, not wall time. Engines take turns, forward in one round and backward in the next, so that other load on the
machine affects all of them. Ratios are taken within a round; the table shows their median and range. Peers stay loaded between
rounds, so their start-up and warm-up are not counted, and TRL runs at its best micro-batch.

Started by run.sh, which builds the programs. Sizes: 32 groups, 4 completions, 128 prompt and 64 completion tokens, with the
model of `policy init --preset bench`; with --size 0.6B all sizes of Qwen3-0.6B (random bf16 weights) and fewer groups.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BRANCHES, PROMPT, COMPLETION = 4, 128, 64
# By --size: groups per round, and the configuration unless it is a preset.
SIZES = {
    "tiny": (2, None),  # only checks that everything runs
    "bench": (32, None),
    "0.6B": (2, {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}),
}
# Grids of this size make compact prompts of about PROMPT tokens.
TASK_SETTINGS = ["--set", "size=15"]


class Peer:
    """A yardstick that stays loaded and answers each line on its stdin with measurements."""

    def __init__(self, name, script, options, environment, processor):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, HERE / script, "--serve", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {processor}))
        self.await_part("ready")

    def await_part(self, part):
        """The next line about `part`."""
        for line in self.process.stdout:
            if line.startswith("{\"engine\""):
                answer = json.loads(line)
                if answer["part"] == part:
                    return answer
        raise SystemExit(f"compare: {self.name} ended with {self.process.wait()} before it answered for {part}")

    def measure(self, part):
        self.process.stdin.write(part + "\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """Troupe's benchmarks and stages, each a separate process on one processor."""

    def __init__(self, arguments, folder, processor):
        self.arguments, self.folder, self.processor = arguments, folder, processor
        self.groups, configuration = SIZES[arguments.size]
        self.generated = self.groups * BRANCHES * COMPLETION
        self.trained = self.groups * BRANCHES * (PROMPT + COMPLETION)
        self.environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
        self.policy = folder / "policy"
        source = ["--preset", arguments.size]
        if configuration is not None:
            (folder / "config.json").write_text(json.dumps(configuration))
            source = ["--config", folder / "config.json"]
        self.run([arguments.binaries / "policy", "init", self.policy, *source, "--seed", "1"])
        # Takes the version from a stage's output, so that this script need not know how it is computed.
        self.tasks = self.run([arguments.binaries / "envs", "tasks", "plan-path", "--count", str(self.groups), "--seed", "7",
                               *TASK_SETTINGS])[0]
        played = self.run(self.rollout_command(1), self.tasks)[0]
        sample = next(json.loads(line) for line in played.splitlines() if '"type":"sample"' in line)
        self.stream = training_stream(sample["policy_version"], self.groups)

    def run(self, command, text=None, processor=None):
        """Runs to the end: (stdout, stderr, CPU-seconds, wall seconds, peak MB); fails with its stderr."""
        started = datetime.datetime.now()
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            source.write((text or "").encode())
            source.seek(0)
            pin = None if processor is None else (lambda: os.sched_setaffinity(0, {processor}))
            process = subprocess.Popen(
                [str(part) for part in command], stdin=source, stdout=out, stderr=errors, env=self.environment, preexec_fn=pin)
            _, status, usage = os.wait4(process.pid, 0)
            wall = (datetime.datetime.now() - started).total_seconds()
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            errors.seek(0)
            output, diagnostics = out.read().decode(), errors.read().decode()
        if process.returncode != 0:
            raise SystemExit(f"compare: {command[0]} ended with {process.returncode}: {diagnostics}")
        return output, diagnostics, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024

    def generation(self, threads=1, prompt=PROMPT, completion=COMPLETION, dtype="float32"):
        """The engine alone: a result as the peers print it."""
        command = [self.arguments.generate, "--policy", self.policy, "--threads", threads, "--groups", self.groups, "--branches",
                   BRANCHES, "--prompt", prompt, "--completion", completion, "--repeats", "1", "--dtype", dtype]
        _, text, _, _, peak = self.run(command, processor=self.processor if threads == 1 else None)
        cpu = float(re.search(r"CPU ([\d.]+) ms", text).group(1)) / 1e3
        wall = float(re.search(r"wall ([\d.]+) ms", text).group(1)) / 1e3
        return result(threads * self.groups * BRANCHES * completion, cpu, wall, peak)

    def gradient(self, threads=1, dtype="float32"):
        """Forward and backward alone: the mean of two rounds after a warm-up; with several threads, the better round."""
        command = [self.arguments.update, "--threads", threads, "--rounds", "2", "--groups", self.groups, "--branches", BRANCHES,
                   "--preset", self.arguments.size, "--prompt", PROMPT, "--completion", COMPLETION, "--dtype", dtype]
        text, _, _, _, peak = self.run(command, processor=self.processor if threads == 1 else None)
        rounds = re.findall(r"^round wall ([\d.]+) s, cpu ([\d.]+) s", text, re.MULTILINE)
        if threads == 1:
            cpu, wall = statistics.mean(float(pair[1]) for pair in rounds), statistics.mean(float(pair[0]) for pair in rounds)
        else:
            wall, cpu = min((float(pair[0]), float(pair[1])) for pair in rounds)
        return result(self.trained, cpu, wall, peak)

    def rollout_command(self, threads):
        return [self.arguments.binaries / "rollout", "--policy", self.policy, "--workflow", "single", "--branches", BRANCHES,
                "--turns", "1", "--max-tokens", COMPLETION, "--threads", threads, "--quiet"]

    def rollout(self):
        """The stage as a process, from tasks on stdin to samples on stdout, including start-up and loading."""
        text, _, cpu, wall, peak = self.run(self.rollout_command(1), self.tasks, self.processor)
        counts = next(json.loads(line) for line in text.splitlines() if '"type":"end"' in line)["counts"]
        measured = result(counts["completion_tokens"], cpu, wall, peak)
        measured["prompt"] = round(counts["prompt_tokens"] / counts["groups"])
        measured["completion"] = round(counts["completion_tokens"] / counts["samples"])
        return measured

    def update(self):
        """The stage as a process, from samples on stdin to a published version, including start-up and writing."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.policy, copy, symlinks=True)
        # The stream's log-probabilities are not from a policy, so their gap to this one's is meaningless.
        command = [self.arguments.binaries / "update", "--policy", copy, "--lr", "1e-4", "--minibatches", "1", "--threads", "1",
                   "--max-logprob-gap", "0", "--quiet"]
        _, _, cpu, wall, peak = self.run(command, self.stream, self.processor)
        return result(self.trained, cpu, wall, peak)


def result(tokens, cpu, wall, peak):
    return {"tokens": tokens, "cpu_s": cpu, "wall_s": wall, "tokens_per_cpu_s": tokens / cpu, "peak_mb": peak}


def training_stream(version, groups):
    """A complete stream of groups x BRANCHES samples of fixed lengths with random advantages, in the format of `advantage`."""
    draws, lines = random.Random(3), []
    recorded = [-6.238324] * COMPLETION  # a uniform policy over 512 tokens
    for group in range(groups):
        prompt = [draws.randrange(512) for _ in range(PROMPT)]
        for branch in range(BRANCHES):
            lines.append({
                "type": "sample", "v": 1, "step": 0, "env": "bench", "task": f"bench/{group}", "episode": f"0.{group}", "turn": 0,
                "agent": "agent", "branch": branch, "branches": BRANCHES, "id": f"0.{group}/0/agent/{branch}",
                "policy": "bench", "policy_version": version,
                "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "greedy": False, "seed": 3},
                "prompt_ids": prompt, "completion_ids": [draws.randrange(512) for _ in range(COMPLETION)],
                "completion_logprobs": recorded, "finish_reason": "length", "reward": draws.random(),
                "group": f"0.{group}/agent/0", "group_size": BRANCHES, "advantage": draws.uniform(-1.5, 1.5)})
    lines.append({"type": "end", "v": 1, "stage": "advantage", "ok": True, "after": []})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def best_micro_batch(candidates, options, environment, processor):
    """One measured TRL step at each micro-batch: {micro: training tokens per CPU-second}."""
    found = {}
    for micro in candidates:
        output = subprocess.run(
            [sys.executable, HERE / "trl_grpo.py", "--micro", str(micro), "--repeats", "1", *options],
            capture_output=True, text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {processor}))
        for line in output.stdout.splitlines():
            if line.startswith("{\"engine\"") and json.loads(line)["part"] == "update":
                found[micro] = json.loads(line)["tokens_per_cpu_s"]
        if micro not in found:
            raise SystemExit(f"compare: TRL with a micro-batch of {micro} failed: {output.stderr[-2000:]}")
    return found


def processor_peak(environment, processor):
    """GFLOP/s of a plain f32 matrix product in PyTorch: an approximate upper bound for every engine."""
    code = ("import time, torch; torch.set_num_threads(1); a, b = torch.randn(1536, 1536), torch.randn(1536, 1536); best = 9\n"
            "for _ in range(12):\n t = time.process_time(); torch.mm(a, b); best = min(best, time.process_time() - t)\n"
            "print(2 * 1536**3 / best / 1e9)")
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, {processor}))
    return float(output.stdout)


def row(name, values, references):
    """One line of a table: median speed, its range, and the ratio reference / this within each round."""
    speeds = [value["tokens_per_cpu_s"] for value in values]
    cells = [name, f"{statistics.median(speeds):,.0f}", f"{min(speeds):,.0f} – {max(speeds):,.0f}",
             f"{max(value['peak_mb'] for value in values):,.0f}"]
    for ours in references:
        if ours is values:
            cells.append("")
            continue
        ratios = [mine["tokens_per_cpu_s"] / theirs for mine, theirs in zip(ours, speeds)]
        cells.append(f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} – {max(ratios):.2f})")
    return "| " + " | ".join(cells) + " |"


def table(title, rows, references):
    """A Markdown table; `rows` is {name: measurements of each round}, `references` names the rows to compare with."""
    print(f"\n### {title}\n")
    ratios = "".join(f" {name} / this, median (range) |" for name in references)
    print(f"| engine | tokens a CPU-second, median | range | peak MB |{ratios}")
    print("|---|---|---|---|" + "---|" * len(references))
    for name, values in rows.items():
        print(row(name, values, [rows[reference] for reference in references]))


def scaling(ours, rounds):
    """Wall time with one and two threads, taken alternately and not pinned."""
    print("\n### Two threads against one (wall time; needs two free cores)\n")
    print("| work | one thread, s | two threads, s | speed-up, median (range) |")
    print("|---|---|---|---|")
    pairs = {"generation (twice the groups on two threads)": [], "gradient": []}
    for _ in range(rounds):
        pairs["generation (twice the groups on two threads)"].append((ours.generation(1), ours.generation(2)))
        pairs["gradient"].append((ours.gradient(1), ours.gradient(2)))
    for name, measured in pairs.items():
        ratios = [(two["tokens"] / two["wall_s"]) / (one["tokens"] / one["wall_s"]) for one, two in measured]
        one, two = (statistics.median(pair[index]["wall_s"] for pair in measured) for index in (0, 1))
        print(f"| {name} | {one:.3f} | {two:.3f} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f} – {max(ratios):.2f}) |")


def processor_name():
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    wide = "AVX-512" if "avx512f" in fields.get("flags", "") else "no AVX-512"
    return f"{fields.get('model name', platform.machine())} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}, {wide})"


def main():
    parser = argparse.ArgumentParser(description="Measures ours and the yardsticks in turn; markdown on stdout.")
    parser.add_argument("--binaries", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--generate", type=pathlib.Path, required=True, help="the bench executable of rollout")
    parser.add_argument("--update", type=pathlib.Path, required=True, help="the bench executable of update")
    parser.add_argument("--mkl", type=pathlib.Path, required=True, help="the library made of mkl_avx512.c")
    parser.add_argument("--size", choices=SIZES, default="bench", help="of the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 16, 32, 128], help="TRL's micro-batches to try")
    parser.add_argument("--peers", nargs="+", default=["hand", "compiled", "bf16", "stock", "unshared", "trl", "trl-bf16"])
    parser.add_argument("--no-scaling", dest="scaling", action="store_false")
    arguments = parser.parse_args()

    processor = max(os.sched_getaffinity(0))
    single = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} | {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
    stock = os.environ | single
    told = stock | {"LD_PRELOAD": str(arguments.mkl)}
    say = lambda text: print(f"compare: {text}", file=sys.stderr, flush=True)
    started = datetime.datetime.now(datetime.timezone.utc)
    load = os.getloadavg()

    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(arguments, pathlib.Path(folder), processor)
        work = ["--policy", str(ours.policy), "--groups", str(ours.groups)]
        peak = {name: processor_peak(environment, processor) for name, environment in (("told", told), ("stock", stock))}
        micro = {}
        for key, dtype in (("trl", "float32"), ("trl-bf16", "bfloat16")):
            if key in arguments.peers:
                say(f"sweeping TRL's micro-batch, {dtype}")
                micro[key] = best_micro_batch(arguments.micro, ["--dtype", dtype, *work], told, processor)
        best = {key: max(micro.get(key, {}), key=micro.get(key, {}).get, default=16) for key in ("trl", "trl-bf16")}
        known = {
            "hand": ("PyTorch by hand, f32", "torch_by_hand.py", [], told),
            "compiled": ("PyTorch by hand, f32, torch.compile", "torch_by_hand.py", ["--compile"], told),
            "bf16": ("PyTorch by hand, bf16, torch.compile", "torch_by_hand.py", ["--compile", "--dtype", "bf16"], told),
            "stock": ("PyTorch by hand, f32, MKL as installed", "torch_by_hand.py", [], stock),
            "unshared": ("PyTorch by hand, f32, no shared prompts", "torch_by_hand.py", ["--no-share"], told),
            "trl": (f"TRL GRPOTrainer, f32, micro-batch {best['trl']}", "trl_grpo.py", ["--micro", str(best["trl"])], told),
            "trl-bf16": (f"TRL GRPOTrainer, bf16, micro-batch {best['trl-bf16']}", "trl_grpo.py",
                         ["--micro", str(best["trl-bf16"]), "--dtype", "bfloat16"], told),
        }
        peers = []
        for key in arguments.peers:
            name, script, options, environment = known[key]
            say(f"starting {name}")
            peers.append(Peer(name, script, options + work, environment, processor))

        generation, training, stages = {}, {}, {}

        def note(rows, name, value):
            rows.setdefault(name, []).append(value)

        def our_turn():
            note(generation, "ours", ours.generation())
            note(generation, "ours, bf16", ours.generation(dtype="bfloat16"))
            note(training, "ours", ours.gradient())
            note(training, "ours, bf16", ours.gradient(dtype="bfloat16"))
            note(stages, "`rollout`", ours.rollout())
            note(stages, "`update`", ours.update())

        def peer_turn(peer):
            if peer.name.startswith("TRL"):
                peer.measure("step")
                note(generation, peer.name, peer.await_part("generation"))
                note(training, peer.name, peer.await_part("update"))
                return
            peer.measure("generation")
            note(generation, peer.name, peer.await_part("generation"))
            peer.measure("update")
            note(training, peer.name, peer.await_part("update"))

        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            turns = [our_turn] + [lambda peer=peer: peer_turn(peer) for peer in peers]
            for turn in turns if number % 2 == 0 else reversed(turns):
                turn()
        for peer in peers:
            peer.close()

        print(f"## Measured {started:%Y-%m-%d %H:%M} UTC\n")
        print(f"{processor_name()}, {os.cpu_count()} cores, load {load[0]:.1f} at the start and {os.getloadavg()[0]:.1f} at the end; "
              f"one thread on processor {processor}, {arguments.rounds} rounds in turn; "
              f"f32 matrix products in PyTorch reach {peak['told']:.0f} GFLOP/s (MKL as installed: {peak['stock']:.0f}).")
        print(f"Work: {ours.groups} groups of {BRANCHES}, {PROMPT} prompt and {COMPLETION} completion tokens; "
              f"{ours.generated} tokens generated, {ours.trained} trained (every completion's prompt counted).")
        for key, dtype in (("trl", "f32"), ("trl-bf16", "bf16")):
            if key in micro:
                speeds = ", ".join(f"{size}: {speed:,.0f}" for size, speed in micro[key].items())
                print(f"TRL's training in {dtype} by micro-batch: {speeds} tokens a CPU-second.")
        table("Generation", generation, ["ours", "ours, bf16"])
        # The peers' update is gradient, clipping and AdamW (the latter two take 4 of 2,900 ms). Our process
        # does those too, and also reads, checks and publishes.
        rows = {name: training.pop(name) for name in ("ours", "ours, bf16")}
        table("Update", rows | {"ours, `update` as a process": stages["`update`"]} | training, ["ours", "ours, bf16"])
        rollout = stages["`rollout`"]
        print("\n### Stages as processes (start-up, JSON, environment, publishing included)\n")
        print("| stage | CPU-s, median | of it not in the engine, s | tokens a CPU-second | peak MB |")
        print("|---|---|---|---|---|")
        like = [ours.generation(prompt=rollout[0]["prompt"], completion=rollout[0]["completion"]) for _ in range(3)]
        alone = statistics.median(rollout[0]["tokens"] / value["tokens_per_cpu_s"] for value in like)
        gradient = statistics.median(value["cpu_s"] for value in rows["ours"])
        for name, values, inner in (("`rollout`", rollout, alone), ("`update`", stages["`update`"], gradient)):
            cpu = statistics.median(value["cpu_s"] for value in values)
            print(f"| {name} | {cpu:.3f} | {cpu - inner:.3f} | {values[0]['tokens'] / cpu:,.0f} | {max(v['peak_mb'] for v in values):,.0f} |")
        print(f"\n`rollout` played {ours.groups} Plan-Path tasks of {rollout[0]['prompt']} prompt tokens and {rollout[0]['completion']} completion tokens on average.")
        if arguments.scaling:
            say("threads")
            scaling(ours, 3)


if __name__ == "__main__":
    main()
