"""Compares Troupe on a real language model with transformers, TRL and llama.cpp, on one thread, in one run.

    python bench/speed/real_model.py --model ~/models/SmolLM2-135M-Instruct --binaries target/release > table.md

All have the same weights, the same prompts (from `envs tasks`), the same number of completions and token limit, temperature
1, random rewards, and one pinned processor. Troupe's programs are measured as processes, including start-up, loading and
publishing; peers without loading. Some completions end early, except llama.cpp's: only sampled tokens count. CPU-seconds are counted, since other
load on a machine affects wall time first. The engines take turns, and each one's best round counts. A round takes three to
four minutes for 135M weights, and `--rounds 2` (the default) eight at most.

Needs a C compiler and `pip install torch transformers trl peft datasets`. With `pip install xllamacpp gguf` and `--gguf FILE`, llama.cpp
generates too, from the same weights in each of `--llama-types`. A peer that is not installed is skipped with a line on stderr.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

RANK = 16
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def measured(command, source=b"", limit=600, processor=None, environment=None):
    """Runs to the end: (stdout, CPU-seconds, wall seconds, peak MB); fails with its stderr."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(source)
        given.seek(0)
        pin = None if processor is None else (lambda: os.sched_setaffinity(0, {processor}))
        process = subprocess.Popen([str(part) for part in command], stdin=given, stdout=out, stderr=errors, preexec_fn=pin,
                                   env=environment)
        timer = __import__("threading").Timer(limit, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        out.seek(0)
        errors.seek(0)
        output, diagnostics = out.read(), errors.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {diagnostics[-1500:]}")
    return output, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024


def lines(output, kind):
    """The lines of one type in a stream."""
    found = (json.loads(line) for line in output.splitlines() if line.strip())
    return [line for line in found if line.get("type") == kind]


class Troupe:
    """Troupe's stages, each a separate process on one processor."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.programs = pathlib.Path(arguments.binaries)
        self.run("policy", "init", folder / "base", "--from", arguments.model, "--quiet")
        self.run("policy", "init", folder / "adapter", "--from", folder / "base", "--adapter", f"rank={RANK},alpha={2 * RANK}",
                 "--quiet")
        self.tasks = self.run("envs", "tasks", arguments.env, "--count", arguments.prompts, "--seed", 7,
                              *(f"--set={setting}" for setting in arguments.set))[0]

    def run(self, program, *flags, source=b"", processor=None):
        return measured([self.programs / program, *flags], source, processor=processor)

    def rollout(self, policy, dtype):
        """Tasks to samples."""
        return self.run(
            "rollout", "--policy", self.folder / policy, "--workflow", "single", "--branches", self.arguments.completions, "--turns",
            1, "--max-tokens", self.arguments.tokens, "--temperature", 1, "--threads", 1, "--dtype", dtype, "--quiet",
            source=self.tasks, processor=self.arguments.processor)

    def samples(self, output):
        """The input of `update`, with random advantages, so that no group is flat."""
        draws, text = random.Random(3), []
        for line in output.splitlines():
            value = json.loads(line)
            if value["type"] == "sample":
                group = f"{value['episode']}/{value['agent']}/{value['turn']}"
                value |= {"group": group, "group_size": self.arguments.completions, "advantage": draws.uniform(-1.5, 1.5)}
            if value["type"] == "end":
                value = {"type": "end", "v": 1, "stage": "advantage", "ok": True, "after": [value]}
            text.append(json.dumps(value))
        return ("\n".join(text) + "\n").encode()

    def measure(self):
        """Rows of generation, update and the whole step, with full training and with an adapter."""
        rows = []
        for policy in ["base", "adapter"] if self.arguments.updates else ["base"]:
            for dtype in self.arguments.dtypes:
                output, *spent = self.rollout(policy, dtype)
                tokens = sum(len(sample["completion_ids"]) for sample in lines(output, "sample"))
                trained = "an adapter" if policy == "adapter" else "all weights"
                name = f"Troupe, {dtype}"
                if policy == "base":
                    rows.append(row(name, "generation", "", tokens, *spent))
                if not self.arguments.updates:
                    continue
                # Each repetition starts from this version.
                copy = self.folder / "copy" / policy
                subprocess.run(["rm", "-rf", copy], check=True)
                copy.parent.mkdir(exist_ok=True)
                subprocess.run(["cp", "-a", self.folder / policy, copy], check=True)
                if policy == "adapter":
                    (copy / "base").unlink()
                    (copy / "base").symlink_to(self.folder / "base" / "current")
                flags = ["--policy", copy, "--lr", "1e-5", "--minibatches", 1, "--threads", 1, "--dtype", dtype, "--quiet"]
                _, *update = self.run("update", *flags, source=self.samples(output), processor=self.arguments.processor)
                rows.append(row(name, "update", trained, tokens, *update))
                whole = [spent[0] + update[0], spent[1] + update[1], max(spent[2], update[2])]
                rows.append(row(name, "whole step", trained, tokens, *whole))
        return rows

    def prompts(self):
        """The ids of each group's prompt."""
        output, *_ = self.rollout("base", "float32")
        found = {}
        for sample in lines(output, "sample"):
            found.setdefault(sample["task"], sample["prompt_ids"])
        return list(found.values())


def row(engine, part, trained, tokens, cpu, wall, peak):
    """One measurement."""
    return {"engine": engine, "part": part, "trained": trained, "tokens": tokens, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3),
            "tokens_per_cpu_s": round(tokens / cpu, 1), "peak_mb": round(peak)}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """CPU and wall seconds since its creation."""

    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self):
        return time.process_time() - self.cpu, time.perf_counter() - self.wall


