#!/usr/bin/env bash
# overhead.sh [ROUNDS]: the cost of a step without the model and the environment: processes, pipes,
# JSON, tokenizing, groups, advantages, loading and publishing. Stages have one thread, so that seconds
# of work are CPU seconds.
#
# The bench policy is random and earns nothing, so each sample's reward is its branch number: only groups that
# are not flat give `update` work.
#
# Measures the CPU time of each stage's process (bash's `times` of its children), and from the stages'
# `timing` the share of the model and the environment. From the whole step's time only the model is
# subtracted, because environments run in parallel to it. Prints medians. Needs jq and built programs, from
# ./pipeline.sh setup or in the folder TROUPE_BIN. TASKS (default 48 for the tiny policy, 32 for the other)
# makes a step smaller, WARMUP (default 300) the tiny policy's warm-up.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
export ORT_DISABLE_TELEMETRY=1 ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$(./scripts/fetch-runtime.sh)} PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cpu() { # FILE COMMAND...: passes stdin and stdout through, writes CPU seconds to FILE
    local file=$1 TIMEFORMAT='%U %S'
    shift
    { time "$@" 2>&3; } 3>&2 2>"$file"
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

score_tiny() { cat; }
score_bench() { sed -E 's/"branch":([0-9]+)(.*)"reward":[-0-9.e]+/"branch":\1\2"reward":\1/'; }

measure() { # NAME PRESET TASKS BRANCHES TURNS TOKENS WARMUP
    local name=$1 preset=$2 tasks=$3 branches=$4 turns=$5 tokens=$6 warmup=$7 round
    policy init "$folder/$name" --preset "$preset" --seed 1 >/dev/null 2>&1
    if [ "$warmup" -gt 0 ]; then
        envs demo plan-path --count $((warmup * 8)) --seed 1 | policy encode --policy "$folder/$name" 2>/dev/null |
            update --policy "$folder/$name" --objective nll --optimizer muon --lr 0.03 --lr-other 4e-3 --schedule cosine \
                --lr-warmup 50 --minibatches "$warmup" --quiet >/dev/null
    fi
    for ((round = 0; round < rounds; round++)); do
        cp -r "$folder/$name" "$folder/copy"
        (
            cd "$folder"
            begun=$EPOCHREALTIME
            cpu t.envs envs tasks plan-path --count "$tasks" --seed $((round + 7)) |
                cpu t.rollout rollout --policy copy --branches "$branches" --turns "$turns" --max-tokens "$tokens" \
                    --threads 1 --quiet | "score_$name" |
                cpu t.group group --quiet | cpu t.advantage advantage --quiet | tee scored.jsonl |
                cpu t.update update --policy copy --lr 1e-4 --minibatches 1 --threads 1 --quiet >metrics.jsonl
            wall=$(awk -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { print to - from }')
            total=$(cat t.* | awk '{ s += $1 + $2 } END { print s }')
            jq -r --argjson total "$total" --argjson wall "$wall" -s '
                ([.. | objects | select(.stage? == "rollout") | .timing] | first) as $r
                | (map(select(.type == "metrics")) | first | .timing) as $u
                | ($r.model_seconds + $r.environment_seconds + $u.training_seconds) as $work
                | "\(($total - $work) * 1000) \($r.load_seconds * 1000) \(($total - $work) / $total * 100) \(($wall - $r.model_seconds - $u.training_seconds) * 1000)"' metrics.jsonl
        ) >>"$folder/$name.figures"
        rm -rf "$folder/copy"
    done
    printf '| %s | %.0f | %.0f | %.1f | %.0f |\n' "$name" "$(cut -d' ' -f1 "$folder/$name.figures" | median)" \
        "$(cut -d' ' -f2 "$folder/$name.figures" | median)" "$(cut -d' ' -f3 "$folder/$name.figures" | median)" \
        "$(cut -d' ' -f4 "$folder/$name.figures" | median)"
}

printf '| step | neither model nor environment, CPU ms | of these loading ONNX Runtime and the policy | share of the step, %% | on the clock, ms |\n|---|---|---|---|---|\n'
measure tiny tiny "${TASKS:-48}" 8 4 8 "${WARMUP:-300}"
measure bench bench "${TASKS:-32}" 4 1 64 0
