"""Makes the goldens in gguf/: tiny random models as GGUF files, and the same models as Hugging Face checkpoints.

Why: the `gguf` package decides what the blocks of a format mean, the trained tokenizers what their texts are cut into. A file
holds each model as llama.cpp's converter writes it: rows of Llama's query and key heads are interleaved, Gemma's norm weights
are plus 1, and the experts of a layer are one tensor.

Left out: formats that have no quantizer in Python are only in blocks.safetensors, from random bytes.

Run:  python make_gguf_goldens.py      (needs torch, transformers, tokenizers, sentencepiece, gguf; a minute)
"""

import io
import json
import pathlib
import re

import gguf
import numpy
import safetensors.numpy
import sentencepiece
import tokenizers
import transformers

from make_text_goldens import SENTENCES, TEXTS

HERE = pathlib.Path(__file__).resolve().parent / "gguf"
Format = gguf.GGMLQuantizationType
TEMPLATE = "{%- for message in messages -%}{{- '<|user|>' + message.content + '<|end|>' -}}{%- endfor -%}"
SPECIAL = ["<|end|>", "<|user|>", "<|pad|>"]
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# By file: architecture, how texts are split, formats of the matrices in turn.
MODELS = {
    "llama": dict(arch="llama", pre="smollm", formats="Q4_0 Q4_1 Q5_0 Q5_1 Q8_0", tied=True, factor=8.0),
    "qwen2": dict(arch="qwen2", pre="qwen2", formats="F16", tied=False, bias=True, heads=(2, 1)),
    "qwen3": dict(arch="qwen3", pre="llama-bpe", formats="BF16 Q8_0", tied=True, norms=True),
    "smollm3": dict(arch="smollm3", pre="smaug-bpe", formats="F32", tied=False),
    "gpt2": dict(arch="llama", pre="gpt-2", formats="Q4_0", tied=True, text_only=True),
    "tekken": dict(arch="llama", pre="tekken", formats="Q4_0", tied=True, text_only=True),
    "sentence": dict(arch="llama", pre=None, formats="Q4_0", tied=True, text_only=True),
    "gemma3": dict(arch="gemma3", pre="qwen2", formats="Q8_0", tied=True, norms=True, post_norms=True),
    "phi3": dict(arch="phi3", pre="gpt-2", formats="BF16", tied=False, fused=True, rotated=12),
    "qwen3moe": dict(arch="qwen3moe", pre="qwen2", formats="Q4_0", tied=False, norms=True, experts=3),
}
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3, "qwen3moe": gguf.MODEL_ARCH.QWEN3MOE,
}
HIDDEN, FFN, HEAD, LAYERS, SIZE = 32, 64, 16, 1, 352
# Phi-3's divisors, within the pretraining context and beyond.
SHORT, LONG = [1.0, 1.1, 1.3, 1.7, 2.5, 4.0], [1.0, 1.5, 2.5, 6.0, 20.0, 40.0]


def byte_level(pre):
    """A byte-level BPE tokenizer trained on the sentences, with the word pattern of the models named `pre`."""
    parts = tokenizers.pre_tokenizers
    last = parts.ByteLevel(add_prefix_space=False, use_regex=pre in ("gpt-2", "smollm"))
    first = {"smollm": [parts.Digits(individual_digits=True)], "gpt-2": []}.get(pre)
    if first is None:
        pattern = {"qwen2": QWEN2, "tekken": TEKKEN}.get(pre, LLAMA3)
        first = [parts.Split(tokenizers.Regex(pattern), behavior="isolated")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre not in ("gpt-2", "smollm", "qwen2")))
    tokenizer.pre_tokenizer = parts.Sequence([*first, last])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    alphabet = parts.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_byte_level(writer, pre, texts):
    tokenizer = byte_level(pre)
    state = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    # Converters pad the embedding with these.
    padding = [f"[PAD{number}]" for number in range(len(tokens), SIZE)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + padding)
    writer.add_token_types(types + [5] * len(padding))
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    for name, token in (("eos", "<|end|>"), ("bos", "<|user|>"), ("pad", "<|pad|>")):
        getattr(writer, f"add_{name}_token_id")(vocabulary[token])
    cases = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append(dict(text=text, ids=ids, decoded=tokenizer.decode(ids, skip_special_tokens=True)))
    return cases, dict(bos=vocabulary["<|user|>"], eos=vocabulary["<|end|>"], pad=vocabulary["<|pad|>"])


