"""Compares this crate with `transformers`, torch and ONNX Runtime. Run by hand; the tests use committed goldens.

    python crates/policy/tests/against_transformers.py target/debug/policy

Needs torch, transformers, onnx and onnxruntime. For random checkpoints of every family, spelling, type and layout
that is read: `policy check` accepts what `save_pretrained` wrote, `onnx.checker` accepts the graph, and its logits
(prefill, then ragged decoding with the cache) equal those of the f32 model. For `policy init --preset`: the model and
the tokenizer load, and token ids and chats are equal. With `--goldens DIR` token ids and rotary frequencies go there. With `--templates DIR` the chats are rendered with every
`*.jinja` there (TRL ships a collection) and compared.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy as np
import onnx
import onnxruntime
import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Phi3Config, Qwen2Config,
                          Qwen3Config)

PROGRAM = sys.argv[1]
TEXTS = ["walls a0 b2 e2 goal c1 at e3 tool", "walls a0 at e3 route d3 c3 c2 planner", " d3 c3 c2", " L L U", "",
         "walls j9, goal;at a0!  tool\n\n planner\t", "héllo wörld 你好 \U0001f600", "\x00\x7f <|end", "<|user|>x<|end|>",
         "A0 a00  a0 plan moves 0 10 9", "don't stop—ever…"]
CHATS = [
    [{"role": "user", "content": "walls a0 at e3 tool"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "walls"},
     {"role": "assistant", "content": " d3"}, {"role": "user", "content": " go on "}],
]


def policy(*arguments):
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def write_tokenizer(directory, source):
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        with open(os.path.join(source, name), "rb") as read, open(os.path.join(directory, name), "wb") as write:
            write.write(read.read())


def logits_of_graph(path, config, rows, new):
    """Prefill of right-padded rows, then one token a row at a time; logits of every position that is scored."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    heads, dim, layers = config.num_key_value_heads, config.head_dim, config.num_hidden_layers
    capacity = 64
    cache = {f"past_{side}.{layer}": np.zeros((len(rows), heads, capacity, dim), np.float32)
             for layer in range(layers) for side in "kv"}
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    lengths = np.array([len(row) for row in rows])
    results = []

    def run(ids, lengths, scored):
        names = [output.name for output in session.get_outputs()]
        values = session.run(names, {"input_ids": ids, "seqlens_k": (lengths - 1).astype(np.int32),
                                     "total_len": np.array(lengths.max(), np.int32), "last_idx": scored, **cache})
        for name, value in zip(names, values):
            if name != "logits":
                cache[name.replace("present", "past")] = value
        return values[names.index("logits")]

    results.append(run(ids, lengths, np.array([i * width + n - 1 for i, n in enumerate(lengths)], np.int64)))
    for step in range(len(new[0])):
        lengths = lengths + 1
        column = np.array([[row[step]] for row in new], np.int64)
        results.append(run(column, lengths, np.arange(len(rows), dtype=np.int64)))
    return results


def compare(directory, model, config):
    graph = policy("graph", directory, "--kind", "group-query")
    onnx.checker.check_model(graph)
    generator = np.random.default_rng(1)
    draw = lambda count: generator.integers(0, config.vocab_size, count).tolist()
    rows, new = [draw(n) for n in (7, 13, 4, 13, 1)], [draw(6) for _ in range(5)]
    found = logits_of_graph(graph, config, rows, new)
    largest, size = 0.0, 0.0
    with torch.no_grad():
        for index, (row, more) in enumerate(zip(rows, new)):
            expected = model(torch.tensor([row + more])).logits[0, len(row) - 1:].numpy()
            for step, logits in enumerate(found):
                largest = max(largest, float(np.abs(logits[index] - expected[step]).max()))
                size = max(size, float(np.abs(expected[step]).max()))
    return largest, size


def report(name, difference, size):
    print(f"{name:22} logits up to {size:5.2f}, largest difference {difference:.2e}")
    assert difference < 1e-5 * max(size, 1.0), name


def templates(folder, tiny):
    """Chats with each template of a folder, as both sides tokenize them with the tiny tokenizer."""
    agreed, refused = 0, 0
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path) as read, open(os.path.join(tiny, "current", "chat_template.jinja"), "w") as write:
            write.write(read.read())
        tokenizer = AutoTokenizer.from_pretrained(os.path.join(tiny, "current"))
        for chat in CHATS:
            try:
                text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
                expected = tokenizer(text, add_special_tokens=False).input_ids
            except Exception as error:
                expected = f"{type(error).__name__}"
            sample = {"type": "sample", "v": 1, "agent": "a", "prompt": chat, "completion": ""}
            done = subprocess.run([PROGRAM, "encode", "--quiet", "--allow-incomplete", "--policy", tiny],
                                  input=json.dumps(sample), capture_output=True, text=True,
                                  env={**os.environ, "SOURCE_DATE_EPOCH": str(int(time.time()))})
            found = json.loads(done.stdout.splitlines()[0])["prompt_ids"] if done.returncode == 0 else done.stderr.strip()
            if found == expected:
                agreed += 1
            elif isinstance(found, str) and isinstance(expected, str):
                refused += 1
            else:
                show = lambda ids: tokenizer.decode(ids) if isinstance(ids, list) else ids
                print(f"{os.path.basename(path)}: {show(found)!r} instead of {show(expected)!r}")
    os.remove(os.path.join(tiny, "current", "chat_template.jinja"))
    print(f"templates: {agreed} chats agree, {refused} are refused by both")


