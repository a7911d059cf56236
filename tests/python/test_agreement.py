"""Sampler and trainer agree: `update` computes the log-probabilities that `rollout` recorded, to the last bit where both use one number format.
Low-rank adapters: the commands of docs/lora.md, and the loop with an adapter per role on one frozen base."""
import json
import os
import struct

import pytest
from conftest import ROOT, lines, must, refused, run, trained


def gap(check, folder):
    """Mean and largest difference of log-probabilities, nats."""
    _, printed, said = run(check, folder)
    assert printed, said
    line = lines(printed, "metrics")[0]
    return line["sampling/logp_difference_mean"], line["sampling/logp_difference_max"]


def test_sampler_and_trainer_agree_in_each_number_format(tmp_path):
    # A trained policy: random weights give nearly uniform distributions, which hide errors.
    must("policy init p --preset tiny --seed 3; envs demo plan-path --count 240 --seed 1 | policy encode --policy p | "
         "update --policy p --objective nll --optimizer muon --lr 0.03 --lr-other 4e-3 --minibatches 30 --quiet", tmp_path)

    def sample(tasks, flags):
        must(f"envs tasks plan-path --count {tasks} --seed 5 | rollout --policy p --branches 4 --turns 2 --max-tokens 8 {flags} --quiet | "
             "group --quiet | advantage --quiet > samples", tmp_path)

    def check(flags):
        return gap(f"update --policy p --check {flags} --quiet < samples", tmp_path)

    sample(8, "--dtype bfloat16")
    narrow = check("--dtype float32")
    assert check("--dtype bfloat16") == (0, 0)
    sample(8, "--dtype float32")
    wide = check("--dtype bfloat16")
    assert check("--dtype float32") == (0, 0)
    # Two formats differ by far more than one rounding.
    assert all(1e-5 < mixed[0] < 1e-2 for mixed in (narrow, wide)), (narrow, wide)
    # Three bits more are an eighth of the error; a policy that has learned, 0.003 and 0.05 nats.
    bf16, f16 = check("--device sim --dtype bfloat16"), check("--device sim --dtype float16")
    assert f16[0] <= 0.003 and f16[1] <= 0.05 and f16[0] < bf16[0] / 4, (bf16, f16)
    # The kernels of a card in both programs.
    for dtype, mean, largest in (("bfloat16", 0.002, 0.05), ("float16", 0.0005, 0.005)):
        sample(3, f"--device sim --dtype {dtype}")
        found = check(f"--device sim --dtype {dtype}")
        assert found[0] <= mean and found[1] <= largest, (dtype, found)


def test_agents_of_one_policy_that_are_sampled_apart_have_the_ratio_one_at_the_first_step(tmp_path):
    """Log-probabilities are of the whole distribution at the temperature of the sample, whatever truncation left of it."""
    must("policy init p --preset tiny --seed 3; envs tasks plan-path --count 8 --seed 5 | rollout --policy p --branches 4 --turns 2 --max-tokens 8 "
         "--max-tokens planner=5 --temperature 0.7 --temperature planner=1.3 --top-p 0.9 --min-p planner=0.05 --stop 'tool= ' --quiet | "
         "group --quiet | advantage --quiet > samples", tmp_path)
    sampled = {(line["agent"], line["sampling"]["temperature"], line["sampling"]["max_tokens"]) for line in lines((tmp_path / "samples").read_text(), "sample")}
    assert sampled == {("planner", 1.3, 5), ("tool", 0.7, 8)}
    assert gap("update --policy p --check --quiet < samples", tmp_path) == (0, 0)
    refused(run("update --policy p --quiet < samples", tmp_path), 65, "truncated sampling (top-p, top-k or min-p)")
    metrics = lines(must("update --policy p --allow-truncated-sampling --minibatches 1 --quiet < samples", tmp_path))[0]
    assert (metrics["sampling/importance_sampling_ratio_mean"], metrics["sampling/logp_difference_max"]) == (1, 0)


