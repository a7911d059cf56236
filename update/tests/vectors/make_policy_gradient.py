"""Writes policy_gradient.safetensors: the gradient of (1/N) sum of -A * sum of log pi(token) by PyTorch's autograd, in f64, for the
samples of a golden checkpoint; the loss is in the file's metadata. The loss of MAGRPO (arXiv 2508.04652, equation 2).

Run in this folder with torch, transformers and safetensors at hand: python make_policy_gradient.py
"""

import json
import pathlib

import safetensors.torch
import torch
from transformers import Qwen3ForCausalLM

GOLDEN = pathlib.Path("../../../tests/golden/qwen3-2-1-tied")

model = Qwen3ForCausalLM.from_pretrained(GOLDEN, attn_implementation="eager", dtype=torch.float64)
samples = [json.loads(line) for line in (GOLDEN / "samples.jsonl").read_text().splitlines()]
samples = [sample for sample in samples if sample["type"] == "sample"]
loss = torch.zeros((), dtype=torch.float64)
for sample in samples:
    prompt, completion = sample["prompt_ids"], torch.tensor(sample["completion_ids"])
    logits = model(torch.tensor([prompt + sample["completion_ids"]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / sample["sampling"]["temperature"], -1).gather(1, completion[:, None])
    loss = loss - sample["advantage"] * logprobs.sum() / len(samples)
loss.backward()
gradient = {name: parameter.grad.float().contiguous() for name, parameter in model.named_parameters()}
safetensors.torch.save_file(gradient, "policy_gradient.safetensors", {"loss": repr(loss.item())})
print(len(samples), loss.item())
