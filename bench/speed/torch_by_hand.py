"""The yardstick: generation and one training step in hand-tuned PyTorch, on one CPU thread.

Why: a ratio against an untuned library says little. These scripts use the same ideas as our stages: a group's prompt is
computed and stored once and shared by its completions; logits are computed only where a token is scored; the last layer of a
prompt stops at its keys and values; the compiler fuses elementwise work (`--compile`). The halves are in
torch_generation.py and torch_update.py; this file checks them against each other and measures them.

Left out: stop tokens, ragged lengths, tokenizing, writing files. `bench/speed/README.md` says how to run it.
"""

import argparse
import json
import math
import resource
import sys
import time

import torch
from torch_generation import Generator
from torch_model import Geometry, Shape, load_policy, random_policy
from torch_update import Trainer

CHECK_TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.15}



def batch(geometry, shape, seed):
    """Random prompts [G, P], completions [G, K, C] and advantages [G, K] of random rewards."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(geometry.vocabulary, (shape.groups, shape.prompt), generator=generator)
    completions = torch.randint(
        geometry.vocabulary, (shape.groups, shape.completions, shape.completion), generator=generator)
    rewards = torch.rand(shape.groups, shape.completions, generator=generator)
    if shape.completions == 1:
        return prompts, completions, rewards - 0.5
    deviation = rewards.std(dim=1, keepdim=True)
    return prompts, completions, (rewards - rewards.mean(dim=1, keepdim=True)) / (deviation + 1e-6)


def separately(prompts, completions, *others):
    """Splits the sequences into groups of one."""
    count = completions.shape[1]
    return (prompts.repeat_interleave(count, 0), completions.reshape(-1, 1, completions.shape[2]),
            *(other.reshape(-1, 1, *other.shape[2:]) for other in others))


def check(geometry, tensors, dtype, compiled):
    """Decoded logprobs equal a full forward pass; shared gradients equal separate ones; returns the differences."""
    shape = Shape(groups=2, completions=3, prompt=19, completion=7)
    generator = Generator(geometry, shape, tensors, dtype, compiled)
    prompts, _, advantages = batch(geometry, shape, 5)
    completions, sampled = (tensor.clone() for tensor in generator.generate(prompts, 3, 1))
    trainer = Trainer(geometry, shape, tensors, dtype, compiled, 1)
    with torch.no_grad():
        scored = trainer.logprobs(trainer.pack(prompts, completions), completions)
    decode_difference = (scored - sampled).abs().max().item()

    old = sampled.clone() + 0.3 * torch.randn(sampled.shape, generator=torch.Generator().manual_seed(1))
    trainer.accumulate(prompts, completions, old, advantages)
    alone = Trainer(geometry, shape.unshared(), tensors, dtype, False, 2)
    alone.accumulate(*separately(prompts, completions, old, advantages))
    shared = torch.cat([p.grad.flatten() for p in trainer.parameters.values()])
    single = torch.cat([p.grad.flatten() for p in alone.parameters.values()])
    gradient_difference = ((shared - single).norm() / single.norm()).item()
    tolerance = CHECK_TOLERANCE[dtype]
    if decode_difference > tolerance or gradient_difference > tolerance:
        raise SystemExit(f"torch_by_hand: check failed: decode {decode_difference}, gradient {gradient_difference}")
    return {"decode_logprob_difference": decode_difference, "gradient_relative_difference": gradient_difference}


def measured(name, tokens, unique_tokens, work):
    """Runs `work` once; a dictionary of its CPU and wall seconds and tokens per CPU-second."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "engine": "torch-by-hand", "part": name, "tokens": tokens, "unique_tokens": unique_tokens, "cpu_s": cpu,
        "wall_s": wall, "tokens_per_cpu_s": tokens / cpu, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def prepare(arguments):
    """The two measurements as functions without arguments, not warmed up yet."""
    geometry = Geometry()
    tensors = None
    if arguments.policy:
        geometry, tensors = load_policy(arguments.policy)
    tensors = tensors or random_policy(geometry, arguments.seed)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[arguments.dtype]
    shape = Shape(arguments.groups, arguments.branches, arguments.prompt, arguments.completion)
    work = shape if arguments.share else shape.unshared()
    result = {"check": lambda: check(geometry, tensors, dtype, arguments.compile)}
    if arguments.part in ("generation", "both"):
        generator = Generator(geometry, work, tensors, dtype, arguments.compile)
        prompts = batch(geometry, shape, arguments.seed)[0].repeat_interleave(work.groups // shape.groups, 0)
        chunk = arguments.prefill_groups or math.gcd(work.groups, 4)
        unique = work.groups * work.packed
        result["generation"] = lambda: measured(
            "generation", work.generated, unique, lambda: generator.generate(prompts, arguments.seed, chunk))
    if arguments.part in ("update", "both"):
        trainer = Trainer(geometry, work, tensors, dtype, arguments.compile, arguments.micro_groups)
        prompts, completions, advantages = batch(geometry, shape, arguments.seed)
        old = torch.full(completions.shape, -math.log(geometry.vocabulary))
        if not arguments.share:
            prompts, completions, old, advantages = separately(prompts, completions, old, advantages)
        unique = work.groups * work.packed
        result["update"] = lambda: measured(
            "update", work.trained, unique, lambda: trainer.update(prompts, completions, old, advantages))
    return result


def main():
    parser = argparse.ArgumentParser(description="Generation and training of one batch, PyTorch written by hand.")
    parser.add_argument("--part", choices=("generation", "update", "both"), default="both")
    parser.add_argument("--policy", help="policy or model directory with the weights (default: random ones)")
    parser.add_argument("--no-share", dest="share", action="store_false", help="every sequence with a prompt of its own")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--prefill-groups", type=int, default=0, help="prompts prefilled at a time (default 4)")
    parser.add_argument("--micro-groups", type=int, default=2, help="groups in a micro-batch of the update")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--serve", action="store_true", help="one measurement for each line (a part's name) on stdin")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    parts = prepare(arguments)
    check_differences = parts.pop("check")
    if arguments.check:
        print(json.dumps({"engine": "torch-by-hand", "part": "check"} | check_differences()), flush=True)
    for measure in parts.values():
        measure()  # warm-up: allocator, code paths, compiler
    if arguments.serve:
        print(json.dumps({"engine": "torch-by-hand", "part": "ready"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(parts[line.strip()]()), flush=True)
        return
    for _ in range(arguments.repeats):
        for measure in parts.values():
            print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
