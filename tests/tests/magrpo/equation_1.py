"""Checks `advantage` against equation 1 of MAGRPO (arXiv 2508.04652), computed from the joint lines of parallel sampling."""

import collections
import json
import sys

lines = [json.loads(line) for line in sys.stdin]
rewards = collections.defaultdict(dict)
for line in lines:
    if line["type"] == "joint":
        rewards[line["episode"], line["branch"]][line["turn"]] = line["rewards"]
groups = collections.defaultdict(list)
for sample in lines:
    if sample["type"] == "sample":
        turns = rewards[sample["episode"], sample["branch"]].items()
        later = [parts["team"] + parts["local"][sample["agent"]] for turn, parts in turns if turn >= sample["turn"]]
        groups[sample["episode"], sample["agent"], sample["turn"]].append((sum(later), sample["advantage"]))
differences = [
    abs(value - sum(value for value, _ in group) / len(group) - advantage) for group in groups.values() for value, advantage in group
]
print(json.dumps({"groups": len(groups), "samples": len(differences), "largest": max(differences)}))
