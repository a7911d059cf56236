#!/usr/bin/env python3
"""full_tokenizer.py DIR [SIZE]: makes a byte-level BPE tokenizer as large as a published model's, without a download.

For tests/gpu.sh: random policies in the geometry of published ones then load, encode, decode and sample at full size. Its
merges have no linguistic meaning: every pair of bytes, then pairs with a third byte, until there are SIZE - 293 tokens. As
in Qwen3, 151,643 of 151,936 ids are text, 26 are special, the rest is unused.
"""

import json
import pathlib
import sys

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|special_{number}|>" for number in range(23)]
UNUSED = 293 - len(SPECIAL)
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def alphabet():
    """One character per byte: printable bytes stand for themselves, the others are U+0100 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(rest))]


def main():
    folder, size = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 151_936
    text = size - len(SPECIAL) - UNUSED
    letters = alphabet()
    if not len(letters) < text <= 256 + 256 ** 2 + 256 ** 3:
        sys.exit(f"full_tokenizer.py: {size} tokens: from 550 on")
    merges = []
    for first in letters + [a + b for a in letters for b in letters]:
        for second in letters:
            if len(letters) + len(merges) < text:
                merges.append([first, second])
    tokens = letters + [first + second for first, second in merges]
    added = [{"id": text + number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for number, content in enumerate(SPECIAL)]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    files = {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of]}, "post_processor": None,
            "decoder": bytes_of,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: number for number, token in enumerate(tokens)}, "merges": merges},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": text + 2, "pad_token_id": text},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