def decoder(family, hidden, heads, kv_heads, head, **more):
    return {"model_type": family, "hidden_size": hidden, "intermediate_size": hidden + 24, "num_hidden_layers": 3, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": 512, "max_position_embeddings": 2048, **more}


EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}


# Decoders that differ between their products: biases, norms, positions, windows, activations, experts, heads that share keys, and widths that are
# no multiple of a vector.
@pytest.mark.parametrize("config", [
    # Sums over more than one block of the inner dimension.
    decoder("llama", 400, 5, 1, 80, attention_bias=True, mlp_bias=True), decoder("qwen2", 48, 4, 2, 16, tie_word_embeddings=True),
    decoder("qwen3", 72, 6, 2, 32), decoder("mistral", 64, 4, 4, 64, sliding_window=30), decoder("smollm3", 64, 4, 1, 16, no_rope_layers=[1, 0, 1]),
    decoder("phi3", 64, 4, 2, 16, partial_rotary_factor=0.5, tie_word_embeddings=False, pad_token_id=0),
    decoder("gemma3_text", 48, 4, 2, 32, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32, sliding_window=40,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
    decoder("qwen3_moe", 48, 4, 2, 16, **EXPERTS),
], ids=lambda config: config["model_type"])
def test_training_recomputes_the_sampled_logprobs_to_the_last_bit(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    must("policy init whole --config config.json --seed 3; policy init adapter --from whole --adapter rank=5,alpha=9", tmp_path)
    for policy in ("whole",) if config["model_type"] == "qwen3_moe" else ("whole", "adapter"):
        # Random weights say nearly the same of every token, and an adapter without training nothing.
        metrics = lines(must(f"envs demo plan-path --count 24 --seed 1 --quiet | policy encode --policy {policy} | "
                             f"update --policy {policy} --objective nll --minibatches 6 --lr 0.01 --quiet", tmp_path))[0]
        assert metrics["optimizer_steps"] == 6
        for dtype in ("float32", "bfloat16"):
            # Prompts in prose, of two turns: of more keys than are multiplied at a time.
            must("envs tasks plan-path --count 2 --seed 5 --set encoding=full --set size=7 --quiet | rollout --policy "
                 f"{policy} --branches 3 --turns 2 --max-tokens 16 --quiet --dtype {dtype} --temperature 0.7 --threads 2 | group --quiet | "
                 "advantage --quiet > samples", tmp_path)
            assert max(len(sample["prompt_ids"]) for sample in lines((tmp_path / "samples").read_text(), "sample")) > 400
            assert gap(f"update --policy {policy} --check --dtype {dtype} --threads 2 --quiet < samples", tmp_path) == (0, 0), (policy, dtype)


def clear_routers(weights):
    """Zeros for every router of a checkpoint, so that all experts are equally likely for every token."""
    data = bytearray(weights.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    routers = [tensor["data_offsets"] for name, tensor in json.loads(data[8:start]).items() if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    for first, last in routers:
        data[start + first:start + last] = bytes(last - first)
    weights.write_bytes(data)


def test_sampler_and_trainer_take_the_same_experts_of_equals_with_any_number_of_threads(tmp_path):
    config = decoder("qwen3_moe", 48, 4, 2, 16, **EXPERTS) | {"num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 512}
    (tmp_path / "moe.json").write_text(json.dumps(config))
    must("policy init random --config moe.json --seed 3; cp -rL random/current equal && chmod -R u+w equal", tmp_path)
    clear_routers(tmp_path / "equal/model.safetensors")
    for source in ("random/current", "equal"):
        found = []
        for threads in (1, 3):
            must(f"rm -rf {threads}; mkdir {threads}; policy init {threads}/p --from {source}; envs tasks plan-path --count 4 --seed 5 | "
                 f"rollout --policy {threads}/p --branches 4 --turns 2 --max-tokens 8 --threads {threads} --quiet | group --quiet | "
                 "advantage --quiet > samples", tmp_path)
            assert gap(f"update --policy {threads}/p --check --quiet < samples", tmp_path)[1] == 0
            must(f"update --policy {threads}/p --threads {threads} --minibatches 2 --lr 1e-2 --quiet < samples", tmp_path)
            samples = [line for line in (tmp_path / "samples").read_text().splitlines() if '"sample"' in line]
            found.append((samples, (tmp_path / f"{threads}/p/current/model.safetensors").read_bytes()))
        assert found[0] == found[1] and len(samples) > 16, source


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_commands_of_the_page_on_adapters_work(tmp_path):
    block = next(block for block in (ROOT / "docs/lora.md").read_text().split("```sh\n") if block.startswith("policy init run/base"))
    assert "rank 8, alpha 16, q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj" in must(f"set -e; {block.split('```')[0]}", tmp_path)
    # The base is named by a directory that PEFT can open from here.
    base = json.loads((tmp_path / "run/tool/current/adapter_config.json").read_text())["base_model_name_or_path"]
    assert (tmp_path / base / "model.safetensors").exists()


def test_roles_learn_as_adapters_of_one_base_that_stays_as_it_is(tmp_path):
    first = tmp_path / "first"
    trained(first, "--policies adapter-per-role --adapter rank=4,alpha=8 --warmup 30 --steps 2 --tasks 6 --branches 4 --eval-every 0")
    weights = [files(first / at)["model.safetensors"] for at in ("policies/base/current", "warmup/policy/current")]
    assert weights[0] == weights[1], "the base was written to"
    metrics = lines((first / "steps/000002/metrics.jsonl").read_text(), "metrics")
    assert len(metrics) == 2 and all(line["sampling/logp_difference_max"] == 0 and line["grad_norm"] > 0 for line in metrics)
    for role in ("tool", "planner"):
        made = files(first / "policies" / role / "current")
        assert "adapter_model.safetensors" in made and "model.safetensors" not in made
        assert made != files(first / "policies" / role / "step-000001"), "nothing moved"
    # A run that is moved still finds its base, and sampler and trainer agree; so does the device engine, both adapters in the same batches.
    os.rename(first, tmp_path / "second")
    policies = tmp_path / "second/policies"
    owned = f"--policy tool={policies}/tool --policy planner={policies}/planner"
    play = f"envs tasks plan-path --count 3 --seed 5 | rollout {owned} --branches 4 --turns 2 --max-tokens 8 --quiet"
    check = f"group --quiet | advantage --quiet | update {owned} --check --quiet"
    must(f"{play} | {check}")
    must(f"{play} --device sim | {check}")
    assert must(f"{play} --threads 1 | grep '\"sample\"'") == must(f"{play} --threads 2 | grep '\"sample\"'")
    # The base may play next to its adapter: they share an engine.
    mixed, check = play.replace("/tool ", "/base "), check.replace(f"--policy tool={policies}/tool ", "")
    for device in ("cpu", "sim"):
        must(f"{mixed} --device {device} | {check}")
    # What adapters cannot do is refused.
    refused(run(f"policy init {policies}/x --from {policies}/tool --adapter rank=2,alpha=2"), 2, "an adapter itself")
    must(f"rm -r {policies}/base")
    refused(run(f"policy check {policies}/tool"), 65, "the link names its frozen base")


def test_warm_up_leaves_a_pretrained_base_as_it_is(tmp_path):
    must("policy init model --preset tiny --seed 3", tmp_path)
    trained(tmp_path / "run", f"--model {tmp_path}/model --policies adapter-per-role --adapter rank=4,alpha=8 --set encoding=compact --warmup 4 --steps 1 "
            "--tasks 3 --branches 2 --kl 0.01 --eval-every 0")
    weights = [files(tmp_path / at)["model.safetensors"] for at in ("run/policies/base/current", "model/current")]
    assert weights[0] == weights[1], "the base was trained"
    shown, before, *begun = (files(tmp_path / "run" / at)["adapter_model.safetensors"] for at in (
        "warmup/policy/current", "warmup/policy/step-000000", "policies/tool/step-000000", "policies/planner/step-000000"))
    assert shown != before, "nothing was learned from demonstrations"
    assert begun == [shown, shown], "a role begins with something else"
