"""Makes the goldens in text/: chats as transformers renders them, and token ids of a byte-level BPE tokenizer.

Why: Troupe runs chat templates with another implementation of Jinja, and the pattern that splits text into words before
byte-level BPE with another regular expression engine. Both must agree with transformers to the last character.

Left out: real models' templates and tokenizers. The templates next to the outputs were written here with the features of real
ones; the tokenizer is trained on the sentences below, with the two patterns of Qwen and Llama 3.

Run:  python make_text_goldens.py       (needs transformers, tokenizers; seconds)
"""

import json
import pathlib

import tokenizers
import transformers

HERE = pathlib.Path(__file__).resolve().parent / "text"
DATE = "26 Jul 2024"  # the date that Troupe gives chat templates
# The patterns of Qwen2 and Llama 3, which split digits one by one, or in groups of up to three.
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|end|>", "<|user|>", "<|think|>"]
SENTENCES = [
    "The team walks from a0 to c3, and the walls stand at b1, b2 and b3.", "I'll say it's done; they've won, we're 12345 steps in.",
    "def step(state, action):\n    return state + action  # next\n", "Größe, naïve café, señor — déjà vu…", "你好，世界。机器学习很有趣。",
    "Привет, мир! Как дела?", "1, 2, 3, 10, 100, 2024-07-26", "(x + y) * z == 0.5e-3 && !done", "the the the team team walks walks",
]
TEXTS = SENTENCES + [
    "", " ", "  two  spaces  ", "\n\n\n", "tabs\t\tand \r\n lines \n", "it's IT'S we'Re", "a\u0301 decomposed é composed", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
    "ﬁ ligature Ⅷ ² ½ ٣٤", "<|end|>text<|user|> <|think|>", "\x00\x01\x7f", "x" * 50, "trailing   ", "مرحبا بالعالم", "ไทยภาษา", "  \n  indented\n\tmore", "__init__ a_b-c d.e",
]
CHATS = [
    [{"role": "user", "content": "walls a0 at e3"}],
    [{"role": "system", "content": "  be brief \n"}, {"role": "user", "content": " walls "}],
    [{"role": "user", "content": "one"}, {"role": "assistant", "content": "<think>\nhm, two\n</think>\n\ntwo"},
     {"role": "user", "content": "three"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
     {"role": "assistant", "content": "<think>\na\n\nb\n</think>\n\nc"}, {"role": "user", "content": "<result>7</result>"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "plain\n"}, {"role": "user", "content": "<b>\"x\" & 'y'</b> é 你"}],
    [{"role": "assistant", "content": "out of turn"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "</think>\n\nrest"}],
]


def byte_level(digits, size):
    """A byte-level BPE tokenizer trained on the sentences."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN % digits), behavior="isolated")
    bytes_of = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_of])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    if digits == "":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def wrapped(tokenizer, template=None):
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|user|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = template
    return fast


def render(fast, chat, arguments):
    try:
        return {"text": fast.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **arguments)}
    except Exception as error:
        return {"refused": str(error)}


def main():
    for name, digits, size in (("digits-one", "", 330), ("digits-three", "{1,3}", 330)):
        tokenizer = byte_level(digits, size)
        tokenizer.save(str(HERE / f"{name}.tokenizer.json"))
        fast = wrapped(tokenizer)
        cases = []
        for text in TEXTS:
            ids = fast(text, add_special_tokens=False).input_ids
            cases.append({"text": text, "ids": ids, "decoded": fast.decode(ids, skip_special_tokens=True)})
        lines = ",\n".join(json.dumps(case) for case in cases)
        (HERE / f"{name}.ids.json").write_text(f"[\n{lines}\n]\n")
    cases = []
    fast_of = {name: wrapped(tokenizer, (HERE / f"{name}.jinja").read_text()) for name in ("thinking", "dated")}
    # transformers passes today's date, while Troupe's is fixed.
    for name, variants in (("thinking", [{}, {"enable_thinking": False}, {"enable_thinking": True}]), ("dated", [{}, {"date_string": "1 Jan 2030"}])):
        for arguments in variants:
            for chat in CHATS:
                fixed = {"date_string": DATE} | arguments if name == "dated" else arguments
                cases.append({"template": name, "arguments": arguments, "messages": chat} | render(fast_of[name], chat, fixed))
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "chats.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(TEXTS)} texts with two tokenizers, {len(cases)} chats")


if __name__ == "__main__":
    main()
