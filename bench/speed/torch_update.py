"""The training step of the hand-written PyTorch yardstick: groups packed as trees, one PPO-clip step with AdamW.

Notation in shapes: n groups of a micro-batch, K completions a group, P prompt length, C completion length,
S = P + K*(C-1) tokens of a packed group, H KV heads, R query heads a KV head, D head size, d hidden size.
"""

import math

import torch
import torch.nn.functional as functional
from torch_model import fused_weights, rotation_tables, swap_halves


class Trainer:
    """Weights, optimizer and the loss over packed groups: a group's prompt once, then its K completions."""

    def __init__(self, geometry, shape, tensors, dtype, compiled, micro_groups):
        self.geometry, self.shape, self.dtype, self.micro_groups = geometry, shape, dtype, micro_groups
        fused = fused_weights(geometry, tensors)
        self.parameters = {"embedding": fused["embedding"], "norm": fused["norm"]}
        for index, layer in enumerate(fused["layers"]):
            self.parameters.update({f"{index}.{name}": tensor for name, tensor in layer.items()})
        for tensor in self.parameters.values():
            tensor.requires_grad_()
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=1e-4, weight_decay=0.0, fused=True)
        inputs = shape.completion - 1
        positions = torch.cat([
            torch.arange(shape.prompt), (shape.prompt + torch.arange(inputs)).repeat(shape.completions)])
        cosines, sines = rotation_tables(geometry, positions)
        self.cosines, self.sines = cosines[:, None], sines[:, None]
        self.causal = torch.full((inputs, inputs), -math.inf).triu(1)
        self.loss = torch.compile(self.micro_loss, dynamic=False) if compiled else self.micro_loss

    def cast(self, tensor):
        return tensor.to(self.dtype)

    def normed(self, x, scale):
        return self.cast(functional.rms_norm(x, (self.geometry.hidden,), scale, self.geometry.epsilon))

    def attention(self, query, key, value):
        """q [n, rows, heads, D], k and v [n, S, H, D] -> [n, rows, heads*D]; q may start at the prompt's last token.

        The prompt attends causally to itself. Completions attend to the prompt in one product per group, and to themselves in one
        product per completion, so that only the causal half is computed and masked away.
        """
        g, s, n = self.geometry, self.shape, key.shape[0]
        inputs = s.completion - 1
        suffix = s.completions * inputs
        asked = query.shape[1] - suffix
        prompt_query, own_query = query.split([asked, suffix], dim=1)
        prompt_key, own_key = key.split([s.prompt, suffix], dim=1)
        prompt_value, own_value = value.split([s.prompt, suffix], dim=1)
        prompt_key, prompt_value = prompt_key.transpose(1, 2), prompt_value.transpose(1, 2)
        prompt_out = functional.scaled_dot_product_attention(
            prompt_query.transpose(1, 2), prompt_key, prompt_value, is_causal=asked > 1, scale=g.head_dim**-0.5,
            enable_gqa=True)
        prompt_out = prompt_out.transpose(1, 2).reshape(n, asked, -1)

        # [n, H, K, R, C-1, D] and [n, H, K, C-1, D]
        own_query = own_query.reshape(n, s.completions, inputs, g.kv_heads, g.queries_per_kv, g.head_dim)
        own_query = (own_query * g.head_dim**-0.5).permute(0, 3, 1, 4, 2, 5).contiguous()
        own_key, own_value = (
            t.reshape(n, s.completions, inputs, g.kv_heads, g.head_dim).permute(0, 3, 1, 2, 4) for t in (own_key, own_value))
        rows = g.queries_per_kv * inputs
        to_prompt = torch.matmul(own_query.view(n, g.kv_heads, -1, g.head_dim), prompt_key.transpose(2, 3))
        to_own = torch.matmul(own_query.view(n, g.kv_heads, s.completions, rows, g.head_dim), own_key.transpose(3, 4))
        to_own = to_own.view(n, g.kv_heads, s.completions, g.queries_per_kv, inputs, inputs) + self.causal
        scores = torch.cat(
            [to_prompt.view(n, g.kv_heads, -1, s.prompt), to_own.view(n, g.kv_heads, -1, inputs)], dim=-1)
        weights = self.cast(torch.softmax(scores, dim=-1, dtype=torch.float32))
        prompt_weights, own_weights = weights[..., : s.prompt], weights[..., s.prompt :]
        out = torch.matmul(prompt_weights, prompt_value).view_as(own_query)
        own_weights = own_weights.reshape(n, g.kv_heads, s.completions, rows, inputs)
        out = out + torch.matmul(own_weights, own_value).view_as(own_query)
        out = out.permute(0, 2, 4, 1, 3, 5).reshape(n, suffix, -1)
        return torch.cat([prompt_out, out], dim=1)

    def rotated(self, heads, scale):
        """q or k [n, S, heads, D]: normalized, scaled by its weight, turned by RoPE."""
        heads = functional.rms_norm(heads.float(), (self.geometry.head_dim,), scale, self.geometry.epsilon)
        return self.cast(heads * self.cosines + swap_halves(heads) * self.sines)

    def logprobs(self, ids, targets):
        """Packed ids [n, S], targets [n, K, C] -> logprobs [n, K, C] under the current weights."""
        g, s, w = self.geometry, self.shape, self.parameters
        n, total = ids.shape
        x = w["embedding"][ids]
        for index in range(g.layers):
            mixed = torch.matmul(self.normed(x, w[f"{index}.attention_norm"]), self.cast(w[f"{index}.qkv"]))
            mixed = mixed.view(n, total, -1, g.head_dim)
            query, key, value = mixed.split([g.heads, g.kv_heads, g.kv_heads], dim=2)
            query, key = self.rotated(query, w[f"{index}.q_norm"]), self.rotated(key, w[f"{index}.k_norm"])
            if index + 1 == g.layers:
                # Only rows that predict a completion's token are needed from here on.
                query, x = query[:, s.prompt - 1 :], x[:, s.prompt - 1 :]
            x = x + torch.matmul(self.attention(query, key, value), self.cast(w[f"{index}.output"]))
            mixed = torch.matmul(self.normed(x, w[f"{index}.ffn_norm"]), self.cast(w[f"{index}.gate_up"]))
            gate, up = mixed.chunk(2, dim=-1)
            x = x + torch.matmul(functional.silu(gate) * up, self.cast(w[f"{index}.down"]))
        # x [n, 1 + K*(C-1), d]: the prompt's last token, whose logits all completions share, then
        # the completions' inputs.
        logits = torch.matmul(self.normed(x, w["norm"]), self.cast(w["embedding"].t())).float()
        table = torch.log_softmax(logits, dim=-1)
        first, rest = table.split([1, total - s.prompt], dim=1)
        first = first.squeeze(1).gather(1, targets[:, :, 0])
        rest = rest.gather(2, targets[:, :, 1:].reshape(n, -1, 1)).view(n, s.completions, -1)
        return torch.cat([first.unsqueeze(2), rest], dim=2)

    def micro_loss(self, ids, targets, old, advantages):
        """Sum of the PPO-clip terms of a micro-batch (arXiv 1707.06347, equation 7), negated."""
        ratio = torch.exp(self.logprobs(ids, targets) - old)
        advantages = advantages.unsqueeze(2)
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()

    def pack(self, prompts, completions):
        """[G, P] and [G, K, C] -> packed ids [G, S]."""
        return torch.cat([prompts, completions[:, :, :-1].reshape(prompts.shape[0], -1)], dim=1)

    def accumulate(self, prompts, completions, old, advantages):
        """Adds the batch's gradients to `.grad`; returns the loss (sum over tokens / tokens)."""
        ids, tokens, total = self.pack(prompts, completions), completions.numel(), 0.0
        for start in range(0, self.shape.groups, self.micro_groups):
            part = slice(start, start + self.micro_groups)
            loss = self.loss(ids[part], completions[part], old[part], advantages[part]) / tokens
            loss.backward()
            total += loss.item()
        return total

    def update(self, prompts, completions, old, advantages):
        """One optimizer step on G groups, the gradient norm clipped at 1; returns the loss."""
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.accumulate(prompts, completions, old, advantages)
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0, foreach=True)
        self.optimizer.step()
        return loss
