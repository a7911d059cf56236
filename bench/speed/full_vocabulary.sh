#!/usr/bin/env bash
# full_vocabulary.sh [DIRECTORY]: runs the whole loop with a full-size vocabulary on a CPU, and reports
# each stage's peak memory.
#
# full_vocabulary.py makes the checkpoint (151,936 tokens, hidden size 128, 2 layers, or Qwen3-0.6B's
# sizes with SIZE=0.6B; byte-level BPE, a chat template with thinking), unless DIRECTORY already holds it.
# Its random weights earn nothing, so each sample's reward is its branch number: otherwise groups would be
# flat and `update` would have no work. Needs GNU time, jq, built programs (./pipeline.sh setup) and, to
# make the checkpoint, PYTHON with torch, transformers and tokenizers. THREADS (default 2), TASKS (8),
# BRANCHES (8), TURNS (2), TOKENS (64), DTYPE (float32) and KIND (`model`, or `adapter` for a low-rank
# adapter over it) choose the work.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
model=${1:-$folder/model}
threads=${THREADS:-2} tasks=${TASKS:-8} branches=${BRANCHES:-8} turns=${TURNS:-2} tokens=${TOKENS:-64}
numbers=(--threads "$threads" --dtype "${DTYPE:-float32}") kind=${KIND:-model}
export ORT_DISABLE_TELEMETRY=1 ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$(./scripts/fetch-runtime.sh)} PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
[ -f "$model/config.json" ] || "${PYTHON:-python3}" bench/speed/full_vocabulary.py "$model" "${SIZE:-narrow}"

measured() { # NAME COMMAND...: writes a stage's peak memory and times to NAME's line
    local name=$1
    shift
    command time -f "$name %M %e %U %S" -a -o "$folder/figures" "$@"
}
: >"$folder/figures"
policy=$folder/policy
case $kind in
    model) measured 'init' policy init "$policy" --from "$model" ;;
    adapter) measured 'init' policy init "$policy" --from "$model" --adapter rank=16,alpha=32 ;;
    *) echo "KIND is model or adapter, not $kind" >&2; exit 2 ;;
esac
measured 'check' policy check "$policy"
set=(--set encoding=full)
envs demo plan-path "${set[@]}" --count 64 --seed 1 |
    measured 'encode' policy encode --policy "$policy" >"$folder/demonstrations.jsonl"
envs tasks plan-path "${set[@]}" --count "$tasks" --seed 1 |
    measured 'rollout' rollout --policy "$policy" --branches "$branches" --turns "$turns" --max-tokens "$tokens" "${numbers[@]}" --quiet |
    jq -c 'if .type == "sample" then .reward = .branch else . end' |
    measured 'group' group --quiet | measured 'advantage' advantage --quiet >"$folder/samples.jsonl"
measured 'update--check' update --policy "$policy" --check "${numbers[@]}" --quiet <"$folder/samples.jsonl" >"$folder/check.jsonl"
measured 'update' update --policy "$policy" --lr 1e-4 --minibatches 1 "${numbers[@]}" --quiet <"$folder/samples.jsonl" >"$folder/metrics.jsonl"

jq -r 'select(.type == "end") | .counts | "\(.samples) samples, \(.prompt_tokens) tokens of prompts, \(.completion_tokens) of completions"' \
    < <(jq -c '.. | objects | select(.stage? == "rollout") | {type: "end", counts}' "$folder/samples.jsonl")
jq -r 'select(.type == "metrics") | "update: \(.unique_tokens) tokens computed, largest difference of log-probabilities \(."sampling/logp_difference_max")"' \
    "$folder/metrics.jsonl"
echo '| stage | peak memory, MiB | wall, s | processor, s |'
echo '|---|---|---|---|'
while read -r name peak wall user system; do
    awk -v name="$name" -v peak="$peak" -v wall="$wall" -v cpu="$user $system" \
        'BEGIN { split(cpu, t, " "); printf "| %s | %.0f | %.1f | %.1f |\n", name, peak / 1024, wall, t[1] + t[2] }'
done <"$folder/figures"
