"""Decoding in PyTorch on a GPU, compiled, with a static cache: the peer of the engine for devices.

One step of all rows is one compiled function (on CUDA a graph of kernels, so nothing waits for the CPU): embedding, layers,
tied head, softmax, sampling and log-probability. Keys and values are in a cache of fixed length. Every row has a separate cache
that includes its prompt, as in other libraries that generate this way. Weights are random; sizes come from a config.json of
the Qwen3 family. Prefill runs the same layers over whole prompts. A mask keeps scaled_dot_product_attention off its flash kernels,
so flex_attention, which has a kernel for decoding, is measured too, and the faster of the two is printed.

Prints one JSON object for each measurement, with the fields of `generate --device`.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Decoder:
    """A Qwen3 decoder with random weights and a cache [layers][2] of [rows, kv heads, context, head]."""

    def __init__(self, config, rows, context, device, dtype):
        self.config, self.epsilon = config, config["rms_norm_eps"]
        self.head, self.heads, self.kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
        hidden, inner, size = config["hidden_size"], config["intermediate_size"], self.head

        def matrix(outputs, inputs):
            return torch.randn(outputs, inputs, device=device, dtype=dtype) * inputs ** -0.5

        self.embedding = matrix(config["vocab_size"], hidden)
        self.layers = [{
            "qkv": matrix((self.heads + 2 * self.kv_heads) * size, hidden), "output": matrix(hidden, self.heads * size),
            "gate_up": matrix(2 * inner, hidden), "down": matrix(hidden, inner),
            "norms": [torch.ones(n, device=device, dtype=dtype) for n in (hidden, size, size, hidden)],
        } for _ in range(config["num_hidden_layers"])]
        self.norm = torch.ones(hidden, device=device, dtype=dtype)
        shape = (rows, self.kv_heads, context, size)
        self.cache = [[torch.randn(shape, device=device, dtype=dtype) for _ in range(2)] for _ in self.layers]
        frequencies = float(config.get("rope_theta", 1e6)) ** (-torch.arange(0, size, 2, device=device) / size)
        angles = torch.arange(context, device=device)[:, None] * frequencies
        self.cosines, self.sines = (torch.cat([f(angles)] * 2, 1).to(dtype) for f in (torch.cos, torch.sin))
        self.places = torch.arange(context, device=device)

    def normed(self, x, weight):
        return functional.rms_norm(x, (x.shape[-1],), weight, self.epsilon)

    def rotated(self, x, position):
        """x [rows, heads, tokens, head] at positions [tokens]."""
        first, second = x.chunk(2, -1)
        return x * self.cosines[position] + torch.cat([-second, first], -1) * self.sines[position]

    def layer(self, x, index, position, attend):
        """x [rows, tokens, hidden] -> the same after one layer; `attend(layer, q, k, v)` gives [rows, heads, tokens, head]."""
        rows, tokens, _ = x.shape
        layer = self.layers[index]
        before, q_norm, k_norm, after = layer["norms"]
        qkv = functional.linear(self.normed(x, before), layer["qkv"]).view(rows, tokens, -1, self.head).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = self.rotated(self.normed(q, q_norm), position), self.rotated(self.normed(k, k_norm), position)
        attended = attend(index, q, k, v).transpose(1, 2).reshape(rows, tokens, -1)
        x = x + functional.linear(attended, layer["output"])
        gate, up = functional.linear(self.normed(x, after), layer["gate_up"]).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, layer["down"])

    def forward(self, x, position, attend):
        """The rows after all layers and the final norm."""
        for index in range(len(self.layers)):
            x = self.layer(x, index, position, attend)
        return self.normed(x, self.norm)

    def attention(self, kind, position):
        """Attention of one query a row, over q [rows, heads, 1, head] and a layer's cache up to position [1]."""
        if kind == "flex":
            # Blocks beyond the position are read too: at most half the steps of a measurement.
            blocks = create_block_mask(lambda row, head, query, key: key <= position[0], None, None, 1, len(self.places),
                                       device=self.places.device)
            return lambda q, keys, values: flex_attention(q, keys, values, block_mask=blocks, enable_gqa=True)

        def masked(q, keys, values):
            mask = (self.places <= position)[None, None, None]
            return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)

        return masked

    def step(self, ids, position, attention):
        """ids [rows] at position [1] -> the next ids [rows] and their log-probabilities [rows]."""

        def attend(index, q, k, v):
            keys, values = self.cache[index]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            return attention(q, keys, values)

        hidden = self.forward(self.embedding[ids][:, None], position, attend)[:, 0]
        logprobs = torch.log_softmax(functional.linear(hidden, self.embedding).float(), -1)
        # argmax of p/e, with e exponential, is a sample from p.
        chosen = (logprobs.exp() / torch.empty_like(logprobs).exponential_()).argmax(-1)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]

    def prefill(self, prompts):
        """prompts [rows, tokens]: fills the cache with keys and values; returns the last token's hidden states."""
        position = self.places[: prompts.shape[1]]

        def attend(index, q, k, v):
            self.cache[index][0][: len(k), :, : k.shape[2]].copy_(k)
            self.cache[index][1][: len(v), :, : v.shape[2]].copy_(v)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return self.forward(self.embedding[prompts], position, attend)[:, -1]