def frequencies(base, llama3, work):
    """Configurations as this version of transformers writes them, and as older ones did."""
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    weighted = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 256, "beta_fast": 16.0,
                "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.2, "truncate": False}
    for index, rope in enumerate([{"rope_type": "default", "rope_theta": 1e6}, linear, llama3, yarn, weighted]):
        config = LlamaConfig(**{**base, "max_position_embeddings": 2048, "head_dim": 64}, rope_parameters=rope)
        directory = os.path.join(work, f"rope-{index}")
        config.save_pretrained(directory)
        yield config, directory
    # Phi-3's class does not know head_dim.
    long = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.05, 1.2, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 1.5, 2.5, 6.0, 20.0, 40.0]}
    for index, more in enumerate([{}, {"attention_factor": 1.25}]):
        sizes = {**base, "max_position_embeddings": 2048, "original_max_position_embeddings": 256, "pad_token_id": None}
        config = Phi3Config(**sizes, rope_parameters={**long, **more})
        directory = os.path.join(work, f"rope-long-{index}")
        config.save_pretrained(directory)
        yield config, directory


def rope(config, directory):
    embedding = AutoModelForCausalLM.from_config(config).model.rotary_emb
    with open(os.path.join(directory, "config.json")) as file:
        written = json.load(file)
    old = {key: value for key, value in written.items() if key not in ("rope_parameters", "dtype")}
    scaling = dict(written["rope_parameters"])
    old["rope_theta"] = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    old["rope_scaling"] = None if scaling["type"] == "default" else scaling
    old["torch_dtype"] = "bfloat16"
    return {"new": written, "old": old, "frequencies": embedding.inv_freq.tolist(),
            "attention_factor": embedding.attention_scaling}


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as work:
        tiny = os.path.join(work, "tiny")
        policy("init", tiny, "--preset", "tiny", "--seed", "7")
        base = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2, vocab_size=512, max_position_embeddings=256, initializer_range=0.2,
                    eos_token_id=4)
        llama3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                      original_max_position_embeddings=64)
        cases = {
            "qwen3 tied": (Qwen3Config(head_dim=32, tie_word_embeddings=True, **base), torch.float32, {}),
            "qwen3 untied, bf16": (Qwen3Config(head_dim=48, tie_word_embeddings=False, **base), torch.bfloat16, {}),
            "qwen2 tied, shards": (Qwen2Config(tie_word_embeddings=True, **base), torch.float32, {"max_shard_size": "100KB"}),
            "qwen2 untied, f16": (Qwen2Config(tie_word_embeddings=False, **base), torch.float16, {}),
            "llama": (LlamaConfig(tie_word_embeddings=False, **base), torch.float32, {}),
            "llama, rope llama3": (LlamaConfig(rope_parameters=llama3, **base), torch.float32, {}),
            "llama, rope linear": (LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, **base),
                                   torch.float32, {}),
        }
        for name, (config, dtype, options) in cases.items():
            directory = os.path.join(work, name.replace(" ", "-").replace(",", ""))
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for parameter in model.parameters():
                if parameter.ndim == 1:  # biases are born 0 and norms 1, which would hide their absence
                    parameter.data += torch.randn_like(parameter) * 0.1
            model.to(dtype).save_pretrained(directory, **options)
            write_tokenizer(directory, os.path.join(tiny, "current"))
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
            config = AutoConfig.from_pretrained(directory)
            config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            policy("check", directory)
            report(name, *compare(directory, model, config))

        for preset in ("tiny", "bench"):
            directory = os.path.join(work, preset)
            if preset != "tiny":
                policy("init", directory, "--preset", preset, "--seed", "7")
            directory = os.path.join(directory, "current")
            model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
            report(f"preset {preset}", *compare(directory, model, model.config))

        tokenizer = AutoTokenizer.from_pretrained(os.path.join(tiny, "current"))
        assert len(tokenizer) == 512
        goldens = {"texts": [], "chats": []}
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            goldens["texts"].append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
        for chat in CHATS:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
            goldens["chats"].append({"messages": chat, "ids": ids})
        ropes = [rope(config, directory) for config, directory in frequencies(base, llama3, work)]
        if "--goldens" in sys.argv:
            folder = sys.argv[sys.argv.index("--goldens") + 1]
            for name, value in (("tokenizer", goldens), ("rope", ropes)):
                with open(os.path.join(folder, name + ".json"), "w") as file:
                    json.dump(value, file, ensure_ascii=True, indent=None)
                    file.write("\n")
        if "--templates" in sys.argv:
            templates(sys.argv[sys.argv.index("--templates") + 1], tiny)
        print("tokenizer", len(goldens["texts"]), "texts", len(goldens["chats"]), "chats")


main()
