"""Compares the log-probabilities in a stream of samples with transformers', for a policy of any size.

    rollout --policy DIR … | $PYTHON bench/speed/logprobs.py DIR --dtype float32

Prints the number of tokens, and the maximum and mean difference; how many prompts get different ids, and how many completions
a different text, from transformers' chat template and tokenizer; and for greedy samples, how many tokens differ from
transformers' choice after the same text. The golden tests do this for checkpoints of a few thousand weights; this script is for
checkpoints too large to commit. The two sides share only weights, tokenizer and sampling temperature.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers


def logprobs(model, sample):
    """The log-probability of each token of a completion, and whether transformers would have chosen it."""
    prompt, completion = sample["prompt_ids"], sample["completion_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    temperature = 1.0 if sample["sampling"]["greedy"] else sample["sampling"]["temperature"]
    distribution = torch.log_softmax(logits / temperature, -1)
    theirs = distribution[torch.arange(len(completion)), torch.tensor(completion)]
    return theirs, logits.argmax(-1) == torch.tensor(completion)


def other_texts(tokenizer, samples):
    """Counts prompts whose ids, and completions whose text, differ in transformers."""
    prompts = {json.dumps(sample["prompt"]): sample for sample in samples}
    def other(sample):
        return tokenizer.apply_chat_template(sample["prompt"], add_generation_prompt=True, return_dict=False) != sample["prompt_ids"]
    completions = [tokenizer.decode(sample["completion_ids"], skip_special_tokens=True) != sample["completion"] for sample in samples]
    return sum(map(other, prompts.values())), len(prompts), sum(completions)


def main():
    parser = argparse.ArgumentParser(description="Compares a stream's log-probabilities with those of transformers.")
    parser.add_argument("policy", help="policy or model directory; the version that the samples come from")
    parser.add_argument("--dtype", choices=["float64", "float32", "bfloat16"], default="float32",
                        help="what transformers computes in; float64 shows the rounding error of the samples, beside transformers' own in float32")
    arguments = parser.parse_args()
    current = os.path.join(arguments.policy, "current")
    path = current if os.path.exists(current) else arguments.policy
    load = lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    model = load(arguments.dtype)
    samples = [sample for sample in map(json.loads, sys.stdin) if sample["type"] == "sample"]
    if not samples:
        raise SystemExit("logprobs: stdin holds no sample")
    theirs, chosen = map(torch.cat, zip(*(logprobs(model, sample) for sample in samples)))
    ours = torch.cat([torch.tensor(sample["completion_logprobs"]) for sample in samples])
    found = (ours - theirs).abs()
    print(f"{len(found)} tokens: largest difference {found.max():.1e}, mean {found.mean():.1e}")
    if arguments.dtype == "float64":
        model = load("float32")
        found = (torch.cat([logprobs(model, sample)[0] for sample in samples]) - theirs).abs()
        print(f"transformers in float32: largest difference {found.max():.1e}, mean {found.mean():.1e}")
    if all("prompt" in sample for sample in samples):
        prompts, of, texts = other_texts(transformers.AutoTokenizer.from_pretrained(path), samples)
        print(f"{prompts} of {of} prompts have other ids, {texts} of {len(samples)} completions another text")
    if all(sample["sampling"]["greedy"] for sample in samples):
        print(f"greedy: {(~chosen).sum()} of {len(chosen)} tokens are not transformers' own choice")


if __name__ == "__main__":
    main()
