"""`rollout` by transformers, in eighty lines: any model that `generate` takes plays, and `group | advantage | update` train it.

    envs tasks plan-path --count 4 | python3 examples/rollout_transformers.py run/policy/current 'envs step plan-path' |
      group | advantage | update --policy run/policy

One policy plays all agents, one after another; candidates are scored on copies of the state and a random one is executed, as
`rollout` does. Needs `pip install torch transformers`, for an adapter also `peft`. Left out: agents who act at once, top-p, batches over
episodes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("directory", help="a version of a policy, such as run/policy/current; also one of an adapter")
parser.add_argument("command", help="an environment, such as 'envs step plan-path'")
parser.add_argument("--branches", type=int, default=8, help="candidates a turn")
parser.add_argument("--max-tokens", type=int, default=8, help="tokens of a completion at most")
options = parser.parse_args()
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
directory, command, K, MAX_TOKENS = os.path.realpath(options.directory), options.command, options.branches, options.max_tokens
if os.path.exists(f"{directory}/adapter_config.json"):
    from peft import PeftModel
    beside = f"{directory}/../base"  # of an adapter in a policy directory; elsewhere it is named
    base = os.path.realpath(beside) if os.path.exists(beside) else json.load(open(f"{directory}/adapter_config.json", encoding="utf-8"))["base_model_name_or_path"]
    tokenizer, model = AutoTokenizer.from_pretrained(base), PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), directory).eval()
else:
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModelForCausalLM.from_pretrained(directory).eval()
environment = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", bufsize=1)
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "greedy": False, "seed": 1}
version = json.load(open(f"{directory}/version.json", encoding="utf-8"))["version"]  # update trains the weights that played
torch.manual_seed(1), random.seed(1)


def ask(**request):
    environment.stdin.write(json.dumps({"request": 1, **request}) + "\n")
    return json.loads(environment.stdout.readline())


def generate(messages):
    """K completions: (prompt ids, [(ids, log-probabilities)])."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
    out = model.generate(prompt.repeat(K, 1), attention_mask=torch.ones_like(prompt).repeat(K, 1), do_sample=True, top_k=0, top_p=1.0,
                         temperature=1.0, max_new_tokens=MAX_TOKENS, return_dict_in_generate=True, output_scores=True)
    logprobs = torch.stack(out.scores, 1).float().log_softmax(-1)
    ids = out.sequences[:, prompt.shape[1]:]
    logprobs = logprobs.gather(2, ids[:, :, None])[:, :, 0].tolist()
    stops = model.generation_config.eos_token_id
    ends = lambda row: next((place + 1 for place, token in enumerate(row) if token in (stops if isinstance(stops, list) else [stops])), len(row))
    return prompt[0].tolist(), [(row[:ends(row)], logp[:ends(row)]) for row, logp in zip(ids.tolist(), logprobs)]


counts = {"tasks": 0, "episodes": 0, "groups_expected": 0, "groups": 0, "samples": 0}
for stream in (sys.stdin, sys.stdout):
    stream.reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale
for line in map(json.loads, sys.stdin):
    if line["type"] != "task":
        continue
    name, begun = f"0.{counts['episodes']}", ask(task=line)
    state, seen, over, success, total, turn = begun["state"], begun["observations"], False, False, 0.0, -1
    about = {"v": 1, "step": 0, "env": line["env"], "task": line["task"], "episode": name}
    while not over and (turn := turn + 1) < begun.get("turns", 4):
        for agent in begun["agents"]:
            if seen[agent] is None:  # it skips its turn
                continue
            prompt, completions = generate(seen[agent])
            texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in completions]
            answers = [ask(state=state, agent=agent, action=text) for text in texts]
            chosen = random.randrange(K)
            for branch, ((ids, logprobs), text, answer) in enumerate(zip(completions, texts, answers)):
                sample = {"type": "sample", **about, "turn": turn, "agent": agent, "branch": branch, "branches": K,
                          "id": f"{name}/{turn}/{agent}/{branch}", "selected": branch == chosen, "policy_version": version, "sampling": SAMPLING, "prompt": seen[agent], "completion": text,
                          "prompt_ids": prompt, "completion_ids": ids, "completion_logprobs": logprobs, "rewards": answer["rewards"],
                          "finish_reason": "length" if len(ids) == MAX_TOKENS else "stop", "reward": sum(answer["rewards"].values())}
                print(json.dumps(sample))
            counts = {**counts, "groups_expected": counts["groups_expected"] + 1, "groups": counts["groups"] + 1, "samples": counts["samples"] + K}
            state, seen, over = answers[chosen]["state"], answers[chosen]["observations"], answers[chosen]["terminated"]
            success, total = answers[chosen].get("success", False), total + sum(answers[chosen]["rewards"].values())
            if over:
                break
    print(json.dumps({"type": "episode", **about, "success": success, "turns": min(turn + 1, begun.get("turns", 4)), "reward": total,
                      "stop": "success" if success else "terminated" if over else "turns"}))
    counts = {**counts, "tasks": counts["tasks"] + 1, "episodes": counts["episodes"] + 1}
print(json.dumps({"type": "end", "v": 1, "stage": "rollout", "ok": True, "step": 0, "counts": counts, "after": [], "timing": {}}))
