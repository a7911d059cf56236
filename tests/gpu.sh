#!/usr/bin/env bash
# tests/gpu.sh: all checks and measurements that need a GPU; the machine with the GPU needs no Rust.
set -uo pipefail
export ORT_DISABLE_TELEMETRY=1 LC_ALL=C

usage() {
    cat <<'TEXT'
Runs every check and measurement that needs a GPU and writes a dated table.

  DIR/gpu.sh [--device cuda:N] [--parts LIST] [--sizes LIST]   on the GPU: prints a table and writes it to DIR/gpu-DATE.txt
  DIR/gpu.sh --plan FILE --within N                            a visit: the parts of a plan, each only while its time is left
  DIR/gpu.sh --device sim                                      the same steps without a GPU, in the simulator and with tiny sizes
DIR is made by tests/gpu_pack.sh DIR where Rust is; tests/gpu_visit.sh packs it with a plan.

  --table FILE   write the table here, row by row; FILE.log gets all output, FILE.tsv the figures as rows of bench/speed/gpu.tsv
  --limit N      time limit of one check in seconds [default: 540]
  --within N     start no check after N seconds, and end the last one then [default: no limit]
  --keep DIR     keep the random policies in DIR for the next run
  --plan FILE    lines of a part, as NAME or NAME:SIZE, and the seconds that it may need

Parts, in this order, so that problems show in the first minute [default: all]:
  facts      the GPU, its driver, the CUDA libraries that the programs find
  roofline   bandwidth of a copy and FLOP/s of a matrix product, the reference of the shares below
  tests      every device test on the device
  agree      a short rollout of a random policy with a full vocabulary: whether rollout and update agree on log-probabilities
  agree-f16  the same in float16
  agree-own  the same in bfloat16 with our attention in rollout, as in update
  step       a longer one, and one training step
  decode     decode steps and prefill at context 1536 and 256 with 64 and 256 sequences, with and without shared prompts
  decode-few   the same with 1, 4 and 16
  decode-long  the same with 64 and 256, and completions that are a third of the context
  decode-own, decode-onnxruntime  the same with 1, 64 and 256 at context 1536, with our attention alone and with ONNX Runtime's
  prefill-own, prefill-onnxruntime  8 prompts of 1536 and of 256 tokens, with our attention alone and with ONNX Runtime's
  rollout    16 and 64 episodes of two turns and two agents: tokens/s as a step of training gets them, and how many runs replay graphs
  products   the matrix products of training and of a decode step, by cuBLASLt's first algorithm and the fastest of eight
  train      micro-batches of `update` in the shapes 4096,512,8 and 1024,1024,4 (prompt, completion, completions of a prompt), less
             the first: their time, and their operations as a share of the measured matrix product
  train-f16  the same in float16
  loop       pipeline.sh --resident: a team of tiny policies learns Plan-Path for 20 steps, after a short warm-up on the CPU
  adapters   two agents, each an adapter of one base, in the same batches: whether rollout and update agree, the cost of a
             decode step, and a run of pipeline.sh
  tiers      decode steps with each of ONNX Runtime's kernels for attention, and without CUDA graphs
  sanitizer  the small tests again under compute-sanitizer, if installed
  profile    the shapes of train once more, by kernel
  kernels    a decode step by kernel, with ONNX Runtime's attention and with ours, by Nsight Compute if installed
  team       32 episodes of 4 turns, 2 agents with a policy each, 4 branches: time of a step by phase
  torch-decode  decode steps in PyTorch (static cache, compiled), if installed
  torch-continuous  decode steps by transformers' continuous batching with CUDA graphs and shared prompts, if installed
  torch-train   a micro-batch of the same shapes in PyTorch (compiled; with prompts repeated, and shared by flex_attention), if installed
Sizes: 0.6B 1.7B 8B (as Qwen3), 1B (heads of 64, as Llama-3.2-1B), tiny [default: 0.6B,1.7B; with sim: tiny]. Parts from sanitizer on,
and team and adapters, take the first alone.
A failure does not stop the rest; the exit code is 1 if anything failed.
TEXT
}
stop() { # MESSAGE HINT [CODE]
    printf 'gpu.sh: %s\nhint: %s\n' "$1" "$2" >&2
    exit "${3:-2}"
}

all=facts,roofline,tests,agree,agree-f16,agree-own,step,decode,decode-few,decode-long,decode-own,decode-onnxruntime,prefill-own,prefill-onnxruntime,rollout,products,train,train-f16,loop,adapters,tiers,sanitizer,profile,kernels,team,torch-decode,torch-continuous,torch-train
device=cuda parts=$all sizes='' table='' limit=540 within='' keep='' plan=''
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --device | --parts | --sizes | --table | --limit | --within | --keep | --plan) [ $# -ge 2 ] || stop "$1 needs a value" 'gpu.sh --help' ;;
        *) stop "unknown argument $1" 'gpu.sh --help' ;;
    esac
    case $1 in
        --device) device=$2 ;;
        --parts) parts=$2 ;;
        --sizes) sizes=$2 ;;
        --table) table=$2 ;;
        --limit) limit=$2 ;;
        --within) within=$2 ;;
        --keep) keep=$2 ;;
        --plan) plan=$2 ;;
    esac
    shift 2
