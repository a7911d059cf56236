#!/usr/bin/env bash
# learning_curves.sh [FOLDER [FLAG...]]: the default run with three seeds, with one policy for the team and
# with one per role, and a table of held-out success with its spread. Runs that exist in FOLDER are not
# repeated. FLAGs go to pipeline.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/learning-curves}
for policies in shared per-role; do
    for seed in 1 2 3; do
        ./pipeline.sh --run "$folder/$policies-$seed" --policies "$policies" --seed "$seed" --eval-every 10 "${@:2}" >&2
    done
done
for policies in shared per-role; do
    printf '\n%s: held-out greedy success, %%\n\n| step | seed 1 | seed 2 | seed 3 | mean | spread |\n|---|---|---|---|---|---|\n' "$policies"
    for file in "$folder/$policies-1"/eval/step-*.jsonl; do
        name=$(basename "$file")
        for seed in 1 2 3; do
            awk '/"type":"episode"/ { n += 1; solved += /"success":true/ } END { print 100 * solved / n }' "$folder/$policies-$seed/eval/$name"
        done |
            awk -v step="$((10#$(tr -dc 0-9 <<<"$name")))" '
                { v[NR] = $1; sum += v[NR]; if (NR == 1 || v[NR] < low) low = v[NR]; if (v[NR] > high) high = v[NR] }
                END { printf "| %d | %.1f | %.1f | %.1f | %.1f | %.1f to %.1f |\n", step, v[1], v[2], v[3], sum / NR, low, high }'
    done
done
