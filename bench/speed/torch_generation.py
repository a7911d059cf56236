"""Generation of the hand-written PyTorch yardstick: shared prompts, static caches, no unused results.

Notation in shapes: G groups, K completions a group, N = G*K rows, P prompt length, C completion length, H KV heads,
R query heads a KV head, D head size, d hidden size, V vocabulary.
"""

import functools

import torch
import torch.nn.functional as functional
from torch_model import fused_weights, rotation_tables, swap_halves

# exp() of an attention score must not overflow; see Generator.load.
LARGEST_SCORE = 80.0


class Generator:
    """Samples K completions of each of G prompts; a prompt's keys and values are computed and stored once.

    Per layer: prompt keys [G*H, D, P] (transposed, which is the faster operand order) and values [G*H, P, D]; for the completions
    keys and values [G*K*H, C, D]. One product multiplies the K*R query rows of a group and KV head with its prompt.
    """

    def __init__(self, geometry, shape, tensors, dtype, compiled):
        self.geometry, self.shape, self.dtype = geometry, shape, dtype
        g, blocks = geometry, shape.groups * geometry.kv_heads
        self.rows = shape.groups * shape.completions

        def caches(*size):
            return [torch.zeros(*size, dtype=dtype) for _ in range(g.layers)]

        self.prompt_keys = caches(blocks, g.head_dim, shape.prompt)
        self.prompt_values = caches(blocks, shape.prompt, g.head_dim)
        self.own_keys = caches(blocks * shape.completions, shape.completion, g.head_dim)
        self.own_values = caches(blocks * shape.completions, shape.completion, g.head_dim)
        wrap = functools.partial(torch.compile, dynamic=False) if compiled else (lambda function: function)
        self.before_attention, self.after_attention = wrap(self.project_qkv), wrap(self.finish_layer)
        self.choose = wrap(self.sample)
        self.load(tensors)

    def load(self, tensors):
        """Takes weights: norm scales are folded into the matrices and tables that follow them."""
        g, fused = self.geometry, fused_weights(self.geometry, tensors)
        self.embedding = fused["embedding"].to(self.dtype)
        self.head = (fused["norm"][:, None] * fused["embedding"].t()).contiguous().to(self.dtype)
        cosines, sines = rotation_tables(g, torch.arange(self.shape.prompt + self.shape.completion))
        self.layers = []
        for layer in fused["layers"]:
            query_norm = layer["q_norm"] * g.head_dim**-0.5
            scales = torch.cat([query_norm.expand(g.heads, -1), layer["k_norm"].expand(g.kv_heads, -1)])
            # A normalized head has length sqrt(D), so a score is bounded and softmax needs no maximum.
            bound = g.head_dim**0.5 * layer["q_norm"].abs().max() * layer["k_norm"].abs().max()
            if bound > LARGEST_SCORE:
                raise SystemExit(f"torch_by_hand: a score may reach {bound:.0f}: softmax without a maximum would overflow")
            self.layers.append({
                "qkv": (layer["attention_norm"][:, None] * layer["qkv"]).to(self.dtype),
                "output": layer["output"].to(self.dtype),
                "gate_up": (layer["ffn_norm"][:, None] * layer["gate_up"]).to(self.dtype),
                "down": layer["down"].to(self.dtype),
                # [positions, q and k heads, D]
                "cosines": cosines[:, None] * scales,
                "sines": sines[:, None] * swap_halves(scales),
            })

    def project_qkv(self, x, weight, cosines, sines):
        """x [N, d] -> rotated q [N, heads, D] and k [N, H, D], and v [N, H, D]; the tables broadcast over [N, heads, D]."""
        g = self.geometry
        normed = functional.rms_norm(x, (g.hidden,), None, g.epsilon)
        mixed = torch.mm(normed, weight).view(x.shape[0], g.qk_heads + g.kv_heads, g.head_dim)
        qk = functional.rms_norm(mixed[:, : g.qk_heads].float(), (g.head_dim,), None, g.epsilon)
        qk = torch.addcmul(qk * cosines, swap_halves(qk), sines).to(self.dtype)
        return qk[:, : g.heads], qk[:, g.heads :], mixed[:, g.qk_heads :]

    def finish_layer(self, x, attended, output, gate_up, down):
        """Output projection and feed-forward with their residuals: x [N, d], attended [N, heads*D] -> [N, d]."""
        g = self.geometry
        x = torch.addmm(x, attended, output)
        mixed = torch.mm(functional.rms_norm(x, (g.hidden,), None, g.epsilon), gate_up)
        inner = functional.silu(mixed[:, : g.ffn]) * mixed[:, g.ffn :]
        return torch.addmm(x, inner, down)

    def logits(self, x):
        return torch.mm(functional.rms_norm(x, (self.geometry.hidden,), None, self.geometry.epsilon), self.head)

    def sample(self, logits, uniforms):
        """Inverse-CDF draw: logits [N, V], uniforms [N, 1] -> ids [N] and their logprobs [N]."""
        probabilities = torch.softmax(logits.float(), dim=-1)
        running = torch.cumsum(probabilities, dim=-1)
        ids = torch.searchsorted(running, uniforms * running[:, -1:]).clamp_max(self.geometry.vocabulary - 1)
        return ids.squeeze(1), torch.log(probabilities.gather(1, ids)).squeeze(1)

    def prefill(self, prompts, chunk):
        """Stores keys and values of prompts [G, P], `chunk` at a time; returns their last hidden states [G, d]."""
        g, s, last = self.geometry, self.shape, []
        for start in range(0, s.groups, chunk):
            x = self.embedding[prompts[start : start + chunk].reshape(-1)]
            blocks = slice(start * g.kv_heads, (start + chunk) * g.kv_heads)
            for index, layer in enumerate(self.layers):
                tables = (layer[name][: s.prompt].repeat(chunk, 1, 1) for name in ("cosines", "sines"))
                query, key, value = self.project_qkv(x, layer["qkv"], *tables)
                key, value = (t.view(chunk, s.prompt, g.kv_heads, g.head_dim).transpose(1, 2) for t in (key, value))
                self.prompt_keys[index][blocks].copy_(key.reshape(-1, s.prompt, g.head_dim).transpose(1, 2))
                self.prompt_values[index][blocks].copy_(value.reshape(-1, s.prompt, g.head_dim))
                query = query.view(chunk, s.prompt, g.heads, g.head_dim).transpose(1, 2)
                if index + 1 == g.layers:
                    # Only the last position is needed from here on.
                    query, x = query[:, :, -1:], x.view(chunk, s.prompt, -1)[:, -1]
                attended = functional.scaled_dot_product_attention(
                    query, key, value, is_causal=query.shape[2] > 1, scale=1.0, enable_gqa=True)
                attended = attended.transpose(1, 2).reshape(x.shape[0], -1)
                x = self.finish_layer(x, attended, layer["output"], layer["gate_up"], layer["down"])
            last.append(x)
        return torch.cat(last)

    def attention(self, query, index, length):
        """query [N, heads, D] against the group's prompt and the row's first `length` tokens -> [N, heads*D].

        Two products and one division: exp(scores) is summed over both parts, without concatenating scores.
        """
        g, s = self.geometry, self.shape
        grouped = (s.groups, s.completions, g.kv_heads, g.queries_per_kv)
        blocks = s.groups * g.kv_heads
        to_prompt = query.reshape(*grouped, g.head_dim).transpose(1, 2).reshape(blocks, -1, g.head_dim)
        to_own = query.reshape(-1, g.queries_per_kv, g.head_dim)
        prompt_weights = torch.bmm(to_prompt, self.prompt_keys[index]).float().exp_()
        own_weights = torch.bmm(to_own, self.own_keys[index][:, :length].transpose(1, 2)).float().exp_()
        total = prompt_weights.sum(dim=-1).view(s.groups, g.kv_heads, s.completions, -1).transpose(1, 2)
        total = total + own_weights.sum(dim=-1).view(grouped)
        prompt_part = torch.bmm(prompt_weights.to(self.dtype), self.prompt_values[index])
        own_part = torch.bmm(own_weights.to(self.dtype), self.own_values[index][:, :length])
        prompt_part = prompt_part.view(s.groups, g.kv_heads, s.completions, g.queries_per_kv, g.head_dim).transpose(1, 2)
        attended = (own_part.view(*grouped, g.head_dim) + prompt_part).div_(total.unsqueeze(-1))
        return attended.view(self.rows, -1)

    def step(self, ids, time_index):
        """One decode step: ids [N] at completion index `time_index` -> logits [N, V]."""
        position = self.shape.prompt + time_index
        x = self.embedding[ids]
        for index, layer in enumerate(self.layers):
            query, key, value = self.before_attention(
                x, layer["qkv"], layer["cosines"][position], layer["sines"][position])
            self.own_keys[index][:, time_index].copy_(key.reshape(-1, self.geometry.head_dim))
            self.own_values[index][:, time_index].copy_(value.reshape(-1, self.geometry.head_dim))
            attended = self.attention(query, index, time_index + 1)
            x = self.after_attention(x, attended, layer["output"], layer["gate_up"], layer["down"])
        return self.logits(x)

    @torch.inference_mode()
    def generate(self, prompts, seed, chunk):
        """Prompts [G, P] -> completions [G, K, C] and their logprobs [G, K, C], temperature 1."""
        s = self.shape
        uniforms = torch.rand(s.completion, self.rows, 1, generator=torch.Generator().manual_seed(seed))
        ids = torch.empty(s.completion, self.rows, dtype=torch.long)
        logprobs = torch.empty(s.completion, self.rows)
        logits = self.logits(self.prefill(prompts, chunk)).repeat_interleave(s.completions, dim=0)
        for index in range(s.completion):
            if index > 0:
                logits = self.step(ids[index - 1], index - 1)
            ids[index], logprobs[index] = self.choose(logits, uniforms[index])
        shape = (s.groups, s.completions, s.completion)
        return ids.t().reshape(shape), logprobs.t().reshape(shape)
