"""Makes a checkpoint with a vocabulary as large as Qwen3's, 151,936 tokens: hidden size 128, 2 layers, f32; or with all sizes of
Qwen3-0.6B, bf16.

Why: most of the cost of a full vocabulary (logits, their copies, the head's gradient, the tokenizer's tables) does not depend on
the size of the model, so a narrow model shows it on any machine. Qwen3-0.6B is the smallest model that people train.

The tokenizer is byte-level BPE with 151,643 tokens, trained on text that every Python installation has: sources and notes in the
interpreter's folder. It splits text into words like Qwen's and has Qwen's special tokens, with their ids. Weights are
random, so the model is only good for measuring cost.

Run:  python full_vocabulary.py DIRECTORY [narrow|0.6B]    (needs torch, transformers, tokenizers; takes some minutes)
"""

import pathlib
import sys

import tokenizers
import torch
import transformers

TEMPLATE = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/golden/text/thinking.jinja"
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LEARNED = 151_643
PADDED = 151_936
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT_BYTES = 60_000_000
SIZES = {
    "narrow": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   head_dim=32, max_position_embeddings=4096, dtype="float32"),
    "0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                 head_dim=128, max_position_embeddings=40960, dtype="bfloat16"),
}
KINDS = {".py", ".pyi", ".md", ".rst", ".txt"}


def texts():
    """Sources and notes of the installed packages in a fixed order, up to TEXT_BYTES."""
    root = pathlib.Path(transformers.__file__).resolve().parent.parent
    taken = 0
    for path in sorted(path for path in root.rglob("*") if path.suffix in KINDS and path.is_file()):
        text = path.read_text(errors="ignore")
        taken += len(text)
        if taken > TEXT_BYTES:
            return
        yield text


def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.normalizer = tokenizers.normalizers.NFC()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated")
    of_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, of_bytes])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=LEARNED, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts(), trainer)
    if made.get_vocab_size() != LEARNED:
        raise SystemExit(f"the texts give {made.get_vocab_size()} tokens and not {LEARNED}; install more packages")
    made.add_special_tokens(SPECIAL)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    template = TEMPLATE.read_text()
    for ours, qwen in [
        ("'[' + message.role + ']\\n'", "'<|im_start|>' + message.role + '\\n'"),
        ("[system]", "<|im_start|>system"), ("[assistant]", "<|im_start|>assistant"), ("[end]", "<|im_end|>"),
    ]:
        if ours not in template:
            raise SystemExit(f"{TEMPLATE} has no {ours}")
        template = template.replace(ours, qwen)
    fast.chat_template = template
    return fast


def main():
    directory = pathlib.Path(sys.argv[1])
    size = SIZES[sys.argv[2] if len(sys.argv) > 2 else "narrow"]
    fast = tokenizer()
    ids = [fast.convert_tokens_to_ids(name) for name in SPECIAL]
    if ids != [LEARNED, LEARNED + 1, LEARNED + 2]:
        raise SystemExit(f"the special tokens have ids {ids}")
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        **size, vocab_size=PADDED, tie_word_embeddings=True, rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        bos_token_id=None, eos_token_id=ids[2], pad_token_id=ids[0],
    )
    model = transformers.Qwen3ForCausalLM(config).to(getattr(torch, size["dtype"]))
    model.generation_config = transformers.GenerationConfig(eos_token_id=[ids[2], ids[0]], pad_token_id=ids[0])
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    print(f"{directory}: {sum(parameter.numel() for parameter in model.parameters()):,} weights, {len(fast):,} tokens")


if __name__ == "__main__":
    main()