def write_sentence_piece(writer, texts):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 8), model_writer=model, vocab_size=SIZE - 4, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, split_digits=True,
        minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.get_piece_size())
    kinds = [
        2 if processor.is_unknown(id) else 3 if processor.is_control(id) else 6 if processor.is_byte(id) else 1 for id in ids
    ]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([processor.id_to_piece(id) for id in ids])
    writer.add_token_scores([processor.get_score(id) for id in ids])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_unk_token_id(processor.unk_id())
    cases = [dict(text=text, ids=processor.encode(text), decoded=processor.decode(processor.encode(text))) for text in texts]
    return cases, dict(bos=processor.bos_id(), eos=processor.eos_id())


def heads_of(entry):
    return entry.get("heads", (4, 2))


def tensors_of(entry, random):
    """The checkpoint: names and values as Hugging Face has them."""
    def normal(*shape):
        return random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.2)

    def norm(width):
        return random.uniform(0.5, 1.5, width).astype(numpy.float32)

    tensors = {"model.embed_tokens.weight": normal(SIZE, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        heads, key_heads = heads_of(entry)
        tensors[f"{at}.input_layernorm.weight"] = norm(HIDDEN)
        if entry.get("fused"):
            tensors[f"{at}.self_attn.qkv_proj.weight"] = normal((heads + 2 * key_heads) * HEAD, HIDDEN)
        for name, rows in (("q", heads), ("k", key_heads), ("v", key_heads)):
            if entry.get("fused"):
                continue
            tensors[f"{at}.self_attn.{name}_proj.weight"] = normal(rows * HEAD, HIDDEN)
            if entry.get("bias"):
                tensors[f"{at}.self_attn.{name}_proj.bias"] = normal(rows * HEAD)
            if entry.get("norms") and name != "v":
                tensors[f"{at}.self_attn.{name}_norm.weight"] = norm(HEAD)
        tensors[f"{at}.self_attn.o_proj.weight"] = normal(HIDDEN, heads * HEAD)
        tensors[f"{at}.post_attention_layernorm.weight"] = norm(HIDDEN)
        if entry.get("post_norms"):
            tensors[f"{at}.pre_feedforward_layernorm.weight"] = norm(HIDDEN)
        if entry.get("experts"):
            tensors[f"{at}.mlp.gate.weight"] = normal(entry["experts"], HIDDEN)
        if entry.get("fused"):
            tensors[f"{at}.mlp.gate_up_proj.weight"] = normal(2 * FFN, HIDDEN)
        for block in [f"mlp.experts.{number}" for number in range(entry["experts"])] if "experts" in entry else ["mlp"]:
            for name, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
                if name == "down" or not entry.get("fused"):
                    tensors[f"{at}.{block}.{name}_proj.weight"] = normal(*shape)
        if entry.get("post_norms"):
            tensors[f"{at}.post_feedforward_layernorm.weight"] = norm(HIDDEN)
    tensors["model.norm.weight"] = norm(HIDDEN)
    if not entry["tied"]:
        tensors["lm_head.weight"] = normal(SIZE, HIDDEN)
    return tensors


def save(tensors, name):
    (HERE / name).write_bytes(safetensors.numpy.save(tensors))


def interleave(values, heads):
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def separate(values, heads):
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def stacked(tensors):
    """The tensors of a file by the checkpoint's names; a layer's experts are one tensor with several names."""
    whole = {}
    for name, values in tensors.items():
        together = re.sub(r"experts\.\d+\.", "experts.", name)
        whole.setdefault(together, []).append((name, values))
    for together, parts in whole.items():
        values = [values for _, values in parts]
        yield together, [name for name, _ in parts], numpy.stack(values) if ".experts." in together else values[0]


def make(name, entry, number):
    random = numpy.random.default_rng(number)
    arch, path = entry["arch"], HERE / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, arch)
    heads, key_heads = heads_of(entry)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    if arch != "gemma3":
        writer.add_rope_dimension_count(entry.get("rotated", HEAD))
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(SIZE)
    writer.add_chat_template(TEMPLATE)
    if entry["pre"] is None:
        texts, special = write_sentence_piece(writer, [text for text in TEXTS if "<|" not in text])
    else:
        texts, special = write_byte_level(writer, entry["pre"], TEXTS)
    names = gguf.get_tensor_name_map(ARCHITECTURES[arch], LAYERS)
    if arch == "gemma3":
        writer.add_sliding_window(8)
    if arch == "phi3":
        writer.add_sliding_window(0)
        writer.add_rope_scaling_orig_ctx_len(128)
        writer.add_rope_scaling_attn_factors(1.25)
        writer.add_tensor("rope_factors_long.weight", numpy.array(LONG, dtype=numpy.float32))
        writer.add_tensor("rope_factors_short.weight", numpy.array(SHORT, dtype=numpy.float32))
    if arch == "qwen3moe":
        writer.add_expert_count(entry["experts"])
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(FFN)
    formats, matrices, expected = entry["formats"].split(), 0, {}
    if "factor" in entry:
        # Computed by the converter from Llama 3's settings.
        config = transformers.LlamaConfig(
            head_dim=HEAD, hidden_size=HIDDEN, num_attention_heads=heads, max_position_embeddings=512,
            rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=entry["factor"], low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=8192),
        )
        scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = 1.0 / (5e5 ** (numpy.arange(0, HEAD, 2, dtype=numpy.float32) / HEAD))
        writer.add_tensor("rope_freqs.weight", (plain / scaled.numpy()).astype(numpy.float32))
    for theirs, parts, values in stacked(tensors_of(entry, random)):
        rows = heads if ".q_proj." in theirs else key_heads if ".k_proj." in theirs else None
        turned = rows is not None and arch in ("llama", "smollm3")
        values = interleave(values, rows) if turned else values
        own = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1:
            offset = numpy.float32(arch == "gemma3")
            writer.add_tensor(own, values + offset)
            values = values + offset - offset
        else:
            format = Format[formats[matrices % len(formats)]]
            matrices += 1
            data = gguf.quants.quantize(values, format)
            values = gguf.quants.dequantize(data, format).astype(numpy.float32)
            writer.add_tensor(own, data, raw_dtype=format)
        for part, name_of_part in enumerate(parts):
            of_part = values[part] if len(parts) > 1 else separate(values, rows) if turned else values
            expected[name_of_part] = numpy.ascontiguousarray(of_part)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not entry.get("text_only"):
        save(expected, f"{name}.safetensors")
    lines = ",\n".join(json.dumps(case) for case in texts)
    (HERE / f"{name}.json").write_text(f'{{"special": {json.dumps(special)},\n"texts": [\n{lines}\n]}}\n')
    # transformers ignores the head size in a Qwen3 file, and cannot read SmolLM3's.
    if arch in ("llama", "qwen2"):
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE, gguf_file=path.name)
        for theirs, values in expected.items():
            assert (model.state_dict()[theirs].float().numpy() == values).all(), (name, theirs)


def blocks():
    """Random blocks of every format with their values. Scales are typical of weights; two blocks have extreme ones."""
    random, tensors = numpy.random.default_rng(99), {}
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
              "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
    for name in ["F16", "BF16", *halves]:
        format = Format[name]
        values, size = gguf.GGML_QUANT_SIZES[format]
        count = 64 if values == 1 else 6 if values == 32 else 4
        data = random.integers(0, 256, (count, size), dtype=numpy.uint8)
        for at in halves.get(name, []):
            scales = random.standard_normal(count).astype(numpy.float16) * numpy.float16(0.01)
            scales[:2] = [65504.0, 6e-8]
            data[:, at:at + 2] = scales[:, None].view(numpy.uint8)
        if name in ("F16", "BF16"):
            data[:, 1] &= 0x3F
        tensors[f"{name}.blocks"] = data
        tensors[f"{name}.values"] = gguf.quants.dequantize(data, format).astype(numpy.float32).reshape(count, values)
    save(tensors, "blocks.safetensors")


def main():
    HERE.mkdir(exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    blocks()
    for number, (name, entry) in enumerate(MODELS.items()):
        make(name, entry, number)
        print(name, (HERE / f"{name}.gguf").stat().st_size)


if __name__ == "__main__":
    main()
