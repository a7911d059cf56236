"""The checkpoints that make_goldens.py makes: one for each difference between families, files and number types.

Left out: how they are made."""

PADDING, TURN_START, STOP, UNKNOWN = 0, 1, 2, 3

# One entry a checkpoint. `gradient` holds the sampling temperature of its training batch.
CHECKPOINTS = {
    "qwen3-2-1-tied": dict(
        family="qwen3", seed=1, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=48, tied=True,
        rope_theta=1e6, gradient=1.0,
    ),
    "qwen3-6-3-untied": dict(
        family="qwen3", seed=2, hidden=40, layers=3, heads=6, kv_heads=3, head_dim=16, ffn=32, tied=False,
        rope_theta=1e4, shards="80KB", gradient=0.7,
    ),
    "qwen3-4-2-wide-head": dict(
        family="qwen3", seed=3, hidden=48, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=32, tied=True,
        rope_theta=1e6,
    ),
    "qwen3-4-4-old-config": dict(
        family="qwen3", seed=4, hidden=32, layers=2, heads=4, kv_heads=4, head_dim=16, ffn=48, tied=True,
        rope_theta=5e5, old_config=True,
    ),
    "qwen3-8-2-untied": dict(
        family="qwen3", seed=5, hidden=32, layers=2, heads=8, kv_heads=2, head_dim=16, ffn=48, tied=False,
        rope_theta=1e6, gradient=1.0,
    ),
    "qwen2-2-1-bias": dict(
        family="qwen2", seed=6, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=48, tied=True,
        rope_theta=1e6, gradient=1.0,
    ),
    "llama-2-1-scaled-rope": dict(
        family="llama", seed=7, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=32, ffn=48, tied=False,
        rope_theta=5e5,
        rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ), gradient=0.9,
    ),
    # Weights stored in 16 bits. The results are computed in f32, as in Troupe.
    "qwen3-4-2-bf16": dict(
        family="qwen3", seed=8, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=48, tied=True,
        rope_theta=1e6, dtype="bfloat16", stops=[STOP, TURN_START], gradient=1.0,
    ),
    "qwen2-4-2-bf16-shards": dict(
        family="qwen2", seed=9, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=48, tied=False,
        rope_theta=1e6, dtype="bfloat16", shards="40KB", old_config=True, gradient=1.0,
    ),
    "llama-4-1-f16": dict(
        family="llama", seed=10, hidden=32, layers=2, heads=4, kv_heads=1, head_dim=48, ffn=40, tied=True,
        rope_theta=5e5, dtype="float16",
        rope_scaling=dict(
            rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ), gradient=1.0,
    ),
    # Projections half as large and embeddings of size 1, closer to trained models. Errors do not grow from
    # layer to layer, so the error of 16-bit activations can be told from a mistake.
    "qwen3-4-2-calm": dict(
        family="qwen3", seed=11, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, tied=False,
        rope_theta=1e6, dtype="bfloat16", gradient=1.0, calm=True,
    ),
    "qwen2-4-2-calm": dict(
        family="qwen2", seed=12, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, tied=False,
        rope_theta=1e6, dtype="bfloat16", gradient=1.0, calm=True,
    ),
    "llama-4-1-calm": dict(
        family="llama", seed=13, hidden=64, layers=2, heads=4, kv_heads=1, head_dim=16, ffn=96, tied=False,
        rope_theta=5e5, dtype="bfloat16", gradient=1.0, calm=True,
    ),
    # A window shorter than max_position_embeddings and longer than every golden sequence; heads wider than hidden / heads.
    "mistral-4-2-window": dict(
        family="mistral", seed=14, hidden=48, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=40, tied=False,
        rope_theta=1e4, gradient=1.0, config=dict(sliding_window=128),
    ),
    "mistral-4-2-calm": dict(
        family="mistral", seed=15, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, tied=False,
        rope_theta=1e6, dtype="bfloat16", gradient=1.0, calm=True, config=dict(sliding_window=None),
    ),
    # Layers without rotary positions: the middle one of three, and the last of two.
    "smollm3-4-1-nope": dict(
        family="smollm3", seed=16, hidden=64, layers=3, heads=4, kv_heads=1, head_dim=16, ffn=40, tied=True,
        rope_theta=5e5, gradient=0.8, config=dict(no_rope_layer_interval=2),
    ),
    "smollm3-4-2-calm": dict(
        family="smollm3", seed=17, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, tied=False,
        rope_theta=5e6, dtype="bfloat16", gradient=1.0, calm=True, config=dict(no_rope_layers=[1, 0]),
    ),
    # Windows shorter than the sequences: in every layer; in the second of two; and in the layers without
    # rotary positions of a model with yarn scaling.
    "mistral-2-1-short-window": dict(
        family="mistral", seed=18, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=1.0, config=dict(sliding_window=20),
    ),
    "qwen2-2-1-layer-window": dict(
        family="qwen2", seed=19, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=0.9,
        config=dict(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    ),
    "smollm3-2-1-yarn": dict(
        family="smollm3", seed=20, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=1.0,
        config=dict(no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=33),
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-2-1-biases": dict(
        family="llama", seed=21, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=1.0, config=dict(attention_bias=True, mlp_bias=True),
    ),
    # Fused projections, rotary positions on 12 of each head's 16 elements, and a window.
    "phi3-2-1-partial": dict(
        family="phi3", seed=22, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=False,
        rope_theta=1e4, gradient=1.0,
        config=dict(sliding_window=30), rope_scaling=dict(partial_rotary_factor=0.75),
    ),
    # Like Phi-4-mini: LongRoPE's divisors for contexts up to the pretraining length, which
    # exceeds every golden sequence.
    "phi3-2-1-long-rope": dict(
        family="phi3", seed=31, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=1.0, config=dict(original_max_position_embeddings=128),
        rope_scaling=dict(
            rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3, 1.7, 2.5, 4.0],
            long_factor=[1.0, 1.5, 2.5, 6.0, 20.0, 40.0],
        ),
    ),
    # Layers with a window, full attention, a window; two rotary bases, one of them scaled; an attention
    # scale unlike the head's.
    "gemma3-2-1-local": dict(
        family="gemma3_text", seed=23, hidden=32, layers=3, heads=2, kv_heads=1, head_dim=32, ffn=24, tied=True,
        rope_theta=1e6, gradient=1.0, calm=True,
        config=dict(
            sliding_window=12, sliding_window_pattern=2, query_pre_attn_scalar=24,
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            ),
        ),
    ),
    # A dense layer, then a layer of four experts, of which each token uses two.
    "qwen3-moe-2-1": dict(
        family="qwen3_moe", seed=24, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=24, tied=True,
        rope_theta=1e4, gradient=1.0,
        config=dict(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=2, norm_topk_prob=True,
        ),
    ),
    # Dense layers by mlp_only_layers, then two layers of six experts, of which each token uses three; names
    # as in published configurations.
    "qwen3-moe-4-2-dense-first": dict(
        family="qwen3_moe", seed=25, hidden=40, layers=3, heads=4, kv_heads=2, head_dim=16, ffn=24, tied=False,
        rope_theta=1e6, gradient=0.8, old_config=True,
        config=dict(
            num_experts=6, num_experts_per_tok=3, moe_intermediate_size=8, mlp_only_layers=[0], norm_topk_prob=False,
        ),
    ),
}
