#!/usr/bin/env bash
# handover.sh [ROUNDS]: how fast weights go from `update` to the page cache and back, compared
# with copying the same file.
#
# Uses a policy of 1.0 GB in f32 in a folder in memory (/dev/shm), which takes the disk out of the
# measurement, and a stream with one useful sample, so that `update` computes little between reading and
# publishing. (With only flat groups it would write nothing.) Prints GB/s of the weights' file, median and
# extremes, and GB per CPU-second of the whole processes, which varies less on a busy machine. Needs jq, built
# programs (./pipeline.sh setup), and 4 GB of memory. LAYERS (default 20) makes the policy smaller.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
export PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
folder=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$folder"' EXIT
jq -n --argjson layers "${LAYERS:-20}" '{architectures: ["Qwen3ForCausalLM"], model_type: "qwen3", hidden_size: 1024, intermediate_size: 3072,
    num_hidden_layers: $layers, num_attention_heads: 16, num_key_value_heads: 8, head_dim: 64, vocab_size: 512, rms_norm_eps: 1e-6,
    rope_theta: 1e6, tie_word_embeddings: true, max_position_embeddings: 4096, torch_dtype: "float32", hidden_act: "silu",
    attention_bias: false}' >"$folder/config.json"
version=$(policy init "$folder/p" --config "$folder/config.json" --seed 1 | awk '{ print $NF }')
jq -c --arg version "$version" 'if .type == "sample" then .policy_version = $version
    | .advantage = (if .id == "0.0/0/agent/0" then 1 else 0 end) else . end' \
    tests/golden/qwen3-2-1-tied/samples.jsonl >"$folder/samples.jsonl"
file=$folder/p/step-000000/model.safetensors
bytes=$(stat -c %s "$file")

timed() { # NAME COMMAND...: appends wall seconds and CPU seconds to NAME
    local name=$folder/t.$1 TIMEFORMAT='%R %U %S'
    shift
    { time "$@" 2>/dev/null; } 2>>"$name"
}
for ((round = 0; round < rounds; round++)); do
    timed read cat "$file" >/dev/null
    timed copy dd if="$file" of="$folder/copy" bs=4M
    rm "$folder/copy"
    timed update update --policy "$folder/p" --optimizer sgd --minibatches 1 --lr "1e-$((round + 5))" --threads 1 \
        --max-logprob-gap 0 --quiet <"$folder/samples.jsonl" >"$folder/metrics.jsonl"
    jq -r 'select(.type == "metrics") | .timing.load_seconds' "$folder/metrics.jsonl" >>"$folder/t.load"
    jq -r 'select(.type == "metrics") | .timing.publish_seconds' "$folder/metrics.jsonl" >>"$folder/t.publish"
done
printf '| what | GB/s, median (least to most) | CPU seconds a GB |\n|---|---|---|\n'
gigabytes=$(awk -v bytes="$bytes" 'BEGIN { print bytes / 1e9 }')
for name in read copy load publish update; do
    speed=$(sort -n "$folder/t.$name" | awk -v gb="$gigabytes" '
        { wall[NR] = $1 }
        END { printf "%.2f (%.2f to %.2f)", gb / wall[int((NR + 1) / 2)], gb / wall[NR], gb / wall[1] }')
    cpu=$(awk -v gb="$gigabytes" 'NF == 3 { print ($2 + $3) / gb }' "$folder/t.$name" | sort -n |
        awk '{ v[NR] = $1 } END { if (NR) printf "%.2f", v[int((NR + 1) / 2)] }')
    printf '| %s | %s | %s |\n' "$name" "$speed" "$cpu"
done
