"""A training micro-batch in PyTorch on a GPU, compiled: the peer of `update --device cuda`.

The decoder of torch_decode.py with random weights, forward and backward over one micro-batch of a shape P,R,K (see
update_shapes.py). The loss is the mean of weighted log-probabilities of the completions' tokens; logits are computed chunk by
chunk. Two layouts of the same groups:

    separate   each completion after a copy of its prompt, with causal scaled_dot_product_attention: trainers without sharing
    shared     each group once, as a tree, with flex_attention's block mask: query i sees key j if j <= i < end[j]

`--check` requires that both give the same loss and the same gradient of the embedding. Prints one JSON object for each
measurement; a layout that does not run is an object with "skipped". Left out: the optimizer, the smallest part of `update`.
"""

import argparse
import json
import statistics
import sys

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
from torch_decode import Decoder, seconds
from update_shapes import cost

CHUNK = 1024


class Groups:
    """Random groups of a shape: ids and positions in one layout's rows, the positions that predict tokens, and attention."""

    def __init__(self, shape, count, layout, vocabulary, device):
        prompt, completion, branches = shape
        draw = torch.Generator().manual_seed(1)
        prompts = torch.randint(vocabulary, (count, 1, prompt), generator=draw)
        completions = torch.randint(vocabulary, (count, branches, completion), generator=draw)
        inputs, suffix = completions[:, :, :-1], completion - 1
        own = torch.arange(prompt, prompt + suffix)
        if layout == "separate":
            ids = torch.cat([prompts.expand(-1, branches, -1), inputs], 2).flatten(0, 1)
            positions = torch.arange(prompt + suffix)
            sources = torch.arange(prompt - 1, prompt + suffix).repeat(branches)
            rows = torch.arange(branches).repeat_interleave(completion)
            per_group = branches
        else:
            ids = torch.cat([prompts[:, 0], inputs.flatten(1)], 1)
            positions = torch.cat([torch.arange(prompt), own.repeat(branches)])
            starts = prompt + suffix * torch.arange(branches)[:, None]
            sources = torch.cat([torch.full((branches, 1), prompt - 1), starts + torch.arange(suffix)], 1).flatten()
            rows, per_group = torch.zeros_like(sources), 1
        length = ids.shape[1]
        first = (per_group * torch.arange(count)[:, None] + rows) * length
        self.ids, self.positions = ids.to(device), positions.to(device)
        self.sources, self.targets = (first + sources).flatten().to(device), completions.flatten().to(device)
        self.weights = torch.linspace(-1, 1, self.targets.numel(), device=device)
        self.end = None
        if layout == "shared":
            branch = torch.arange(branches).repeat_interleave(suffix)
            ends = torch.cat([torch.full((prompt,), length), prompt + suffix * (branch + 1)])
            self.end = ends.to(device)