def transformers_generate(arguments, prompts):
    """One `generate` over all prompts and completions, as TRL calls it."""
    import torch
    import transformers
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    stop = set(model.generation_config.eos_token_id if isinstance(model.generation_config.eos_token_id, list)
               else [model.generation_config.eos_token_id])
    longest = max(map(len, prompts))
    rows = [prompt for prompt in prompts for _ in range(arguments.completions)]
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    clock = Clock()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                             max_new_tokens=arguments.tokens, pad_token_id=0)
    spent = clock.read()
    tokens = 0
    for completion in out[:, longest:].tolist():
        end = next((index + 1 for index, token in enumerate(completion) if token in stop), len(completion))
        tokens += end
    return [row("transformers, float32", "generation", "", tokens, *spent, peak())]


def trl_step(arguments, prompts, adapter):
    """The second step of TRL's GRPOTrainer, divided into its `generate` and the rest."""
    import datasets
    import peft
    import torch
    import transformers
    import trl
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    rewards, generation, steps = random.Random(11), [0.0, 0.0], []
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    counted = []

    def reward(completion_ids=None, completions=None, **_):
        counted[:] = [len(ids) for ids in completion_ids] if completion_ids is not None else [arguments.tokens] * len(completions)
        return [rewards.random() for _ in completions]

    class Meter(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            generation[:] = [0.0, 0.0]
            self.clock = Clock()

        def on_step_end(self, *_, **__):
            steps.append((self.clock.read(), list(generation), sum(counted)))

    def timed(generate):
        def run(*positional, **named):
            clock = Clock()
            try:
                return generate(*positional, **named)
            finally:
                generation[:] = [sum(pair) for pair in zip(generation, clock.read())]
        return run

    batch = len(prompts) * arguments.completions
    with tempfile.TemporaryDirectory() as directory:
        config = trl.GRPOConfig(
            output_dir=directory, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=arguments.micro, gradient_accumulation_steps=batch // arguments.micro,
            num_generations=arguments.completions, max_completion_length=arguments.tokens, temperature=1.0, top_k=0, beta=0.0,
            learning_rate=1e-5, max_steps=2, save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True, seed=7,
            dataloader_pin_memory=False)
        lora = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=MODULES, task_type="CAUSAL_LM") if adapter else None
        model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        trainer = trl.GRPOTrainer(
            model=model, args=config, train_dataset=datasets.Dataset.from_dict({"prompt": texts * 4}), processing_class=tokenizer,
            callbacks=[Meter()], reward_funcs=reward, peft_config=lora)
        trainer.model.generate = timed(trainer.model.generate)
        trainer.train()
    (cpu, wall), (generate_cpu, generate_wall), tokens = steps[-1]
    trained = "an adapter" if adapter else "all weights"
    return [row("TRL, float32", "update", trained, tokens, cpu - generate_cpu, wall - generate_wall, peak()),
            row("TRL, float32", "whole step", trained, tokens, cpu, wall, peak())]


def gguf_as(source, kind, target):
    """Writes a GGUF file with the weights in another type; norms and biases stay as they are."""
    import gguf
    reader = gguf.GGUFReader(source)
    wanted = gguf.GGMLQuantizationType[kind.upper()]
    text = lambda field: field.contents()
    writer = gguf.GGUFWriter(target, text(reader.fields["general.architecture"]))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            part = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, text(field), field.types[0], part)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        own = wanted if len(tensor.shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_generate(arguments, prompts):
    """llama.cpp's server in this process: a prompt is evaluated once for its completions, and all prompts decode in one batch. No
    completion ends early, so that tokens can be counted."""
    import concurrent.futures
    import xllamacpp
    rows = []
    for kind in arguments.llama_types:
        file = pathlib.Path(arguments.gguf).with_suffix(f".{kind}.gguf")
        if not file.exists():
            gguf_as(arguments.gguf, kind, file.with_suffix(".tmp"))
            file.with_suffix(".tmp").rename(file)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(file)
        parameters.n_parallel = len(prompts) * arguments.completions
        parameters.n_ctx = parameters.n_parallel * (max(map(len, prompts)) + arguments.tokens)
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        parameters.kv_unified, parameters.warmup, parameters.verbosity = True, False, -1
        server = xllamacpp.Server(parameters)

        def complete(prompt):
            answer = server.handle_completions({
                "prompt": prompt, "n_predict": arguments.tokens, "n": arguments.completions, "ignore_eos": True, "cache_prompt": False,
                "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"], "seed": 7})
            answer = answer if isinstance(answer, dict) else json.loads(answer)
            assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * arguments.completions, answer

        clock = Clock()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(complete, prompts))
        rows.append(row(f"llama.cpp, {kind}", "generation", "", len(prompts) * arguments.completions * arguments.tokens, *clock.read(), peak()))
        del server
    return rows


