#!/usr/bin/env python3
"""Training with fixed shapes: samples for `update`, and the operations of a micro-batch.

    update_shapes.py samples POLICY --shape 4096,512,8 --groups 16 | update --policy POLICY --objective nll …
    update_shapes.py cost POLICY --shape 4096,512,8 --tokens 32768

A shape is P,R,K: groups of K completions of R tokens to one prompt of P, with random tokens. Every group is a tree of P + K (R - 1)
nodes, since nothing follows the last token of a completion. A micro-batch is filled with groups.

Operations are the minimum that an update needs: six per weight and node (two forward, four backward). In the last layer only
the nodes that predict a completion's token have queries and a feed-forward part, and only they reach the head. Attention counts
fourteen per visible pair of nodes, head and element of the head: four forward (two products), ten backward (five products,
including the recomputed scores, as FlashAttention counts; arXiv 2307.08691). Recomputed layers and logits do not count.
"""

import argparse
import json
import pathlib
import random


def read(policy, name):
    return json.loads((pathlib.Path(policy) / "current" / name).read_text(encoding="utf-8"))


def samples(arguments, prompt, completion, branches):
    """A complete stream of samples for `update --objective nll`."""
    config, version = read(arguments.policy, "config.json"), read(arguments.policy, "version.json")["version"]
    draw = random.Random(1)

    def ids(count):
        return draw.choices(range(config["vocab_size"]), k=count)

    for group in range(arguments.groups):
        shared = ids(prompt)
        for branch in range(branches):
            print(json.dumps({
                "type": "sample", "v": 1, "step": 1, "shard": "0/1", "env": "shapes", "task": f"shapes/{group}",
                "episode": f"{group}.0", "turn": 0, "agent": "shapes", "branch": branch, "branches": branches,
                "id": f"{group}.0/{branch}", "policy_version": version, "group": str(group), "group_size": branches,
                "prompt_ids": shared, "completion_ids": ids(completion), "advantage": 1.0,
            }, separators=(",", ":")))
    count = arguments.groups * branches
    print(json.dumps({"type": "end", "v": 1, "stage": "advantage", "ok": True, "step": 1, "shard": "0/1",
                      "counts": {"samples": count, "samples_written": count}, "after": []}))


def cost(config, prompt, completion, branches, groups):
    """Nodes, scored nodes, tokens as counted by trainers without sharing, and operations of `groups` groups."""
    suffix = completion - 1
    nodes, scored = prompt + branches * suffix, 1 + branches * suffix
    own = branches * (suffix * prompt + suffix * (suffix + 1) // 2)
    pairs, scored_pairs = prompt * (prompt + 1) // 2 + own, prompt + own
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    queries, keys = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    by_query, by_key = hidden * (2 * queries + 3 * config["intermediate_size"]), 2 * hidden * keys
    linear = 6 * (by_query * (nodes * (layers - 1) + scored) + by_key * nodes * layers)
    head = 6 * config["vocab_size"] * hidden * scored
    attention = 14 * queries * (pairs * (layers - 1) + scored_pairs)
    found = {"nodes": nodes, "scored": scored, "tokens": branches * (prompt + completion),
             "linear": linear, "head": head, "attention": attention, "operations": linear + head + attention}
    return {"groups": groups, **{name: groups * number for name, number in found.items()}}


def main():
    parser = argparse.ArgumentParser(description="Samples of fixed shapes for `update`, and their operations.")
    parser.add_argument("what", choices=["samples", "cost"])
    parser.add_argument("policy", help="policy directory")
    parser.add_argument("--shape", required=True, help="P,R,K: tokens of a prompt, of a completion, completions of a prompt")
    parser.add_argument("--groups", type=int, default=1, help="groups of the samples [default: 1]")
    parser.add_argument("--tokens", type=int, default=32768, help="nodes of a micro-batch at most [default: 32768]")
    arguments = parser.parse_args()
    prompt, completion, branches = (int(number) for number in arguments.shape.split(","))
    if arguments.what == "samples":
        return samples(arguments, prompt, completion, branches)
    groups = max(1, arguments.tokens // (prompt + branches * (completion - 1)))
    print(json.dumps(cost(read(arguments.policy, "config.json"), prompt, completion, branches, groups)))


if __name__ == "__main__":
    main()
