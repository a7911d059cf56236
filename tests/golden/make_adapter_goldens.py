"""Makes the goldens in adapters/: random low-rank adapters over the checkpoints in this folder, by PEFT.

Why: PEFT decides what an adapter's files mean, and autograd what its gradient is. Both factors are random, so that a
forgotten scale or a swapped factor shows.

`varied` differs from module to module, which Troupe rewrites as plain LoRA; its folder also holds PEFT's merged weights.

Left out: dropout, and other PEFT settings that Troupe refuses.

Run:  python make_adapter_goldens.py [NAME...]  (needs torch, transformers, peft; after make_goldens.py, whose files it reads)
"""

import json
import pathlib
import shutil
import sys

import peft
import safetensors.torch
import torch
import transformers

from make_goldens import EAGER, TEMPERATURES, batch_loss, logprobs_of, shortest, versions, write_json

HERE = pathlib.Path(__file__).resolve().parent
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "all": dict(base="qwen3-6-3-untied", rank=3, alpha=6, targets=ALL, gradient=True, seed=21),
    "some": dict(base="qwen3-6-3-untied", rank=4, alpha=2, targets=["q_proj", "v_proj", "up_proj"], gradient=True, seed=22),
    "bias": dict(base="qwen2-4-2-bf16-shards", rank=2, alpha=5, targets=["k_proj", "o_proj", "down_proj"], rslora=True, seed=23),
    "mistral": dict(base="mistral-4-2-window", rank=2, alpha=3, targets=["q_proj", "k_proj", "o_proj", "gate_proj"], gradient=True, seed=24),
    "smollm3": dict(base="smollm3-4-1-nope", rank=3, alpha=4, targets=ALL, gradient=True, seed=25),
    "biases": dict(base="llama-2-1-biases", rank=2, alpha=3, targets=["q_proj", "o_proj", "gate_proj", "down_proj"], gradient=True, seed=26),
    "phi3": dict(base="phi3-2-1-partial", rank=2, alpha=3, targets=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], gradient=True, seed=27),
    "gemma3": dict(base="gemma3-2-1-local", rank=2, alpha=3, targets=ALL, gradient=True, seed=28),
    "moe": dict(base="qwen3-moe-2-1", rank=2, alpha=3, targets=["q_proj", "k_proj", "v_proj", "o_proj"], gradient=True, seed=29),
}

VARIED = dict(
    base="qwen3-6-3-untied", rank=2, alpha=3, targets=r".*\.(0\.self_attn\.(q|v)|self_attn\.o|mlp\.(up|down))_proj", seed=30,
    patterns=dict(rank_pattern={"up_proj": 4, r"layers\.[1-9]\.self_attn\.o_proj": 1}, alpha_pattern={"mlp.down_proj": 7, "o_proj": 2.5}),
    exclude_modules=["layers.0.mlp.down_proj"], dropout=0.05,
)


def adapted(entry, dtype):
    base = transformers.AutoModelForCausalLM.from_pretrained(HERE / entry["base"], **EAGER, dtype=dtype)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=entry["rank"], lora_alpha=entry["alpha"], target_modules=entry["targets"],
        lora_dropout=entry.get("dropout", 0.0), bias="none", use_rslora=entry.get("rslora", False), exclude_modules=entry.get("exclude_modules"),
        **entry.get("patterns", {}),
    )
    model = peft.get_peft_model(base, config, autocast_adapter_dtype=False).eval()
    generator = torch.Generator().manual_seed(entry["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                values = torch.randn(parameter.shape, generator=generator) * 0.3 / parameter.shape[1] ** 0.5
                parameter.copy_(values)
    return model


def make_varied():
    directory = HERE / "varied-adapter"
    shutil.rmtree(directory, ignore_errors=True)
    model = adapted(VARIED, torch.float32)
    model.peft_config["default"].base_model_name_or_path = "tests/golden/" + VARIED["base"]
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    before = transformers.AutoModelForCausalLM.from_pretrained(HERE / VARIED["base"], dtype=torch.float32).state_dict()
    merged = {name: value.contiguous() for name, value in model.merge_and_unload().state_dict().items() if not torch.equal(value, before[name])}
    safetensors.torch.save_file(merged, directory / "merged.safetensors")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = sys.argv[1:] or [*ADAPTERS, "varied"]
    if "varied" in names:
        names.remove("varied")
        make_varied()
    for name, entry in ((name, ADAPTERS[name]) for name in names):
        directory = HERE / "adapters" / name
        shutil.rmtree(directory, ignore_errors=True)
        single, double = adapted(entry, torch.float32), adapted(entry, torch.float64)
        single.save_pretrained(directory)
        (directory / "README.md").unlink(missing_ok=True)
        path = directory / "adapter_config.json"
        config = json.loads(path.read_text())
        config["base_model_name_or_path"] = f"tests/golden/{entry['base']}"
        config["target_modules"] = sorted(config["target_modules"])
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

        cases = json.loads((HERE / entry["base"] / "logprobs.json").read_text())["cases"]
        worst = 0.0
        for case in cases:
            for item in case["completions"]:
                for key, temperature in TEMPERATURES.items():
                    with torch.no_grad():
                        found = logprobs_of(single, case["prompt_ids"], item["completion_ids"], temperature)
                        exact = logprobs_of(double, case["prompt_ids"], item["completion_ids"], temperature)
                    worst = max(worst, (found.double() - exact).abs().max().item())
                    item[key] = shortest(found)
        write_json(directory / "logprobs.json", {"made_with": versions() | {"peft": peft.__version__}, "base": entry["base"], "f32_against_f64": worst, "cases": cases})
        report = f"{name}: logprobs f32 against f64 {worst:.1e}"

        if entry.get("gradient"):
            lines = [json.loads(line) for line in (HERE / entry["base"] / "samples.jsonl").read_text().splitlines()]
            samples = [line for line in lines if line["type"] == "sample"]
            temperature = samples[0]["sampling"]["temperature"]
            logprobs = [logprobs_of(double, line["prompt_ids"], line["completion_ids"], temperature) for line in samples]
            recorded = [torch.tensor(line["completion_logprobs"], dtype=torch.float64) for line in samples]
            loss = batch_loss(logprobs, recorded, [line["advantage"] for line in samples], "token", "clip")
            loss.backward()
            gradients = {
                key.replace(".default", ""): parameter.grad.float().contiguous()
                for key, parameter in double.named_parameters() if "lora_" in key
            }
            safetensors.torch.save_file(gradients, directory / "gradient.safetensors")
            write_json(directory / "gradient.json", {"loss": loss.item(), "temperature": temperature})
            report += f", loss {loss.item():.6f}"
        print(report)


if __name__ == "__main__":
    main()