PEERS = {
    "transformers": transformers_generate,
    "trl-adapter": lambda arguments, prompts: trl_step(arguments, prompts, True),
    "trl": lambda arguments, prompts: trl_step(arguments, prompts, False),
    "llama.cpp": llama_cpp_generate,
}


def best(rows):
    """The fastest round of each engine and part, by CPU-seconds per token."""
    kept = {}
    for found in rows:
        key = found["engine"], found["part"], found["trained"]
        if key not in kept or found["tokens_per_cpu_s"] > kept[key]["tokens_per_cpu_s"]:
            kept[key] = found
    return list(kept.values())


def table(rows):
    """A Markdown table, with the ratio of Troupe in f32 to each peer."""
    ours = {(found["part"], found["trained"]): found for found in rows if found["engine"] == "Troupe, float32"}
    yield "| part | trained | engine | tokens a CPU-second | CPU-s | wall s | peak MB | Troupe f32 is |"
    yield "|---|---|---|---|---|---|---|---|"
    for found in sorted(rows, key=lambda found: (found["part"], found["trained"], found["engine"] != "Troupe, float32")):
        own = ours.get((found["part"], found["trained"]))
        ratio = f"{own['tokens_per_cpu_s'] / found['tokens_per_cpu_s']:.1f}×" if own and own is not found else ""
        yield (f"| {found['part']} | {found['trained']} | {found['engine']} | {found['tokens_per_cpu_s']:.0f} | {found['cpu_s']:.1f} | "
               f"{found['wall_s']:.1f} | {found['peak_mb']} | {ratio} |")


def main():
    parser = argparse.ArgumentParser(description="A real model: Troupe beside transformers, TRL and llama.cpp.")
    parser.add_argument("--model", required=True, help="Hugging Face directory of the model")
    parser.add_argument("--gguf", help="the same model for llama.cpp")
    parser.add_argument("--llama-types", nargs="*", default=["f32", "bf16", "q8_0"], help="of llama.cpp's weights")
    parser.add_argument("--binaries", default="target/release", help="where Troupe's programs are")
    parser.add_argument("--env", default="math")
    parser.add_argument("--set", nargs="*", default=["encoding=full", "level=1", "largest=20", "turns=1"], help="settings of --env")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of a completion")
    parser.add_argument("--micro", type=int, default=8, help="TRL's micro-batch, sequences")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"], help="of Troupe's products")
    parser.add_argument("--updates", action=argparse.BooleanOptionalAction, default=True, help="with update and whole steps, or generation alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--processor", type=int, default=0, help="the one that everything is pinned to")
    parser.add_argument("--json", help="write all measurements to this file")
    parser.add_argument("--serve", nargs=2, metavar=("PEER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        os.sched_setaffinity(0, {arguments.processor})
        name, file = arguments.serve
        print(json.dumps(PEERS[name](arguments, json.loads(pathlib.Path(file).read_text()))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        troupe = Troupe(arguments, folder)
        prompts = folder / "prompts.json"
        prompts.write_text(json.dumps(troupe.prompts()))
        # PyTorch's MKL falls back to AVX2 on processors not made by Intel, unless told otherwise: README.md, "MKL and AVX-512".
        told = folder / "mkl_avx512.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", told, pathlib.Path(__file__).with_name("mkl_avx512.c")], check=True)
        environment = dict(os.environ, LD_PRELOAD=str(told))
        for index in range(arguments.rounds):
            turns = [("Troupe", troupe.measure), *((name, None) for name in arguments.peers)]
            for name, own in turns if index % 2 == 0 else reversed(turns):
                if name == "llama.cpp" and not arguments.gguf:
                    continue
                try:
                    if own:
                        rows += own()
                        continue
                    command = [sys.executable, __file__, *sys.argv[1:], "--serve", name, prompts]
                    output, *_ = measured(command, environment=environment)
                    rows += json.loads(output.splitlines()[-1])
                except RuntimeError as failure:
                    if own:
                        raise
                    print(f"real_model: {name} is left out: {str(failure).strip().splitlines()[-1]}", file=sys.stderr)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    lengths = f"{arguments.prompts} prompts, {arguments.completions} completions each, at most {arguments.tokens} tokens"
    print(f"{pathlib.Path(arguments.model).name}: {lengths}; one thread; best of {arguments.rounds} rounds\n")
    print("\n".join(table(best(rows))))


if __name__ == "__main__":
    main()
