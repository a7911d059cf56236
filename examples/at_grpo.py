"""AT-GRPO in one file: from the samples of one training step to its gradient, in numpy and PyTorch.

This page is for reading; `group | advantage | update` do the same for large runs, bit for bit reproducible and
without Python. Equations are from Stronger-MAS (arXiv 2510.11062) and GRPO (arXiv 2402.03300).

    envs tasks plan-path --count 6 | rollout --policy run/shared --branches 4 > rollout.jsonl
    python3 examples/at_grpo.py rollout.jsonl run/shared/current

It prints the loss, and the norm of the gradient of each tensor. To compare with the programs, let them take one
step of plain gradient descent:

    group < rollout.jsonl | advantage |
      update --policy run/shared --optimizer sgd --lr 1 --lr-warmup 0 --minibatches 1 --max-grad-norm 0
    python3 examples/at_grpo.py rollout.jsonl run/shared/step-000000 --step run/shared/current --lr 1

Needs numpy, torch and transformers.
"""
import argparse
import collections
import json
import sys

import numpy
import torch
import transformers

EPSILON = 1e-6  # added to the standard deviation, in units of reward
CLIP = 0.2  # range of the probability ratio
transformers.utils.logging.disable_progress_bar()


def read(path, agents):
    """The samples of a rollout that these agents own; all without agents."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    samples = [line for line in lines if line["type"] == "sample" and (not agents or line["agent"] in agents)]
    if not samples:
        sys.exit(f"at_grpo.py: {path} has no samples of these agents\nhint: it reads the output of rollout")
    return samples


# 1. Group: compare what can be compared.
#
# At turn t of episode e, agent i draws K candidates from ONE prompt. They form the group g = (e, i, t). Candidates of
# another turn or agent answered another prompt, so their rewards say nothing about these.
def group(samples):
    groups = collections.defaultdict(list)
    for sample in samples:
        groups[sample["episode"], sample.get("node"), sample["turn"], sample["agent"]].append(sample)
    return list(groups.values())


# 2. Advantage: how much better than its siblings is a candidate?
#
#     A(c) = (R(c) - mean_g R) / (std_g R + epsilon)                                  (arXiv 2510.11062, equation 1)
#
# R(c) = alpha * team + local, the reward of candidate c by its own consequence; std divides by K - 1. A group whose
# rewards are all equal is flat: it says nothing, so its advantages are exactly zero.
def add_advantages(groups):
    for members in groups:
        rewards = numpy.array([member["reward"] for member in members])
        is_flat = len(rewards) < 2 or numpy.all(rewards == rewards[0])
        advantages = numpy.zeros_like(rewards) if is_flat else \
            (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)
        for member, advantage in zip(members, advantages):
            member["advantage"] = float(advantage)


# 3. Log-probabilities: under the weights now, log pi(token | prompt, earlier tokens), at the temperature of the draw.
def log_probabilities(model, sample):
    if sample["sampling"]["top_p"] < 1 or sample["sampling"]["top_k"] > 0:
        sys.exit("at_grpo.py: a sample was drawn with top-p or top-k\nhint: the ratio below assumes the whole distribution")
    prompt, completion = sample["prompt_ids"], torch.tensor(sample["completion_ids"])
    logits = model(torch.tensor([prompt + sample["completion_ids"]])).logits[0]
    # The logits at position p are for the token at p + 1; the last ones are for a token that was never drawn.
    logits = logits[len(prompt) - 1 : -1] / sample["sampling"]["temperature"]
    return torch.log_softmax(logits, dim=-1)[torch.arange(len(completion)), completion]


# 4. Loss: raise the probability of candidates that were better than their siblings, but not by more than the clip range.
#
#     r = exp(new - recorded)
#     l = -min(r * A, clip(r, 1 - clip, 1 + clip) * A)       of each token            (arXiv 2510.11062, equation 2)
#     L = sum of l over all tokens / number of tokens
#
# All completion tokens of all candidates count, losers included, and every token of a candidate has its advantage.
# In the first step after a rollout new = recorded, so r = 1; its gradient is the policy gradient A * grad(new).
def gradient(model, samples):
    """Accumulates the gradient in the model's parameters; returns the loss."""
    tokens = sum(len(sample["completion_ids"]) for sample in samples)
    total = 0.0
    for sample in samples:  # one by one: a batch would be faster, and no clearer
        if sample["advantage"] == 0.0:
            continue  # a flat group adds nothing to the sum; its tokens count in the average
        new = log_probabilities(model, sample)
        recorded = torch.tensor(sample["completion_logprobs"], dtype=new.dtype)
        ratio = torch.exp(new - recorded)
        clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
        loss = -torch.minimum(ratio * sample["advantage"], clipped * sample["advantage"]).sum() / tokens
        loss.backward()
        total += loss.item()
    return total


# 5. One policy for all roles trains on all samples; a policy for each role trains on the samples of its agents. That is
# all that separates the two: run this file once for each policy, with its agents.
def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", help="the output of rollout")
    parser.add_argument("policy", help="the version that drew the samples: a Hugging Face directory")
    parser.add_argument("--agent", action="append", help="an agent that this policy plays [default: all]")
    parser.add_argument("--step", help="compare: the version after one step of gradient descent")
    parser.add_argument("--lr", type=float, default=1.0, help="the learning rate of that step [default: %(default)s]")
    words = parser.parse_args()

    samples = read(words.samples, words.agent)
    groups = group(samples)
    add_advantages(groups)
    model = load(words.policy)
    loss = gradient(model, samples)
    print(f"{len(samples)} samples, {len(groups)} groups, loss {loss:.9f}")
    after = dict(load(words.step).named_parameters()) if words.step else {}
    worst = 0.0
    for name, parameter in model.named_parameters():
        line = f"{name:50} gradient {parameter.grad.norm():.6e}"
        if after:  # gradient descent moved the weights by -lr * gradient
            difference = ((parameter - after[name]) / words.lr - parameter.grad).abs().max().item()
            worst = max(worst, difference)
            line += f"  difference {difference:.1e}"
        print(line)
    if after:
        print(f"largest difference {worst:.2e}")
        sys.exit(worst > 1e-6)


if __name__ == "__main__":
    main()
