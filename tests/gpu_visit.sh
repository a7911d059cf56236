#!/usr/bin/env bash
# tests/gpu_visit.sh: plans a session on a machine with a GPU: packs the tests, chooses the rows to
# measure, and stores the figures.
set -uo pipefail
export LC_ALL=C

usage() {
    cat <<'TEXT'
Prepares a visit to a machine with a GPU, and keeps what it measured.

  tests/gpu_visit.sh pack [DIR]    packs HEAD and a plan into DIR and DIR.tar.xz, less than 60 MB [default: target/visit]
  tests/gpu_visit.sh plan          prints the rows to measure, in order, and the seconds that each may need
  tests/gpu_visit.sh merge FILE    appends the figures of a visit (the table's .tsv) to bench/speed/gpu.tsv

Rows that were never measured, or could not run on that machine, come first, then rows with changed code,
then the oldest. On the other machine:

  mkdir -p /tmp/visit && python3 -m tarfile -e visit.tar.xz /tmp/visit
  /tmp/visit/gpu.sh --plan /tmp/visit/plan --within 540 --table OUT/table.txt
TEXT
}
stop() { # MESSAGE HINT [CODE]
    printf 'gpu_visit.sh: %s\nhint: %s\n' "$1" "$2" >&2
    exit "${3:-2}"
}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 74
figures=bench/speed/gpu.tsv

# A part, the seconds that it may need, and the code that it measures. This is the default order.
rows() {
    cat <<'ROWS'
tests 100 device update rollout/kernels rollout/src/engine/device
agree:0.6B 45 rollout/src/engine rollout/kernels crates/policy/src/graph update device
agree-f16:0.6B 45 rollout/src/engine rollout/kernels crates/policy/src/graph update device
agree-own:0.6B 45 rollout/src/engine rollout/kernels crates/policy/src/graph update device
decode-few:1.7B 40 rollout/src/engine rollout/kernels crates/policy/src/graph device
rollout:1.7B 45 rollout crates/policy/src/graph device
decode-own:1.7B 60 rollout/src/engine rollout/kernels crates/policy/src/graph device
decode-onnxruntime:1.7B 60 rollout/src/engine rollout/kernels crates/policy/src/graph device
prefill-own:1.7B 30 rollout/src/engine rollout/kernels crates/policy/src/graph device
prefill-onnxruntime:1.7B 30 rollout/src/engine rollout/kernels crates/policy/src/graph device
decode:1.7B 80 rollout/src/engine rollout/kernels crates/policy/src/graph device
products:1.7B 30 device
train:1.7B 130 update device
train-f16:1.7B 130 update device
decode-own:1B 45 rollout/src/engine rollout/kernels crates/policy/src/graph device
decode-onnxruntime:1B 45 rollout/src/engine rollout/kernels crates/policy/src/graph device
prefill-own:1B 25 rollout/src/engine rollout/kernels crates/policy/src/graph device
prefill-onnxruntime:1B 25 rollout/src/engine rollout/kernels crates/policy/src/graph device
decode:1B 60 rollout/src/engine rollout/kernels crates/policy/src/graph device
train:1B 100 update device
loop 35 rollout update policy device pipeline
decode-long:1.7B 45 rollout/src/engine rollout/kernels crates/policy/src/graph device
agree:1.7B 60 rollout/src/engine rollout/kernels crates/policy/src/graph update device
adapters:0.6B 110 rollout policy update device
step:0.6B 60 rollout policy update device
sanitizer 240 device update/kernels rollout/kernels
kernels:1.7B 110 rollout/src/engine rollout/kernels crates/policy/src/graph
profile:1.7B 60 update/kernels crates/compile-kernels/cuda update/src/backend/gpu
tiers:1.7B 100 rollout/src/engine crates/policy/src/graph
team:0.6B 120 rollout policy update device
torch-continuous:1.7B 150 bench/speed/torch_continuous.py
torch-decode:1.7B 200 bench/speed/torch_decode.py
torch-train:1.7B 200 bench/speed/torch_train.py
ROWS
}
plan() {
    local name seconds paths order=0 newest date commit class
    printf 'facts 10\nroofline 15\n'
    while read -r name seconds paths; do
        order=$((order + 1))
        newest=$(awk -F'\t' -v row="$name" '$5 == row && $6 != "NOT RUN" { found = $1 "\t" $2 } END { print found }' "$figures" 2>/dev/null)
        IFS=$'\t' read -r date commit <<<"$newest"
        # shellcheck disable=SC2086
        if [ -z "$date" ]; then
            class=0
        elif ! git cat-file -e "$commit" 2>/dev/null || ! git diff --quiet "$commit" -- $paths; then
            class=1
        else
            class=2
        fi
        printf '%s\t%s\t%03d\t%s %s\n' "$class" "$([ $class = 2 ] && printf '%s' "$date")" "$order" "$name" "$seconds"
    done < <(rows) | sort -t$'\t' -k1,1n -k2,2 -k3,3n | cut -f4
}
pack() { # DIR
    local directory=$1
    case $(git status --porcelain --untracked-files=no) in '') ;; *) stop 'the working tree has changes' 'commit them, so that figures have a commit' ;; esac
    tests/gpu_pack.sh "$directory" --profile "$profile" || exit
    git rev-parse --short=12 HEAD >"$directory/commit" && plan >"$directory/plan" || exit 74
    tests/gpu_pack.sh --archive "$directory"
}
merge() { # FILE
    local file=$1 wrong
    [ -r "$file" ] || stop "$file cannot be read" 'name the .tsv that gpu.sh wrote beside its table'
    wrong=$(awk -F'\t' 'NF != 10 || $1 !~ /^[0-9]+-[0-9]+-[0-9]+$/ || $5 == "" || $6 == "" { print NR; exit }' "$file")
    [ -z "$wrong" ] || stop "$file:$wrong: not a figure of ten columns" "the columns are those of the first line of $figures" 65
    [ -s "$figures" ] || printf 'date\tcommit\tcard\tdriver\trow\tvalue\tunit\tshare\tspread\tseconds\n' >"$figures"
    # Merging a file twice adds nothing.
    awk 'NR == FNR { known[$0]; next } !($0 in known)' "$figures" "$file" >"$figures.new" || exit 74
    cat "$figures.new" >>"$figures" && printf 'gpu_visit.sh: %s new figures in %s\n' "$(wc -l <"$figures.new")" "$figures"
    rm -f "$figures.new"
}

profile=release
if [ "${1:-}" = --profile ]; then profile=${2:-release} && shift 2; fi
case ${1:-} in
    --help | -h) usage ;;
    pack) directory=${2:-target/visit} && mkdir -p "$directory" && pack "$(cd "$directory" && pwd)" ;;
    plan) plan ;;
    merge) [ $# = 2 ] || stop 'merge needs a file' 'gpu_visit.sh --help' && merge "$2" ;;
    *) stop "${1:-no command}: neither pack, plan nor merge" 'gpu_visit.sh --help' ;;
esac
