"""Measures the effect of bf16 alone on log-probabilities: two paths of PyTorch over a stream's samples.

    rollout --policy run/policy --dtype bfloat16 … > samples.jsonl
    python bench/speed/bf16_paths.py DIR < samples.jsonl

transformers scores every completion twice in bf16, at the sample's temperature: token by token with a cache, as in sampling,
and in one forward pass, as in training. Prints the mean, the 99th percentile and the maximum of the differences, and the
same for the recorded log-probabilities against a pass in f32. `update --check` prints Troupe's numbers.
Needs `pip install torch transformers`.
"""

import json
import sys

import torch
import transformers


def logprobs(logits, completion, temperature):
    """Log-probabilities of the completion's tokens, from `logits` [length, vocabulary]."""
    distribution = torch.log_softmax(logits.float() / temperature, -1)
    return distribution.gather(1, torch.tensor(completion)[:, None])[:, 0]


def at_once(model, prompt, completion, temperature):
    logits = model(torch.tensor([prompt + completion[:-1]])).logits[0, len(prompt) - 1:]
    return logprobs(logits, completion, temperature)


def token_by_token(model, prompt, completion, temperature):
    step, cache, logits = torch.tensor([prompt]), None, []
    for token in completion:
        out = model(step, past_key_values=cache, use_cache=True)
        cache, step = out.past_key_values, torch.tensor([[token]])
        logits.append(out.logits[0, -1])
    return logprobs(torch.stack(logits), completion, temperature)


def report(name, differences):
    all_of_them = torch.cat(differences).abs()
    print(json.dumps({"between": name, "tokens": len(all_of_them), "mean": all_of_them.mean().item(),
                      "p99": all_of_them.quantile(0.99).item(), "max": all_of_them.max().item()}))


def main():
    torch.set_num_threads(1)
    path = sys.argv[1]
    load = transformers.AutoModelForCausalLM.from_pretrained
    half, single = (load(path, dtype=dtype).eval() for dtype in (torch.bfloat16, torch.float32))
    paths, recorded = [], []
    with torch.no_grad():
        for line in map(json.loads, sys.stdin):
            if line["type"] != "sample":
                continue
            work = line["prompt_ids"], line["completion_ids"], line["sampling"]["temperature"]
            paths.append(at_once(half, *work) - token_by_token(half, *work))
            recorded.append(at_once(single, *work) - torch.tensor(line["completion_logprobs"]))
    report("PyTorch's bf16 decoding and its bf16 forward pass", paths)
    report("what was recorded and PyTorch's forward pass in f32", recorded)


if __name__ == "__main__":
    main()
