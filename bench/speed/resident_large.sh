#!/usr/bin/env bash
# resident_large.sh [STEPS] [ROUNDS]: the time that resident stages save with a policy of Qwen3-0.6B's
# sizes on a CPU, in bfloat16.
#
# Runs STEPS with one pipe each, then STEPS through one pipe (--resident), in turn. Weights are random and
# earn nothing, so each sample's reward is its branch number. Prints wall seconds per step, and the seconds
# without the model and the environment (see resident.sh). SAVE_EVERY (default 1) goes to the resident update;
# LAYERS (default 28) makes the policy smaller. Needs 20 GB of memory, 25 GB in TMPDIR, bc, jq, and built
# programs (./pipeline.sh setup).
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=${1:-3} rounds=${2:-1}
export ORT_DISABLE_TELEMETRY=1 ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$(./scripts/fetch-runtime.sh)} PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/config.json" <<JSON
{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": ${LAYERS:-28}, "num_attention_heads": 16,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
 "rope_theta": 1000000.0, "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"}
JSON
policy init "$folder/begin" --config "$folder/config.json" --seed 7 --quiet
play() { rollout --policy "$folder/policy" --branches 4 --turns 1 --max-tokens 8 --dtype bfloat16 --quiet "$@"; }
reward() { jq -c --unbuffered 'if .type == "sample" then .reward = .branch else . end'; }
learn() { update --policy "$folder/policy" --lr 1e-6 --minibatches 1 --dtype bfloat16 --quiet --keep 1 "$@"; }
tasks() { envs tasks plan-path --count 4 --seed "$1"; }
stepwise() {
    local step
    for ((step = 1; step <= steps; step++)); do
        tasks "$step" | play --step "$step" | reward | group --quiet | advantage --quiet | learn
    done
}
resident() {
    local step line
    for ((step = 1; step <= steps; step++)); do
        tasks "$step"
        while read -r line && [[ $line != '{"type":"end"'* ]]; do :; done
    done <"$folder/updates" |
        play --step 1 --resident | reward | group --quiet --resident | advantage --quiet --resident |
        learn --resident --save-every "${SAVE_EVERY:-1}" | tee "$folder/updates"
}
figures='
import json, sys

seconds, steps, work = float(sys.argv[1]) / int(sys.argv[2]), int(sys.argv[2]), 0
for line in map(json.loads, sys.stdin):
    if line["type"] == "metrics":
        work += sum(line["timing"][phase + "_seconds"] for phase in ("forward", "backward", "optimizer"))
        work -= line["timing"]["overlap_seconds"]
    while line.get("after"):
        line = line["after"][0]
        if line["stage"] == "rollout":
            work += line["timing"]["model_seconds"] + line["timing"]["environment_seconds"]
print(f"| {sys.argv[3]} | {seconds:.1f} | {seconds - work / steps:.1f} |")'
mkfifo "$folder/updates"
printf '| stages | a step on the clock, s | beside model and environment, s |\n|---|---|---|\n'
for ((round = 1; round <= rounds; round++)); do
    for stages in stepwise resident; do
        rm -rf "$folder/policy"
        cp -a "$folder/begin" "$folder/policy"
        sync
        begun=$EPOCHREALTIME
        "$stages" >"$folder/metrics.jsonl"
        ended=$EPOCHREALTIME
        python3 -c "$figures" "$(bc <<<"$ended - $begun")" "$steps" "$stages" <"$folder/metrics.jsonl"
    done
done
