"""Decoding by transformers' continuous batching with CUDA graphs: the strongest engine that the Python of a GPU machine has.

`generate_batch` schedules requests over a paged cache, shares the blocks of equal prompts, prepares the next batch while the GPU
works, and returns log-probabilities, as `rollout` does. Weights are random; sizes come from a config.json of the Qwen3 family.
Decoding is timed between the moment when all answers have begun and that when the first ends: prompts and the capture of graphs are
not counted.

Prints one JSON object for each measurement, with the fields of `generate --device`.
"""

import argparse
import json
import statistics

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig


def model(path, attention, device):
    """A model of the sizes in `path` with random weights, in the type of the device."""
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    return made.to(device).eval()


def answers(network, batching, prompts, branches, tokens):
    """The times at which the tokens of every answer came, of `branches` answers to each prompt."""
    sampled = GenerationConfig(max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1,
                               pad_token_id=0, num_return_sequences=branches)
    outputs = network.generate_batch(prompts, generation_config=sampled, continuous_batching_config=batching, record_timestamps=True)
    if len(outputs) != branches * len(prompts):
        raise SystemExit(f"torch_continuous.py: {len(outputs)} answers instead of {branches * len(prompts)}")
    for output in outputs.values():
        if output.error or not len(output.generated_tokens) == len(output.logprobs) == len(output.timestamps) == tokens:
            raise SystemExit(f"torch_continuous.py: an answer has no {tokens} tokens with log-probabilities: {output.error}")
    return [output.timestamps for output in outputs.values()]


@torch.inference_mode()
def measure(arguments, network, batch, branches, context):
    on_gpu = network.device.type == "cuda"
    small = {} if on_gpu else {"num_blocks": 64, "max_batch_tokens": 256, "page_size": 16}
    batching = ContinuousBatchingConfig(max_requests_per_batch=batch, allow_block_sharing=True, return_logprobs=True, seed=1,
                                        use_cuda_graph=on_gpu, use_async_batching=on_gpu, **small)
    tokens = arguments.ramp + arguments.steps

    def step():
        """Seconds of a step in which all answers get a token, or None after too few of them."""
        prompts = torch.randint(network.config.vocab_size, (batch // branches, context - tokens // 2)).tolist()
        times = answers(network, batching, prompts, branches, tokens)
        first, last = max(own[0] for own in times), min(own[-1] for own in times)
        inside = sum(first < time <= last for own in times for time in own)
        return (last - first) * batch / inside if inside >= batch * arguments.steps / 2 else None

    step()
    each = [step() for _ in range(arguments.repeats)]
    line = {"measure": "decode", "batch": batch, "context": context, "branches": branches}
    if None in each:
        line["skipped"] = "prompts were still being read when the first answers ended: a longer --ramp"
    else:
        taken = statistics.median(each)
        line |= {"tokens_per_second": batch / taken, "seconds": taken, "spread": (max(each) - min(each)) / taken}
    print(json.dumps(line, separators=(",", ":")), flush=True)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description="Decode speed of transformers' continuous batching.")
    parser.add_argument("--config", required=True, help="config.json of a Qwen3 model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attention", default="sdpa", help="an attention of transformers")
    parser.add_argument("--batch", type=numbers, default=[64, 256])
    parser.add_argument("--branches", type=numbers, default=[1, 4], help="requests with one prompt")
    parser.add_argument("--context", type=numbers, default=[1536])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--ramp", type=int, default=96, help="tokens of an answer during which other prompts may still be read")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    network = model(arguments.config, arguments.attention, torch.device(arguments.device))
    for context in arguments.context:
        for batch, branches in ((b, k) for b in arguments.batch for k in arguments.branches if b % k == 0):
            measure(arguments, network, batch, branches, context)


if __name__ == "__main__":
    main()
