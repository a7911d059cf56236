"""Compares transformers and PEFT with `rollout --temperature 0` on held-out tasks, with the policies of a run.

    envs tasks math --set encoding=full --split test --count 100 |
        $PYTHON bench/speed/answers.py --step 'envs step math' --workflow check --max-tokens 32 --beside RUN/eval/step-000010.jsonl \\
            --policy solver=RUN/policies/solver --policy checker=RUN/policies/checker

Plays the episodes independently of Troupe: the environment through `envs step`, prompts through transformers' chat template,
tokens through its `generate`. Agents act one after another. Prints how many tasks were solved; and, for tasks that the
evaluation has too, how many the evaluation solved, how many ended alike, and how many have identical texts from all agents.
The two sides share only the policy directories (weights, adapter, tokenizer, template).
"""

import argparse
import json
import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers


def load(directory):
    """Loads a model and its tokenizer; an adapter's base is named in its configuration."""
    current = os.path.join(directory, "current")
    path = base = current if os.path.exists(current) else directory
    kind = transformers.AutoModelForCausalLM
    if os.path.exists(os.path.join(path, "adapter_config.json")):
        from peft import AutoPeftModelForCausalLM as kind

        with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
            base = json.load(file)["base_model_name_or_path"]
    model = kind.from_pretrained(path, dtype=torch.float32).eval()
    if base != path:
        model = model.merge_and_unload()  # the same function with fewer products
    return model, transformers.AutoTokenizer.from_pretrained(base)


def answer(model, tokenizer, messages, limit):
    """The greedy completion of a conversation, as text."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=limit, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


class Environment:
    """A program that answers requests of the step protocol."""

    def __init__(self, command):
        self.child = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.child.stdin.write(json.dumps({"request": 0, **request}) + "\n")
        self.child.stdin.flush()
        said = json.loads(self.child.stdout.readline())
        if "error" in said:
            raise SystemExit(f"answers: {said['error']}")
        return said


def play(environment, task, workflow, players, limit):
    """Plays an episode; returns whether it succeeded, and its texts in order."""
    begun = said = environment.ask(task=task, workflow=workflow)
    order = begun["order"]
    stages = [[agent] for agent in begun["agents"]] if order == "sequential" else order
    if order == "parallel" or any(len(stage) > 1 for stage in stages):
        raise SystemExit("answers: agents that act in parallel are left out")
    texts = []
    for _ in range(begun["turns"]):
        for (agent,) in stages:
            texts.append(answer(*players[agent], said["observations"][agent], limit))
            said = environment.ask(state=said["state"], agent=agent, action=texts[-1])
            if said["terminated"]:
                return said["success"], texts
    return False, texts


def main():
    parser = argparse.ArgumentParser(description="Answers tasks with transformers, beside an evaluation.")
    parser.add_argument("--step", required=True, metavar="COMMAND", help="the environment, such as 'envs step math'")
    parser.add_argument("--workflow", default="team", help="who acts, in which order [default: %(default)s]")
    parser.add_argument("--policy", action="append", required=True, metavar="AGENT=DIR")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--beside", required=True, metavar="FILE", help="an evaluation of the same policies")
    arguments = parser.parse_args()
    players = {agent: load(folder) for agent, folder in (pair.split("=", 1) for pair in arguments.policy)}
    environment = Environment(arguments.step)
    tasks = [line for line in map(json.loads, sys.stdin) if line["type"] == "task"]
    ours, spoken = {}, {}
    with open(arguments.beside, encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["type"] == "sample":
                spoken.setdefault(line["task"], []).append(line["completion"])
            elif line["type"] == "episode":
                ours[line["task"]] = line["success"]
    theirs = {task["task"]: play(environment, task, arguments.workflow, players, arguments.max_tokens) for task in tasks}
    both = [task for task in theirs if task in ours]
    print(f"transformers solved {sum(success for success, _ in theirs.values())} of {len(theirs)} tasks")
    print(f"of {len(both)} that rollout played, it solved {sum(ours[task] for task in both)};",
          f"{sum(ours[task] == theirs[task][0] for task in both)} ended alike,",
          f"{sum(spoken[task] == theirs[task][1] for task in both)} with the same texts")


if __name__ == "__main__":
    main()