done
case $limit in '' | *[!0-9]*) stop "--limit $limit: not a number of seconds" 'gpu.sh --help' ;; esac
case $within in *[!0-9]*) stop "--within $within: not a number of seconds" 'gpu.sh --help' ;; esac
[ -z "$plan" ] || [ -r "$plan" ] || stop "--plan $plan: no such file" 'tests/gpu_visit.sh plan prints one'
case $device in
    sim) batches=4 few=1 context=48 contexts=48 steps=4 ramp=8 long_steps=8 repeats=1 episodes=1 turns=1 tokens=4 played=1 vocabulary=2048 tokenizer=tokenizer/small
        shapes='80,8,4' batch_tokens=120
        loop=(--warmup 4 --steps 1 --tasks 2 --branches 2 --turns 1 --eval-every 0) ;;
    cuda*) batches=64,256 few=1,4,16 context=1536 contexts=1536,256 steps=64 ramp=96 long_steps=980 repeats=3 episodes=32 turns=4 tokens=256 played='16 64' vocabulary=151936 tokenizer=tokenizer
        shapes='4096,512,8 1024,1024,4' batch_tokens=32768
        loop=(--warmup 600 --steps 20 --eval-every 20) ;;
    *) stop "--device $device: neither cuda, cuda:N nor sim" 'gpu.sh --help' ;;
esac
[ -n "$sizes" ] || case $device in sim) sizes=tiny ;; *) sizes=0.6B,1.7B ;; esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -x "$here/bin/rollout" ] || stop "$here has no programs" 'create it with tests/gpu_pack.sh DIR'
export PATH=$here/bin:$PATH
if [ -d "$here/cache" ]; then export XDG_CACHE_HOME=$here/cache; fi
# shellcheck source=tests/gpu_policies.sh
. "$here/gpu_policies.sh"
# shellcheck source=tests/gpu_parts.sh
. "$here/gpu_parts.sh"

# ---- the plan: a part, optionally its size, and the seconds that it may need
# ---------------------------------------
entries=()
enter() { # NAME[:SIZE] SECONDS
    local name=${1%%:*} size=''
    case $1 in *:*) size=${1#*:} ;; esac
    # In the simulator a plan is rehearsed with tiny policies.
    if [ -n "$size" ] && [ "$device" = sim ]; then size=tiny; fi
    [ "$(type -t "part_$name")" = function ] || stop "no such part: $name" 'gpu.sh --help lists them'
    entries+=("$name|$size|$2")
}
if [ -n "$plan" ]; then
    while read -r name seconds _; do
        case $name in '' | '#'*) continue ;; esac
        case $seconds in '' | *[!0-9]*) stop "$plan: $name has no seconds" 'a line is a part and the seconds that it may need' ;; esac
        enter "$name" "$seconds"
    done <"$plan"