class Trainer:
    """Loss and gradient of one micro-batch."""

    def __init__(self, config, groups, layout, device, compiled, recompute):
        length = groups.ids.shape[1]
        self.groups, self.recompute = groups, recompute
        self.decoder = Decoder(config, 1, int(groups.positions.max()) + 1, device, dtype_of(device))
        self.parameters = [self.decoder.embedding, self.decoder.norm]
        for layer in self.decoder.layers:
            self.parameters += [layer["qkv"], layer["output"], layer["gate_up"], layer["down"], *layer["norms"]]
        for parameter in self.parameters:
            parameter.requires_grad_()
        self.attend = self.separate
        if layout == "shared":
            end = groups.end
            if device.type == "cpu":
                # flex_attention has no backward pass on this device. A dense mask checks the rest.
                places = torch.arange(length)
                self.mask = (places <= places[:, None]) & (places[:, None] < end)
                self.attend = self.dense
            else:
                self.mask = create_block_mask(lambda b, h, query, key: (key <= query) & (query < end[key]), None, None, length,
                                              length, device=device)
                self.flex = torch.compile(flex_attention) if compiled else flex_attention
                self.attend = self.shared
        self.layer = torch.compile(self.one_layer) if compiled and layout == "separate" else self.one_layer

    def separate(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def dense(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=True)

    def shared(self, q, k, v):
        return self.flex(q, k, v, block_mask=self.mask, enable_gqa=True)

    def one_layer(self, x, index):
        return self.decoder.layer(x, index, self.groups.positions, lambda _, q, k, v: self.attend(q, k, v))

    def logprobs(self, hidden, targets):
        """Log-probabilities [n] of targets [n] from hidden states [n, width]."""
        logits = functional.linear(hidden, self.decoder.embedding).float()
        return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]

    def run(self):
        """The loss; gradients are added to `.grad`."""
        groups, decoder = self.groups, self.decoder
        x = decoder.embedding[groups.ids]
        for index in range(len(decoder.layers)):
            x = checkpoint(self.layer, x, index, use_reentrant=False) if self.recompute else self.layer(x, index)
        hidden = decoder.normed(x, decoder.norm).flatten(0, 1)[groups.sources]
        found = [checkpoint(self.logprobs, hidden[at : at + CHUNK], groups.targets[at : at + CHUNK], use_reentrant=False)
                 for at in range(0, len(groups.targets), CHUNK)]
        loss = (torch.cat(found) * groups.weights).mean()
        loss.backward()
        return loss


def dtype_of(device):
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def build(arguments, config, layout, device):
    torch.manual_seed(1)
    groups = Groups(arguments.shape, arguments.groups, layout, config["vocab_size"], device)
    return Trainer(config, groups, layout, device, arguments.compile, arguments.recompute)


def measure(arguments, config, layout, device):
    work = cost(config, *arguments.shape, arguments.groups)
    line = {"measure": "train", "layout": layout, "shape": arguments.shape, "groups": arguments.groups}
    try:
        trainer = build(arguments, config, layout, device)
        trainer.run()
        taken = statistics.median(seconds(trainer.run, device) for _ in range(arguments.repeats))
    except Exception as error:  # one layout's failure does not stop the other
        line["skipped"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    else:
        # Both count the operations of the shared layout; a layout that repeats prompts does
        # more for the same result.
        line.update(seconds=taken, tokens_per_second=work["tokens"] / taken, operations=work["operations"])
    print(json.dumps(line), flush=True)


def check(arguments, config, device):
    """Checks that the two layouts give the same loss and gradient."""
    found = []
    for layout in ("separate", "shared"):
        trainer = build(arguments, config, layout, device)
        found.append((trainer.run().detach(), trainer.decoder.embedding.grad))
    (loss, gradient), (other, beside) = found
    gap = abs(loss - other).item(), ((gradient - beside).norm() / gradient.norm()).item()
    print(json.dumps({"measure": "check", "loss": loss.item(), "gap": gap[0], "gradient_gap": gap[1]}), flush=True)
    if max(gap) > (1e-4 if device.type == "cpu" else 3e-2):
        sys.exit("torch_train.py: the layouts differ")


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description="Speed of a training micro-batch in PyTorch.")
    parser.add_argument("--config", required=True, help="config.json of a Qwen3 model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", type=numbers, default=[1024, 1024, 4], help="P,R,K")
    parser.add_argument("--groups", type=int, default=3, help="groups of a micro-batch [default: 3]")
    parser.add_argument("--layouts", default="separate,shared")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--recompute", action="store_true", help="keep nothing of a layer but its input")
    parser.add_argument("--check", action="store_true", help="compare the layouts' loss and gradient instead")
    arguments = parser.parse_args()
    with open(arguments.config, encoding="utf-8") as file:
        config = json.load(file)
    device = torch.device(arguments.device)
    if arguments.check:
        return check(arguments, config, device)
    for layout in arguments.layouts.split(","):
        torch._dynamo.reset()
        measure(arguments, config, layout, device)


if __name__ == "__main__":
    main()
