#!/usr/bin/env bash
# ranks.sh [PAIRS]: `update` with one rank on one core against two ranks on two cores, in turn, at the sizes
# of the other benchmarks. Checks that both make the same bytes.
#
# Prints for each pair the seconds of training (`timing` of the metrics, without reading, loading and
# publishing) and their ratio, then the medians. The policy is random and earns nothing, so each sample's
# reward is its branch number. Needs an idle machine, mpirun, and built programs, from ./pipeline.sh setup
# and `cargo build --release --workspace --features update/mpi --bin update-mpi`, or in the folder TROUPE_BIN.
set -euo pipefail
cd "$(dirname "$0")/../.."
pairs=${1:-5}
export ORT_DISABLE_TELEMETRY=1 ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$(./scripts/fetch-runtime.sh)} PATH=${TROUPE_BIN:-$PWD/target/release}:$PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for program in mpirun update-mpi; do
    command -v $program >/dev/null || { echo "ranks.sh: there is no $program" >&2; exit 69; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
policy init "$folder/policy" --preset bench --seed 1 >/dev/null 2>&1
envs tasks plan-path --count 32 --seed 7 |
    rollout --policy "$folder/policy" --branches 4 --turns 1 --max-tokens 64 --quiet |
    sed -E 's/"branch":([0-9]+)(.*)"reward":[-0-9.e]+/"branch":\1\2"reward":\1/' |
    group --quiet | advantage --quiet >"$folder/samples"
seconds() { # RANKS CORES: of training
    rm -rf "$folder/copy"
    cp -r "$folder/policy" "$folder/copy"
    taskset -c "$2" mpirun --bind-to none --oversubscribe --quiet -n "$1" update-mpi --policy "$folder/copy" --lr 1e-4 --minibatches 1 \
        --parts 2 --threads 1 --quiet <"$folder/samples" | sed -nE 's/.*"training_seconds":([0-9.e-]+).*/\1/p'
    cksum <"$folder/copy/step-000001/model.safetensors" >>"$folder/sums"
}
median() { sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
printf '| pair | one rank, one core, s | two ranks, two cores, s | ratio |\n|---|---|---|---|\n'
for ((pair = 1; pair <= pairs; pair++)); do
    one=$(seconds 1 0) two=$(seconds 2 0,1)
    awk -v one="$one" -v two="$two" 'BEGIN { printf "%.3f %.3f %.3f\n", one, two, one / two }' >>"$folder/pairs"
    printf '| %d | %s | %s | %s |\n' "$pair" $(tail -n 1 "$folder/pairs")
done
[ "$(sort -u "$folder/sums" | wc -l)" = 1 ] || { echo 'ranks.sh: the weights differ' >&2; exit 1; }
printf '| median | %.3f | %.3f | %.2f |\n' "$(cut -d' ' -f1 "$folder/pairs" | median)" "$(cut -d' ' -f2 "$folder/pairs" | median)" \
    "$(cut -d' ' -f3 "$folder/pairs" | median)"
