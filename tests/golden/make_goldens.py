"""Makes the golden files in this folder: tiny random checkpoints, and the results of transformers and PyTorch on them.

Why: inference and training are written by hand in Rust, so an independent implementation must provide the right numbers.
Every weight is random on purpose, including norms and biases: a trained or default-initialized model hides a swapped head
or a forgotten norm.

Nothing here is sampled or computed by Troupe.

Run:  python make_goldens.py [NAME...]  (needs torch, transformers, tokenizers, safetensors; about a minute)
The outputs are committed; README.md documents every file and field.
"""

import copy
import json
import math
import pathlib
import shutil
import sys

import safetensors.torch
import tokenizers
import torch
import transformers

from golden_checkpoints import CHECKPOINTS, PADDING, STOP, TURN_START, UNKNOWN

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY = 64
TEMPERATURES = {"logprobs": 1.0, "logprobs_temperature_0.7": 0.7}
CLIP = 0.2
# Large on purpose: the gradient is computed as (before - after) / rate. At a rate of 0.1, rounding the
# weights to f32 would spoil its fifth digit.
LEARNING_RATE = 10.0
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Plain attention, and experts one by one: the grouped product has no f64 version.
EAGER = dict(attn_implementation="eager", experts_implementation="eager")
FAMILIES = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
}


