#!/usr/bin/env bash
# resident.sh [ROUNDS] [STEPS]: the time that resident stages save on the tiny run. Runs ./pipeline.sh
# with and without --resident, in turn, after one warm-up, with one thread per stage so that seconds
# of work are CPU seconds.
#
# Prints, for each round and the median, wall and CPU seconds of the whole call, and milliseconds of wall time
# per step without the model and the environment. These follow from `timing`: model and environment of
# rollout; forward, backward and optimizer of update, except for work that overlapped. Two errors cancel, 18
# ms each on Zen 3: environments are subtracted although the model runs meanwhile, and work of update between
# the end of the model and the last sample is not.
#
# Needs built programs, from ./pipeline.sh setup or in the folder TROUPE_BIN. WARMUP (default 300) is the
# number of steps of the warm-up.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} steps=${2:-80}
export TROUPE_BIN=${TROUPE_BIN:-$PWD/target/release}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train() { # RUN STEPS FLAG...
    ./pipeline.sh --run "$folder/$1" --steps "$2" --warmup "${WARMUP:-300}" --eval-every 0 --flags rollout='--threads 1' \
        --flags update='--threads 1' "${@:3}" >>"$folder/log"
}
figures='
import glob, json, sys
folder, steps, begun, ended = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
work = 0
for name in glob.glob(f"{folder}/steps/*/metrics.jsonl"):
    for line in map(json.loads, open(name)):
        if line["type"] == "metrics":
            work += sum(line["timing"][phase + "_seconds"] for phase in ("forward", "backward", "optimizer"))
            work -= line["timing"]["overlap_seconds"] # overlapped with the model, or would have been waited for
        while line.get("after"):
            line = line["after"][0]
            if line["stage"] == "rollout":
                work += line["timing"]["model_seconds"] + line["timing"]["environment_seconds"]
print(f"{ended - begun:.2f} {(ended - begun - work) / steps * 1000:.0f}")'
train begin 0
TIMEFORMAT='%U %S'
printf '| round | stages | clock, s | CPU, s | beside model and environment, ms a step on the clock |\n|---|---|---|---|---|\n'
for ((round = 1; round <= rounds; round++)); do
    for stages in stepwise resident; do
        cp -a "$folder/begin" "$folder/$stages"
        begun=$EPOCHREALTIME
        { time train "$stages" "$steps" $([ $stages = stepwise ] || echo --resident) 2>&3; } 3>&2 2>"$folder/cpu"
        ended=$EPOCHREALTIME
        read -r clock beside < <(python3 -c "$figures" "$folder/$stages" "$steps" "$begun" "$ended")
        printf '| %d | %s | %s | %s | %s |\n' "$round" "$stages" "$clock" "$(awk '{ print $1 + $2 }' "$folder/cpu")" "$beside" |
            tee -a "$folder/$stages.rows"
        rm -rf "${folder:?}/$stages"
    done
done
median() { cut -d'|' -f"$2" "$folder/$1.rows" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for stages in stepwise resident; do
    printf '| median | %s | %s | %s | %s |\n' "$stages" "$(median "$stages" 4)" "$(median "$stages" 5)" "$(median "$stages" 6)"
done
