#!/usr/bin/env bash
# host_memory.sh: the host memory that `update` takes with a device. Machines with one
# large GPU have little of it.
#
# Runs two updates of a bf16 policy of 129 million weights in the simulator, with AdamW and a stream of flat
# groups; the second also reads the optimizer state of the first. Measures the process's anonymous memory
# (RssAnon of /proc, sampled every few hundredths of a second; the system can drop mapped files) minus the
# simulated device's memory, which is anonymous too and which `update` reports. Needs jq, built programs
# (./pipeline.sh setup), 3 GB of memory and 3 GB in TMPDIR. LAYERS (default 10) makes the policy smaller.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
jq -n --argjson layers "${LAYERS:-10}" '{architectures: ["Qwen3ForCausalLM"], model_type: "qwen3", hidden_size: 1024, intermediate_size: 3072,
    num_hidden_layers: $layers, num_attention_heads: 16, num_key_value_heads: 8, head_dim: 64, vocab_size: 2048, rms_norm_eps: 1e-6,
    rope_theta: 1e6, tie_word_embeddings: true, max_position_embeddings: 4096, torch_dtype: "bfloat16", hidden_act: "silu",
    attention_bias: false}' >"$folder/config.json"
policy init "$folder/p" --config "$folder/config.json" --seed 1 >/dev/null
for call in first second; do
    version=$(jq -r .version "$folder/p/current/version.json")
    jq -c --arg version "$version" 'if .type == "sample" then .advantage = 0 | .policy_version = $version else . end' \
        tests/golden/qwen3-2-1-tied/samples.jsonl >"$folder/flat.jsonl"
    update --policy "$folder/p" --device sim --minibatches 1 --threads 2 --quiet <"$folder/flat.jsonl" >"$folder/metrics.jsonl" 2>/dev/null &
    most=0
    while now=$(awk '/^RssAnon/ { print $2 }' "/proc/$!/status" 2>/dev/null) && [ -n "$now" ]; do
        [ "$now" -le "$most" ] || most=$now
        sleep 0.02
    done
    wait $!
    jq -r --arg call "$call" --argjson most "$most" 'select(.type == "metrics") | .timing |
        "\($call) call: \($most / 1024 | round) MiB in all, \(.device_memory_bytes / 1048576 | round) of them the device'"'"'s; "
        + "load \(.load_seconds * 10 | round / 10) s, publish \(.publish_seconds * 10 | round / 10) s"' "$folder/metrics.jsonl"
done
ls -l "$folder"/p/step-000002/*.safetensors | awk '{ sub(/.*\//, "", $NF); printf "%s: %d MiB\n", $NF, $5 / 1048576 }'
