"""Shared by both halves of the hand-written PyTorch yardstick: sizes, weights by Hugging Face name, RoPE.

Model: the Qwen3 family with grouped heads, q/k norms, SwiGLU and a tied head, as made by `policy init --preset bench`.
"""

import dataclasses
import json
import math
import pathlib

import torch


@dataclasses.dataclass
class Geometry:
    """Sizes of the decoder; the defaults equal `policy init --preset bench`."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    vocabulary: int = 512
    epsilon: float = 1e-6
    rope_theta: float = 1e6

    @property
    def queries_per_kv(self):
        return self.heads // self.kv_heads

    @property
    def qk_heads(self):
        return self.heads + self.kv_heads


@dataclasses.dataclass
class Shape:
    """The work of one measurement: every prompt and every completion has the same length."""

    groups: int = 32
    completions: int = 4
    prompt: int = 128
    completion: int = 64

    def unshared(self):
        """The same work with each sequence as a separate group, as in a library without prefix sharing."""
        return dataclasses.replace(self, groups=self.groups * self.completions, completions=1)

    @property
    def packed(self):
        """Tokens of a packed group: the last token of a completion is never an input."""
        return self.prompt + self.completions * (self.completion - 1)

    @property
    def generated(self):
        return self.groups * self.completions * self.completion

    @property
    def trained(self):
        """Tokens as trainers count them: prompt and completion of every sequence."""
        return self.groups * self.completions * (self.prompt + self.completion)


def load_policy(path):
    """Geometry and f32 tensors by name of a policy directory (its `current` version) or a plain model directory."""
    import safetensors.torch

    directory = pathlib.Path(path)
    if (directory / "current").exists():
        directory = directory / "current"
    config = json.loads((directory / "config.json").read_text())
    rope = config.get("rope_parameters") or config
    geometry = Geometry(
        hidden=config["hidden_size"], layers=config["num_hidden_layers"], heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"], ffn=config["intermediate_size"],
        vocabulary=config["vocab_size"], epsilon=config["rms_norm_eps"], rope_theta=float(rope["rope_theta"]),
    )
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
        tensors.update(safetensors.torch.load_file(file))
    if "lm_head.weight" in tensors or "model.layers.0.self_attn.q_norm.weight" not in tensors:
        raise SystemExit(f"torch_by_hand: {directory}: only Qwen3 with a tied head is measured")
    return geometry, {name: tensor.float() for name, tensor in tensors.items()}


def random_policy(geometry, seed):
    """Tensors by Hugging Face name, random but with logits of realistic size."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape):
        return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])

    def norm(size):
        return torch.rand(size, generator=generator) + 0.5

    g, tensors = geometry, {"model.embed_tokens.weight": matrix(geometry.vocabulary, geometry.hidden)}
    for layer in range(g.layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = norm(g.hidden)
        tensors[prefix + "self_attn.q_proj.weight"] = matrix(g.heads * g.head_dim, g.hidden)
        tensors[prefix + "self_attn.k_proj.weight"] = matrix(g.kv_heads * g.head_dim, g.hidden)
        tensors[prefix + "self_attn.v_proj.weight"] = matrix(g.kv_heads * g.head_dim, g.hidden)
        tensors[prefix + "self_attn.o_proj.weight"] = matrix(g.hidden, g.heads * g.head_dim)
        tensors[prefix + "self_attn.q_norm.weight"] = norm(g.head_dim)
        tensors[prefix + "self_attn.k_norm.weight"] = norm(g.head_dim)
        tensors[prefix + "post_attention_layernorm.weight"] = norm(g.hidden)
        tensors[prefix + "mlp.gate_proj.weight"] = matrix(g.ffn, g.hidden)
        tensors[prefix + "mlp.up_proj.weight"] = matrix(g.ffn, g.hidden)
        tensors[prefix + "mlp.down_proj.weight"] = matrix(g.hidden, g.ffn)
    tensors["model.norm.weight"] = norm(g.hidden)
    return tensors


def fused_weights(geometry, tensors):
    """One matrix for q|k|v and one for gate|up, all stored [in, out] (the faster operand order for MKL)."""
    layers = []
    for index in range(geometry.layers):
        def take(name):
            return tensors[f"model.layers.{index}.{name}.weight"]

        layers.append({
            "attention_norm": take("input_layernorm").clone(),
            "qkv": torch.cat([take(f"self_attn.{name}_proj") for name in "qkv"]).t().contiguous(),
            "q_norm": take("self_attn.q_norm").clone(),
            "k_norm": take("self_attn.k_norm").clone(),
            "output": take("self_attn.o_proj").t().contiguous(),
            "ffn_norm": take("post_attention_layernorm").clone(),
            "gate_up": torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")]).t().contiguous(),
            "down": take("mlp.down_proj").t().contiguous(),
        })
    return {
        "embedding": tensors["model.embed_tokens.weight"].clone(),
        "norm": tensors["model.norm.weight"].clone(),
        "layers": layers,
    }


def rotation_tables(geometry, positions):
    """RoPE as y = x * cosines + halves_swapped(x) * sines: two f32 tables [positions, D]."""
    half = geometry.head_dim // 2
    frequencies = geometry.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions.double()[:, None] * frequencies
    cosines = torch.cat([angles.cos(), angles.cos()], dim=1)
    sines = torch.cat([-angles.sin(), angles.sin()], dim=1)
    return cosines.float(), sines.float()


def swap_halves(tensor):
    """[..., D] with its two halves exchanged."""
    first, second = tensor.chunk(2, dim=-1)
    return torch.cat([second, first], dim=-1)
