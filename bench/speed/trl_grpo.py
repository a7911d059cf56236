"""The usual library as a yardstick: TRL's GRPOTrainer on one CPU thread, with generation and training measured separately.

Model and work match `compare.py`: `policy init --preset bench` (weights from `--policy`, or random), 32 prompts of 128
tokens, 4 completions of exactly 64 tokens each, random rewards, temperature 1, PPO-clip without a KL term, AdamW. TRL's work
that we do not do is switched off (gradient checkpointing, bf16 autocast, logging of entropies, saving). `--micro` is its
micro-batch, which changes its speed by half: sweep it.

Left out: vLLM (it needs a GPU) and TRL's experimental tree packing (it needs a vLLM server).
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import datasets
import tokenizers
import torch
import transformers
import trl

VOCABULARY = 512


def word_tokenizer():
    """One id per word `wN`, so that a prompt of P words has P tokens and no completion ends early."""
    words = {"<pad>": 0, "<stop>": 1} | {f"w{index}": index for index in range(2, VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<stop>")


def load_model(policy, dtype):
    """The policy's model, or a random one of the bench preset's sizes."""
    if policy:
        current = os.path.join(policy, "current")
        path = current if os.path.exists(current) else policy
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, tie_word_embeddings=True)).to(dtype)


def prompts(arguments):
    generator = random.Random(7)
    rows = [" ".join(f"w{generator.randrange(2, VOCABULARY)}" for _ in range(arguments.prompt)) for _ in range(4096)]
    return datasets.Dataset.from_dict({"prompt": rows})


class Meter(transformers.TrainerCallback):
    """Splits the CPU time of each step into generation and the rest, and prints a line for each."""

    def __init__(self, arguments):
        self.arguments, self.generation, self.steps = arguments, [0.0, 0.0], 0

    def wrap(self, generate):
        """Wraps the model's `generate` with a timer."""
        def timed(*positional, **named):
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return generate(*positional, **named)
            finally:
                self.generation[0] += time.process_time() - cpu
                self.generation[1] += time.perf_counter() - wall
        return timed

    def on_step_begin(self, args, state, control, **_):
        if self.arguments.serve and self.steps > 0 and not sys.stdin.readline():
            os._exit(0)
        self.generation = [0.0, 0.0]
        self.start = time.process_time(), time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        cpu, wall = time.process_time() - self.start[0], time.perf_counter() - self.start[1]
        self.steps += 1
        if self.steps == 1:  # the first step warms up
            if self.arguments.serve:
                print(json.dumps({"engine": "trl", "part": "ready"}), flush=True)
            return
        sequences = self.arguments.groups * self.arguments.branches
        work = {
            "generation": (sequences * self.arguments.completion, *self.generation),
            "update": (
                sequences * (self.arguments.prompt + self.arguments.completion),
                cpu - self.generation[0], wall - self.generation[1]),
        }
        for part, (tokens, cpu_s, wall_s) in work.items():
            print(json.dumps({
                "engine": "trl", "part": part, "micro": self.arguments.micro, "tokens": tokens, "cpu_s": cpu_s,
                "wall_s": wall_s, "tokens_per_cpu_s": tokens / cpu_s,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


def main():
    parser = argparse.ArgumentParser(description="TRL's GRPOTrainer on the CPU: tokens a CPU-second.")
    parser.add_argument("--policy", help="policy or model directory with the weights (default: random ones)")
    parser.add_argument("--micro", type=int, default=16, help="sequences in a micro-batch")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the weights and all else")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2, help="steps after the first, which warms up")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help="one step for each line on stdin")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    transformers.utils.logging.set_verbosity_error()
    rewards = random.Random(11)
    batch = arguments.groups * arguments.branches
    meter = Meter(arguments)
    with tempfile.TemporaryDirectory() as directory:
        config = trl.GRPOConfig(
            output_dir=directory, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=arguments.micro, gradient_accumulation_steps=batch // arguments.micro,
            num_generations=arguments.branches, max_completion_length=arguments.completion,
            generation_kwargs={"min_new_tokens": arguments.completion}, temperature=1.0, beta=0.0, learning_rate=1e-4,
            max_steps=1_000_000 if arguments.serve else arguments.repeats + 1, save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, seed=7, dataloader_pin_memory=False,
        )
        trainer = trl.GRPOTrainer(
            model=load_model(arguments.policy, getattr(torch, arguments.dtype)), args=config, train_dataset=prompts(arguments),
            processing_class=word_tokenizer(), callbacks=[meter],
            reward_funcs=lambda completions, **_: [rewards.random() for _ in completions],
        )
        trainer.model.generate = meter.wrap(trainer.model.generate)
        trainer.train()


if __name__ == "__main__":
    main()