def seconds(work, device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def decoded(arguments, decoder, kind, batch, context):
    """Seconds of a step with one kind of attention, compiled."""
    torch._dynamo.reset()
    device = decoder.places.device
    start = context - arguments.steps // 2
    # The mask is made for the last position, and read at each.
    position = torch.tensor([start + arguments.steps], device=device)
    attention = decoder.attention(kind, position)
    step = torch.compile(decoder.step, mode="reduce-overhead" if device.type == "cuda" else None, fullgraph=True)
    ids = torch.zeros(batch, dtype=torch.long, device=device)

    def decode(steps):
        nonlocal ids
        position.fill_(start)
        for _ in range(steps):
            ids = step(ids, position, attention)[0].clone()
            position.add_(1)

    decode(3)
    return statistics.median(seconds(lambda: decode(arguments.steps), device) for _ in range(arguments.repeats)) / arguments.steps


@torch.inference_mode()
def agree(decoder):
    """Both kinds of attention give the same rows, so that either may be measured."""
    device, config = decoder.places.device, decoder.config
    position = torch.tensor([len(decoder.places) // 2], device=device)
    keys, values = decoder.cache[0]
    query = torch.randn(len(keys), config["num_attention_heads"], 1, config["head_dim"], device=device, dtype=keys.dtype)
    masked, flex = (torch.compile(decoder.attention(kind, position))(query, keys, values) for kind in ("masked", "flex"))
    far = (masked.float() - flex.float()).abs().max().item()
    if far > (2e-2 if keys.dtype == torch.bfloat16 else 1e-4):
        raise SystemExit(f"torch_decode.py: the two kinds of attention differ by {far}")


@torch.inference_mode()
def measure(arguments, config, device, batch, context):
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    prompts = max(1, min(batch, 8))
    decoder = Decoder(config, batch, context + arguments.steps, device, dtype)
    times = {"masked": decoded(arguments, decoder, "masked", batch, context)}
    try:
        times["flex"] = decoded(arguments, decoder, "flex", batch, context)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler's own errors have many types
        print(f"torch_decode.py: flex_attention is not measured: {error}", file=sys.stderr)
    else:
        agree(decoder)
    kind, taken = min(times.items(), key=lambda item: item[1])
    print(json.dumps({"measure": "decode", "batch": batch, "context": context, "branches": 1, "attention": kind,
                      "tokens_per_second": batch / taken, "seconds": taken}), flush=True)
    if batch == max(arguments.batch):
        tokens = torch.randint(config["vocab_size"], (prompts, context), device=device)
        decoder.prefill(tokens)
        taken = statistics.median(seconds(lambda: decoder.prefill(tokens), device) for _ in range(arguments.repeats))
        print(json.dumps({"measure": "prefill", "context": context, "tokens_per_second": prompts * context / taken}), flush=True)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description="Decode speed of PyTorch with a static cache, compiled.")
    parser.add_argument("--config", required=True, help="config.json of a Qwen3 model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=numbers, default=[1, 16, 64, 256])
    parser.add_argument("--context", type=numbers, default=[512, 1536])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with open(arguments.config, encoding="utf-8") as file:
        config = json.load(file)
    for context in arguments.context:
        for batch in arguments.batch:
            try:
                measure(arguments, config, torch.device(arguments.device), batch, context)
            except torch.OutOfMemoryError:
                print(json.dumps({"measure": "decode", "batch": batch, "context": context, "branches": 1,
                                  "skipped": "out of memory"}), flush=True)


if __name__ == "__main__":
    main()