else
    for name in ${parts//,/ }; do
        case $name in
            facts | tests | sanitizer | roofline | loop) enter "$name" 0 ;;
            profile | kernels | team | adapters) enter "$name:${sizes%%,*}" 0 ;;
            *) for size in ${sizes//,/ }; do enter "$name:$size" 0; done ;;
        esac
    done
fi

# ---- the table ----------------------------------------------------------------------------------------------
if [ -n "$keep" ]; then
    mkdir -p "$keep" && work=$(cd "$keep" && pwd) || exit 74
    # Everything except policies is left over from an earlier run.
    find "$work" -mindepth 1 -maxdepth 1 \( -type f -o -name 'run*' \) -exec rm -rf {} +
else
    work=$(mktemp -d) || exit 74
fi
making=''
leave() {
    [ -z "$making" ] || kill -- "-$making" 2>/dev/null
    [ -n "$keep" ] || rm -rf "$work"
}
trap leave EXIT
table=${table:-$here/gpu-$(date -u +%Y-%m-%dT%H%M%SZ).txt}
: >>"$table" && : >>"$table.tsv" || exit 74
date=$(date -u +%Y-%m-%d) commit=$(cat "$here/commit" 2>/dev/null || echo unknown)
card=$device driver=none
if [ "$device" != sim ]; then
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
fi
failed=0 skipped=0 bytes=0 operations=0 took=0 entry=''
row() { printf '%-72s %s\n' "$1" "$2" | tee -a "$table"; }
record() { # ROW VALUE UNIT SHARE SPREAD SECONDS
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$date" "$commit" "${card:-unknown}" "${driver:-unknown}" "$1" "$2" "$3" "$4" "$5" "$6" >>"$table.tsv"
}
not_run() { # NAME REASON: a row for a part that this machine cannot run, which stays in the plan
    row "$1" "NOT RUN: $2"
    skipped=1
}
figure() { # NAME VALUE UNIT [SHARE [SPREAD]]: a row of the table and of the figures
    local share=${4:-} spread=${5:-} name
    if [ "$spread" = unknown ]; then spread=''; fi
    name=$(sed 's/^ *//' <<<"$1")
    row "$1" "${2:-unknown} $3${share:+, $share}"
    record "$entry/$name" "${2:-unknown}" "$3" "$share" "$spread" "$took"
}
# Each check is a process group, so that all of it can be killed.
set -m
check() { # NAME COMMAND...: one row, and the end of the output on failure
    local name=$1 started=$SECONDS code job watcher limit=$limit
    shift
    if [ -n "$within" ]; then
        if [ "$SECONDS" -ge "$within" ]; then
            row "$name" "not run: $within s are over"
            return 75
        fi
        if [ $((within - SECONDS)) -lt "$limit" ]; then limit=$((within - SECONDS)); fi
    fi
    "$@" >"$work/out" 2>&1 </dev/null &
    job=$!
    (sleep "$limit" && kill -KILL -- "-$job") >/dev/null 2>&1 &
    watcher=$!
    { wait "$job"; } 2>/dev/null
    code=$?
    { kill -KILL -- "-$watcher" && wait "$watcher"; } 2>/dev/null
    took=$((SECONDS - started))
    { printf '==== %s: exit code %s after %s s\n' "$name" "$code" "$took" && cat "$work/out"; } >>"$table.log"
    if [ $code = 0 ]; then
        row "$name" "ok, $took s"
    else
        if [ "$took" -ge "$limit" ]; then name="$name, killed after $limit s"; fi
        row "$name" "FAILED with exit code $code"
        record "$entry/$name" FAILED "exit code $code" '' '' "$took"
        tail -n 25 "$work/out" | sed 's/^/    /' | tee -a "$table"
        failed=1
    fi
    return $code
}
number() { # NAME FILE: sum of the numbers of that name in the last line, in its timing object if it has one
    tail -n 1 "$2" | sed 's/.*"timing"://' | grep -o "\"$1\":[-0-9.e+]*" | cut -d: -f2 | awk '{ n += $1 } END { if (NR) print n; else print "unknown" }'
}
last() { # NAME FILE: the last number of that name
    grep -o "\"$1\": *[-0-9.e+]*" "$2" | tail -1 | cut -d: -f2 | tr -d ' ' | grep . || echo unknown
}
share() { # BYTES OPERATIONS SECONDS: roofline time as a share of the measured time; empty without a measurement
    awk -v b="$1" -v o="$2" -v s="$3" -v bandwidth="$bytes" -v speed="$operations" 'BEGIN {
        if (bandwidth * speed == 0 || s == 0) exit
        least = b / bandwidth; if (o / speed > least) least = o / speed
        if (least > 0) printf "%.0f %% of the roofline", 100 * least / s }'
}

# ---- one part after another -------------------------------------------------------------------------------------
export TROUPE_TEST_DEVICE=$device TROUPE_GOLDEN=$here/golden TROUPE_TEST_PROGRAMS=$here/bin
wanted=$(for entry in "${entries[@]}"; do
    case $entry in torch* | products*) ;; *) cut -d'|' -f2 <<<"$entry" ;; esac
done | awk 'NF && !seen[$1]++' | tr '\n' ' ')
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2086
    make_policies $wanted </dev/null &
    making=$!
fi
any=0
for item in "${entries[@]}"; do
    IFS='|' read -r part size seconds <<<"$item"
    entry=$part${size:+:$size} failed=0 skipped=0 begun=$SECONDS
    if [ -n "$within" ] && [ $((within - SECONDS)) -lt "$seconds" ]; then
        row "$entry" "not run: it may need $seconds s, and $((within - SECONDS)) are left"
        continue
    fi
    # A check that hangs must not take the time of the others.
    most=$limit
    if [ "$seconds" -gt 0 ] && [ $((2 * seconds)) -lt "$limit" ]; then limit=$((2 * seconds)); fi
    "part_$part" "$size"
    limit=$most
    case $failed$skipped in 00) outcome=ok ;; 01) outcome='NOT RUN' ;; *) outcome=FAILED any=1 ;; esac
    record "$entry" "$outcome" '' '' '' $((SECONDS - begun))
done
row 'table' "$table"
exit "$any"