def build_model(entry):
    """A random f32 model whose logits have a standard deviation of a few units, from the entry's seed."""
    config_class, model_class = FAMILIES[entry["family"]]
    arguments = dict(
        vocab_size=VOCABULARY,
        hidden_size=entry["hidden"],
        intermediate_size=entry["ffn"],
        num_hidden_layers=entry["layers"],
        num_attention_heads=entry["heads"],
        num_key_value_heads=entry["kv_heads"],
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=entry["tied"],
        rope_parameters={"rope_theta": entry["rope_theta"], "rope_type": "default"} | entry.get("rope_scaling", {}),
        bos_token_id=None,
        eos_token_id=STOP,
        pad_token_id=PADDING,
        dtype="float32",
        **EAGER,
    )
    if entry["family"] not in ("qwen2", "smollm3", "phi3"):  # These derive it from hidden_size.
        arguments["head_dim"] = entry["head_dim"]
    arguments |= entry.get("config", {})
    model = model_class(config_class(**arguments)).float().eval()
    generator = torch.Generator().manual_seed(entry["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                center = 0.0 if entry["family"] == "gemma3_text" else 1.0  # Gemma stores them minus 1.
                parameter.uniform_(center - 0.5, center + 0.5, generator=generator)
            elif name.endswith(".bias"):
                parameter.normal_(0.0, 0.3, generator=generator)
            elif "embed_tokens" in name:
                parameter.normal_(0.0, 1.0 if "calm" in entry else 0.4, generator=generator)
            else:
                size = 0.5 if "calm" in entry and "lm_head" not in name else 1.0
                parameter.normal_(0.0, size / math.sqrt(parameter.shape[-1]), generator=generator)
            parameter.copy_(parameter.to(getattr(torch, entry.get("dtype", "float32"))))
    return model


def build_tokenizer():
    """A character-level tokenizer: four special tokens and sixty characters; all others are unknown."""
    characters = "abcdefghijklmnopqrstuvwxyz0123456789ABDLPRSTU .,:;!?+-=()[]\n"
    characters += "_"[: VOCABULARY - 4 - len(characters)]
    special = ["<pad>", "<|im_start|>", "<|im_end|>", "<unk>"]
    words = special + list(characters)
    if len(words) != VOCABULARY or len(set(words)) != VOCABULARY:
        raise SystemExit(f"the tokenizer has {len(words)} entries, {len(set(words))} of them different, not {VOCABULARY}")
    model = tokenizers.models.BPE(
        vocab={word: index for index, word in enumerate(words)}, merges=[], unk_token="<unk>", fuse_unk=False
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(special)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def write_checkpoint(directory, entry, model, tokenizer):
    """Writes a complete Hugging Face directory, and checks that transformers reads the same model back from it."""
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=entry.get("stops", STOP), pad_token_id=PADDING
    )
    dtype = getattr(torch, entry.get("dtype", "float32"))
    # A copy, because converting the model would also round its rotary frequencies.
    copy.deepcopy(model).to(dtype).save_pretrained(directory, max_shard_size=entry.get("shards", "1GB"))
    tokenizer.save_pretrained(directory)
    if entry.get("old_config"):
        # transformers 4 spells it so: rope_theta at the top, and torch_dtype. This must keep loading.
        path = directory / "config.json"
        config = json.loads(path.read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None
        if entry["family"] == "qwen2":
            # Every Qwen2.5 has these two: a window, switched off.
            config["sliding_window"], config["max_window_layers"] = 512, 2
            config.pop("layer_types", None)
        if "num_local_experts" in config:
            config["num_experts"] = config.pop("num_local_experts")
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.51.0"
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    again = FAMILIES[entry["family"]][1].from_pretrained(
        directory, **EAGER, dtype=torch.float32
    )
    ids = torch.arange(4, 60).unsqueeze(0)
    with torch.no_grad():
        difference = (again(ids).logits - model(ids).logits).abs().max().item()
    if difference != 0.0:
        raise SystemExit(f"{directory.name}: reloaded logits differ by {difference}")
    if transformers.AutoTokenizer.from_pretrained(directory).decode([4, 30, 49, 62]) != tokenizer.decode([4, 30, 49, 62]):
        raise SystemExit(f"{directory.name}: the tokenizer does not survive being saved")


def random_ids(generator, length):
    """`length` ids of ordinary characters."""
    return torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()


def logprobs_of(model, prompt, completion, temperature):
    """Log-probabilities [completion] of one sequence computed alone: log-softmax(logits / temperature)."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    table = torch.log_softmax(logits / temperature, dim=-1)
    return table.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


def shortest(values):
    """Formats f32 values as the shortest decimals that read back to the same f32."""
    return [json.loads(format_f32(value)) for value in values.detach().float().tolist()]


def format_f32(value):
    for digits in range(1, 18):
        text = f"{value:.{digits}g}"
        if torch.tensor(float(text), dtype=torch.float32).item() == value:
            return text
    return repr(value)


def write_logprobs(directory, model, seed):
    """logprobs.json: the scores of each completion of each prompt; returns the largest f32 - f64 difference."""
    generator = torch.Generator().manual_seed(1000 + seed)
    first, long = random_ids(generator, 11), random_ids(generator, 97)
    prompts = [
        # (prompt, lengths of its completions, which of them end with the stop token)
        (first, (7, 12, 1), (True, False, True)),
        (first[:6] + random_ids(generator, 9), (5, 5, 9), (False, True, False)),  # shares six ids with the first
        (random_ids(generator, 1), (4, 16, 2), (True, True, False)),  # the shortest possible prompt
        (long, (6, 20, 11), (False, True, True)),
        (random_ids(generator, 33), (24,), (True,)),
    ]
    double = FAMILIES[model.config.model_type][1].from_pretrained(
        directory, **EAGER, dtype=torch.float64
    )
    cases, worst = [], 0.0
    for prompt, lengths, stops in prompts:
        completions = []
        for length, stop in zip(lengths, stops):
            ids = random_ids(generator, length)
            if stop:
                ids[-1] = STOP
            item = {"completion_ids": ids}
            for name, temperature in TEMPERATURES.items():
                with torch.no_grad():
                    single = logprobs_of(model, prompt, ids, temperature)
                    exact = logprobs_of(double, prompt, ids, temperature)
                worst = max(worst, (single.double() - exact).abs().max().item())
                item[name] = shortest(single)
            completions.append(item)
        cases.append({"prompt_ids": prompt, "completions": completions})
    write_json(directory / "logprobs.json", {"made_with": versions(), "f32_against_f64": worst, "cases": cases})
    return worst


def training_batch(seed):
    """Groups of (prompt, completions): shared and unshared prompts, and every way a token tree can branch."""
    generator = torch.Generator().manual_seed(2000 + seed)
    first = random_ids(generator, 14)
    replies = [random_ids(generator, length) for length in (6, 9, 4)]
    groups = [
        (first, [reply[:-1] + [STOP] for reply in replies]),
        # Continues the first group's first completion, as a later turn does.
        (first + replies[0][:-1] + [STOP] + random_ids(generator, 5), [random_ids(generator, n) for n in (3, 8, 8)]),
        # Shares eight ids with the first prompt, then leaves it.
        (first[:8] + random_ids(generator, 7), [random_ids(generator, n) for n in (1, 10, 5)]),
    ]
    repeated = random_ids(generator, 7)
    # Equal completions, and one that is a prefix of another.
    groups.append((random_ids(generator, 21), [repeated, list(repeated), repeated[:4], repeated + random_ids(generator, 3)]))
    # Groups of one share no prefix.
    groups.append((random_ids(generator, 70), [random_ids(generator, 18)]))
    groups.append((random_ids(generator, 1), [random_ids(generator, 6)]))
    return generator, groups


def batch_loss(logprobs, recorded, advantages, aggregate, objective):
    """Loss of the batch; PPO-clip is equation 7 of arXiv 1707.06347 with the sign of a loss.

    logprobs: a list of [completion] tensors; recorded: the same shapes; advantages: one number a completion.
    aggregate "token": sum / tokens of the batch; "sequence": mean over completions of the mean over tokens; "constant":
    sum / (completions x tokens of the longest).
    """
    terms = []
    for current, old, advantage in zip(logprobs, recorded, advantages):
        if objective == "nll":
            terms.append(-current)
            continue
        ratio = torch.exp(current - old.to(current.dtype))
        terms.append(-torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage))
    if aggregate == "token":
        return torch.cat(terms).sum() / sum(len(term) for term in terms)
    if aggregate == "constant":
        return torch.cat(terms).sum() / (len(terms) * max(len(term) for term in terms))
    return torch.stack([term.mean() for term in terms]).mean()


def gradients_of(model, sequences, recorded, advantages, temperature, aggregate="token", objective="clip"):
    """Loss and gradients by name, each sequence in a separate forward pass."""
    model.zero_grad(set_to_none=True)
    logprobs = [logprobs_of(model, prompt, completion, temperature) for prompt, completion in sequences]
    loss = batch_loss(logprobs, recorded, advantages, aggregate, objective)
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, logprobs


def slopes_of(logprobs, recorded, advantages):
    """The derivative of the loss with respect to each log-probability."""
    leaves = [item.detach().requires_grad_() for item in logprobs]
    batch_loss(leaves, recorded, advantages, "token", "clip").backward()
    return [leaf.grad for leaf in leaves]


def gradients_of_slopes(model, sequences, slopes, temperature):
    """Gradients by name from given derivatives, so that rounding cannot affect the clipping."""
    model.zero_grad(set_to_none=True)
    for (prompt, completion), slope in zip(sequences, slopes):
        logprobs = logprobs_of(model, prompt, completion, temperature)
        (logprobs * slope.to(logprobs.dtype)).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def on_disk(name, value):
    """A tensor's names and values as stored in a checkpoint; transformers stacks a layer's experts when it loads them."""
    if ".experts." not in name:
        return [(name, value)]
    prefix, kind = name.rsplit(".", 1)
    parts = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else [kind]
    return [
        (f"{prefix}.{expert}.{part}.weight", piece)
        for expert, matrix in enumerate(value)
        for part, piece in zip(parts, matrix.chunk(len(parts)))
    ]


def write_gradient(directory, model, seed, temperature):
    """gradient.safetensors, gradient.json and samples.jsonl of one training batch."""
    generator, groups = training_batch(seed)
    sequences = [(prompt, completion) for prompt, completions in groups for completion in completions]
    double = FAMILIES[model.config.model_type][1].from_pretrained(
        directory, **EAGER, dtype=torch.float64
    )
    with torch.no_grad():
        exact = [logprobs_of(double, prompt, completion, temperature) for prompt, completion in sequences]
    recorded = [perturbed(logprobs, generator) for logprobs in exact]

    advantages, lines = [], []
    for index, (prompt, completions) in enumerate(groups):
        rewards = (torch.rand(len(completions), generator=generator).mul(8).round() / 8).tolist()
        mean = sum(rewards) / len(rewards)
        if len(completions) > 1:
            rewards[0] = 0.0 if mean > 0.5 else 1.0  # never a flat group
            mean = sum(rewards) / len(rewards)
            deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
            group_advantages = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
        else:
            deviation = 0.0
            group_advantages = [0.75 if index % 2 else -1.25]  # a group of one has no baseline, so fixed
        for branch, completion in enumerate(completions):
            advantages.append(group_advantages[branch])
            lines.append({
                "type": "sample", "v": 1, "step": 0, "shard": "0/1", "env": "golden", "task": f"golden/train/{index}",
                "episode": f"0.{index}", "turn": 0, "agent": "agent", "branch": branch, "branches": len(completions),
                "id": f"0.{index}/0/agent/{branch}", "selected": branch == 0, "policy": "golden",
                "policy_version": "0:DIGEST",
                "sampling": {"temperature": temperature, "top_p": 1.0, "top_k": 0, "greedy": False, "seed": seed},
                "prompt_ids": prompt, "completion_ids": completion,
                "completion_logprobs": shortest(recorded[len(lines)]),
                "finish_reason": "stop" if completion[-1] == STOP else "length",
                "reward": rewards[branch], "rewards": {"team": 0.0, "local": rewards[branch]},
                "terminated": False, "truncated": False,
                "group": f"0.{index}/agent/0", "group_size": len(completions),
                "advantage": advantages[-1], "group_mean": mean, "group_std": deviation,
            })
    counts = {"samples": len(lines), "groups": len(groups), "episodes": len(groups)}
    after = [{"type": "end", "v": 1, "stage": stage, "ok": True, "shard": "0/1", "counts": counts, "after": []} for stage in ("rollout", "group")]
    after[1]["after"], after = [after[0]], [after[1]]
    lines.append({"type": "end", "v": 1, "stage": "advantage", "ok": True, "shard": "0/1", "counts": counts, "after": after})
    (directory / "samples.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    loss, exact_gradients, logprobs = gradients_of(double, sequences, recorded, advantages, temperature)
    single_loss, single_gradients, _ = gradients_of(model, sequences, recorded, advantages, temperature)
    ratios = torch.cat([torch.exp(new.detach() - old.double()) for new, old in zip(logprobs, recorded)])
    signs = torch.cat([torch.full((len(old),), advantage) for old, advantage in zip(recorded, advantages)])
    above, below = (ratios > 1 + CLIP) & (signs > 0), (ratios < 1 - CLIP) & (signs < 0)
    if not (above.any() and below.any() and (signs > 0).any() and (signs < 0).any()):
        raise SystemExit(f"{directory.name}: the batch does not clip on both sides")
    gap = torch.stack([(ratios - edge).abs().min() for edge in (1 - CLIP, 1 + CLIP)]).min().item()
    if gap < 1e-3:
        raise SystemExit(f"{directory.name}: a ratio lies {gap} from the clip edge, where f32 and f64 may disagree")

    safetensors.torch.save_file(
        {key: part.float().contiguous() for name, gradient in exact_gradients.items() for key, part in on_disk(name, gradient)},
        directory / "gradient.safetensors",
    )
    relative = {
        name: ((single_gradients[name].double() - gradient).norm() / gradient.norm()).item()
        for name, gradient in exact_gradients.items()
    }
    half = FAMILIES[model.config.model_type][1].from_pretrained(
        directory, **EAGER, dtype=torch.bfloat16
    )
    half_gradients = gradients_of_slopes(half, sequences, slopes_of(logprobs, recorded, advantages), temperature)
    half_relative = {
        name: ((half_gradients[name].double() - gradient).norm() / gradient.norm()).item()
        for name, gradient in exact_gradients.items()
    }
    half_whole = norm_of({name: half_gradients[name].double() - gradient for name, gradient in exact_gradients.items()})
    others = []
    for objective, aggregate in (("clip", "sequence"), ("nll", "token"), ("nll", "sequence")):
        value, gradients, _ = gradients_of(double, sequences, recorded, advantages, temperature, aggregate, objective)
        others.append({
            "objective": objective, "aggregate": aggregate, "loss": value, "gradient_norm": norm_of(gradients),
            "gradient_norms": {name: gradient.norm().item() for name, gradient in gradients.items()},
        })
    # Groups without an advantage have no loss term, but still count in the average.
    flat_groups = [lines[0]["group"], lines[-4]["group"]]
    kept = [0.0 if line["group"] in flat_groups else advantage for line, advantage in zip(lines, advantages)]
    flat = []
    for aggregate in ("token", "sequence", "constant"):
        value, gradients, _ = gradients_of(double, sequences, recorded, kept, temperature, aggregate)
        flat.append({"aggregate": aggregate, "loss": value, "gradient_norm": norm_of(gradients)})
    write_json(directory / "gradient.json", {
        "made_with": versions(), "objective": "clip", "aggregate": "token", "clip": CLIP, "temperature": temperature,
        "learning_rate": LEARNING_RATE, "loss": loss, "gradient_norm": norm_of(exact_gradients),
        "tokens": len(ratios), "samples": len(sequences),
        "clip_ratio": (above | below).double().mean().item(),
        "clip_ratio_high": above.double().mean().item(), "clip_ratio_low": below.double().mean().item(),
        "ratio_outside_clip": ((ratios > 1 + CLIP) | (ratios < 1 - CLIP)).double().mean().item(),
        "logprobs": [shortest(item) for item in logprobs],
        "f32_against_f64": {"loss": abs(single_loss - loss), "relative_l2": relative},
        "bf16_against_f64": {"whole": half_whole / norm_of(exact_gradients), "relative_l2": half_relative},
        "others": others, "flat_groups": flat_groups, "flat": flat,
    })
    return max(relative.values()), loss


def perturbed(logprobs, generator):
    """Recorded logprobs as if from an older policy: half within the clip range, a quarter on either side.

    The ratio new/old is exp(shift). It stays away from 0.8 and 1.2, where the clipped loss has kinks. At most 0.
    """
    shifts = []
    for value in logprobs.tolist():
        kind = torch.randint(4, (1,), generator=generator).item()
        draw = torch.rand(1, generator=generator).item()
        ratio = {0: 1.25 + 0.5 * draw, 1: 0.5 + 0.25 * draw}.get(kind, 0.85 + 0.3 * draw)
        old = value - math.log(ratio)
        # A logprob above 0 can only be rounding, so a nearly certain token keeps its value.
        shifts.append(old if old < 0 else value)
    return torch.tensor(shifts, dtype=torch.float32)


def norm_of(gradients):
    return math.sqrt(sum(gradient.double().pow(2).sum().item() for gradient in gradients.values()))


def versions():
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}


def write_json(path, value):
    """Writes JSON with one list of numbers a line, so that it is readable and diffs are small."""
    text = json.dumps(value, indent=1)
    out, depth = [], 0
    for line in text.split("\n"):
        stripped = line.strip()
        number = stripped.rstrip(",").lstrip("-")[:1].isdigit()
        if number and out:
            out[-1] += stripped if out[-1].endswith("[") else " " + stripped
        elif stripped in ("]", "],") and out and out[-1].strip()[-1:].isdigit():
            out[-1] += stripped
        else:
            out.append(line)
    result = "\n".join(out) + "\n"
    if json.loads(result) != value:
        raise SystemExit(f"{path}: compacting changed the value")
    path.write_text(result)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    for name in sys.argv[1:] or CHECKPOINTS:
        entry = CHECKPOINTS[name]
        directory = HERE / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        model = build_model(entry)
        write_checkpoint(directory, entry, model, tokenizer)
        report = f"{name}: logprobs f32 against f64 {write_logprobs(directory, model, entry['seed']):.1e}"
        if "gradient" in entry:
            worst, loss = write_gradient(directory, model, entry["seed"], entry["gradient"])
            report += f", gradient f32 against f64 {worst:.1e}, loss {loss:.6f}"
        print(report)


if __name__ == "__main__":
    main()
